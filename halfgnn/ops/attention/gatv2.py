"""GATv2's attention: the autograd Function, the composition where a device has no kernels, and the operator.

Edges add rows inside the LeakyReLU, given or projected from a few columns, and a bias. The kernels project columns for the edges of
a tile alone, so rows of H * D elements per edge exist only if they are given.
"""

from __future__ import annotations

import functools
from typing import Literal, NamedTuple, overload

import torch
import torch.nn.functional as F
from torch import Tensor

from ...common.arguments import check_number, check_probability
from ...common.autograd import apply, in_cpp, inputs_of, is_recorded, pull_back, recorded, saved_tensors
from ...common.operands import check_dense, check_operand, check_tensor
from ...common.precision import autocast, without_autocast
from ...graph_argument import GraphLike, as_graph
from .._operands import graph_of, needs_grad
from ..edge_softmax import edge_softmax
from ..sddmm import gsddmm
from ..spmm import gspmm
from ._shared import (
    LeakyReLU,
    check_feature,
    check_heads,
    draw_seed,
    masked_softmax,
    needed_only,
    wide_type,
    with_dropout,
)
from ._terms import NO_TERMS, EdgeTerms, TermNames, checked_terms, has_kernels, limits_of

_gatv2 = torch.ops.halfgnn.gatv2_attention.default
_gatv2_backward = torch.ops.halfgnn.gatv2_attention_backward.default


# ---- autograd ----------------------------------------------------------------------------------------------------------------


class _Operands(NamedTuple):
    """Features of nodes, attn, and the terms of edges as the raw operator names them."""

    feat_src: Tensor
    feat_dst: Tensor
    attn: Tensor
    edge_bias: Tensor | None
    edge_key: Tensor | None
    edge_feat: Tensor | None
    edge_weight: Tensor | None


class _Options(NamedTuple):
    """What the backward is given besides tensors."""

    slope: float
    dropout_p: float
    short_rows: bool
    out_short_rows: bool


@in_cpp("gatv2_attention", takes=lambda *args: not _projects(args[6], args[11]))  # feat_src and edge_feat
class _GATv2Attention(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(
        indptr, indices, edge_ids, out_indptr, out_indices, out_edge_ids, feat_src, feat_dst, attn, edge_bias, edge_key,
        edge_feat, edge_weight, slope, dropout_p, seed, precise, short_rows, out_short_rows,
    ):  # fmt: skip
        x = _taken(_Operands(feat_src, feat_dst, attn, edge_bias, edge_key, edge_feat, edge_weight))
        return _gatv2(indptr, indices, edge_ids, *x[:3], slope, dropout_p, seed, True, precise, short_rows, *x[3:])

    @staticmethod
    def setup_context(ctx, inputs, output):
        x = _Inputs(*inputs)
        ctx.mark_non_differentiable(*output[1:])
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*inputs[:13], x.seed, *output)  # topology and operands
        ctx.options = _Options(x.slope, x.dropout_p, x.short_rows, x.out_short_rows)

    @staticmethod
    def backward(ctx, grad, *_):
        if grad is None:
            return tuple(_Inputs())
        needs = _Inputs(*ctx.needs_input_grad)
        saved = saved_tensors(ctx, "gatv2_attention")
        return needed_only(_differentiated(ctx.options, needs, grad, *saved), needs, first=6)

    @staticmethod
    def gradients(kept, grads, needs):
        x = _Inputs(*kept[:-3])
        options = _Options(x.slope, x.dropout_p, x.short_rows, x.out_short_rows)
        needs = _Inputs(*[None] * 6, *needs)
        gradients = _differentiated(options, needs, grads[0], *kept[:13], x.seed, *kept[-3:])
        return needed_only(gradients, needs, first=6)[6:13]


_Inputs = inputs_of(_GATv2Attention)


def _differentiated(options: _Options, needs, grad, *saved):
    """Those of the operands, recorded if they are to be."""
    args = options, needs, grad, *saved
    if not is_recorded():
        return _gradients(*args)
    again = functools.partial(_composed_gradients, options, needs[6:13])
    return recorded("gatv2_attention", _gradients, args, again, (*saved[:14], grad))


def _gradients(options: _Options, needs, grad, *saved):
    """Those of the operands. One that is not needed is empty. saved: what the Function kept."""
    operands, (seed, out, lse, residual) = _Operands(*saved[6:13]), saved[13:]
    taken = _taken(operands)
    is_projected = taken is not operands
    needs_rows = (needs.edge_feat or needs.edge_weight) if is_projected else needs.edge_key
    gradients = _gatv2_backward(
        *saved[:6], *taken[:3], options.slope, options.dropout_p, seed, grad, out, lse, residual, options.short_rows,
        options.out_short_rows, *taken[3:], needs.edge_bias, needs_rows, needs.edge_feat and not is_projected,
        needs.edge_weight and not is_projected,
    )  # fmt: skip
    return _unprojected(operands, gradients, needs_rows) if is_projected else gradients


def _unprojected(operands: _Operands, gradients, needs_rows: bool) -> tuple[Tensor, ...]:
    """The gradients of the operands from those of what _taken made of them."""
    *of_nodes, of_bias, of_rows, of_feat, of_weight = gradients
    feat, weight = operands.edge_feat, operands.edge_weight
    assert feat is not None and weight is not None
    if needs_rows:
        of_rows = of_rows.flatten(1)
        with without_autocast(of_rows.device):
            of_feat = (of_rows @ weight.to(of_rows.dtype).flatten(0, 1)).to(feat.dtype)
            of_weight = (of_rows.t() @ feat.to(of_rows.dtype)).view_as(weight).to(weight.dtype)
    of_bias = of_bias if operands.edge_bias is None else of_bias.to(operands.edge_bias.dtype)
    return *(x.to(node.dtype) for x, node in zip(of_nodes, operands[:3])), of_bias, of_rows, of_feat, of_weight


def _composed_gradients(options: _Options, needed, *saved):
    """The same as functions of the operands and of grad, which autograd differentiates."""
    *operands, seed, grad = saved[6:]
    g = graph_of(saved[:3], saved[3:6], operands[0].shape[0], grad.shape[0])

    def composed(feat_src, feat_dst, attn, bias, key, feat, weight):
        terms = EdgeTerms(bias, key, feat=feat, key_weight=weight)
        return _composed(g, feat_src, feat_dst, attn, terms, options.slope, options.dropout_p, seed)[:1]

    return pull_back(composed, operands, needed, (grad,))


# ---- columns that no kernel takes --------------------------------------------------------------------------------------------


def _projects(feat_src: Tensor, edge_feat: Tensor | None) -> bool:
    """Whether columns are made rows of all edges, since there are no kernels for so many, or on that GPU."""
    limits = None if edge_feat is None else limits_of(feat_src)
    if edge_feat is None or limits is None:
        return False
    if edge_feat.shape[1] > limits.leaky_columns:
        return True
    is_half_on_a_gpu = feat_src.is_cuda and feat_src.dtype.itemsize == 2
    return is_half_on_a_gpu and torch.cuda.get_device_capability(feat_src.device)[0] < limits.half_columns_capability


def _taken(operands: _Operands) -> _Operands:
    """What kernels are given: `operands` themselves unless columns are projected. Then all are wide, as half types would be
    rounded before LeakyReLU. The backward projects them again."""
    x = operands
    if not _projects(x.feat_src, x.edge_feat):
        return x
    assert x.edge_feat is not None and x.edge_weight is not None
    wide = wide_type(x.feat_src.dtype)
    rows = _projected(x.edge_feat, x.edge_weight, x.feat_src)
    bias = None if x.edge_bias is None else x.edge_bias.to(wide)
    return _Operands(x.feat_src.to(wide), x.feat_dst.to(wide), x.attn.to(wide), bias, rows, None, None)


def _projected(edge_feat: Tensor, weight: Tensor, feat_src: Tensor) -> Tensor:
    """Rows (E, H, D) of columns, in fp32 (fp64 for fp64), beside features of nodes (rows, H, D)."""
    wide = wide_type(feat_src.dtype)
    with without_autocast(feat_src.device):
        rows = edge_feat.to(wide) @ weight.to(wide).flatten(0, 1).t()
    return rows.view(-1, *feat_src.shape[1:])


# ---- by the separate operators -------------------------------------------------------------------------------------------------


def gatv2_weights(
    g, feat_src: Tensor, feat_dst: Tensor, attn: Tensor, leaky_relu: LeakyReLU, edge_feat: Tensor | None = None
) -> Tensor:
    """The softmax of GATv2 (E, H, 1), in fp32 like that of gat_weights. edge_feat (E, H, D): added to the features of both ends."""
    return _weights(g, feat_src, feat_dst, attn, leaky_relu, EdgeTerms(key=edge_feat))


def _weights(g, feat_src: Tensor, feat_dst: Tensor, attn: Tensor, leaky_relu: LeakyReLU, terms: EdgeTerms) -> Tensor:
    """The softmax of GATv2 (E, H, 1) in fp32 (fp64 for fp64), by the separate operators, which keep rows (E, H, D)."""
    with without_autocast(feat_src.device):
        wide = wide_type(feat_src.dtype)
        hidden = gsddmm(g, "add", feat_src, feat_dst, "u", "v", out_dtype=wide)
        if terms.key is not None:
            hidden = hidden + terms.key
        if terms.feat is not None and terms.key_weight is not None:
            hidden = hidden + _projected(terms.feat, terms.key_weight, feat_src)
        logits = (leaky_relu(hidden) * attn.to(wide)).sum(-1, keepdim=True)
        return edge_softmax(g, logits) if terms.bias is None else masked_softmax(g, logits + terms.bias.unsqueeze(-1))


def _composed(
    g,
    feat_src: Tensor,
    feat_dst: Tensor,
    attn: Tensor,
    terms: EdgeTerms,
    slope: float,
    dropout_p: float,
    seed: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """The same of separate operators, and the softmax (E, H, 1) before dropout, like _composed of dot.py."""
    dtype, wide = feat_src.dtype, wide_type(feat_src.dtype)
    feat_src, feat_dst, attn = feat_src.to(wide), feat_dst.to(wide), attn.to(wide)
    terms = terms.to(wide)
    weights = _weights(g, feat_src, feat_dst, attn, functools.partial(F.leaky_relu, negative_slope=slope), terms)
    with without_autocast(feat_src.device):
        dropped = with_dropout(weights, dropout_p, seed)
        return gspmm(g, "mul", "sum", feat_src, dropped).to(dtype).contiguous(), weights


# ---- the operator ------------------------------------------------------------------------------------------------------------


_NAMES = TermNames("feat_src", "edge_bias", "edge_feat", "edge_value", "edge_feat", "edge_weight", "edge_value_weight")


@overload
def gatv2_attention(
    g: GraphLike, feat_src: Tensor, feat_dst: Tensor, attn: Tensor, negative_slope: float = ..., dropout_p: float = ..., *,
    edge_bias: Tensor | None = ..., edge_feat: Tensor | None = ..., edge_weight: Tensor | None = ..., precise: bool = ...,
    return_weights: Literal[False] = ...,
) -> Tensor: ...  # fmt: skip
@overload
def gatv2_attention(
    g: GraphLike, feat_src: Tensor, feat_dst: Tensor, attn: Tensor, negative_slope: float = ..., dropout_p: float = ..., *,
    edge_bias: Tensor | None = ..., edge_feat: Tensor | None = ..., edge_weight: Tensor | None = ..., precise: bool = ...,
    return_weights: Literal[True],
) -> tuple[Tensor, Tensor]: ...  # fmt: skip
@overload
def gatv2_attention(
    g: GraphLike, feat_src: Tensor, feat_dst: Tensor, attn: Tensor, negative_slope: float = ..., dropout_p: float = ..., *,
    edge_bias: Tensor | None = ..., edge_feat: Tensor | None = ..., edge_weight: Tensor | None = ..., precise: bool = ...,
    return_weights: bool,
) -> Tensor | tuple[Tensor, Tensor]: ...  # fmt: skip
def gatv2_attention(
    g: GraphLike,
    feat_src: Tensor,
    feat_dst: Tensor,
    attn: Tensor,
    negative_slope: float = 0.2,
    dropout_p: float = 0.0,
    *,
    edge_bias: Tensor | None = None,
    edge_feat: Tensor | None = None,
    edge_weight: Tensor | None = None,
    precise: bool = True,
    return_weights: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """out[v] = sum over in-edges e = (u, v) of dropout(softmax(<attn, LeakyReLU(feat_src[u] + feat_dst[v])>)) feat_src[u].

    The attention of GATv2 (Brody, Alon and Yahav, 2022), with one gather of features forward and three backward. Edges may add to
    logits: <attn, LeakyReLU(feat_src[u] + feat_dst[v] + edge_feat[e])> + edge_bias[e], or edge_weight edge_feat[e] inside.

    Args:
        g: Graph or DGLGraph, bipartite or not.
        feat_src: (num_src, H, D), feat_dst: (num_dst, H, D), attn: (H, D), or (1, H, D) as modules keep it.
        edge_bias: (E, H), see :func:`dot_attention`.
        edge_feat: (E, H, D); or (E, C), a few columns that all heads share, with edge_weight: (H * D, C), as
            nn.Linear(C, H * D).weight, or (H, D, C). They are projected for a few edges at a time, so no (E, H, D) is made.
        negative_slope, dropout_p, precise, return_weights: see :func:`gat_attention`.

    Numbers, memory, results and errors are as for :func:`gat_attention`. On CUDA, more than 16 columns of edges (any, in fp16 or
    bf16 on GPUs before sm_80) are projected for all edges, in fp32, and again in the backward. Heads of more than 512 bytes (then
    of fp32) run separate operators.
    """
    g = as_graph(g)
    check_operand(feat_src, "feat_src", g, "u")
    check_operand(feat_dst, "feat_dst", g, "v")
    check_feature(feat_src, "feat_src")
    shape = feat_src.shape[1:]
    check_heads(feat_dst, "feat_dst", shape, "heads, dim")
    check_tensor(attn, "attn")
    check_dense(attn, "attn")
    if attn.device != g.device:
        raise ValueError(f"attn is on {attn.device}; expected the graph's device, {g.device}")
    if attn.dim() == 3 and attn.shape[0] == 1:
        attn = attn.squeeze(0)
    if attn.shape != shape:
        raise ValueError(f"attn has shape {tuple(attn.shape)}; expected (heads, dim) = {tuple(shape)}")
    slope, dropout_p = check_number(negative_slope, "negative_slope"), check_probability(dropout_p, "dropout_p")
    feat_src, feat_dst, attn = autocast(feat_src), autocast(feat_dst), autocast(attn)
    has_terms = edge_bias is not None or edge_feat is not None or edge_weight is not None
    terms = NO_TERMS
    if has_terms:
        rows = EdgeTerms(edge_bias, key=edge_feat)
        terms = rows if edge_weight is None else EdgeTerms(edge_bias, feat=edge_feat, key_weight=edge_weight)
        terms = checked_terms(g, feat_src, terms, _NAMES)
    seed = draw_seed(dropout_p, feat_src.device)
    if has_terms and not _has_kernels(feat_src, terms):
        out = _composed(g, feat_src, feat_dst, attn, terms, slope, dropout_p)[0]
    elif needs_grad(feat_src, feat_dst, attn) or (has_terms and needs_grad(*terms.tensors())):
        sides, short = (*g.csc(), *g.csr()), (g.short_csc, g.short_csr)
        out = apply(
            _GATv2Attention, *sides, feat_src, feat_dst, attn, terms.bias, terms.key, terms.feat, terms.key_weight, slope,
            dropout_p, seed, precise, *short,
        )[0]  # fmt: skip
    elif has_terms:
        x = _taken(_Operands(feat_src, feat_dst, attn, terms.bias, terms.key, terms.feat, terms.key_weight))
        out = _gatv2(*g.csc(), *x[:3], slope, dropout_p, seed, False, False, g.short_csc, *x[3:])[0]
    else:
        out = _gatv2(*g.csc(), feat_src, feat_dst, attn, slope, dropout_p, seed, False, False, g.short_csc)[0]
    if has_terms and out.dtype != feat_src.dtype:  # columns were projected
        out = out.to(feat_src.dtype)
    if not return_weights:
        return out
    leaky_relu = functools.partial(F.leaky_relu, negative_slope=slope)
    return out, _weights(g, feat_src, feat_dst, attn, leaky_relu, terms).squeeze(-1).to(out.dtype)


def _has_kernels(feat_src: Tensor, terms: EdgeTerms) -> bool:
    dtype = feat_src.dtype
    return has_kernels(feat_src, wide_type(dtype) if _projects(feat_src, terms.feat) else dtype)
