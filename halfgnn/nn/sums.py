"""Sums, means and maxima over in-edges, with or without edge weights, and rows scaled by degrees."""

from __future__ import annotations

import torch
from torch import Tensor

from .. import ops
from ..common.operands import name_operands, operand_errors
from ..graph import Graph
from ..ops.codes import Codes
from .checks import check_edge_weight
from .projections import padded


def aggregate(
    g: Graph, reduce: str, h: Tensor | Codes, edge_weight: Tensor | None, out_dtype: torch.dtype | None = None
) -> Tensor:
    """h (num_src, *) of the sources, times edge_weight (E, *) unless that is None, reduced into destinations."""
    if isinstance(h, Codes):
        return _aggregate_codes(g, reduce, h, edge_weight, out_dtype)
    if edge_weight is None:
        return ops.gspmm(g, "copy_lhs", reduce, h, None, out_dtype=out_dtype)
    check_edge_weight(g, edge_weight, h)
    return ops.gspmm(g, "mul", reduce, h, edge_weight, out_dtype=out_dtype)


def _aggregate_codes(
    g: Graph, reduce: str, codes: Codes, edge_weight: Tensor | None, out_dtype: torch.dtype | None
) -> Tensor:
    op = "copy_lhs" if edge_weight is None else "mul"
    try:
        return ops.gspmm(g, op, reduce, codes, edge_weight, out_dtype=out_dtype)
    except operand_errors() as error:
        name_operands(error, lhs_data="feat", rhs_data="edge_weight")
        raise


def padded_width(dim: int, x: Tensor, edge_weight: Tensor | None) -> int:
    """padded(), but `dim` if edge_weight has one number per column."""
    if edge_weight is not None and edge_weight.dim() > 1 and edge_weight.shape[-1] != 1:
        return dim
    return padded(dim, x, edge_weight is not None)


def scaled(x: Tensor, degrees: Tensor, power: float) -> Tensor:
    """Row v of x times max(degrees[v], 1) ** power, rounded once."""
    dtype = torch.promote_types(x.dtype, torch.float32)
    factor = degrees.clamp(min=1).to(dtype).pow(power)
    return (x * factor.view(-1, *[1] * (x.dim() - 1))).to(x.dtype)
