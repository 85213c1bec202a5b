"""Entries of groups, taken by an index. Their gradient is summed as scatter_sum sums, not by float atomics."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ...common.autograd import apply
from ._index import vector_of, with_named_ids
from ._reductions import total
from .utils import aligned

_ROWS = "the places of src"


def gathered(x: Tensor, index: Tensor, dim: int) -> Tensor:
    """out[p, i, q] = x[p, index[p, i, q], q], where i is the position along dim, which is not negative.

    index: one id per position along dim, or of dimensions that are 1 or those of x. Others follow x.
    """
    if x.requires_grad and torch.is_grad_enabled():
        return with_named_ids(apply, index, x.shape[dim], _Gather, x, index, dim, what=_ROWS)
    return with_named_ids(_gather, index, x.shape[dim], x, index, dim, what=_ROWS)


def _gather(x: Tensor, index: Tensor, dim: int) -> Tensor:
    ids = aligned(index, x.dim(), dim)
    vector = vector_of(ids, dim, ids.shape[dim])
    if vector is not None:
        return x.index_select(dim, vector)
    shape = (*x.shape[:dim], ids.shape[dim], *x.shape[dim + 1 :])
    return x.gather(dim, ids.expand(shape).long())


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(x: Tensor, index: Tensor, dim: int) -> Tensor:
        return _gather(x, index, dim)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        x, index, ctx.dim = inputs
        ctx.save_for_backward(index)
        ctx.length = x.shape[ctx.dim]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        (index,) = ctx.saved_tensors
        return total(grad, index, ctx.dim, ctx.length, "sum"), None, None
