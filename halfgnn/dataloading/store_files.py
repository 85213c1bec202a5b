"""The files behind FeatureStores: what they hold, and the memory that they are mapped into."""

from __future__ import annotations

import fcntl
import json
import math
import mmap
import os
import struct
import warnings
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

# The names that safetensors has for types of numbers.
_SAFETENSORS = {
    "BOOL": torch.bool, "U8": torch.uint8, "I8": torch.int8, "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2,
    "I16": torch.int16, "I32": torch.int32, "I64": torch.int64, "F16": torch.float16, "BF16": torch.bfloat16,
    "F32": torch.float32, "F64": torch.float64,
}  # fmt: skip
_MOST_HEADER_BYTES = 100_000_000  # as of the format's own reader


@dataclass(frozen=True)
class Layout:
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
class File:
    path: Path
    layout: Layout
    mapped: Any  # mmap.mmap; None of an empty file
    window: tuple[int, int]  # rows of the layout
    state: tuple[int, int]  # size, and time of the last change

    def check_size(self) -> None:
        if self.mapped is not None and self.mapped.size() < self.layout.end:  # size() asks the file
            raise RuntimeError(_truncated(self.path, self.mapped.size(), self.layout))

    def read_ahead(self) -> None:
        """Asks the system to read the window into its cache, in order, beside what the process does next."""
        if self.mapped is None or not hasattr(mmap, "MADV_WILLNEED"):
            return
        row = torch.Size(self.layout.shape[1:]).numel() * self.layout.dtype.itemsize
        begin, end = (self.layout.offset + number * row for number in self.window)
        begin -= begin % mmap.PAGESIZE
        if end > begin:
            self.mapped.madvise(mmap.MADV_WILLNEED, begin, end - begin)


class NewFile:
    """A .npy file of rows, which are written in any order. A mapped file would end the process when the disk is full.

    Raises:
        ValueError: another process or thread is writing it. OSError: it cannot be written.
    """

    def __init__(self, path: Path, dtype: Any, shape: tuple[int, ...]):
        import numpy as np

        descr = np.lib.format.dtype_to_descr(np.dtype(dtype))
        self._row = int(torch.Size(shape[1:]).numel()) * np.dtype(dtype).itemsize
        self._file = os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT, 0o666), "wb")
        if not self._is_locked(path):
            self._file.close()
            raise ValueError(f"{path} is being written by another process or thread; expected one at a time")
        self._file.truncate()
        np.lib.format.write_array_header_1_0(
            self._file, {"descr": descr, "fortran_order": False, "shape": tuple(shape)}
        )
        self._begin = self._file.tell()

    def _is_locked(self, path: Path) -> bool:
        """For this object alone, until it is closed or its process ends."""
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError:  # a file system without locks
            pass
        try:
            return os.path.samestat(os.fstat(self._file.fileno()), path.stat())
        except FileNotFoundError:  # who had it has moved it
            return False

    def write(self, first: int, rows: Any) -> None:
        """rows: a numpy array of the file's dtype. Raises OSError if it cannot be written."""
        self._file.seek(self._begin + first * self._row)
        self._file.write(rows.tobytes())

    def flush(self) -> None:
        self._file.flush()

    def __enter__(self) -> NewFile:
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()


def _truncated(path: Path, size: int, layout: Layout) -> str:
    return f"{path} has {size} bytes; expected {layout.end}, for {layout.shape} of {layout.dtype}: it is truncated"


def mapped(path: Path, layout: Layout, window: tuple[int, int] | None = None) -> tuple[Tensor, File]:
    """The rows of a window of a file, in read-only memory, and the file."""
    if path.stat().st_size < layout.end:
        raise ValueError(_truncated(path, path.stat().st_size, layout))
    data, memory = torch.empty(layout.shape, dtype=layout.dtype, device="cpu"), None
    if layout.count:
        with path.open("rb") as handle:
            memory = mmap.mmap(handle.fileno(), layout.end, access=mmap.ACCESS_READ)
        if hasattr(mmap, "MADV_RANDOM"):
            memory.madvise(mmap.MADV_RANDOM)  # rows are far apart, so the kernel should not read ahead
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # of read-only memory, to which a store never writes
            flat = torch.frombuffer(memory, dtype=layout.dtype, offset=layout.offset, count=layout.count)
        data = flat.view(layout.shape)
    file = File(path, layout, memory, window or (0, layout.shape[0]), _state(path))
    return data[slice(*file.window)], file


def _state(path: Path) -> tuple[int, int]:
    stat = path.stat()
    return stat.st_size, stat.st_mtime_ns


def mapped_again(path: Path, layout: Layout, window: tuple[int, int], state: tuple[int, int]) -> tuple[Tensor, File]:
    if _state(path) != state:
        raise ValueError(f"{path} has changed since its FeatureStore was made; expected the same file")
    return mapped(path, layout, window)


def npy_layout(path: Path) -> Layout:
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
        if not _is_shape(shape):
            raise ValueError(f"{path} is no .npy file: it has shape {shape}")
        return Layout(_torch_dtype(dtype, path), tuple(shape), file.tell())


def raw_layout(path: Path, dtype: torch.dtype | None, shape: tuple[int, ...] | None) -> Layout:
    if dtype is None or shape is None:
        raise ValueError(f"dtype and shape are needed for {path}, which is no .npy file")
    shape = tuple(shape)
    size = path.stat().st_size
    row = int(torch.Size(shape[1:]).numel()) * dtype.itemsize
    if shape[:1] == (-1,):
        shape = (size // row if row else 0, *shape[1:])
    layout = Layout(dtype, shape, 0)
    if size != layout.end:
        raise ValueError(
            f"{path} has {size} bytes; expected {layout.end}, for {shape} of {dtype}: is it truncated, or another dtype?"
        )
    return layout


def safetensors_layouts(path: Path) -> dict[str, Layout]:
    """The tensors of a file of safetensors, by name: a length in 8 bytes, a header in JSON, and the numbers."""
    size = path.stat().st_size
    with path.open("rb") as file:
        start = file.read(8)
        length = struct.unpack("<Q", start)[0] if len(start) == 8 else size
        if length > min(size - 8, _MOST_HEADER_BYTES):
            raise ValueError(f"{path} is no file of safetensors: its header does not fit in its {size} bytes")
        try:
            header = parsed(file.read(length))
            layouts = {}
            for name, tensor in header.items():
                if name == "__metadata__":
                    continue
                begin, end = tensor["data_offsets"]
                dtype = _SAFETENSORS.get(tensor["dtype"])
                if not _is_shape(tensor["shape"]) or not all(type(byte) is int for byte in (begin, end)):
                    raise ValueError(f"{name} has shape {tensor['shape']} and data_offsets {begin}, {end}")
                layout = Layout(dtype or torch.uint8, tuple(tensor["shape"]), 8 + length + begin)
                if dtype is not None and (layout.offset < 8 + length or layout.end != 8 + length + end):
                    raise ValueError(f"{name} has {end - begin} bytes; expected {layout.end - layout.offset}")
                if dtype is not None:
                    layouts[name] = layout
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"{path} is no file of safetensors: {error}") from None
    return layouts


def chosen_name(layouts: dict[str, Layout], name: Any, argument: str, path: Path) -> str:
    """The name of a tensor in a file of safetensors."""
    if name is None and len(layouts) == 1:
        return next(iter(layouts))
    if not isinstance(name, str) or name not in layouts:
        raise ValueError(f"{argument} is {name!r}; expected one of the tensors of {path}: {', '.join(layouts)}")
    return name


def tensor_in(layouts: dict[str, Layout], value: Any, argument: str, path: Path) -> Any:
    """A copy of the tensor that a string names; other values as they are."""
    if not isinstance(value, str):
        return value
    layout = layouts[chosen_name(layouts, value, argument, path)]
    in_rows = layout if layout.shape else replace(layout, shape=(1,))
    return mapped(path, in_rows)[0].view(layout.shape).clone()


def fits(shape: tuple[int, ...], expected: tuple[int, ...]) -> bool:
    return len(shape) == len(expected) and all(want in (-1, have) for have, want in zip(shape, expected))


def parsed(text: str | bytes) -> Any:
    """JSON. Raises ValueError if it is none, or too deep to be read."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("its JSON is too deep") from None


def _is_shape(shape: Any) -> bool:
    """Whether it has sizes whose product is a number of bytes, of any type. A Size of other ones would overflow."""
    return all(type(size) is int and size >= 0 for size in shape) and math.prod(max(1, size) for size in shape) < 2**59


def _torch_dtype(dtype: Any, what: Any) -> torch.dtype:
    """The torch.dtype of a numpy dtype."""
    torch_dtype = getattr(torch, dtype.name, None)
    if not isinstance(torch_dtype, torch.dtype) or not dtype.isnative:
        raise TypeError(
            f"{what} holds numbers of {dtype!r}; expected a type that torch has, in this machine's byte order"
        )
    return torch_dtype


def of_array(data: Any) -> tuple[Tensor, File | None]:
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
    layout = Layout(dtype, tuple(data.shape), root.offset + data.ctypes.data - root.ctypes.data)
    path = Path(root.filename).resolve()
    mapped = root._mmap  # type: ignore[attr-defined]
    return tensor, File(path, layout, mapped, (0, len(data)), _state(path))
