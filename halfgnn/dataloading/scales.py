"""What the codes of a FeatureStore of 8 bits stand for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..ops.codes import CODES, VALUES

INTEGERS = (torch.uint8, torch.int8)


def rows_of(shape: torch.Size) -> tuple[int, ...]:
    """The shape of one number for each row of a table."""
    return (shape[0], *[1] * (len(shape) - 1))


class Scales:
    """value = (code - zero_point) * scale, for a table of codes: one scale, one per row or one per column.

    Args:
        scale: a number, a tensor or an array: of one element, of (N, 1, ...) for one per row, or of a row's shape (*) for one per
            column. Finite, and not below 0.
        zero_point: None, or finite numbers of scale's shape. Only for integers.
        table: (N, *) of codes.

    Raises:
        TypeError: wrong types. ValueError: wrong shapes, or numbers that are not finite or, of scale, below 0.
    """

    def __init__(self, scale: Any, zero_point: Any, table: Tensor):
        self.scale: Tensor = _floats(scale, "scale", table)
        self.zero_point: Tensor | None = None if zero_point is None else _floats(zero_point, "zero_point", table)
        if (self.scale < 0).any():
            raise ValueError(f"scale has {self.scale.min().item()}; expected no number below 0")
        if self.zero_point is None:
            return
        if table.dtype not in INTEGERS:
            raise ValueError(f"zero_point is given for {table.dtype}; expected None, since such numbers have a zero")
        if self.zero_point.shape != self.scale.shape:
            if self.zero_point.numel() != 1:
                raise ValueError(
                    f"zero_point has shape {tuple(self.zero_point.shape)}; expected that of scale, {tuple(self.scale.shape)}"
                )
            self.zero_point = self.zero_point.reshape(()).expand(self.scale.shape).contiguous()

    @classmethod
    def unchecked(cls, scale: Tensor, zero_point: Tensor | None) -> Scales:
        """Of tensors as a checked Scales has them."""
        scales = object.__new__(cls)
        scales.scale, scales.zero_point = scale, zero_point
        return scales

    @property
    def nbytes(self) -> int:
        return 4 * self.scale.numel() * (1 if self.zero_point is None else 2)

    def is_by_row(self, shape: torch.Size) -> bool:
        """Of a table of this shape."""
        return self.scale.numel() != 1 and tuple(self.scale.shape) == rows_of(shape)

    def mapped(self, change: Callable[[Tensor], Tensor]) -> Scales:
        """Of changed tensors, which are not checked again."""
        return Scales.unchecked(change(self.scale), None if self.zero_point is None else change(self.zero_point))


def _floats(values: Any, name: str, table: Tensor) -> Tensor:
    """fp32, contiguous, on the table's device, in one of the three shapes."""
    try:
        given = torch.as_tensor(values).detach()
    except (TypeError, ValueError, RuntimeError):
        raise TypeError(f"{name} is a {type(values).__name__}; expected a number, a tensor or an array") from None
    for what, device in ((name, given.device), ("data", table.device)):
        if device.type == "meta":
            raise ValueError(f"{what} is on meta, which holds no numbers; expected another device")
    if given.dtype is torch.bool or given.is_complex() or given.is_quantized:
        raise TypeError(f"{name} has dtype {given.dtype}; expected real numbers")
    if given.layout != torch.strided:
        raise TypeError(f"{name} has layout {given.layout}; expected a dense tensor")
    rows, columns = rows_of(table.shape), tuple(table.shape[1:])
    if given.numel() == 1 and given.shape != rows:
        given = given.reshape(())
    elif tuple(given.shape) == (1, *columns) and given.shape != rows:
        given = given.reshape(columns)
    if given.numel() != 1 and tuple(given.shape) not in (rows, columns):
        raise ValueError(
            f"{name} has shape {tuple(given.shape)}; expected () for all, {rows} for rows or {columns} for columns of data, "
            f"{tuple(table.shape)}"
        )
    floats = given.to(table.device, torch.float32).contiguous()
    if not floats.isfinite().all():
        raise ValueError(f"{name} has inf or nan; expected finite numbers of float32")
    return floats


def scales_given(data: Tensor, scale: Any, zero_point: Any) -> Scales | None:
    if scale is None:
        if zero_point is not None:
            raise ValueError("zero_point is given without scale; expected both")
        return None
    if data.dtype not in CODES:
        raise TypeError(
            f"data has dtype {data.dtype}; expected torch.uint8, torch.int8, torch.float8_e4m3fn or torch.float8_e5m2 beside scale"
        )
    return Scales(scale, zero_point, data)


def checked_dtype(dtype: Any) -> torch.dtype:
    if dtype not in VALUES:
        raise TypeError(f"dtype is {dtype}; expected torch.float16, torch.bfloat16 or torch.float32")
    return dtype


def by_row(scale: Any, data: Tensor) -> Any:
    """One number per row of a file, (N,), as (N, 1, ...). If rows have N numbers too, they are one per column."""
    if isinstance(scale, Tensor) and scale.shape == data.shape[:1] != data.shape[1:] and scale.numel() > 1:
        return scale.view(-1, *[1] * (data.dim() - 1))
    return scale
