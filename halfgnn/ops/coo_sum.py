"""Sums over an edge list in any order, without a Graph: for small graphs that are new in every step."""

from __future__ import annotations

import torch
from torch import Tensor

from ..common.autograd import apply, in_cpp, is_recorded, saved_tensors
from ..common.fake import register_fake
from ._operands import needs_grad

_coo_sum = torch.ops.halfgnn.coo_sum.default
_coo_sum_backward = torch.ops.halfgnn.coo_sum_backward.default


@register_fake("coo_sum")
def _(row, col, feat, weight, reduce, num_rows):
    return feat.new_empty((num_rows, *feat.shape[1:]))


@register_fake("coo_sum_backward")
def _(row, col, grad, feat, weight, reduce, num_cols, need_feat, need_weight):
    grad_feat = grad.new_empty((num_cols, *grad.shape[1:]) if need_feat else (0,))
    return grad_feat, grad.new_empty(row.shape if need_weight else (0,))


@in_cpp("coo_sum")
class _CooSum(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(row, col, feat, weight, reduce, num_rows):
        return _coo_sum(row, col, feat, weight, reduce, num_rows)

    @staticmethod
    def setup_context(ctx, inputs, output):
        row, col, feat, weight, ctx.reduce, _ = inputs
        _, _, need_feat, need_weight, _, _ = ctx.needs_input_grad
        ctx.num_cols = feat.shape[0]
        ctx.save_for_backward(row, col, feat if need_weight else None, weight if need_feat else None)

    @staticmethod
    def backward(ctx, grad):
        row, col, feat, weight = saved_tensors(ctx, "coo_sum")
        needs = ctx.needs_input_grad[2:4]
        return None, None, *_gradients(row, col, grad, feat, weight, ctx.reduce, ctx.num_cols, *needs), None, None

    @staticmethod
    def gradients(kept, grads, needs):
        row, col, feat, weight, reduce, _, num_cols = kept
        return _gradients(row, col, grads[0], feat, weight, reduce, num_cols, *needs)


def _gradients(row, col, grad, feat, weight, reduce, num_cols, need_feat, need_weight) -> tuple[Tensor | None, ...]:
    """Of feat and weight, None for one that is not needed: by PyTorch's operators, which have derivatives, if they are recorded."""
    args = row, col, grad, feat, weight
    if is_recorded():
        gradients = _composed(*args, reduce, num_cols, need_feat, need_weight)
    else:
        gradients = _coo_sum_backward(*args, reduce, num_cols, need_feat, need_weight)
    return tuple(x if need else None for x, need in zip(gradients, (need_feat, need_weight)))


def _composed(row, col, grad, feat, weight, reduce, num_cols, need_feat, need_weight) -> tuple[Tensor | None, ...]:
    per_row = [-1, *[1] * (grad.dim() - 1)]
    if reduce == "mean":
        counts = grad.new_zeros(grad.shape[0]).index_add(0, row, grad.new_ones(row.shape))
        grad = grad / counts.clamp(min=1).view(per_row)
    of_edges = grad.index_select(0, row)
    of_feat = of_weight = None
    if need_feat:
        messages = of_edges if weight is None else of_edges * weight.view(per_row)
        of_feat = grad.new_zeros((num_cols, *grad.shape[1:])).index_add(0, col, messages)
    if need_weight:
        products = of_edges * feat.index_select(0, col)
        of_weight = products.unsqueeze(-1).flatten(1).sum(1)  # of rows that are single numbers too
    return of_feat, of_weight


def coo_sum(row: Tensor, col: Tensor, feat: Tensor, weight: Tensor | None, reduce: str, num_rows: int) -> Tensor:
    """out[row[e]] = the sum or mean of feat[col[e]] * weight[e] over the edges e, which are added in their order.

    In float32 and float64 the bits are those of PyTorch's index_select, mul and scatter_add. Nothing is cached with the edges.
    Ids are checked. It is for eager calls on the CPU.

    Args:
        row, col: (E,) int32 or int64.
        feat: (N, *).
        weight: (E,) of feat's dtype, or None.
        reduce: sum or mean.

    Returns:
        (num_rows, *) of feat's dtype.

    Raises:
        IndexError: an id out of range. TypeError: wrong dtypes. ValueError: wrong shapes.
    """
    args = row, col, feat, weight, reduce, num_rows
    return apply(_CooSum, *args) if needs_grad(feat, weight) else _coo_sum(*args)
