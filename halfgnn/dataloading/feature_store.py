"""FeatureStore: rows of node or edge features, gathered by id, in the dtype in which they are stored."""

from __future__ import annotations

import mmap
import warnings
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..common.ids import check_ids, check_range
from ..ops import gather_rows

# Threads wait for pages of a file, not for the processor. More threads keep more reads under way.
_FILE_THREADS = 32


class FeatureStore:
    """Features (N, *) of any dtype, which is that of the gathered rows too. They are in one of these places:

    * a tensor of the CPU, in shared memory (`share_memory`) or not;
    * a memory-mapped file (`open`, or a numpy.memmap), of which a gather reads only its rows;
    * page-locked memory (`pin_memory`), which a GPU reads by itself, row by row over the bus, like PyTorch-Direct (Min et al.,
    2021);
    * a GPU.

    A store may be pickled to other processes. There files are mapped again, and shared memory stays shared. The rows of a file are
    in read-only memory: writing to `data` would end the process.

    Args:
        data: a tensor, or a numpy array or memmap, (N, *). It is not copied.
        num_threads: number of threads of a gather on the CPU; 0 means PyTorch's. The default for files is 32, because the threads
            wait for the disk.

    Raises:
        TypeError: data is neither tensor nor array. ValueError: data has no dimensions, or rows that are not contiguous.
    """

    def __init__(self, data: Any, *, num_threads: int | None = None):
        file = None
        if not isinstance(data, Tensor):
            data, file = _of_array(data)
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
        self.num_threads = (_FILE_THREADS if file else 0) if num_threads is None else num_threads

    @classmethod
    def open(
        cls,
        path: Any,
        *,
        dtype: torch.dtype | None = None,
        shape: tuple[int, ...] | None = None,
        num_threads: int = _FILE_THREADS,
    ) -> FeatureStore:
        """A memory-mapped file: .npy, whose header has dtype and shape, or raw numbers in row-major order.

        Args:
            path: the file.
            dtype, shape: those of a raw file, or those that are expected of a .npy file. The first number of a raw file's shape
                may be -1.
            num_threads: number of threads that wait for pages at a time.

        Raises:
            FileNotFoundError: there is no such file. TypeError: a dtype that is not expected, or that cannot be mapped.
            ValueError: a shape or size that is not expected, or a truncated file.
        """
        path = Path(path).resolve()
        if dtype is not None and not isinstance(dtype, torch.dtype):
            raise TypeError(f"dtype is {dtype!r}; expected a torch.dtype")
        is_npy = path.suffix == ".npy"
        layout = _npy_layout(path) if is_npy else _raw_layout(path, dtype, shape)
        if dtype is not None and layout.dtype != dtype:
            raise TypeError(f"{path} holds {layout.dtype}; expected {dtype}")
        if shape is not None and not _fits(layout.shape, shape):
            raise ValueError(f"{path} has shape {layout.shape}; expected {tuple(shape)}")
        return _opened(path, layout, num_threads)

    # ---- properties --------------------------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return self.data.shape[0]

    @property
    def shape(self) -> torch.Size:
        return self.data.shape

    @property
    def dtype(self) -> torch.dtype:
        return self.data.dtype

    @property
    def device(self) -> torch.device:
        return self.data.device

    @property
    def nbytes(self) -> int:
        return self.data.numel() * self.data.element_size()

    def __repr__(self) -> str:
        place = f"file={str(self._file.path)!r}" if self._file else f"device='{self.device}'"
        return f"FeatureStore(shape={tuple(self.shape)}, dtype={self.dtype}, {place})"

    def __reduce__(self):
        if self._file is None:
            return _rebuilt, (self.data, self.num_threads)
        return _reopened, (self._file.path, self._file.layout, self.num_threads, self._file.window, self._file.state)

    # ---- other places ------------------------------------------------------------------------------------------------------------

    def pin_memory(self) -> FeatureStore:
        """A copy in page-locked memory, from which a GPU gathers by itself."""
        self._check_file()
        return FeatureStore(self.data.contiguous().pin_memory(), num_threads=self.num_threads)

    def share_memory(self) -> FeatureStore:
        """A copy in memory that processes share."""
        self._check_file()
        return FeatureStore(self.data.clone(memory_format=torch.contiguous_format).share_memory_())

    def to(self, device) -> FeatureStore:
        """A copy on `device`. Itself if it is already there."""
        if torch.device(device) == self.device:
            return self
        self._check_file()
        return FeatureStore(self.data.to(device))

    # ---- rows --------------------------------------------------------------------------------------------------------------------

    def __getitem__(self, ids: Any) -> Any:
        """The store of a slice of rows, without a copy; or the result of :meth:`gather` for ids."""
        if not isinstance(ids, slice):
            return self.gather(ids)
        begin, end, step = ids.indices(len(self))
        if step != 1:
            raise ValueError(f"step is {step}; expected a slice of neighbouring rows")
        part = FeatureStore(self.data[begin:end], num_threads=self.num_threads)
        if self._file is not None:
            first = self._file.window[0]
            part._file = replace(self._file, window=(first + begin, first + max(begin, end)))
        return part

    def rows(self, ids: Tensor) -> Rows:
        """Rows that are gathered later, by :class:`Prefetcher` into the memory from which it copies."""
        check_ids(ids, "ids")
        return Rows(self, ids)

    def gather(self, ids: Tensor, out: Tensor | None = None, device: Any = None) -> Tensor:
        """data[ids], in data's dtype.

        Args:
            ids: (n,) int32 or int64, on the CPU, or on the GPU that is to hold the result.
            out: (n, *) that takes the rows, in data's dtype, contiguous.
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

    def read_ahead(self) -> None:
        """Asks the system to read the rows of a file into its cache, in order, beside what the process does next. Does nothing for
        rows in memory."""
        if self._file is not None and self._file.mapped is not None and hasattr(mmap, "MADV_WILLNEED"):
            begin, end = self._file.bytes()
            begin -= begin % mmap.PAGESIZE
            if end > begin:
                self._file.mapped.madvise(mmap.MADV_WILLNEED, begin, end - begin)

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

    def _gathered(self, ids: Tensor, out: Tensor | None, device: torch.device) -> Tensor:
        """The rows, gathered by the CPU or by a GPU that can read data."""
        if device.type == "cuda" or ids.device != device:
            try:
                check_range(ids, "ids", len(self))
            except ValueError as error:
                raise IndexError(f"{error}, the rows of {self!r}") from None
            ids = ids.to(device, non_blocking=True)
        try:
            return gather_rows(self.data, ids, out, num_threads=self.num_threads)
        except IndexError as error:
            raise IndexError(str(error).replace("the rows of table", f"the rows of {self!r}")) from None

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


def _rebuilt(data: Tensor, num_threads: int) -> FeatureStore:
    return FeatureStore(data, num_threads=num_threads)


# ---- files -------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Layout:
    """The content of a file: numbers of `dtype` in row-major order, from byte `offset` on."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    offset: int

    @property
    def count(self) -> int:
        return int(torch.Size(self.shape).numel())

    @property
    def end(self) -> int:
        return self.offset + self.count * self.dtype.itemsize


@dataclass(frozen=True)
class _File:
    path: Path
    layout: _Layout
    mapped: Any  # mmap.mmap; None of an empty file
    window: tuple[int, int]  # rows of the layout
    state: tuple[int, int]  # size, and time of the last change

    def bytes(self) -> tuple[int, int]:
        """Of the window, in the file."""
        row = torch.Size(self.layout.shape[1:]).numel() * self.layout.dtype.itemsize
        return self.layout.offset + self.window[0] * row, self.layout.offset + self.window[1] * row

    def check_size(self) -> None:
        if self.mapped is not None and self.mapped.size() < self.layout.end:  # size() asks the file
            raise RuntimeError(_truncated(self.path, self.mapped.size(), self.layout))


def _truncated(path: Path, size: int, layout: _Layout) -> str:
    return f"{path} has {size} bytes; expected {layout.end}, for {layout.shape} of {layout.dtype}: it is truncated"


def _opened(path: Path, layout: _Layout, num_threads: int, window: tuple[int, int] | None = None) -> FeatureStore:
    if path.stat().st_size < layout.end:
        raise ValueError(_truncated(path, path.stat().st_size, layout))
    data, mapped = torch.empty(layout.shape, dtype=layout.dtype, device="cpu"), None
    if layout.count:
        with path.open("rb") as handle:
            mapped = mmap.mmap(handle.fileno(), layout.end, access=mmap.ACCESS_READ)
        if hasattr(mmap, "MADV_RANDOM"):
            mapped.madvise(mmap.MADV_RANDOM)  # rows are far apart, so the kernel should not read ahead
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # of read-only memory, to which a store never writes
            flat = torch.frombuffer(mapped, dtype=layout.dtype, offset=layout.offset, count=layout.count)
        data = flat.view(layout.shape)
    file = _File(path, layout, mapped, window or (0, layout.shape[0]), _state(path))
    store = FeatureStore(data[slice(*file.window)], num_threads=num_threads)
    store._file = file
    return store


def _state(path: Path) -> tuple[int, int]:
    stat = path.stat()
    return stat.st_size, stat.st_mtime_ns


def _reopened(
    path: Path, layout: _Layout, num_threads: int, window: tuple[int, int], state: tuple[int, int]
) -> FeatureStore:
    if _state(path) != state:
        raise ValueError(f"{path} has changed since its FeatureStore was made; expected the same file")
    return _opened(path, layout, num_threads, window)


def _npy_layout(path: Path) -> _Layout:
    import numpy as np

    with path.open("rb") as file:
        try:
            version = np.lib.format.read_magic(file)
            read = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}[version]
            shape, is_fortran, dtype = read(file)
        except (ValueError, KeyError) as error:
            raise ValueError(f"{path} is no .npy file: {error}") from None
        if is_fortran or not shape:
            raise ValueError(
                f"{path} has shape {shape}{' in column-major order' * is_fortran}; expected rows in row-major order"
            )
        return _Layout(_torch_dtype(dtype, path), tuple(shape), file.tell())


def _raw_layout(path: Path, dtype: torch.dtype | None, shape: tuple[int, ...] | None) -> _Layout:
    if dtype is None or shape is None:
        raise ValueError(f"dtype and shape are needed for {path}, which is no .npy file")
    shape = tuple(shape)
    size = path.stat().st_size
    row = int(torch.Size(shape[1:]).numel()) * dtype.itemsize
    if shape[:1] == (-1,):
        shape = (size // row if row else 0, *shape[1:])
    layout = _Layout(dtype, shape, 0)
    if size != layout.end:
        raise ValueError(
            f"{path} has {size} bytes; expected {layout.end}, for {shape} of {dtype}: is it truncated, or another dtype?"
        )
    return layout


def _fits(shape: tuple[int, ...], expected: tuple[int, ...]) -> bool:
    return len(shape) == len(expected) and all(want in (-1, have) for have, want in zip(shape, expected))


def _torch_dtype(dtype: Any, what: Any) -> torch.dtype:
    """The torch.dtype of a numpy dtype."""
    torch_dtype = getattr(torch, dtype.name, None)
    if not isinstance(torch_dtype, torch.dtype) or not dtype.isnative:
        raise TypeError(
            f"{what} holds numbers of {dtype!r}; expected a type that torch has, in this machine's byte order"
        )
    return torch_dtype


def _of_array(data: Any) -> tuple[Tensor, _File | None]:
    """A numpy array as a tensor in the same memory, and the file if it is a memmap."""
    import numpy as np

    if not isinstance(data, np.ndarray):
        raise TypeError(f"data is a {type(data).__name__}; expected a torch.Tensor or a numpy array")
    dtype = _torch_dtype(data.dtype, "data")
    if any(stride < 0 for stride in data.strides):
        raise ValueError(f"data has strides {data.strides}; expected none below 0")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        tensor = torch.from_numpy(data)
    root: Any = data  # a view or slice of a memmap lies in its memory
    while isinstance(getattr(root, "base", None), np.ndarray):
        root = root.base
    if not isinstance(root, np.memmap) or root.filename is None:
        return tensor, None
    if root.mode == "c":
        raise ValueError(
            "data is a copy-on-write memmap, and other processes would not see what was written into it; expected mode 'r'"
        )
    if not data.flags.c_contiguous:
        raise ValueError(f"data is a memmap with strides {data.strides}; expected whole rows, one after the other")
    layout = _Layout(dtype, tuple(data.shape), root.offset + data.ctypes.data - root.ctypes.data)
    path = Path(root.filename).resolve()
    mapped = root._mmap  # type: ignore[attr-defined]
    return tensor, _File(path, layout, mapped, (0, len(data)), _state(path))
