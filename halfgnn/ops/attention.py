"""Fused graph attention: GAT, GATv2 and dot-product, in memory proportional to nodes, not edges.

A softmax of message passing makes and keeps several tensors of one number per edge and head. Here one pass over the edges makes
logits, softmax, dropout and weighted sum. The backward recomputes the weights from one log-sum-exp per node and head.
docs/attention.md has the method, and says why GAT's backward needs no dot product per edge. The forward follows flash-attention
(Dao et al., 2022).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Literal, overload

import torch
from torch import Tensor

from ..common.arguments import check_number, check_probability
from ..common.autograd import apply, inputs_of, is_recorded, pull_back, recorded, saved_tensors
from ..common.operands import check_dense, check_operand, check_tensor
from ..common.precision import autocast, without_autocast
from ..graph_argument import GraphLike, as_graph
from . import _attention_edges as edges
from . import _attention_fakes  # noqa: F401  (registers fake kernels)
from . import _gatv2_edges as gatv2_edges
from ._operands import graph_of, needs_grad, out_edges
from .edge_softmax import edge_softmax
from .sddmm import gsddmm
from .spmm import gspmm

_gat = torch.ops.halfgnn.gat_attention.default
_gat_backward = torch.ops.halfgnn.gat_attention_backward.default
_gatv2 = torch.ops.halfgnn.gatv2_attention.default
_gatv2_backward = torch.ops.halfgnn.gatv2_attention_backward.default
_dot = torch.ops.halfgnn.dot_attention.default
_dot_backward = torch.ops.halfgnn.dot_attention_backward.default


# ---- autograd ----------------------------------------------------------------------------------------------------------------


class _GATAttention(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(
        indptr, indices, edge_ids, out_indptr, out_indices, out_edge_ids, feat, attn_src, attn_dst, edge_logits, slope, dropout_p,
        seed, precise, short_rows, out_short_rows,
    ):  # fmt: skip
        return _gat(
            indptr, indices, edge_ids, feat, attn_src, attn_dst, edge_logits, slope, dropout_p, seed, True, precise, short_rows
        )  # fmt: skip

    @staticmethod
    def setup_context(ctx, inputs, output):
        x = _GATInputs(*inputs)
        ctx.mark_non_differentiable(*output[1:])
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(
            x.out_indptr, x.out_indices, x.out_edge_ids, x.feat, x.attn_src, x.attn_dst, x.edge_logits, x.seed, *output
        )  # fmt: skip
        ctx.slope, ctx.dropout_p, ctx.short_rows = x.slope, x.dropout_p, x.out_short_rows

    @staticmethod
    def backward(ctx, grad, *_):
        if grad is None:
            return tuple(_GATInputs())
        *csr_and_operands, seed, out, lse, out_residual, positive = saved_tensors(ctx, "gat_attention")
        needs = _GATInputs(*ctx.needs_input_grad)
        args = (
            *csr_and_operands, ctx.slope, ctx.dropout_p, seed, grad, out, lse, out_residual, positive, needs.edge_logits,
            ctx.short_rows,
        )  # fmt: skip
        if is_recorded():
            needed = needs.feat, needs.attn_src, needs.attn_dst, needs.edge_logits
            again = functools.partial(_gat_gradients, needed, ctx.slope, ctx.dropout_p)
            found = recorded("gat_attention", _gat_backward, args, again, (*csr_and_operands, seed, grad))
        else:
            found = _gat_backward(*args)
        feat, attn_src, attn_dst, edge_logits = found
        return tuple(
            _GATInputs(
                feat=feat if needs.feat else None,
                attn_src=attn_src if needs.attn_src else None,
                attn_dst=attn_dst if needs.attn_dst else None,
                edge_logits=edge_logits if needs.edge_logits else None,
            )
        )


_GATInputs = inputs_of(_GATAttention)


def _gat_gradients(needed, slope, dropout_p, indptr, indices, edge_ids, *saved):
    """The gradients of the operands as functions of these and of grad, which autograd differentiates. Of CSR."""
    *operands, seed, grad = saved
    csr, num_src, num_dst = (indptr, indices, edge_ids), operands[0].shape[0], operands[2].shape[0]
    csc = out_edges(csr, num_dst)  # of the reversed graph
    g = graph_of(csc, csr, num_src, num_dst)
    leaky_relu = functools.partial(torch.nn.functional.leaky_relu, negative_slope=slope)

    def composed(feat, attn_src, attn_dst, edge_logits):
        logits = _gat_logits(g, attn_src, attn_dst, edge_logits, leaky_relu)
        weights = edge_softmax(g, logits) if edge_logits is None else edges.masked_softmax(g, logits)
        weights = edges.with_dropout(weights, dropout_p, seed)
        return (gspmm(g, "mul", "sum", feat.to(weights.dtype), weights).to(feat.dtype),)

    return pull_back(composed, operands, needed, (grad,))


class _PairAttention(torch.autograd.Function):
    """GATv2 and dot attention.

    first, second, third: feat_src, feat_dst and attn of GATv2; query, key and value of dot attention. factor: its slope or scale.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(
        indptr, indices, edge_ids, out_indptr, out_indices, out_edge_ids, first, second, third, is_gatv2, factor, dropout_p, seed,
        precise, short_rows, out_short_rows,
    ):  # fmt: skip
        attention = _gatv2 if is_gatv2 else _dot
        return attention(
            indptr, indices, edge_ids, first, second, third, factor, dropout_p, seed, True, precise, short_rows
        )

    @staticmethod
    def setup_context(ctx, inputs, output):
        x = _PairInputs(*inputs)
        ctx.mark_non_differentiable(*output[1:])
        ctx.set_materialize_grads(False)
        in_edges, out_edges = (x.indptr, x.indices, x.edge_ids), (x.out_indptr, x.out_indices, x.out_edge_ids)
        ctx.save_for_backward(*in_edges, *out_edges, x.first, x.second, x.third, x.seed, *output)
        ctx.is_gatv2, ctx.factor, ctx.dropout_p = x.is_gatv2, x.factor, x.dropout_p
        ctx.short_rows, ctx.out_short_rows = x.short_rows, x.out_short_rows

    @staticmethod
    def backward(ctx, grad, *_):
        if grad is None:
            return tuple(_PairInputs())
        name, backward = ("gatv2_attention", _gatv2_backward) if ctx.is_gatv2 else ("dot_attention", _dot_backward)
        *topology_and_operands, seed, out, lse, out_residual = saved_tensors(ctx, name)
        needs = _PairInputs(*ctx.needs_input_grad)
        args = (
            *topology_and_operands, ctx.factor, ctx.dropout_p, seed, grad, out, lse, out_residual, ctx.short_rows,
            ctx.out_short_rows,
        )  # fmt: skip
        if is_recorded():
            needed = needs.first, needs.second, needs.third
            gradients = (gatv2_edges if ctx.is_gatv2 else edges).composed_gradients
            again = functools.partial(gradients, needed, ctx.factor, ctx.dropout_p)
            found = recorded(name, backward, args, again, (*topology_and_operands, seed, grad))
        else:
            found = backward(*args)
        first, second, third = found
        return tuple(
            _PairInputs(
                first=first if needs.first else None,
                second=second if needs.second else None,
                third=third if needs.third else None,
            )
        )


_PairInputs = inputs_of(_PairAttention)


# ---- weights, by the separate operators -----------------------------------------------------------------------------------------


LeakyReLU = Callable[[Tensor], Tensor]  # or what a module has in place of it


def gat_weights(g, attn_src: Tensor, attn_dst: Tensor, edge_logits: Tensor | None, leaky_relu: LeakyReLU) -> Tensor:
    """The softmax of GAT (E, *, H, 1), from logits (rows, *, H).

    As in the fused operators, logits and softmax are fp32 (fp64 for fp64 operands), under autocast too.
    """
    with without_autocast(attn_src.device):
        return edge_softmax(g, _gat_logits(g, attn_src, attn_dst, edge_logits, leaky_relu))


def _gat_logits(g, attn_src: Tensor, attn_dst: Tensor, edge_logits: Tensor | None, leaky_relu: LeakyReLU) -> Tensor:
    wide = _wide(attn_src.dtype, attn_dst.dtype)
    logits = gsddmm(g, "add", attn_src.unsqueeze(-1).to(wide), attn_dst.unsqueeze(-1).to(wide), "u", "v")
    return leaky_relu(logits if edge_logits is None else logits + edge_logits.unsqueeze(-1))


def gatv2_weights(
    g, feat_src: Tensor, feat_dst: Tensor, attn: Tensor, leaky_relu: LeakyReLU, edge_feat: Tensor | None = None
) -> Tensor:
    """The softmax of GATv2 (E, H, 1), in fp32 like :func:`gat_weights`. edge_feat (E, H, D): added to the features of both ends."""
    terms = gatv2_edges.EdgeTerms(rows=edge_feat)
    return gatv2_edges.gatv2_weights(g, feat_src, feat_dst, attn, leaky_relu, terms)


def _wide(*dtypes: torch.dtype) -> torch.dtype:
    """The dtype in which logits are formed."""
    return functools.reduce(torch.promote_types, dtypes, torch.float32)


# ---- public operators --------------------------------------------------------------------------------------------------------


def _check_heads(data: Tensor, name: str, shape: tuple[int, ...], what: str) -> None:
    if tuple(data.shape[1:]) != shape:
        raise ValueError(
            f"{name} has shape {tuple(data.shape)}; expected ({data.shape[0]}, {what}) = {(data.shape[0], *shape)}"
        )


def _check_feature(data: Tensor, name: str) -> None:
    if data.dim() != 3:
        raise ValueError(f"{name} has shape {tuple(data.shape)}; expected (rows, heads, dim)")


def _draw_seed(dropout_p: float, device: torch.device) -> Tensor | None:
    """The key of the kernel's random numbers, drawn from PyTorch's generator without a synchronisation.

    So torch.manual_seed, fork_rng, checkpointing and the replay of CUDA graphs act on it as on torch's own dropout.
    """
    if dropout_p == 0:
        return None
    return torch.randint(0, 2**63 - 1, (2,), dtype=torch.int64, device=device)


def _logits_like(feat: Tensor, *logits: Tensor | None) -> tuple[Tensor | None, ...]:
    """Logits in the dtype of feat if all have it, otherwise in fp32 (beside half features). Autocast does not round fp32 logits."""
    if all(x is None or x.dtype == feat.dtype for x in logits):
        return logits
    if feat.dtype not in (torch.float16, torch.bfloat16, torch.float32):
        return logits  # which the operator refuses
    allowed = (feat.dtype, torch.float16, torch.bfloat16, torch.float32)
    return tuple(x.float() if x is not None and x.dtype in allowed else x for x in logits)


@overload
def gat_attention(
    g: GraphLike, feat: Tensor, attn_src: Tensor, attn_dst: Tensor, edge_logits: Tensor | None = ..., negative_slope: float = ...,
    dropout_p: float = ..., *, precise: bool = ..., return_weights: Literal[False] = ...,
) -> Tensor: ...  # fmt: skip
@overload
def gat_attention(
    g: GraphLike, feat: Tensor, attn_src: Tensor, attn_dst: Tensor, edge_logits: Tensor | None = ..., negative_slope: float = ...,
    dropout_p: float = ..., *, precise: bool = ..., return_weights: Literal[True],
) -> tuple[Tensor, Tensor]: ...  # fmt: skip
@overload
def gat_attention(
    g: GraphLike, feat: Tensor, attn_src: Tensor, attn_dst: Tensor, edge_logits: Tensor | None = ..., negative_slope: float = ...,
    dropout_p: float = ..., *, precise: bool = ..., return_weights: bool,
) -> Tensor | tuple[Tensor, Tensor]: ...  # fmt: skip
def gat_attention(
    g: GraphLike,
    feat: Tensor,
    attn_src: Tensor,
    attn_dst: Tensor,
    edge_logits: Tensor | None = None,
    negative_slope: float = 0.2,
    dropout_p: float = 0.0,
    *,
    precise: bool = True,
    return_weights: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """out[v] = sum over in-edges e = (u, v) of dropout(softmax(LeakyReLU(attn_src[u] + attn_dst[v] + edge_logits[e]))) feat[u].

    The attention of GAT (Velickovic et al., 2018), in one pass forward and one backward, each with one gather of features.

    Args:
        g: Graph or DGLGraph, bipartite or not.
        feat: (num_src, H, D), fp16, bf16 or fp32 (fp64 on the CPU).
        attn_src: (num_src, H), attn_dst: (num_dst, H), edge_logits: (E, H) or None. In feat's dtype or fp32; autocast leaves fp32
            logits as they are. An edge logit of -inf removes the edge, if negative_slope is positive. A node whose edges are all
            removed gets 0, as a node without edges does (on CUDA NaN, for now).
        negative_slope: of LeakyReLU.
        dropout_p: probability that the weight of an edge and head is dropped; the others are divided by 1 - dropout_p. Applied
            whenever it is not 0, as in torch.nn.functional.scaled_dot_product_attention: pass 0 for evaluation.
        precise: keep for the backward what the rounding of the result to half lost. Without it, gradients of logits lose digits if
            the features of a node's neighbours have much in common.
        return_weights: also return the weights.

    Logits, exponentials and sums are fp32, and the result is rounded once. Nodes without in-edges get 0. Results are bitwise
    reproducible, and dropout follows torch.manual_seed. The backward keeps the inputs, and per destination: two halves per feature
    (one if not precise), one more for the edges whose logits are positive, and one number per head. Apart from edge_logits it keeps
    nothing per edge. Derivatives of every order exist; a second one keeps numbers of edges.

    Returns:
        (num_dst, H, D), like feat. With return_weights the pair of it and (E, H), the softmax before dropout, which is made by the
        separate operators in fp32, rounded once to the dtype of feat, and differentiable. If a gradient is recorded, the backward
        keeps the first, so writing into it makes the backward raise, as with the result of torch.sigmoid. Modules return a copy.

    Raises:
        TypeError: wrong or mixed dtypes. ValueError: wrong shapes, devices or probability.
    """
    g = as_graph(g)
    check_operand(feat, "feat", g, "u")
    check_operand(attn_src, "attn_src", g, "u")
    check_operand(attn_dst, "attn_dst", g, "v")
    _check_feature(feat, "feat")
    heads = (feat.shape[1],)
    _check_heads(attn_src, "attn_src", heads, "heads")
    _check_heads(attn_dst, "attn_dst", heads, "heads")
    if edge_logits is not None:
        check_operand(edge_logits, "edge_logits", g, "e")
        _check_heads(edge_logits, "edge_logits", heads, "heads")
    slope, dropout_p = check_number(negative_slope, "negative_slope"), check_probability(dropout_p, "dropout_p")
    feat = autocast(feat)
    src, dst, edge = _logits_like(feat, attn_src, attn_dst, edge_logits)
    operands, options = (feat, src, dst, edge), (slope, dropout_p)
    seed = _draw_seed(dropout_p, feat.device)
    if needs_grad(*operands):
        sides, short = (*g.csc(), *g.csr()), (g.short_csc, g.short_csr)
        out = apply(_GATAttention, *sides, *operands, *options, seed, precise, *short)[0]
    else:
        out = _gat(*g.csc(), *operands, *options, seed, False, False, g.short_csc)[0]
    if not return_weights:
        return out
    assert src is not None and dst is not None
    leaky_relu = functools.partial(torch.nn.functional.leaky_relu, negative_slope=slope)
    return out, gat_weights(g, src, dst, edge, leaky_relu).squeeze(-1).to(out.dtype)


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

    Numbers, memory, results and errors are as for :func:`gat_attention`. On CUDA, more than 16 columns of
    edges (any, of halves on GPUs before sm_80) are projected for all edges, in fp32, and again in the backward. Heads of more than
    512 bytes (then of fp32) run separate operators.
    """
    g = as_graph(g)
    check_operand(feat_src, "feat_src", g, "u")
    check_operand(feat_dst, "feat_dst", g, "v")
    _check_feature(feat_src, "feat_src")
    _check_heads(feat_dst, "feat_dst", tuple(feat_src.shape[1:]), "heads, dim")
    check_tensor(attn, "attn")
    check_dense(attn, "attn")
    if attn.device != g.device:
        raise ValueError(f"attn is on {attn.device}; expected the graph's device, {g.device}")
    if attn.dim() == 3 and attn.shape[0] == 1:
        attn = attn.squeeze(0)
    if attn.shape != feat_src.shape[1:]:
        raise ValueError(f"attn has shape {tuple(attn.shape)}; expected (heads, dim) = {tuple(feat_src.shape[1:])}")
    slope, dropout_p = check_number(negative_slope, "negative_slope"), check_probability(dropout_p, "dropout_p")
    feat_src, feat_dst, attn = autocast(feat_src), autocast(feat_dst), autocast(attn)
    terms = gatv2_edges.checked_terms(g, feat_src, edge_bias, edge_feat, edge_weight)
    if terms is None:
        out = _pair_attention(g, (feat_src, feat_dst, attn), True, slope, dropout_p, precise)
    else:
        seed = _draw_seed(dropout_p, feat_src.device)
        out = gatv2_edges.gatv2_attention(g, feat_src, feat_dst, attn, terms, slope, dropout_p, seed, precise)
    if not return_weights:
        return out
    leaky_relu = functools.partial(torch.nn.functional.leaky_relu, negative_slope=slope)
    return out, gatv2_edges.gatv2_weights(g, feat_src, feat_dst, attn, leaky_relu, terms).squeeze(-1).to(out.dtype)


@overload
def dot_attention(
    g: GraphLike, query: Tensor, key: Tensor, value: Tensor, scale: float | None = ..., dropout_p: float = ..., *,
    edge_bias: Tensor | None = ..., edge_feat: Tensor | None = ..., edge_key_weight: Tensor | None = ...,
    edge_value_weight: Tensor | None = ..., edge_key: Tensor | None = ..., edge_value: Tensor | None = ..., precise: bool = ...,
    return_weights: Literal[False] = ...,
) -> Tensor: ...  # fmt: skip
@overload
def dot_attention(
    g: GraphLike, query: Tensor, key: Tensor, value: Tensor, scale: float | None = ..., dropout_p: float = ..., *,
    edge_bias: Tensor | None = ..., edge_feat: Tensor | None = ..., edge_key_weight: Tensor | None = ...,
    edge_value_weight: Tensor | None = ..., edge_key: Tensor | None = ..., edge_value: Tensor | None = ..., precise: bool = ...,
    return_weights: Literal[True],
) -> tuple[Tensor, Tensor]: ...  # fmt: skip
@overload
def dot_attention(
    g: GraphLike, query: Tensor, key: Tensor, value: Tensor, scale: float | None = ..., dropout_p: float = ..., *,
    edge_bias: Tensor | None = ..., edge_feat: Tensor | None = ..., edge_key_weight: Tensor | None = ...,
    edge_value_weight: Tensor | None = ..., edge_key: Tensor | None = ..., edge_value: Tensor | None = ..., precise: bool = ...,
    return_weights: bool,
) -> Tensor | tuple[Tensor, Tensor]: ...  # fmt: skip
def dot_attention(
    g: GraphLike,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    scale: float | None = None,
    dropout_p: float = 0.0,
    *,
    edge_bias: Tensor | None = None,
    edge_feat: Tensor | None = None,
    edge_key_weight: Tensor | None = None,
    edge_value_weight: Tensor | None = None,
    edge_key: Tensor | None = None,
    edge_value: Tensor | None = None,
    precise: bool = True,
    return_weights: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """out[v] = sum over in-edges e = (u, v) of dropout(softmax(scale <query[v], key[u]>)) value[u].

    The attention of transformers over the edges of a graph, with two gathers of features forward and four backward. Edges may add
    to logits, keys and values:

        scale <query[v], key[u] + edge_key[e] + edge_key_weight edge_feat[e]> + edge_bias[e]
        value[u] + edge_value[e] + edge_value_weight edge_feat[e]

    Args:
        g: Graph or DGLGraph, bipartite or not.
        query: (num_dst, H, D), key: (num_src, H, D), value: (num_src, H, D).
        scale: by default 1 / sqrt(D).
        edge_bias: (E, H), in key's dtype, or in any half type or fp32 beside halves. -inf removes an edge from a head. A node
            whose edges are all removed gets 0, as a node without edges does, and gradients stay finite.
        edge_feat: (E, C), a few columns that all heads share.
        edge_key_weight, edge_value_weight: (H * D, C), as nn.Linear(C, H * D).weight, or (H, D, C). One, both, or one for both.
        edge_key, edge_value: (E, H, D). They may be one tensor: it is read once, and its gradient is written once.
        dropout_p, precise, return_weights: see :func:`gat_attention`.

    Numbers, memory, results and errors are as for :func:`gat_attention`, in that what edges add is kept for the backward too. No
    projection of edge_feat is ever made for all edges: W_k^T query[v] meets edge_feat[e], and W_v projects the weighted sum of
    edge_feat. On CUDA, terms of edges with heads of more than 512 bytes, and an edge_feat that is in values beside edge_key or
    edge_value or has more than 128 columns, run separate operators for now, which keep numbers of edges, and draw dropout as torch
    does. There an edge_feat in keys alone becomes a bias in fp32.

        out = dot_attention(g, q, k, v, edge_feat=bonds, edge_key_weight=lin.weight, edge_value_weight=lin.weight)
    """
    g = as_graph(g)
    check_operand(query, "query", g, "v")
    check_operand(key, "key", g, "u")
    check_operand(value, "value", g, "u")
    _check_feature(key, "key")
    _check_heads(query, "query", tuple(key.shape[1:]), "heads, dim")
    _check_heads(value, "value", tuple(key.shape[1:]), "heads, dim")
    dropout_p = check_probability(dropout_p, "dropout_p")
    scale = 1 / math.sqrt(max(key.shape[2], 1)) if scale is None else check_number(scale, "scale")
    query, key, value = autocast(query), autocast(key), autocast(value)
    terms = edges.checked_terms(
        g, key, "key", edge_bias, edge_feat, edge_key_weight, edge_value_weight, edge_key, edge_value
    )
    if terms is None:
        out = _pair_attention(g, (query, key, value), False, scale, dropout_p, precise)
    else:
        if query.dtype != key.dtype:  # before it is projected
            raise TypeError(f"query has dtype {query.dtype} and key {key.dtype}; expected equal dtypes")
        seed = _draw_seed(dropout_p, key.device)
        out = edges.dot_attention(g, query, key, value, terms, scale, dropout_p, seed, precise)
    if not return_weights:
        return out
    return out, edges.dot_weights(g, query, key, terms or edges.EdgeTerms(), scale).squeeze(-1).to(out.dtype)


def _pair_attention(g, operands, is_gatv2: bool, factor: float, dropout_p: float, precise: bool) -> Tensor:
    seed = _draw_seed(dropout_p, operands[0].device)
    if needs_grad(*operands):
        sides, short = (*g.csc(), *g.csr()), (g.short_csc, g.short_csr)
        return apply(_PairAttention, *sides, *operands, is_gatv2, factor, dropout_p, seed, precise, *short)[0]
    return (_gatv2 if is_gatv2 else _dot)(*g.csc(), *operands, factor, dropout_p, seed, False, False, g.short_csc)[0]
