"""quantize: features as codes of 8 bits, in files, a block of rows at a time."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..common.arguments import check_name, checked_size
from ..ops.codes import CODES
from . import quantized_files
from .codes import Block, Losses, encoded, saturated, scales_of, width_of
from .feature_store import FeatureStore
from .scales import INTEGERS, Scales, rows_of
from .store_files import NewFile

_PER = ("row", "column", "tensor")
_BLOCK_BYTES = 1 << 22  # of the values of a block, in fp32

Progress = Callable[[Iterable], Iterable]


def quantize(
    source: Any,
    out: Any,
    dtype: torch.dtype,
    scale: Any = "row",
    *,
    zero_point: Any = None,
    block_rows: int | None = None,
    progress: Progress | None = None,
) -> FeatureStore:
    """Writes features as codes of 8 bits, from any source that FeatureStore takes, also one larger than memory.

    * torch.uint8: code 0 stands for about the smallest value, and steps are 1/254 of the range. Zero points are integers, so that
      zeros stay zeros if the range has 0 in it.
    * torch.int8: steps are 1/127 of the largest magnitude, without a zero point.
    * torch.float8_e4m3fn, torch.float8_e5m2: the largest magnitude becomes 448 or 57344, the largest number of the type.

    A value's error is at most half the distance between codes around it, beside rounding in fp32. Constant rows, columns or tensors
    are exact: to the last bit in uint8 and for zeros, whose scale is 1.

    Args:
        source: (N, *): a tensor, a numpy array or memmap, the path of a file that FeatureStore.open takes, or a FeatureStore.
        out: a file .npy for the codes; it is overwritten. `FeatureStore.open(out)` reads it, with the files .json, .scale.npy and
            .zero_point.npy beside it, which have the same name before the dot.
        dtype: of the codes.
        scale: what has a scale of its own: "row", "column" or "tensor". Columns and tensors are read twice. Or the scales, as
            FeatureStore takes them, of other features for example: values beyond their range become the last code.
        zero_point: beside scales that are given, of integers alone.
        block_rows: rows that are in memory at a time; by default 4 MiB of float32.
        progress: wraps the blocks of each pass, as tqdm.tqdm does.

    Returns:
        The store of the file. Its `error` says what was lost (:class:`QuantizationError`).

    Raises:
        TypeError: a dtype that is none of these, or a source of complex numbers.
        ValueError: nan or inf that dtype has no code for (only the float8 types have nan, and only torch.float8_e5m2 inf), or a
            number beyond float32, with its row and column; an `out` that is no .npy file, whose files would overwrite the source,
            beside which a .json of somebody else lies, or that another process writes; another scale; a `progress` that leaves
            blocks out; or of FeatureStore.
    """
    if dtype not in CODES:
        raise TypeError(
            f"dtype is {dtype}; expected torch.uint8, torch.int8, torch.float8_e4m3fn or torch.float8_e5m2, as codes"
        )
    store, path = _store_of(source), Path(out).resolve()
    if path.suffix != ".npy":
        raise ValueError(f"out is {str(path)!r}; expected a file .npy")
    if store.device.type == "meta":
        raise ValueError("source is on meta, which holds no numbers; expected another device")
    if store.dtype.is_complex:
        raise TypeError(f"source has dtype {store.dtype}; expected real numbers")
    quantized_files.check_out(path, store.path)
    blocks = _Blocks(store, dtype, block_rows)
    wrap = progress or (lambda items: items)
    codes = quantized_files.files_of(path)["partial codes"]
    stored = np.int8 if dtype == torch.int8 else np.uint8
    with NewFile(codes, stored, tuple(store.shape)) as file:  # nobody else writes them until they are in place
        try:
            writer = _Writer(file, store.shape, dtype)
            scales = _write_codes(lambda: wrap(blocks), writer, scale, zero_point)
            quantized_files.write(path, dtype, tuple(store.shape), scales, writer.finished())
        except BaseException:
            quantized_files.remove_partial(path)
            raise
    return FeatureStore.open(path)


def _write_codes(passes: Callable[[], Iterable[Block]], writer: _Writer, scale: Any, zero_point: Any) -> Scales:
    """passes: begins a pass over the blocks."""
    if not isinstance(scale, str):
        scales = Scales(scale, zero_point, torch.empty(1, dtype=writer.dtype).expand(writer.shape))
        _write_with(passes(), writer, scales, may_saturate=True)
        return scales
    check_name(scale, "scale", _PER)
    if zero_point is not None:
        raise ValueError(f"zero_point is given beside scale={scale!r}; expected scales that are given too")
    if scale == "row":
        return _write_by_row(passes(), writer)
    scales = _scales_of_all(passes(), writer.shape, writer.dtype, scale)
    _write_with(passes(), writer, scales)
    return scales


def _store_of(source: Any) -> FeatureStore:
    if isinstance(source, FeatureStore):
        return source
    if isinstance(source, (str, Path)):
        return FeatureStore.open(source)
    return FeatureStore(source)


class _Blocks:
    """The rows of a store in order, as Blocks on the CPU. It has a length, for a progress bar."""

    def __init__(self, store: FeatureStore, dtype: torch.dtype, rows: int | None):
        self._store, self._dtype, self._width = store, dtype, width_of(store.shape)
        most = _BLOCK_BYTES // (4 * max(1, self._width))
        self._rows = max(1, most) if rows is None else checked_size(rows, "block_rows", least=1)

    def __len__(self) -> int:
        return -(-len(self._store) // self._rows)

    def __iter__(self) -> Iterator[Block]:
        exact = torch.float64 if self._store.dtype in (torch.float64, torch.int32, torch.int64) else torch.float32
        for first in range(0, len(self._store), self._rows):
            ids = torch.arange(first, min(first + self._rows, len(self._store)))
            x = self._store.gather(ids, device="cpu")
            yield Block.of(first, x.to(exact).reshape(len(ids), self._width), self._dtype)


class _Writer:
    """Codes on their way to a file."""

    def __init__(self, file: NewFile, shape: torch.Size, dtype: torch.dtype):
        self.dtype, self.shape = dtype, shape
        self.losses = Losses(width_of(self.shape))
        self._file, self._count = file, 0

    def add(self, block: Block, scales: Scales) -> None:
        """scales: of the block, for (n, width)."""
        codes = encoded(block, scales, self.dtype)
        self.losses.add(block, codes, scales)
        stored = codes if self.dtype in INTEGERS else codes.view(torch.uint8)
        self._file.write(block.first, stored.numpy())
        self._count += len(codes)

    def finished(self) -> quantized_files.QuantizationError:
        """Raises ValueError if rows are missing."""
        if self._count != self.shape[0]:
            raise ValueError(
                f"progress gave blocks of {self._count} rows; expected all that it got, of {self.shape[0]} rows"
            )
        self._file.flush()
        return self.losses.error()


def _scales_of_all(blocks: Iterable[Block], shape: torch.Size, dtype: torch.dtype, per: str) -> Scales:
    """One scale for each column, or one alone."""
    low = torch.full((1, width_of(shape)), torch.inf, dtype=torch.float64)
    high = -low
    for block in blocks:
        of_block = block.range_along(0)
        low, high = torch.minimum(low, of_block[0]), torch.maximum(high, of_block[1])
    if per == "column":
        return scales_of((low, high), dtype).mapped(lambda x: x.reshape(shape[1:]))
    if low.numel() == 0:
        low, high = low.new_zeros(1), high.new_zeros(1)
    return scales_of((low.amin(), high.amax()), dtype)


def _write_by_row(blocks: Iterable[Block], writer: _Writer) -> Scales:
    """Scales are those of the rows of a block: the source is read once."""
    nothing = torch.zeros(0, 1)
    every = [Scales.unchecked(nothing, nothing if writer.dtype == torch.uint8 else None)]
    for block in blocks:
        scales = scales_of(block.range_along(1), writer.dtype)
        writer.add(block, scales)
        every.append(scales)
    scale = torch.cat([part.scale for part in every])
    zero_points = [part.zero_point for part in every if part.zero_point is not None]
    of_all = Scales.unchecked(scale, torch.cat(zero_points) if zero_points else None)
    return of_all.mapped(lambda x: x.reshape(-1, *rows_of(writer.shape)[1:]))


def _write_with(blocks: Iterable[Block], writer: _Writer, scales: Scales, may_saturate: bool = False) -> None:
    by_row = scales.is_by_row(writer.shape)

    def of_rows(values: Tensor, first: int, count: int) -> Tensor:
        return values.view(-1, 1)[first : first + count] if by_row else values.reshape(1, -1)

    for block in blocks:
        part = scales.mapped(functools.partial(of_rows, first=block.first, count=len(block.x)))
        writer.add(block, part)
        if may_saturate:
            writer.losses.saturated += saturated(block, part, writer.dtype)
