"""Blocks of values as codes of 8 bits, and what is lost by it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Size, Tensor

from .quantized_files import QuantizationError
from .scales import INTEGERS, Scales

# The largest code of each type, of those that are used. int8 is symmetric, but for scales that are given.
_LARGEST = {torch.uint8: 255.0, torch.int8: 127.0, torch.float8_e4m3fn: 448.0, torch.float8_e5m2: 57344.0}
_LEAST = {torch.uint8: 0.0, torch.int8: -128.0, torch.float8_e4m3fn: -448.0, torch.float8_e5m2: -57344.0}
# Half the distance between the two largest numbers, as a part of the largest.
_HALF_STEP = {torch.float8_e4m3fn: 1 / 28, torch.float8_e5m2: 1 / 14}
_MOST = torch.finfo(torch.float32).max
_TINY = torch.finfo(torch.float32).tiny  # smaller scales have fewer bits than a float

Range = tuple[Tensor, Tensor]  # the smallest and the largest value, in fp64


@dataclass(frozen=True)
class Block:
    """Rows (n, width) of float32, or of float64 if float32 cannot hold them, from row `first` on."""

    first: int
    x: Tensor
    is_finite: bool

    @classmethod
    def of(cls, first: int, x: Tensor, dtype: torch.dtype) -> Block:
        """Raises ValueError if x has nan or inf that `dtype` has no code for."""
        is_finite = bool(x.sum().isfinite()) or bool(x.isfinite().all())  # a sum of finite values may be inf
        if not is_finite and dtype != torch.float8_e5m2:
            missing = ~x.isfinite() if dtype in INTEGERS else x.isinf()
            if missing.any():
                row, column = missing.nonzero()[0].tolist()
                raise ValueError(
                    f"source has {x[row, column].item()} in row {first + row}, column {column}; expected numbers that {dtype} can"
                    " hold"
                )
        if x.dtype == torch.float64:
            beyond = x.isfinite() & (x.abs() > _MOST)
            if beyond.any():
                row, column = beyond.nonzero()[0].tolist()
                raise ValueError(
                    f"source has {x[row, column].item()} in row {first + row}, column {column}; expected numbers that float32 can"
                    " hold"
                )
        return cls(first, x, is_finite)

    def range_along(self, dim: int) -> Range:
        """Of the finite values; inf and -inf where there are none."""
        x = self.x
        if x.shape[dim] == 0:
            none = torch.full(
                [1 if d == dim else size for d, size in enumerate(x.shape)], torch.inf, dtype=torch.float64
            )
            return none, -none
        if self.is_finite:
            low, high = torch.aminmax(x, dim=dim, keepdim=True)
        else:
            finite = x.isfinite()
            low = torch.where(finite, x, torch.inf).amin(dim, keepdim=True)
            high = torch.where(finite, x, -torch.inf).amax(dim, keepdim=True)
        return low.double(), high.double()


def scales_of(found: Range, dtype: torch.dtype) -> Scales:
    """The scales by which codes of `dtype` cover these ranges."""
    has_none = found[0] > found[1]
    low, high = found[0].masked_fill(has_none, 0), found[1].masked_fill(has_none, 0)
    if dtype != torch.uint8:
        return Scales.unchecked(_not_too_small(torch.maximum(high, -low) / _LARGEST[dtype]), None)
    # One code is left over: zero points are rounded, which moves the range by up to half a step. A range of one value has
    # a step of this size, so that the value is a code.
    scale = _not_too_small(torch.where(high > low, (high - low) / (_LARGEST[dtype] - 1), high.abs()))
    return Scales.unchecked(scale, (-low / scale.double()).round().float())


def _not_too_small(scale: Tensor) -> Tensor:
    """In fp32. Zeros have a scale of 1, by which an inf beside them stays one."""
    return torch.where(scale > 0, scale.clamp(min=_TINY), 1.0).float()


def encoded(block: Block, scales: Scales, dtype: torch.dtype) -> Tensor:
    """The codes nearest to a block's values. Beyond their range that is the last code, but inf stays inf in float8_e5m2."""
    ratio = _ratio(block, scales)
    if dtype in INTEGERS:
        if scales.zero_point is not None:
            ratio += scales.zero_point
        return ratio.round_().clamp_(_LEAST[dtype], _LARGEST[dtype]).to(dtype)
    within = ratio.clamp(_LEAST[dtype], _LARGEST[dtype])
    if not block.is_finite:
        within = torch.where(ratio.isinf() & block.x.isinf(), ratio, within)
    return within.float().to(dtype)


def saturated(block: Block, scales: Scales, dtype: torch.dtype) -> int:
    """How many finite values lie more than half a step beyond the last code."""
    ratio = _ratio(block, scales)
    if scales.zero_point is not None:
        ratio += scales.zero_point
    spare = 0.5 if dtype in INTEGERS else _LARGEST[dtype] * _HALF_STEP[dtype]
    beyond = (ratio > _LARGEST[dtype] + spare) | (ratio < _LEAST[dtype] - spare)
    beyond |= (scales.scale == 0) & (block.x != 0)
    return int((beyond & block.x.isfinite()).sum())


def _ratio(block: Block, scales: Scales) -> Tensor:
    """x / scale; by a scale of 0, which makes every value 0, finite x become 0."""
    is_zero = scales.scale == 0
    if not is_zero.any():
        return block.x / scales.scale
    ratio = block.x / scales.scale.masked_fill(is_zero, 1)
    return ratio.masked_fill_(is_zero & block.x.isfinite(), 0)


class Losses:
    """What was lost so far, by column."""

    def __init__(self, width: int):
        self._largest = torch.zeros(width, dtype=torch.float64)
        self._sum, self._count = torch.zeros_like(self._largest), torch.zeros_like(self._largest)
        self.saturated = 0

    def add(self, block: Block, codes: Tensor, scales: Scales) -> None:
        values = codes.float()
        if scales.zero_point is not None:
            values -= scales.zero_point
        values *= scales.scale
        lost = (values - block.x).abs_()
        if block.is_finite:
            self._count += len(block.x)
        else:
            known = block.x.isfinite()
            lost.masked_fill_(~known, 0)
            self._count += known.sum(0)
        if len(lost):
            self._largest = torch.maximum(self._largest, lost.amax(0))
        self._sum += lost.sum(0, dtype=torch.float64)

    def error(self) -> QuantizationError:
        mean = self._sum / self._count.clamp(min=1)
        return QuantizationError(
            largest=self._largest.max().item() if len(mean) else 0.0,
            mean=(self._sum.sum() / self._count.sum().clamp(min=1)).item(),
            largest_of_columns=tuple(self._largest.tolist()),
            mean_of_columns=tuple(mean.tolist()),
            saturated=self.saturated,
        )


def width_of(shape: Size) -> int:
    """The values of a row."""
    return int(Size(shape[1:]).numel())
