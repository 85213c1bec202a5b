"""Softmax over an edge list in any order, without a Graph: for small graphs that are new in every step."""

from __future__ import annotations

import torch
from torch import Tensor

from ..common.autograd import apply, in_cpp, is_recorded, recorded, saved_tensors
from ..common.fake import register_fake
from ._operands import needs_grad

_coo_softmax = torch.ops.halfgnn.coo_softmax.default
_coo_softmax_backward = torch.ops.halfgnn.coo_softmax_backward.default


@register_fake("coo_softmax")
def _(row, logits, num_rows):
    return torch.empty_like(logits, memory_format=torch.contiguous_format)


@register_fake("coo_softmax_backward")
def _(row, out, grad, num_rows):
    return torch.empty_like(out, memory_format=torch.contiguous_format)


@in_cpp("coo_softmax")
class _CooSoftmax(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(row, logits, num_rows):
        return _coo_softmax(row, logits, num_rows)

    @staticmethod
    def setup_context(ctx, inputs, output):
        row, _, ctx.num_rows = inputs
        ctx.save_for_backward(row, output)

    @staticmethod
    def backward(ctx, grad):
        return None, _differentiated(*saved_tensors(ctx, "coo_softmax"), grad, ctx.num_rows), None

    @staticmethod
    def gradients(kept, grads, needs):
        row, _, num_rows, out = kept
        return (_differentiated(row, out, grads[0], num_rows),)


def _differentiated(row, out, grad, num_rows):
    """The gradient of logits by the raw operator, recorded if it is to be."""
    args = row, out, grad, num_rows
    if is_recorded():
        return recorded("coo_softmax", _coo_softmax_backward, args, _gradient(num_rows), (row, out, grad))
    return _coo_softmax_backward(*args)


def _gradient(num_rows):
    """The gradient of logits as a function of the result and its gradient, which autograd differentiates."""

    def gradient(row, out, grad):
        dtype, wide = out.dtype, torch.promote_types(out.dtype, torch.float32)
        out, grad = out.to(wide), grad.to(wide)
        total = out.new_zeros(num_rows, *out.shape[1:]).index_add(0, row, out * grad)
        return (out * (grad - total.index_select(0, row))).to(dtype)

    return gradient


def coo_softmax(row: Tensor, logits: Tensor, num_rows: int) -> Tensor:
    """out[e] = exp(logits[e]) / sum of exp(logits[e']) over the edges e' with row[e'] == row[e], column by column.

    Exponentials and sums are fp32 (fp64 of fp64), and the result is rounded once. Nothing is cached with the edges, and ids are
    checked. It is for eager calls on the CPU, and for few values: one thread makes it. Derivatives of every order exist.

    Args:
        row: (E,) int32 or int64.
        logits: (E, *).

    Returns:
        (E, *), like logits

    Raises:
        IndexError: an id out of range. TypeError: wrong dtypes. ValueError: wrong shapes.
    """
    if needs_grad(logits):
        return apply(_CooSoftmax, row, logits, num_rows)
    return _coo_softmax(row, logits, num_rows)
