"""Gated sum: messages weighted by a sigmoid of the sum of both ends and the edge, as GatedGCN and ResGatedGraphConv have them.

Unfused, every operator keeps tensors of one row per edge. Here one pass over the edges makes gates and sums, and the backward makes
the gates again. Nothing of the size of the edges is kept but gate_edge and edge_value.
"""

from __future__ import annotations

import functools
from typing import Literal, overload

import torch
from torch import Tensor

from ..common.arguments import check_number, checked_flag
from ..common.autograd import apply, in_cpp, inputs_of, is_recorded, pull_back, recorded, saved_tensors
from ..common.fake import register_fake
from ..common.operands import check_operand
from ..common.precision import autocast
from ..graph_argument import GraphLike, as_graph
from ._operands import graph_of, needs_grad, out_edges
from .sddmm import gsddmm
from .spmm import gspmm

_gated_sum = torch.ops.halfgnn.gated_sum.default
_gated_sum_backward = torch.ops.halfgnn.gated_sum_backward.default


@register_fake("gated_sum")
def _(
    indptr, indices, edge_ids, value, gate_src, gate_dst, gate_edge, edge_value, normalize, eps, return_edges, save,
    short_rows=False,
):  # fmt: skip
    wide = torch.float64 if value.dtype == torch.float64 else torch.float32
    shape = (indptr.shape[0] - 1, *value.shape[1:])
    kept = shape if save and normalize else (0,)
    return (
        value.new_empty(shape),
        value.new_empty((indices.shape[0], *value.shape[1:]) if return_edges else (0,)),
        value.new_empty(kept, dtype=wide),
        value.new_empty(kept, dtype=wide),
    )


@register_fake("gated_sum_backward")
def _(
    indptr, indices, edge_ids, out_indptr, out_indices, out_edge_ids, value, gate_src, gate_dst, gate_edge, edge_value,
    normalize, grad, grad_edges, scale, quotient, need_value, need_gate_src, need_gate_dst, need_gate_edge, need_edge_value,
    short_rows=False, out_short_rows=False,
):  # fmt: skip
    def like(operand, needed):
        return value.new_empty(operand.shape if needed else (0,))

    return (
        like(value, need_value),
        like(gate_src, need_gate_src),
        like(gate_dst, need_gate_dst),
        like(gate_edge, need_gate_edge),
        like(edge_value, need_edge_value),
    )


@in_cpp("gated_sum")
class _GatedSum(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(
        indptr, indices, edge_ids, out_indptr, out_indices, out_edge_ids, value, gate_src, gate_dst, gate_edge, edge_value,
        normalize, eps, return_edges, short_rows, out_short_rows,
    ):  # fmt: skip
        return _gated_sum(
            indptr,
            indices,
            edge_ids,
            value,
            gate_src,
            gate_dst,
            gate_edge,
            edge_value,
            normalize,
            eps,
            return_edges,
            True,
            short_rows,
        )

    @staticmethod
    def setup_context(ctx, inputs, output):
        x = _Inputs(*inputs)
        _, edges, scale, quotient = output
        ctx.mark_non_differentiable(scale, quotient)
        if not x.return_edges:
            ctx.mark_non_differentiable(edges)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(
            *(x.indptr, x.indices, x.edge_ids, x.out_indptr, x.out_indices, x.out_edge_ids),
            *(x.value, x.gate_src, x.gate_dst, x.gate_edge, x.edge_value, scale, quotient),
        )
        ctx.normalize, ctx.return_edges, ctx.short_rows = x.normalize, x.return_edges, (x.short_rows, x.out_short_rows)
        ctx.eps = x.eps

    @staticmethod
    def backward(ctx, grad, grad_edges, *_):
        if not ctx.return_edges:
            grad_edges = None  # Code that is compiled gives a gradient of the empty result too.
        if grad is None and grad_edges is None:
            return tuple(_Inputs())
        saved = saved_tensors(ctx, "gated_sum")  # read once: a checkpoint gives them once
        needs = _Inputs(*ctx.needs_input_grad)
        needed = [getattr(needs, name) for name in _OPERANDS]
        gradients = _differentiated(saved, grad, grad_edges, needed, ctx.normalize, ctx.eps, ctx.short_rows)
        return tuple(_Inputs(**dict(zip(_OPERANDS, gradients))))

    @staticmethod
    def gradients(kept, grads, needs):
        x, saved = _Inputs(*kept[:-2]), (*kept[:11], *kept[-2:])
        grad, grad_edges, *_ = grads
        short_rows = x.short_rows, x.out_short_rows
        return _differentiated(
            saved, grad, grad_edges if x.return_edges else None, needs, x.normalize, x.eps, short_rows
        )


_OPERANDS = "value", "gate_src", "gate_dst", "gate_edge", "edge_value"
_Inputs = inputs_of(_GatedSum)


def _differentiated(saved, grad, grad_edges, needed, normalize, eps, short_rows):
    """The gradients of the operands, None for one that is not needed, recorded if they are to be."""
    csc, csr, (*operands, scale, quotient) = saved[:3], saved[3:6], saved[6:]
    if csr[0] is None:
        csr = out_edges(csc, operands[0].shape[0])
    if grad is None:
        grad = torch.zeros_like(operands[2])
    args = *csc, *csr, *operands, normalize, grad, grad_edges, scale, quotient, *needed, *short_rows
    if is_recorded():
        again = functools.partial(_gradients, needed, normalize, eps)
        gradients = recorded("gated_sum", _gated_sum_backward, args, again, (*csc, *csr, *operands, grad, grad_edges))
    else:
        gradients = _gated_sum_backward(*args)
    return tuple(x if need else None for x, need in zip(gradients, needed))


def _gradients(needed, normalize, eps, *saved):
    """The gradients of the operands as functions of these and of grad and grad_edges, which autograd differentiates."""
    csc, csr, operands, grads = saved[:3], saved[3:6], saved[6:11], saved[11:]
    g = graph_of(csc, csr, operands[0].shape[0], operands[2].shape[0])
    return pull_back(functools.partial(_composed, g, normalize, eps), operands, needed, grads)


def _composed(g, normalize, eps, value, gate_src, gate_dst, gate_edge, edge_value):
    """(out, z) by operators that autograd differentiates twice. They keep numbers of edges."""
    dtype, wide = value.dtype, torch.promote_types(value.dtype, torch.float32)
    z = gsddmm(g, "add", gate_src.to(wide), gate_dst.to(wide), "u", "v")
    if gate_edge is not None:
        z = z + gate_edge
    gate = z.sigmoid()
    out = gspmm(g, "mul", "sum", value.to(wide), gate)
    if edge_value is not None:
        out = out + gspmm(g, "copy_rhs", "sum", None, gate * edge_value)
    if normalize:
        has_edges = (g.in_degrees() > 0).view(-1, *[1] * (out.dim() - 1))
        out = out / torch.where(has_edges, gspmm(g, "copy_rhs", "sum", None, gate) + eps, 1)
    return out.to(dtype), z.to(dtype)


@overload
def gated_sum(
    g: GraphLike,
    value: Tensor,
    gate_src: Tensor,
    gate_dst: Tensor,
    gate_edge: Tensor | None = None,
    edge_value: Tensor | None = None,
    *,
    normalize: bool = ...,
    eps: float = ...,
    return_edges: Literal[False] = ...,
) -> Tensor: ...
@overload
def gated_sum(
    g, value: Tensor, gate_src: Tensor, gate_dst: Tensor, gate_edge: Tensor | None = None,
    edge_value: Tensor | None = None, *, normalize: bool = ..., eps: float = ..., return_edges: Literal[True],
) -> tuple[Tensor, Tensor]: ...  # fmt: skip
def gated_sum(
    g: GraphLike,
    value: Tensor,
    gate_src: Tensor,
    gate_dst: Tensor,
    gate_edge: Tensor | None = None,
    edge_value: Tensor | None = None,
    *,
    normalize: bool = False,
    eps: float = 1e-6,
    return_edges: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """out[v] = sum over in-edges e = (u, v) of sigmoid(z[e]) * (value[u] + edge_value[e]).

    Here z[e] = gate_src[u] + gate_dst[v] + gate_edge[e].

    Args:
        g: Graph or DGLGraph.
        value, gate_src: (num_src, *). gate_dst: (num_dst, *). One trailing shape.
        gate_edge, edge_value: (E, *), or None for no such term.
        normalize: divide by sum over in-edges of sigmoid(z[e]), plus eps, element by element: GatedGCN (Bresson and Laurent, 2017,
            "Residual Gated Graph ConvNets"; Dwivedi et al., 2020). False is PyG's ResGatedGraphConv.
        eps: a number of at least 0. With 0, a node whose gates all underflow (z below -87) gets inf or nan.
        return_edges: also return z, from which GatedGCN makes the edges' next features. Gradients go through it.

    Operands are fp16, bf16 or fp32 (fp64 on the CPU), of one dtype. z, gates and sums are made in fp32; out and z are rounded once.
    Nodes without in-edges get 0. The backward is a pass over in-edges for gate_dst, gate_edge and edge_value, and one over
    out-edges for value and gate_src. Both make the gates again: of the size of the edges nothing is kept but gate_edge and
    edge_value. Derivatives of every order exist.

    Example::

        h, e = ops.gated_sum(g, V(h), D(h), E(h), C(e), normalize=True, return_edges=True)

    Returns:
        (num_dst, *); with return_edges the pair of it and z (E, *)

    Raises:
        TypeError: wrong or mixed dtypes. ValueError: wrong shapes, devices or eps.
    """
    g = as_graph(g)
    check_operand(value, "value", g, "u")
    check_operand(gate_src, "gate_src", g, "u")
    check_operand(gate_dst, "gate_dst", g, "v")
    if gate_edge is not None:
        check_operand(gate_edge, "gate_edge", g, "e")
    if edge_value is not None:
        check_operand(edge_value, "edge_value", g, "e")
    eps = check_number(eps, "eps")
    if eps < 0:
        raise ValueError(f"eps is {eps}; expected a number of at least 0")
    normalize, return_edges = checked_flag(normalize, "normalize"), checked_flag(return_edges, "return_edges")
    value, gate_src, gate_dst = autocast(value), autocast(gate_src), autocast(gate_dst)
    gate_edge, edge_value = autocast(gate_edge), autocast(edge_value)
    csc = g.csc()
    operands = value, gate_src, gate_dst, gate_edge, edge_value
    if not needs_grad(*operands):
        out, edges, *_ = _gated_sum(*csc, *operands, normalize, eps, return_edges, False, g.short_csc)
    else:
        csr = g.csr() if value.requires_grad or gate_src.requires_grad else (None, None, None)
        out, edges, *_ = apply(_GatedSum, *csc, *csr, *operands, normalize, eps, return_edges, g.short_csc, g.short_csr)
    return (out, edges) if return_edges else out
