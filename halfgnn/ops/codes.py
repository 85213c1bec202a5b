"""Rows of codes of 8 bits, and their sums."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from .. import _library
from ..common.fake import register_fake
from ..common.operands import check_rows, check_tensor, name_operands, operand_errors
from ..graph import Graph
from .gather_rows import gather_rows

CODES = (torch.uint8, torch.int8, torch.float8_e4m3fn, torch.float8_e5m2)
VALUES = (torch.float16, torch.bfloat16, torch.float32)
# The sums that read codes: operators of gspmm, and their reductions.
SUMS = {"copy_lhs": ("sum", "mean"), "mul": ("sum", "mean")}

_code_sum = torch.ops.halfgnn.code_sum.default


@register_fake("code_sum")
def _(indptr, indices, edge_ids, reduce, codes, scale, zero_point, weight, out_dtype, short_rows=False):
    return codes.new_empty((indptr.shape[0] - 1, *codes.shape[1:]), dtype=out_dtype)


@dataclass(frozen=True, eq=False)
class Codes:
    """Rows of codes of 8 bits, which stand for the values (data - zero_point) * scale.

    They take the place of the sources' features in copy_u_sum, copy_u_mean, u_mul_e_sum and u_mul_e_mean of halfgnn.ops, and in
    SAGEConv, GraphConv and GINConv of halfgnn.nn: values are made as they are added up, and never stored. There is no gradient.
    :meth:`FeatureStore.codes` returns them.

    Args:
        data: (N, *) torch.uint8, torch.int8, torch.float8_e4m3fn or torch.float8_e5m2.
        scale: () or any shape of one element, (N, 1, ...) for one per row, or (*) for one per column; torch.float32, contiguous, on
            the device of data.
        zero_point: of scale's shape, dtype and device; integers' alone.
        dtype: of the values, and of sums unless they are given another one: torch.float16, torch.bfloat16 or torch.float32.

    Raises:
        TypeError: data, scale or zero_point is no tensor; data or dtype has another dtype. Other errors of scales are raised where
        they are read.
    """

    data: Tensor
    scale: Tensor
    zero_point: Tensor | None = None
    dtype: torch.dtype = torch.float16

    def __post_init__(self):
        check_tensor(self.data, "data")
        check_tensor(self.scale, "scale")
        if self.zero_point is not None:
            check_tensor(self.zero_point, "zero_point")
        if self.data.dtype not in CODES:
            raise TypeError(
                f"data has dtype {self.data.dtype}; expected torch.uint8, torch.int8, torch.float8_e4m3fn or torch.float8_e5m2"
            )
        _check_values(self.dtype, "dtype")

    def __len__(self) -> int:
        return self.data.shape[0]

    @property
    def shape(self) -> torch.Size:
        return self.data.shape

    @property
    def device(self) -> torch.device:
        return self.data.device

    def to(self, device: Any, non_blocking: bool = False) -> Codes:
        """On `device`."""
        data, scale, zero_point = (
            None if x is None else x.to(device, non_blocking=non_blocking)
            for x in (self.data, self.scale, self.zero_point)
        )
        assert data is not None and scale is not None
        return Codes(data, scale, zero_point, self.dtype)

    def values(self, count: int | None = None, dtype: torch.dtype | None = None) -> Tensor:
        """The values of the first `count` rows, or of all, in `dtype`, by default that of the codes."""
        ids = torch.arange(len(self) if count is None else count, dtype=torch.int32, device=self.device)
        return gather_rows(
            self.data.contiguous(),
            ids,
            scale=self.scale,
            zero_point=self.zero_point,
            out_dtype=self.dtype if dtype is None else dtype,
        )


def sum_of_codes(g: Graph, op: str, reduce: str, codes: Codes, weight: Any, out_dtype: torch.dtype | None) -> Tensor:
    """gspmm of codes. Errors name its arguments."""
    if reduce not in SUMS.get(op, ()):
        raise TypeError(
            f"lhs_data is codes of 8 bits; expected a torch.Tensor for {op} and {reduce}, since only sums and means of lhs_data, "
            "or of lhs_data times rhs_data, read codes: lhs_data.values()"
        )
    out_dtype = codes.dtype if out_dtype is None else _check_values(out_dtype, "out_dtype")
    check_rows(codes.data, "lhs_data", g.num_src, "u", g.device)
    if op == "copy_lhs":
        weight = None
    else:
        check_rows(weight, "rhs_data", g.num_edges, "e", g.device)
        if (weight.requires_grad and torch.is_grad_enabled()) or _has_tangent(weight):
            raise ValueError(
                "rhs_data requires a gradient; expected none beside codes of 8 bits: rhs_data.detach(), or lhs_data.values() in "
                "place of the codes"
            )
    if g.device.type == "cuda":
        _library.check_device(g.device)
    try:
        return _code_sum(*g.csc(), reduce, codes.data, codes.scale, codes.zero_point, weight, out_dtype, g.short_csc)
    except operand_errors() as error:
        name_operands(error, **{"weight has": "rhs_data has"})
        raise


def _has_tangent(x: Tensor) -> bool:
    """Whether forward-mode AD would have a derivative, which would be lost: the operator has none."""
    return forward_ad._current_level >= 0 and forward_ad.unpack_dual(x).tangent is not None


def _check_values(dtype: Any, name: str) -> torch.dtype:
    if dtype not in VALUES:
        raise TypeError(f"{name} is {dtype}; expected torch.float16, torch.bfloat16 or torch.float32")
    return dtype
