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
def _(row, col, feat, rhs, op, reduce, num_rows):
    return feat.new_empty((num_rows, *feat.shape[1:]))


@register_fake("coo_sum_backward")
def _(row, col, grad, feat, rhs, op, reduce, num_cols, need_feat, need_rhs):
    rows, num_edges = grad.shape[1:], (col if row is None else row).shape
    of_edges = num_edges if op == "mul" else num_edges + rows
    return grad.new_empty((num_cols, *rows) if need_feat else (0,)), grad.new_empty(of_edges if need_rhs else (0,))


@in_cpp("coo_sum")
class _CooSum(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(row, col, feat, rhs, op, reduce, num_rows):
        return _coo_sum(row, col, feat, rhs, op, reduce, num_rows)

    @staticmethod
    def setup_context(ctx, inputs, output):
        row, col, feat, rhs, ctx.op, ctx.reduce, _ = inputs
        _, _, need_feat, need_rhs, *_ = ctx.needs_input_grad
        ctx.num_cols = feat.shape[0]
        reads_both, is_product = ctx.op == "relu_add", ctx.op == "mul"
        ctx.save_for_backward(
            row,
            col,
            feat if reads_both or (is_product and need_rhs) else None,
            rhs if reads_both or (is_product and need_feat) else None,
        )

    @staticmethod
    def backward(ctx, grad):
        row, col, feat, rhs = saved_tensors(ctx, "coo_sum")
        args = row, col, grad, feat, rhs, ctx.op, ctx.reduce, ctx.num_cols
        return None, None, *_gradients(*args, *ctx.needs_input_grad[2:4]), None, None, None

    @staticmethod
    def gradients(kept, grads, needs):
        row, col, feat, rhs, op, reduce, _, num_cols = kept
        return _gradients(row, col, grads[0], feat, rhs, op, reduce, num_cols, *needs)


def _gradients(row, col, grad, feat, rhs, op, reduce, num_cols, need_feat, need_rhs) -> tuple[Tensor | None, ...]:
    """Of feat and rhs, None for one that is not needed: by PyTorch's operators, which have derivatives, if they are recorded."""
    function = _composed if is_recorded() else _coo_sum_backward
    gradients = function(row, col, grad, feat, rhs, op, reduce, num_cols, need_feat, need_rhs)
    return tuple(x if need else None for x, need in zip(gradients, (need_feat, need_rhs)))


def _composed(row, col, grad, feat, rhs, op, reduce, num_cols, need_feat, need_rhs) -> tuple[Tensor | None, ...]:
    """In the type in which the operator adds: counts and sums of half-precision values would be rounded at each step."""
    dtype, wide = grad.dtype, torch.promote_types(grad.dtype, torch.float32)
    grad, feat, rhs = (x if x is None else x.to(wide) for x in (grad, feat, rhs))
    per_row = [-1, *[1] * (grad.dim() - 1)]
    if reduce == "mean" and row is not None:
        counts = grad.new_zeros(grad.shape[0]).index_add(0, row, grad.new_ones(row.shape))
        grad = grad / counts.clamp(min=1).view(per_row)
    of_edges = grad if row is None else grad.index_select(0, row)
    if op == "relu_add":
        of_edges = of_messages = torch.where(_of_edges(feat, col) + rhs <= 0, 0, of_edges)
    else:
        of_messages = of_edges * rhs.view(per_row) if op == "mul" and rhs is not None else of_edges
    of_feat = of_rhs = None
    if need_feat:
        of_feat = of_messages
        if col is not None:
            of_feat = grad.new_zeros((num_cols, *grad.shape[1:])).index_add(0, col, of_messages)
        of_feat = of_feat.to(dtype)
    if need_rhs:
        if op == "mul":  # of rows that are single numbers too
            of_edges = (of_edges * _of_edges(feat, col)).unsqueeze(-1).flatten(1).sum(1)
        of_rhs = of_edges.to(dtype)
    return of_feat, of_rhs


def _of_edges(feat: Tensor, col: Tensor | None) -> Tensor:
    return feat if col is None else feat.index_select(0, col)


def coo_sum(
    row: Tensor | None,
    col: Tensor | None,
    feat: Tensor,
    rhs: Tensor | None,
    reduce: str,
    num_rows: int,
    *,
    op: str | None = None,
) -> Tensor:
    """out[row[e]] = the sum or mean of op(feat[col[e]], rhs[e]) over the edges e, which are added in their order.

    In float32 and float64 the bits are those of PyTorch's index_select, mul or add and relu, and scatter_add. Nothing is cached
    with the edges. Ids are checked. It is for eager calls on the CPU.

    Args:
        row, col: (E,) int32 or int64. One may be None: that side has a row for each edge, in their order. So the sum over col
            alone is a gather, feat[col], and the sum over row alone adds up rows of edges.
        feat: (N, *).
        rhs: of feat's dtype. (E,) for mul, (E, *) for add and relu_add, None for copy_lhs.
        reduce: sum or mean.
        num_rows: the number of rows of the result; E if row is None.
        op: copy_lhs, mul, add or relu_add; by default mul, or copy_lhs without rhs.

    Returns:
        (num_rows, *) of feat's dtype.

    Raises:
        IndexError: an id out of range. TypeError: wrong dtypes. ValueError: wrong shapes.
    """
    op = op or ("copy_lhs" if rhs is None else "mul")
    args = row, col, feat, rhs, op, reduce, num_rows
    return apply(_CooSum, *args) if needs_grad(feat, rhs) else _coo_sum(*args)
