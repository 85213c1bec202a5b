"""Sums of rows whose gradient Inductor fuses with what reads it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .. import ops
from ..common.autograd import apply
from ..common.precision import without_autocast
from ..expressions.accounts import accounts
from ..graph import Graph


class SumRows(torch.autograd.Function):
    """The sum of rows (E, *) by an index, of which g is a Graph."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, index: Tensor, g: Graph) -> Tensor:
        ctx.save_for_backward(index)
        with without_autocast(x.device):
            return ops.gspmm(g, "copy_rhs", "sum", None, x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        (index,) = ctx.saved_tensors
        return grad.index_select(0, index), None, None


def reduced_rows(g: Graph, kind: str, x: Tensor, index: Tensor) -> Tensor:
    """Rows (E, *) reduced by an index, of which g is a Graph."""
    accounts.routed[f"gspmm:copy_e_{kind}"] += 1
    with without_autocast(x.device):
        if kind == "sum" and x.requires_grad and torch.is_grad_enabled():
            return apply(SumRows, x, index, g)
        return ops.gspmm(g, "copy_rhs", kind, None, x)


def degrees(g: Graph, dtype: torch.dtype) -> Tensor:
    return g.in_degrees().to(dtype)
