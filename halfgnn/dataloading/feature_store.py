"""FeatureStore: rows of node or edge features, gathered by id, as they are stored or as the values of codes of 8 bits."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..common.arguments import checked_size
from ..common.ids import check_ids, check_range
from ..ops import gather_rows
from ..ops.codes import VALUES, Codes
from . import quantized_files, store_files
from .gigl import read_gigl
from .scales import Scales, by_row, checked_dtype, scales_given

# Threads wait for pages of a file, not for the processor. More threads keep more reads under way.
_FILE_THREADS = 32
_OF_SIZE = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class FeatureStore:
    """Features (N, *) of any dtype, which is that of the gathered rows too, or codes of 8 bits with a scale, whose values are
    gathered. They are in one of these places:

    * a tensor of the CPU, in shared memory (`share_memory`) or not;
    * a memory-mapped file (`open`, or a numpy.memmap), of which a gather reads only its rows;
    * page-locked memory (`pin_memory`), which a GPU reads by itself, row by row over the bus, like PyTorch-Direct (Min et al.,
    2021);
    * a GPU.

    A store may be pickled to other processes. There files are mapped again, and shared memory stays shared. The rows of a file are
    in read-only memory: writing to `data` would end the process.

    Args:
        data: a tensor, or a numpy array or memmap, (N, *). It is not copied. With a scale: torch.uint8, torch.int8,
            torch.float8_e4m3fn or torch.float8_e5m2.
        num_threads: number of threads of a gather on the CPU; 0 means PyTorch's. The default for files is 32, because the threads
            wait for the disk.
        scale: makes data codes: the gathered rows are (data - zero_point) * scale. A number; (N, 1, ...), one per row; or (*), one
            per column. Finite, not below 0.
        zero_point: of scale's shape, or one number; of integers alone. Rows are rounded once if it has integers below 2**24.
        dtype: of the rows that codes are converted to: torch.float16, by default, torch.bfloat16 or torch.float32.

    Attributes:
        data: as it is stored. scale, zero_point: fp32 tensors, or None. dtype: of the gathered rows.
        error: what :func:`halfgnn.dataloading.quantize` noted in the file; None otherwise.

    Raises:
        TypeError: data is neither tensor nor array; data or dtype have a type that does not go with a scale.
        ValueError: data has no dimensions, or rows that are not contiguous; a scale or zero_point of another shape, or with inf or
            nan; a dtype or zero_point without a scale.
    """

    error: quantized_files.QuantizationError | None = None

    def __init__(
        self,
        data: Any,
        *,
        num_threads: int | None = None,
        scale: Any = None,
        zero_point: Any = None,
        dtype: torch.dtype | None = None,
    ):
        file = None
        if not isinstance(data, Tensor):
            data, file = store_files.of_array(data)
        if data.dim() == 0:
            raise ValueError("data has shape (); expected (N, *), one row per id")
        if data.layout != torch.strided:
            raise TypeError(f"data has layout {data.layout}; expected a dense tensor")
        if data.shape[0] and not data[0].is_contiguous():
            raise ValueError(
                f"data has shape {tuple(data.shape)} and strides {data.stride()}; expected contiguous rows"
            )
        self.data = data.detach()
        self._file = file
        threads = (_FILE_THREADS if file else 0) if num_threads is None else num_threads
        self.num_threads = checked_size(threads, "num_threads")
        self._scales, self._dtype = scales_given(self.data, scale, zero_point), self.data.dtype
        self._on_devices: dict[torch.device, Scales] = {}
        if self._scales is not None:
            self._dtype = checked_dtype(torch.float16 if dtype is None else dtype)
        elif dtype is not None:
            raise ValueError(
                f"dtype is {dtype} without a scale; expected None: rows have data's own, {self.data.dtype}"
            )

    @classmethod
    def open(
        cls,
        path: Any,
        *,
        dtype: torch.dtype | None = None,
        shape: tuple[int, ...] | None = None,
        num_threads: int = _FILE_THREADS,
        name: str | None = None,
        scale: Any = None,
        zero_point: Any = None,
    ) -> FeatureStore:
        """A memory-mapped file: .npy, whose header has dtype and shape; one of codes, which :func:`quantize` wrote; a tensor of
        .safetensors; or raw numbers in row-major order.

        Scales are read into memory, since each gather would wait for them too.

        Args:
            path: the file.
            dtype, shape: those of a raw file, or those that are expected of another file. The first number of a raw file's shape
                may be -1. Of codes, but for raw ones: the dtype that rows are converted to, by default torch.float16.
            num_threads: number of threads that wait for pages at a time.
            name: the tensor in a file of safetensors. It is not needed where there is one alone.
            scale, zero_point: of codes in a file that does not have them, as in FeatureStore; or names of tensors in the file of
                safetensors. One number per row may also have the shape (N,).

        Raises:
            FileNotFoundError: there is no such file. TypeError: a dtype that is not expected, or that cannot be mapped.
            ValueError: a shape or size that is not expected, a name that the file does not have, or a truncated file; or of
                FeatureStore.
        """
        path = Path(path).resolve()
        if dtype is not None and not isinstance(dtype, torch.dtype):
            raise TypeError(f"dtype is {dtype!r}; expected a torch.dtype")
        if name is not None and path.suffix != ".safetensors":
            raise ValueError(f"name is {name!r}; expected None for {path}, which is no file of safetensors")
        state = quantized_files.state(path)
        if path.suffix == ".npy" and (noted := quantized_files.read(path)) is not None:
            for argument, given in (("scale", scale), ("zero_point", zero_point)):
                if given is not None:
                    raise ValueError(f"{argument} is given, and {path} has its own; expected None")
            layout, scale, zero_point, error = noted
            store = cls._mapped(path, layout, shape, num_threads, scale, zero_point, dtype)
            if quantized_files.state(path) != state:
                raise ValueError(f"{path} was written by quantize while it was opened; open it again")
            store.error = error
            return store
        if path.suffix == ".safetensors":
            layouts = store_files.safetensors_layouts(path)
            name = store_files.chosen_name(layouts, name, "name", path)
            layout = layouts[name]
            if not layout.shape:
                raise ValueError(f"{name} of {path} has shape (); expected (N, *), one row per id")
            scale, zero_point = (
                store_files.tensor_in(layouts, x, of, path) for x, of in ((scale, "scale"), (zero_point, "zero_point"))
            )
        else:
            is_npy = path.suffix == ".npy"
            layout = store_files.npy_layout(path) if is_npy else store_files.raw_layout(path, dtype, shape)
        of_rows = None
        if scale is not None and dtype in VALUES and path.suffix in (".npy", ".safetensors"):
            dtype, of_rows = None, dtype
        if dtype is not None and layout.dtype != dtype:
            raise TypeError(f"{path} holds {layout.dtype}; expected {dtype}")
        return cls._mapped(path, layout, shape, num_threads, scale, zero_point, of_rows)

    @classmethod
    def _mapped(
        cls,
        path: Path,
        layout: Any,
        shape: Any,
        num_threads: int,
        scale: Any,
        zero_point: Any,
        dtype: torch.dtype | None,
    ) -> FeatureStore:
        if shape is not None and not store_files.fits(layout.shape, shape):
            raise ValueError(f"{path} has shape {layout.shape}; expected {tuple(shape)}")
        data, file = store_files.mapped(path, layout)
        scale, zero_point = by_row(scale, data), by_row(zero_point, data)
        store = cls(data, num_threads=num_threads, scale=scale, zero_point=zero_point, dtype=dtype)
        store._file = file
        return store

    @classmethod
    def from_gigl(cls, packed: Any, metadata: Any, *, dtype: torch.dtype = torch.float16) -> FeatureStore:
        """Features that GiGL packed in 1, 2, 4 or 8 bits each (its FeatureQuantizationMetadata, #733 to #753).

        Args:
            packed: (N, bytes) torch.uint8, the rows of the field packed_feature_key: a tensor, or a numpy array or memmap.
            metadata: a mapping or an object with quantized_feature_indices and multi_bit_state (clip_min, clip_max, bits) or
                single_bit_state (neg_mean, pos_mean), also in the names of proto's JSON (quantizedFeatureIndices).
            dtype: of the gathered rows.

        8 bits in their original order are used where they are. Others become a copy, of a byte per feature.

        Raises:
            TypeError, ValueError: packed or metadata that do not fit; features that were not quantized beside those that were,
                which need a store of their own.
        """
        codes, scale, zero_point = read_gigl(packed, metadata)
        return cls(codes, scale=scale, zero_point=zero_point, dtype=dtype)

    # ---- properties --------------------------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return self.data.shape[0]

    @property
    def path(self) -> Path | None:
        """The file, if rows are in one."""
        return None if self._file is None else self._file.path

    @property
    def shape(self) -> torch.Size:
        return self.data.shape

    @property
    def dtype(self) -> torch.dtype:
        """Of the gathered rows."""
        return self._dtype

    @property
    def scale(self) -> Tensor | None:
        return None if self._scales is None else self._scales.scale

    @property
    def zero_point(self) -> Tensor | None:
        return None if self._scales is None else self._scales.zero_point

    @property
    def device(self) -> torch.device:
        return self.data.device

    @property
    def nbytes(self) -> int:
        """Of what is stored, scales included."""
        return self.data.numel() * self.data.element_size() + (0 if self._scales is None else self._scales.nbytes)

    def __repr__(self) -> str:
        place = f"file={str(self._file.path)!r}" if self._file else f"device='{self.device}'"
        codes = "" if self._scales is None else f"codes={self.data.dtype}, "
        return f"FeatureStore(shape={tuple(self.shape)}, dtype={self.dtype}, {codes}{place})"

    def __reduce__(self):
        scales = None if self._scales is None else (self.scale, self.zero_point, self.dtype)
        if self._file is None:
            # PyTorch cannot unpickle float8 nor uint16 to uint64 (findings/torch_pickle_float8.sh).
            alike = None if self.data.dtype.is_complex else _OF_SIZE[self.data.element_size()]
            data = self.data if alike is None else self.data.view(alike)
            return _rebuilt, (data, self.num_threads, scales, self.data.dtype, self.error)
        where = (self._file.path, self._file.layout, self._file.window, self._file.state)
        return _reopened, (where, self.num_threads, scales, self.error)

    # ---- other places ------------------------------------------------------------------------------------------------------------

    def pin_memory(self) -> FeatureStore:
        """A copy in page-locked memory, from which a GPU gathers by itself."""
        return self._copied(lambda x: x.contiguous().pin_memory(), self.num_threads)

    def share_memory(self) -> FeatureStore:
        """A copy in memory that processes share."""
        return self._copied(lambda x: x.clone(memory_format=torch.contiguous_format).share_memory_())

    def clone(self) -> FeatureStore:
        """A copy in memory."""
        return self._copied(lambda x: x.clone(memory_format=torch.contiguous_format))

    def to(self, device) -> FeatureStore:
        """A copy on `device`. Itself if it is already there."""
        if torch.device(device) == self.device:
            return self
        return self._copied(lambda x: x.to(device))

    def _copied(self, copy: Callable[[Tensor], Tensor], num_threads: int = 0) -> FeatureStore:
        self._check_file()
        return self._like(copy(self.data), None if self._scales is None else self._scales.mapped(copy), num_threads)

    def _like(self, data: Tensor, scales: Scales | None, num_threads: int) -> FeatureStore:
        """Of other data, with scales that have been checked."""
        store = FeatureStore(data, num_threads=num_threads)
        store._scales, store._dtype, store.error = scales, self._dtype, self.error
        return store

    # ---- rows --------------------------------------------------------------------------------------------------------------------

    def __getitem__(self, ids: Any) -> Any:
        """The store of a slice of rows, without a copy; or the result of :meth:`gather` for ids."""
        if not isinstance(ids, slice):
            return self.gather(ids)
        begin, end, step = ids.indices(len(self))
        if step != 1:
            raise ValueError(f"step is {step}; expected a slice of neighbouring rows")
        scales = self._scales
        if scales is not None and scales.is_by_row(self.shape):
            scales = scales.mapped(lambda x: x[begin:end])
        part = self._like(self.data[begin:end], scales, self.num_threads)
        if self._file is not None:
            first = self._file.window[0]
            part._file = replace(self._file, window=(first + begin, first + max(begin, end)))
        return part

    def rows(self, ids: Tensor) -> Rows:
        """Rows that are gathered later, by :class:`Prefetcher` into the memory from which it copies."""
        check_ids(ids, "ids")
        return Rows(self, ids)

    def gather(self, ids: Tensor, out: Tensor | None = None, device: Any = None) -> Tensor:
        """data[ids], in data's dtype; of codes their values, in the store's dtype.

        Args:
            ids: (n,) int32 or int64, on the CPU, or on the GPU that is to hold the result.
            out: (n, *) that takes the rows, in the store's dtype, contiguous.
            device: of the result. By default that of out, if given; the GPU of ids, if it can read data; otherwise that of data.

        A GPU gathers by itself from its own memory and from page-locked memory. Rows that it cannot read are gathered on the CPU
        and copied.

        Raises:
            IndexError: an id out of range. Nothing has been read then. If ids are on a GPU, it has to be asked.
            TypeError, ValueError: wrong ids or out. RuntimeError: the file has been truncated since it was opened.
        """
        check_ids(ids, "ids")
        device = self._device_of(ids, out, device)
        self._check_file()
        if device.type == "cpu" or self.can_be_read_by(device):
            return self._gathered(ids, out, device)
        rows = self._gathered(ids, None, self.device)
        return rows.to(device) if out is None else out.copy_(rows)

    def codes(self, ids: Tensor | None = None, device: Any = None) -> Codes:
        """The codes of rows `ids`, or of all, for sums over neighbours that read them. All rows are copied only to another device.

        Arguments and errors are those of :meth:`gather`. ValueError: the store has no scale.
        """
        scales = self._scales
        if scales is None:
            raise ValueError(f"{self!r} has no scale; expected a store of codes")
        self._check_file()
        if ids is None:
            return Codes(self.data, scales.scale, scales.zero_point, self.dtype).to(device or self.device)
        check_ids(ids, "ids")
        device = self._device_of(ids, None, device)
        place = device if device.type == "cpu" or self.can_be_read_by(device) else self.device
        ids = self._ids_on(place, ids)
        with self._named():
            data = gather_rows(self.data, ids, num_threads=self.num_threads).to(device)
        is_by_row = scales.is_by_row(self.shape)
        scales = scales.mapped(lambda x: gather_rows(x, ids).to(device)) if is_by_row else self._scales_for(device)
        return Codes(data, scales.scale, scales.zero_point, self.dtype)

    def staged(self, ids: Tensor, empty: Callable[[Any, torch.dtype], Tensor]) -> StagedRows:
        """Codes and scales of rows, in buffers of empty(shape, dtype) on the CPU, for a device that is to convert them.

        Raises:
            See :meth:`gather`.
        """
        check_ids(ids, "ids")
        if self._scales is None:
            raise ValueError(f"{self!r} has no scale; expected a store of codes")
        self._check_file()
        codes = self._copied_rows(self.data, ids, empty)
        if not self._scales.is_by_row(self.shape):
            return StagedRows(self, ids, codes, self._scales)
        return StagedRows(self, ids, codes, self._scales.mapped(lambda x: self._copied_rows(x, ids, empty)))

    def _copied_rows(self, table: Tensor, ids: Tensor, empty: Callable[[Any, torch.dtype], Tensor]) -> Tensor:
        out = empty((ids.shape[0], *table.shape[1:]), table.dtype)
        with self._named():
            return gather_rows(table, ids.to("cpu"), out, num_threads=self.num_threads)

    def read_ahead(self) -> None:
        """Asks the system to read the rows of a file into its cache, in order, beside what the process does next. Does nothing for
        rows in memory."""
        if self._file is not None:
            self._file.read_ahead()

    def can_be_read_by(self, device: torch.device) -> bool:
        """Whether `device` is a GPU that gathers by itself: it holds the rows, or they are in page-locked memory."""
        return device.type == "cuda" and (
            self.device == device or (self.device.type == "cpu" and self.data.is_pinned())
        )

    def _device_of(self, ids: Tensor, out: Tensor | None, device: Any) -> torch.device:
        if out is not None:
            if not isinstance(out, Tensor):
                raise TypeError(f"out is a {type(out).__name__}; expected a torch.Tensor")
            if device is not None and torch.device(device).type != out.device.type:
                raise ValueError(f"out is on {out.device}; expected device, {device}")
            return out.device
        if device is not None:
            device = torch.device(device)
            needs_index = device.type == "cuda" and device.index is None
            return torch.device("cuda", torch.cuda.current_device()) if needs_index else device
        return ids.device if self.can_be_read_by(ids.device) else self.device

    def _ids_on(self, device: torch.device, ids: Tensor) -> Tensor:
        """Checked, unless the gather checks them."""
        if device.type == "cuda" or ids.device != device:
            try:
                check_range(ids, "ids", len(self))
            except ValueError as error:
                raise IndexError(f"{error}, the rows of {self!r}") from None
            ids = ids.to(device, non_blocking=True)
        return ids

    def _gathered(self, ids: Tensor, out: Tensor | None, device: torch.device) -> Tensor:
        """The rows, gathered by the CPU or by a GPU that can read data."""
        ids = self._ids_on(device, ids)
        scale, zero_point, dtype = None, None, None
        if self._scales is not None:
            scales = self._scales_for(device)
            scale, zero_point, dtype = scales.scale, scales.zero_point, self._dtype if out is None else None
            if out is not None and out.dtype != self._dtype:
                raise TypeError(f"out has dtype {out.dtype}; expected {self._dtype}, that of {self!r}")
        with self._named():
            return gather_rows(
                self.data,
                ids,
                out,
                num_threads=self.num_threads,
                scale=scale,
                zero_point=zero_point,
                out_dtype=dtype,
            )

    @contextlib.contextmanager
    def _named(self) -> Iterator[None]:
        """Lets errors of ids name the store."""
        try:
            yield
        except IndexError as error:
            raise IndexError(str(error).replace("the rows of table", f"the rows of {self!r}")) from None

    def _scales_for(self, device: torch.device) -> Scales:
        """The scales as the device reads them: of rows beside data, others in its own memory."""
        scales = self._scales
        assert scales is not None
        if device == self.device or scales.is_by_row(self.shape):
            return scales
        if device not in self._on_devices:
            self._on_devices[device] = scales.mapped(lambda x: x.to(device))
        return self._on_devices[device]

    def _check_file(self) -> None:
        """Raises if the file has been truncated: reading a page past its end would end the process."""
        if self._file is not None:
            self._file.check_size()


@dataclass(frozen=True)
class Rows:
    """Rows `ids` (n,) of a store, not gathered yet."""

    store: FeatureStore
    ids: Tensor

    def gather(self, out: Tensor | None = None, device: Any = None) -> Tensor:
        """See :meth:`FeatureStore.gather`."""
        return self.store.gather(self.ids, out, device)


@dataclass(frozen=True)
class StagedRows(Rows):
    """Rows of codes in page-locked memory, with scales of their own."""

    codes: Tensor
    scales: Scales

    @property
    def nbytes(self) -> int:
        """Of what moves to a device with every batch."""
        by_row = self.scales is not self.store._scales
        return self.codes.nbytes + (self.scales.nbytes if by_row else 0)

    def on(self, device: torch.device) -> Tensor:
        """The values, converted on the device."""
        by_row = self.scales is not self.store._scales
        scales = (
            self.scales.mapped(lambda x: x.to(device, non_blocking=True)) if by_row else self.store._scales_for(device)
        )
        every = torch.arange(self.codes.shape[0], dtype=torch.int32, device=device)
        codes = self.codes.to(device, non_blocking=True)
        return gather_rows(codes, every, scale=scales.scale, zero_point=scales.zero_point, out_dtype=self.store.dtype)


def _restored(store: FeatureStore, scales: Any) -> FeatureStore:
    if scales is not None:
        scale, zero_point, store._dtype = scales
        store._scales = Scales(scale, zero_point, store.data)
    return store


def _rebuilt(data: Tensor, num_threads: int, scales: Any, dtype: torch.dtype, error: Any) -> FeatureStore:
    store = _restored(FeatureStore(data.view(dtype), num_threads=num_threads), scales)
    store.error = error
    return store


def _reopened(where: tuple, num_threads: int, scales: Any, error: Any) -> FeatureStore:
    data, file = store_files.mapped_again(*where)
    store = _restored(FeatureStore(data, num_threads=num_threads), scales)
    store._file, store.error = file, error
    return store
