"""Terms of edges in GATv2: rows inside the LeakyReLU, given or projected from a few columns, and a bias.

The kernels project columns for the edges of a tile alone, so rows of H * D elements per edge exist only if they are given.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ..common.autograd import apply, inputs_of, is_recorded, pull_back, recorded, saved_tensors
from ..common.fake import register_fake
from ..common.operands import check_operand
from ..common.precision import autocast, without_autocast
from ._attention_edges import (
    bias_like,
    check_shape,
    checked_weight,
    has_kernels,
    is_limited,
    masked_softmax,
    wide_type,
    with_dropout,
)
from ._operands import graph_of, needs_grad
from .edge_softmax import edge_softmax
from .sddmm import gsddmm
from .spmm import gspmm

_gatv2 = torch.ops.halfgnn.gatv2_attention_edges.default
_gatv2_backward = torch.ops.halfgnn.gatv2_attention_edges_backward.default


class EdgeTerms(NamedTuple):
    """What edges add to GATv2. rows (E, H, D), or feat (E, C) with weight (H, D, C)."""

    bias: Tensor | None = None
    rows: Tensor | None = None
    feat: Tensor | None = None
    weight: Tensor | None = None


def checked_terms(g, like: Tensor, bias: Any, feat: Any, weight: Any) -> EdgeTerms | None:
    """The terms as autocast casts them, or None if there are none. like: feat_src as cast."""
    if bias is None and feat is None and weight is None:
        return None
    heads, dim = like.shape[1:]
    if bias is not None:
        check_operand(bias, "edge_bias", g, "e")
        check_shape(bias, "edge_bias", (g.num_edges, heads), "edges, heads")
        bias = bias_like(bias, like)
    if feat is None and weight is not None:
        raise ValueError("edge_weight is given, but edge_feat is None; expected both")
    if feat is None:
        return EdgeTerms(bias)
    check_operand(feat, "edge_feat", g, "e")
    if weight is None:
        check_shape(feat, "edge_feat", (g.num_edges, heads, dim), "edges, heads, dim")
        terms = EdgeTerms(bias, rows=autocast(feat))
    else:
        if feat.dim() != 2:
            raise ValueError(f"edge_feat has shape {tuple(feat.shape)}; expected (edges, columns), beside edge_weight")
        weight = checked_weight(weight, "edge_weight", (heads, dim, feat.shape[1]), like.device)
        terms = EdgeTerms(bias, feat=autocast(feat), weight=weight)
    for name, tensor in (("edge_feat", terms.rows), ("edge_feat", terms.feat), ("edge_weight", terms.weight)):
        if tensor is not None and tensor.dtype != like.dtype:
            raise TypeError(f"{name} has dtype {tensor.dtype}; expected that of feat_src, {like.dtype}")
    return EdgeTerms(bias) if feat.shape[1] == 0 and weight is not None else terms  # no columns add nothing


# ---- fake kernels ------------------------------------------------------------------------------------------------------------


@register_fake("gatv2_attention_edges")
def _(
    indptr, indices, edge_ids, feat_src, feat_dst, attn, edge_bias, edge_key, edge_feat, edge_weight, negative_slope, dropout_p,
    seed, save, precise, short_rows=False,
):  # fmt: skip
    shape = (indptr.shape[0] - 1, *feat_src.shape[1:])
    keep = save and precise and feat_src.dtype.itemsize == 2
    return (
        feat_src.new_empty(shape),
        feat_src.new_empty(shape[:2] if save else (0,), dtype=wide_type(feat_src.dtype)),
        feat_src.new_empty(shape if keep else (0,)),
    )


@register_fake("gatv2_attention_edges_backward")
def _(
    indptr, indices, edge_ids, out_indptr, out_indices, out_edge_ids, feat_src, feat_dst, attn, edge_bias, edge_key, edge_feat,
    edge_weight, negative_slope, dropout_p, seed, grad, out, lse, out_residual, need_edge_bias, need_edge_key, need_edge_feat,
    need_edge_weight, short_rows=False, out_short_rows=False,
):  # fmt: skip
    wanted = (
        (edge_bias, need_edge_bias), (edge_key, need_edge_key), (edge_feat, need_edge_feat), (edge_weight, need_edge_weight),
    )  # fmt: skip
    return (
        *(x.new_empty(x.shape) for x in (feat_src, feat_dst, attn)),
        *(x.new_empty(x.shape) if needed else feat_src.new_empty((0,)) for x, needed in wanted),
    )


# ---- autograd ----------------------------------------------------------------------------------------------------------------


def _attended(sides, feat_src, feat_dst, attn, terms: EdgeTerms, slope, dropout_p, seed, save, precise, short_rows):
    """(out, lse, out_residual), of what _operands makes."""
    operands, terms = _operands((feat_src, feat_dst, attn), terms)
    return _gatv2(*sides, *operands, *terms, slope, dropout_p, seed, save, precise, short_rows)


def _gradients(slope, dropout_p, *wanted_and_saved):
    """Those of the operands and of the terms. One that is not wanted is empty. saved: what the Function kept."""
    wanted, short, grad, saved = wanted_and_saved[:4], wanted_and_saved[4:6], wanted_and_saved[6], wanted_and_saved[7:]
    sides, nodes, given, (seed, *results) = saved[:6], saved[6:9], EdgeTerms(*saved[9:13]), saved[13:]
    operands, terms = _operands(nodes, given)
    needs = EdgeTerms(*wanted)
    is_projected = terms.feat is not given.feat
    needs_rows = (needs.feat or needs.weight) if is_projected else needs.rows
    of_nodes_and_terms = _gatv2_backward(
        *sides, *operands, *terms, slope, dropout_p, seed, grad, *results, needs.bias, needs_rows,
        needs.feat and not is_projected, needs.weight and not is_projected, *short,
    )  # fmt: skip
    if not is_projected:
        return of_nodes_and_terms
    *of_nodes, of_bias, of_rows, of_feat, of_weight = of_nodes_and_terms
    assert given.feat is not None and given.weight is not None
    if needs_rows:
        of_rows = of_rows.flatten(1)
        with without_autocast(of_rows.device):
            of_feat = (of_rows @ given.weight.to(of_rows.dtype).flatten(0, 1)).to(given.feat.dtype)
            of_weight = (of_rows.t() @ given.feat.to(of_rows.dtype)).view_as(given.weight).to(given.weight.dtype)
    of_bias = of_bias if given.bias is None else of_bias.to(given.bias.dtype)
    return *(x.to(node.dtype) for x, node in zip(of_nodes, nodes)), of_bias, of_rows, of_feat, of_weight


def composed_gradients(needed, slope, dropout_p, *saved):
    """The same as functions of the operands, of terms if there are any, and of grad, which autograd differentiates."""
    *operands, seed, grad = saved[6:]
    g = graph_of(saved[:3], saved[3:6], operands[0].shape[0], grad.shape[0])

    def composed(feat_src, feat_dst, attn, *terms):
        return composed_gatv2(g, feat_src, feat_dst, attn, EdgeTerms(*terms), slope, dropout_p, seed)[:1]

    return pull_back(composed, operands, needed, (grad,))


class _GATv2Attention(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(
        indptr, indices, edge_ids, out_indptr, out_indices, out_edge_ids, feat_src, feat_dst, attn, edge_bias, edge_rows,
        edge_feat, edge_weight, slope, dropout_p, seed, precise, short_rows, out_short_rows,
    ):  # fmt: skip
        return _attended(
            (indptr, indices, edge_ids), feat_src, feat_dst, attn, EdgeTerms(edge_bias, edge_rows, edge_feat, edge_weight), slope,
            dropout_p, seed, True, precise, short_rows,
        )  # fmt: skip

    @staticmethod
    def setup_context(ctx, inputs, output):
        x = _Inputs(*inputs)
        ctx.mark_non_differentiable(*output[1:])
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*inputs[:13], x.seed, *output)  # topology and operands
        ctx.slope, ctx.dropout_p = x.slope, x.dropout_p
        ctx.short = x.short_rows, x.out_short_rows

    @staticmethod
    def backward(ctx, grad, *_):
        if grad is None:
            return tuple(_Inputs())
        needs = _Inputs(*ctx.needs_input_grad)
        wanted = (needs.edge_bias, needs.edge_rows, needs.edge_feat, needs.edge_weight)
        saved = saved_tensors(ctx, "gatv2_attention")
        args = ctx.slope, ctx.dropout_p, *wanted, *ctx.short, grad, *saved
        if is_recorded():
            needed = needs.feat_src, needs.feat_dst, needs.attn, *wanted
            again = functools.partial(composed_gradients, needed, ctx.slope, ctx.dropout_p)
            found = recorded("gatv2_attention", _gradients, args, again, (*saved[:14], grad))
        else:
            found = _gradients(*args)
        names = ("feat_src", "feat_dst", "attn", "edge_bias", "edge_rows", "edge_feat", "edge_weight")
        return tuple(_Inputs(**{name: x if getattr(needs, name) else None for name, x in zip(names, found)}))


_Inputs = inputs_of(_GATv2Attention)


# Columns that the kernels take of back ends with limits: CUDA, whose halves are projected on tensor cores of sm_80 and later.
_MAX_COLUMNS = 16


# ---- the operator ------------------------------------------------------------------------------------------------------------


def gatv2_attention(
    g, feat_src: Tensor, feat_dst: Tensor, attn: Tensor, terms: EdgeTerms, slope: float, dropout_p: float, seed, precise: bool
) -> Tensor:  # fmt: skip
    """GATv2's attention with terms of edges, of checked operands."""
    dtype = feat_src.dtype
    if not has_kernels(feat_src, wide_type(dtype) if _projects(feat_src, terms) else dtype):
        return composed_gatv2(g, feat_src, feat_dst, attn, terms, slope, dropout_p)[0]
    operands = (feat_src, feat_dst, attn, *terms)
    if needs_grad(*operands):
        sides, short = (*g.csc(), *g.csr()), (g.short_csc, g.short_csr)
        return apply(_GATv2Attention, *sides, *operands, slope, dropout_p, seed, precise, *short)[0].to(dtype)
    return _attended(g.csc(), *operands[:3], terms, slope, dropout_p, seed, False, False, g.short_csc)[0].to(dtype)


def _projects(feat: Tensor, terms: EdgeTerms) -> bool:
    """Whether columns are made rows of all edges, since there are no kernels for so many, or on that GPU."""
    if terms.feat is None or not is_limited(feat):
        return False
    lacks_products = (
        feat.is_cuda and feat.dtype.itemsize == 2 and torch.cuda.get_device_capability(feat.device) < (8, 0)
    )
    return terms.feat.shape[1] > _MAX_COLUMNS or lacks_products


def _operands(nodes: tuple[Tensor, ...], terms: EdgeTerms) -> tuple[tuple[Tensor, ...], EdgeTerms]:
    """What kernels are given. Rows that are projected, and then all, are wide: halves would be rounded before LeakyReLU. The
    backward makes them again."""
    if not _projects(nodes[0], terms):
        return nodes, terms
    wide = wide_type(nodes[0].dtype)
    rows = _projected(terms, nodes[0])
    return tuple(x.to(wide) for x in nodes), EdgeTerms(None if terms.bias is None else terms.bias.to(wide), rows)


def _projected(terms: EdgeTerms, feat: Tensor) -> Tensor:
    """Rows (E, H, D) of columns, in fp32 (fp64 for fp64), beside features of nodes (rows, H, D)."""
    assert terms.feat is not None and terms.weight is not None
    wide = wide_type(feat.dtype)
    with without_autocast(feat.device):
        rows = terms.feat.to(wide) @ terms.weight.to(wide).flatten(0, 1).t()
    return rows.view(-1, *feat.shape[1:])


def gatv2_weights(
    g,
    feat_src: Tensor,
    feat_dst: Tensor,
    attn: Tensor,
    leaky_relu: Callable[[Tensor], Tensor],
    terms: EdgeTerms | None = None,
) -> Tensor:
    """The softmax of GATv2 (E, H, 1) in fp32 (fp64 for fp64), by the separate operators, which keep rows (E, H, D)."""
    with without_autocast(feat_src.device):
        wide = wide_type(feat_src.dtype)
        hidden = gsddmm(g, "add", feat_src, feat_dst, "u", "v", out_dtype=wide)
        terms = terms or EdgeTerms()
        if terms.rows is not None:
            hidden = hidden + terms.rows
        if terms.feat is not None:
            hidden = hidden + _projected(terms, feat_src)
        logits = (leaky_relu(hidden) * attn.to(wide)).sum(-1, keepdim=True)
        return edge_softmax(g, logits) if terms.bias is None else masked_softmax(g, logits + terms.bias.unsqueeze(-1))


def composed_gatv2(
    g,
    feat_src: Tensor,
    feat_dst: Tensor,
    attn: Tensor,
    terms: EdgeTerms,
    slope: float,
    dropout_p: float,
    seed: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """The same of separate operators, and the softmax (E, H, 1) before dropout, as composed_dot of _attention_edges.py."""
    dtype, wide = feat_src.dtype, wide_type(feat_src.dtype)
    feat_src, feat_dst, attn = feat_src.to(wide), feat_dst.to(wide), attn.to(wide)
    terms = EdgeTerms(*(x if x is None else x.to(wide) for x in terms))
    weights = gatv2_weights(g, feat_src, feat_dst, attn, functools.partial(F.leaky_relu, negative_slope=slope), terms)
    with without_autocast(feat_src.device):
        dropped = with_dropout(weights, dropout_p, seed)
        return gspmm(g, "mul", "sum", feat_src, dropped).to(dtype).contiguous(), weights
