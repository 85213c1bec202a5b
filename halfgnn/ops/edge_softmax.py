"""Softmax over the edges of each node."""

from __future__ import annotations

import torch
from torch import Tensor

from ..common.autograd import apply, in_cpp, is_recorded, recorded
from ..common.fake import register_fake
from ..common.operands import check_operand
from ..common.precision import autocast
from ..graph_argument import GraphLike, as_graph
from ._operands import graph_of, needs_grad
from .sddmm import gsddmm
from .spmm import gspmm

_edge_softmax = torch.ops.halfgnn.edge_softmax.default
_edge_softmax_backward = torch.ops.halfgnn.edge_softmax_backward.default


@register_fake("edge_softmax")
def _(indptr, edge_ids, logits, short_rows=False):
    return torch.empty_like(logits, memory_format=torch.contiguous_format)


@register_fake("edge_softmax_backward")
def _(indptr, edge_ids, out, grad, short_rows=False):
    return torch.empty_like(out, memory_format=torch.contiguous_format)


@in_cpp("edge_softmax")
class _EdgeSoftmax(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(indptr, edge_ids, logits, short_rows):
        return _edge_softmax(indptr, edge_ids, logits, short_rows)

    @staticmethod
    def setup_context(ctx, inputs, output):
        indptr, edge_ids, _, ctx.short_rows = inputs
        ctx.save_for_backward(indptr, edge_ids, output)

    @staticmethod
    def backward(ctx, grad):
        return None, None, _differentiated(*ctx.saved_tensors, grad, ctx.short_rows), None

    @staticmethod
    def gradients(kept, grads, needs):
        indptr, edge_ids, _, short_rows, out = kept
        return (_differentiated(indptr, edge_ids, out, grads[0], short_rows),)


def _differentiated(*args):
    """The gradient of logits by the raw operator, recorded if it is to be."""
    if is_recorded():
        return recorded("edge_softmax", _edge_softmax_backward, args, _gradient, args[:4])
    return _edge_softmax_backward(*args)


def _gradient(indptr, edge_ids, out, grad):
    """The gradient of logits as a function of the result and its gradient, which autograd differentiates."""
    g = graph_of((indptr, indptr.new_zeros(out.shape[:1]), edge_ids), None, 1, indptr.shape[0] - 1)  # no source is read
    dtype, wide = out.dtype, torch.promote_types(out.dtype, torch.float32)
    out, grad = out.to(wide), grad.to(wide)
    total = gspmm(g, "copy_rhs", "sum", None, out * grad)
    return (out * (grad - gsddmm(g, "copy_rhs", None, total, "u", "v"))).to(dtype)


def edge_softmax(g: GraphLike, logits: Tensor, norm_by: str = "dst") -> Tensor:
    """out[e] = exp(logits[e]) / sum of exp(logits[e']) over the edges e' that share e's destination, column by column.

    Args:
        g: Graph or DGLGraph.
        logits: (E, *), fp16, bf16 or fp32 (fp64 on the CPU).
        norm_by: dst; or src, to normalise over the edges that share a source.

    Exponentials and sums are fp32, and the result is rounded once. The backward ds = a (da - sum(a da) / sum(a)) sums to zero over
    the edges of a node, although a was rounded. Derivatives of every order exist. Semantics follow dgl.ops.edge_softmax.

    Returns:
        (E, *), like logits

    Raises:
        TypeError: wrong dtype. ValueError: wrong shape, device or norm_by.
    """
    g = as_graph(g)
    if norm_by not in ("dst", "src"):
        raise ValueError(f"norm_by is {norm_by!r}; expected 'dst' or 'src'")
    check_operand(logits, "logits", g, "e")
    logits = autocast(logits)
    side, short_rows = (g.csc(), g.short_csc) if norm_by == "dst" else (g.csr(), g.short_csr)
    if needs_grad(logits):
        return apply(_EdgeSoftmax, side.indptr, side.edge_ids, logits, short_rows)
    return _edge_softmax(side.indptr, side.edge_ids, logits, short_rows)
