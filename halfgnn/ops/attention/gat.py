"""GAT's attention: the autograd Function, its weights by the separate operators, and the public operator."""

from __future__ import annotations

import functools
from typing import Literal, overload

import torch
from torch import Tensor

from ...common.arguments import check_number, check_probability
from ...common.autograd import apply, in_cpp, inputs_of, is_recorded, pull_back, recorded, saved_tensors
from ...common.operands import check_operand
from ...common.precision import autocast, without_autocast
from ...graph_argument import GraphLike, as_graph
from ...row_schedule import schedules_of
from .._operands import graph_of, needs_grad, out_edges
from ..edge_softmax import edge_softmax
from ..sddmm import gsddmm
from ..spmm import gspmm
from ._shared import LeakyReLU, check_feature, check_heads, draw_seed, masked_softmax, wide_type, with_dropout

_gat = torch.ops.halfgnn.gat_attention.default
_gat_backward = torch.ops.halfgnn.gat_attention_backward.default


# ---- autograd ----------------------------------------------------------------------------------------------------------------


@in_cpp("gat_attention")
class _GATAttention(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(
        indptr, indices, edge_ids, out_indptr, out_indices, out_edge_ids, feat, attn_src, attn_dst, edge_logits, slope, dropout_p,
        seed, precise, short_rows, out_short_rows, schedule, out_schedule,
    ):  # fmt: skip
        return _gat(
            indptr, indices, edge_ids, feat, attn_src, attn_dst, edge_logits, slope, dropout_p, seed, True, precise, short_rows,
            schedule,
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
        ctx.out_schedule = x.out_schedule  # not among the saved tensors, as in spmm.py

    @staticmethod
    def backward(ctx, grad, *_):
        if grad is None:
            return tuple(_GATInputs())
        needs = _GATInputs(*ctx.needs_input_grad)
        needed = needs.feat, needs.attn_src, needs.attn_dst, needs.edge_logits
        saved = saved_tensors(ctx, "gat_attention")
        feat, attn_src, attn_dst, edge_logits = _differentiated(
            saved[:7], (ctx.slope, ctx.dropout_p, saved[7]), grad, saved[8:], needed, ctx.short_rows, ctx.out_schedule
        )
        return tuple(_GATInputs(feat=feat, attn_src=attn_src, attn_dst=attn_dst, edge_logits=edge_logits))

    @staticmethod
    def gradients(kept, grads, needs):
        x, results = _GATInputs(*kept[:-4]), kept[-4:]
        options = x.slope, x.dropout_p, x.seed
        return _differentiated(kept[3:10], options, grads[0], results, needs, x.out_short_rows, x.out_schedule)


def _differentiated(csr_and_operands, options, grad, results, needed, short_rows, schedule):
    """The gradients of the operands, None for one that is not needed, recorded if they are to be."""
    slope, dropout_p, seed = options
    args = (*csr_and_operands, *options, grad, *results, needed[-1], short_rows, schedule)
    if is_recorded():
        again = functools.partial(_gat_gradients, needed, slope, dropout_p)
        gradients = recorded("gat_attention", _gat_backward, args, again, (*csr_and_operands, seed, grad))
    else:
        gradients = _gat_backward(*args)
    return tuple(x if need else None for x, need in zip(gradients, needed))


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
        weights = edge_softmax(g, logits) if edge_logits is None else masked_softmax(g, logits)
        weights = with_dropout(weights, dropout_p, seed)
        return (gspmm(g, "mul", "sum", feat.to(weights.dtype), weights).to(feat.dtype),)

    return pull_back(composed, operands, needed, (grad,))


# ---- weights, by the separate operators -----------------------------------------------------------------------------------------


def gat_weights(g, attn_src: Tensor, attn_dst: Tensor, edge_logits: Tensor | None, leaky_relu: LeakyReLU) -> Tensor:
    """The softmax of GAT (E, *, H, 1), from logits (rows, *, H).

    As in the fused operators, logits and softmax are fp32 (fp64 for fp64 operands), under autocast too.
    """
    with without_autocast(attn_src.device):
        return edge_softmax(g, _gat_logits(g, attn_src, attn_dst, edge_logits, leaky_relu))


def _gat_logits(g, attn_src: Tensor, attn_dst: Tensor, edge_logits: Tensor | None, leaky_relu: LeakyReLU) -> Tensor:
    wide = wide_type(attn_src.dtype, attn_dst.dtype)
    logits = gsddmm(g, "add", attn_src.unsqueeze(-1).to(wide), attn_dst.unsqueeze(-1).to(wide), "u", "v")
    return leaky_relu(logits if edge_logits is None else logits + edge_logits.unsqueeze(-1))


# ---- the operator ------------------------------------------------------------------------------------------------------------


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
    reproducible, and dropout follows torch.manual_seed. Saved for the backward are the inputs, and per destination: two
    half-precision values per feature (one if not precise), one more for the edges whose logits are positive, and one number per
    head. Apart from edge_logits it keeps nothing per edge. Derivatives of every order exist; a second one keeps numbers of edges.

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
    check_feature(feat, "feat")
    heads = (feat.shape[1],)
    check_heads(attn_src, "attn_src", heads, "heads")
    check_heads(attn_dst, "attn_dst", heads, "heads")
    if edge_logits is not None:
        check_operand(edge_logits, "edge_logits", g, "e")
        check_heads(edge_logits, "edge_logits", heads, "heads")
    slope, dropout_p = check_number(negative_slope, "negative_slope"), check_probability(dropout_p, "dropout_p")
    feat = autocast(feat)
    src, dst, edge = _logits_like(feat, attn_src, attn_dst, edge_logits)
    operands, options = (feat, src, dst, edge), (slope, dropout_p)
    seed = draw_seed(dropout_p, feat.device)
    with_grad = needs_grad(*operands)
    schedules = schedules_of(g, with_grad)
    if with_grad:
        sides, short = (*g.csc(), *g.csr()), (g.short_csc, g.short_csr)
        out = apply(_GATAttention, *sides, *operands, *options, seed, precise, *short, *schedules)[0]
    else:
        out = _gat(*g.csc(), *operands, *options, seed, False, False, g.short_csc, schedules[0])[0]
    if not return_weights:
        return out
    assert src is not None and dst is not None
    leaky_relu = functools.partial(torch.nn.functional.leaky_relu, negative_slope=slope)
    return out, gat_weights(g, src, dst, edge, leaky_relu).squeeze(-1).to(out.dtype)
