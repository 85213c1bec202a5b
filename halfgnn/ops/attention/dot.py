"""Dot attention: the autograd Function, its projections, the composition where a device has no kernels, and the operator.

docs/attention.md has the method. Features of edges meet a head as W_k^T query, and leave it as a weighted sum that W_v projects.
So rows of H * D elements per edge are never made.
"""

from __future__ import annotations

import functools
import math
from typing import Literal, NamedTuple, overload

import torch
from torch import Tensor

from ...common.arguments import check_number, check_probability
from ...common.autograd import apply, in_cpp, inputs_of, is_recorded, pull_back, recorded, saved_tensors
from ...common.operands import check_operand
from ...common.precision import autocast, without_autocast
from ...common.products import chunks, is_transformed
from ...graph_argument import GraphLike, as_graph
from .._operands import graph_of, needs_grad
from ..edge_softmax import edge_softmax
from ..sddmm import gsddmm
from ..spmm import gspmm
from ._shared import check_feature, check_heads, draw_seed, masked_softmax, needed_only, wide_type, with_dropout
from ._terms import NO_TERMS, EdgeTerms, TermNames, checked_terms, has_kernels, limits_of

_dot = torch.ops.halfgnn.dot_attention.default
_dot_backward = torch.ops.halfgnn.dot_attention_backward.default
# Elements of a weight, 64 KB in fp32. By larger ones, products of all rows are as fast and need not read them again for each row.
_MOST_INSIDE = 1 << 14


# ---- autograd ----------------------------------------------------------------------------------------------------------------


def _attended(csc, query, key, value, terms: EdgeTerms, scale, dropout_p, seed, save, precise, short_rows):
    """(out, lse, out_residual, edge_out), with values of edges in out, which is rounded once."""
    value_weight = terms.of_values()
    if _takes_weights(key, terms):
        return _dot(
            *csc, query, key, value, scale, dropout_p, seed, save, precise, short_rows, terms.bias, terms.key, terms.value,
            terms.key_is_value, terms.feat, None, save and value_weight is not None, terms.key_weight, value_weight,
        )  # fmt: skip
    edge_query = None if terms.key_weight is None else _to_columns(query, terms.key_weight)
    out, lse, residual, edge_out = _dot(
        *csc, query, key, value, scale, dropout_p, seed, save, precise, short_rows, terms.bias, terms.key, terms.value,
        terms.key_is_value, terms.feat, edge_query, value_weight is not None,
    )  # fmt: skip
    if value_weight is not None:
        total = out + _from_columns(edge_out, value_weight)
        if total.dtype == value.dtype:  # total.to() would be the same tensor, which compiled code loses the gradient of
            return total, lse, residual, edge_out
        out = total.to(value.dtype)
        if save and precise:
            residual = (total - out).nan_to_num(0, 0, 0).to(value.dtype)
    return out, lse, residual, edge_out


class _Options(NamedTuple):
    """What the backward is given besides tensors."""

    scale: float
    dropout_p: float
    key_is_value: bool
    one_weight: bool
    short_rows: bool
    out_short_rows: bool


@in_cpp("dot_attention", takes=lambda *args: args[12] is None)  # edge_feat
class _DotAttention(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(
        indptr, indices, edge_ids, out_indptr, out_indices, out_edge_ids, query, key, value, edge_bias, edge_key, edge_value,
        edge_feat, key_weight, value_weight, key_is_value, one_weight, scale, dropout_p, seed, precise, short_rows,
        out_short_rows,
    ):  # fmt: skip
        terms = EdgeTerms(
            edge_bias, edge_key, edge_value, edge_feat, key_weight, value_weight, key_is_value, one_weight
        )
        return _attended(
            (indptr, indices, edge_ids), query, key, value, terms, scale, dropout_p, seed, True, precise, short_rows
        )

    @staticmethod
    def setup_context(ctx, inputs, output):
        x = _Inputs(*inputs)
        ctx.mark_non_differentiable(*output[1:])
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*inputs[:15], x.seed, *output)  # topology and operands
        ctx.options = _Options(x.scale, x.dropout_p, x.key_is_value, x.one_weight, x.short_rows, x.out_short_rows)

    @staticmethod
    def backward(ctx, grad, *_):
        if grad is None:
            return tuple(_Inputs())
        needs = _Inputs(*ctx.needs_input_grad)
        saved = saved_tensors(ctx, "dot_attention")
        return needed_only(_differentiated(ctx.options, needs, grad, *saved), needs, first=6)

    @staticmethod
    def gradients(kept, grads, needs):
        x = _Inputs(*kept[:-4])
        options = _Options(x.scale, x.dropout_p, x.key_is_value, x.one_weight, x.short_rows, x.out_short_rows)
        needs = _Inputs(*[None] * 6, *needs)
        gradients = _differentiated(options, needs, grads[0], *kept[:15], x.seed, *kept[-4:])
        return needed_only(gradients, needs, first=6)[6:12]


_Inputs = inputs_of(_DotAttention)


def _differentiated(options: _Options, needs, grad, *saved):
    """Those of the operands, recorded if they are to be."""
    args = options, needs, grad, *saved
    if not is_recorded():
        return _gradients(*args)
    again = functools.partial(_composed_gradients, options, needs[6:15])
    return recorded("dot_attention", _gradients, args, again, (*saved[:16], grad))


def _gradients(options: _Options, needs, grad, *saved):
    """Those of query, key and value and of the terms. One that is not needed is empty. saved: what the Function kept."""
    sides, (query, key, value), (seed, out, lse, residual, edge_out) = saved[:6], saved[6:9], saved[15:]
    terms = EdgeTerms._make([*saved[9:15], options.key_is_value, options.one_weight])
    key_weight, value_weight = terms.key_weight, terms.of_values()
    edge_query = grad_edge_out = None
    takes_weights = _takes_weights(key, terms)
    if not takes_weights:
        edge_query = None if key_weight is None else _to_columns(query, key_weight)
        grad_edge_out = None if value_weight is None else _to_columns(grad, value_weight)
    of_query, *of_others, of_edge_query = _dot_backward(
        *sides, query, key, value, options.scale, options.dropout_p, seed, grad, out, lse, residual, options.short_rows,
        options.out_short_rows, terms.bias, terms.key, terms.value, terms.key_is_value, terms.feat, edge_query, grad_edge_out,
        needs.edge_bias, needs.edge_key, needs.edge_value, needs.edge_feat,
        *((key_weight, value_weight) if takes_weights else ()),
    )  # fmt: skip
    if terms.feat is None:
        return of_query, *of_others  # there are no weights
    if terms.key_weight is not None and not takes_weights:
        of_query = (of_query + _from_columns(of_edge_query, terms.key_weight)).to(query.dtype)
    return of_query, *of_others, *_weight_gradients(query, of_edge_query, grad, edge_out, terms, needs)


def _weight_gradients(query, of_edge_query, grad, edge_out, terms: EdgeTerms, needs) -> tuple[Tensor, Tensor]:
    """Those of key_weight and value_weight."""
    of_keys = of_values = empty = query.new_empty((0,))
    if needs.key_weight:
        of_keys = _of_weight(query, of_edge_query)
    if needs.value_weight or (needs.key_weight and terms.one_weight):
        of_values = _of_weight(grad, edge_out)
    if terms.one_weight and needs.key_weight:
        return (of_keys + of_values).to(query.dtype), empty
    return of_keys.to(query.dtype), of_values.to(query.dtype)


def _composed_gradients(options: _Options, needed, *saved):
    """The same as functions of the operands, of terms and of grad, which autograd differentiates."""
    *operands, seed, grad = saved[6:]
    g = graph_of(saved[:3], saved[3:6], operands[1].shape[0], grad.shape[0])

    def composed(query, key, value, *tensors):
        terms = EdgeTerms._make([*tensors, options.key_is_value, options.one_weight])
        return _composed(g, query, key, value, terms, options.scale, options.dropout_p, seed)[:1]

    return pull_back(composed, operands, needed, (grad,))


# ---- projections, in fp32 (fp64 for fp64) ----------------------------------------------------------------------------------------


def _to_columns(rows: Tensor, weight: Tensor) -> Tensor:
    """weight^T of every head (H, D, C) times rows (N, H, D): (N, H, C)."""
    wide = wide_type(rows.dtype)
    with without_autocast(rows.device):
        return torch.bmm(rows.to(wide).transpose(0, 1), weight.to(wide)).transpose(0, 1).contiguous()


def _from_columns(columns: Tensor, weight: Tensor) -> Tensor:
    """weight of every head (H, D, C) times columns (N, H, C): (N, H, D)."""
    with without_autocast(columns.device):
        return torch.bmm(columns.transpose(0, 1), weight.to(columns.dtype).transpose(1, 2)).transpose(0, 1)


def _of_weight(rows: Tensor, columns: Tensor) -> Tensor:
    """The sum over N of rows (N, H, D) times columns (N, H, C): (H, D, C)."""
    with without_autocast(rows.device):
        if rows.device.type != "cpu":
            return _diagonal_products(rows.to(columns.dtype), columns)
        if is_transformed(rows, columns):
            return torch.bmm(rows.to(columns.dtype).permute(1, 2, 0), columns.transpose(0, 1))
        total = columns.new_zeros(*rows.shape[1:], columns.shape[2])
        for part in chunks(rows.shape[0], rows.shape[1] * (rows.shape[2] + columns.shape[2])):
            total += torch.bmm(rows[part].to(columns.dtype).permute(1, 2, 0), columns[part].transpose(0, 1))
        return total


def _diagonal_products(rows: Tensor, columns: Tensor, heads_at_once: int = 8) -> Tensor:
    """The same by one product for several heads, of whose blocks those on the diagonal are wanted.

    rows: (N, H, D). columns: (N, H, C), of the same dtype. Returns (H, D, C). A batch of small results presumably gives cuBLAS few
    blocks, however long its sums are: on an H200, the backward with 16 columns and 170,000 rows took 15.0 ms with 4 heads of 64
    elements, and 1.5 with one of 128.
    """
    products = []
    for some_rows, some_columns in zip(rows.split(heads_at_once, 1), columns.split(heads_at_once, 1)):
        product = some_rows.flatten(1).t() @ some_columns.flatten(1)
        heads = some_rows.shape[1]
        blocks = product.view(heads, rows.shape[2], heads, columns.shape[2])
        products.append(blocks.diagonal(dim1=0, dim2=2).permute(2, 0, 1))
    return torch.cat(products)


# ---- by the separate operators -------------------------------------------------------------------------------------------------


def _as_bias(g, query: Tensor, terms: EdgeTerms, scale: float) -> EdgeTerms:
    """Columns that are in keys alone as a bias of logits."""
    with without_autocast(query.device):
        bias = scale * _column_logits(g, query, terms).squeeze(-1)
        bias = bias if terms.bias is None else bias + terms.bias
    return EdgeTerms(bias, terms.key, terms.value, key_is_value=terms.key_is_value)


def _column_logits(g, query: Tensor, terms: EdgeTerms) -> Tensor:
    """What columns add to logits (E, H, 1), without the scale."""
    assert terms.feat is not None and terms.key_weight is not None
    edge_query = _to_columns(query, terms.key_weight)
    return gsddmm(g, "dot", terms.feat.unsqueeze(1), edge_query, "e", "v")


def _weights(g, query: Tensor, key: Tensor, terms: EdgeTerms, scale: float) -> Tensor:
    """The softmax (E, H, 1) in fp32 (fp64 for fp64), by the separate operators, in memory of a few numbers per edge and head."""
    with without_autocast(key.device):
        wide = wide_type(key.dtype)
        logits = gsddmm(g, "dot", key, query, "u", "v", out_dtype=wide)
        if terms.key is not None:
            logits = logits + gsddmm(g, "dot", terms.key, query, "e", "v", out_dtype=wide)
        if terms.feat is not None and terms.key_weight is not None:
            logits = logits + _column_logits(g, query, terms)
        logits = logits * scale
        return edge_softmax(g, logits) if terms.bias is None else masked_softmax(g, logits + terms.bias.unsqueeze(-1))


def _composed(
    g,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    terms: EdgeTerms,
    scale: float,
    dropout_p: float,
    seed: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """The same of separate operators, which keep numbers of edges, and the softmax (E, H, 1) before dropout.

    Operands are widened first, so that gradients are added up before they are rounded. Dropout is that of the kernels under `seed`;
    without a seed it is torch's own, which draws other numbers.
    """
    dtype, wide = value.dtype, wide_type(value.dtype)
    query, key, value = query.to(wide), key.to(wide), value.to(wide)
    terms = terms.to(wide)
    weights = _weights(g, query, key, terms, scale)
    with without_autocast(value.device):
        dropped = with_dropout(weights, dropout_p, seed)
        out = gspmm(g, "mul", "sum", value, dropped)
        values, value_weight = terms.key if terms.key_is_value else terms.value, terms.of_values()
        if values is not None:
            out = out + gspmm(g, "copy_rhs", "sum", None, values * dropped)
        if terms.feat is not None and value_weight is not None:
            edge_out = gspmm(g, "copy_rhs", "sum", None, terms.feat.unsqueeze(1) * dropped)
            out = out + _from_columns(edge_out, value_weight)
        return out.to(dtype).contiguous(), weights


# ---- the operator ------------------------------------------------------------------------------------------------------------


_NAMES = TermNames("key", "edge_bias", "edge_key", "edge_value", "edge_feat", "edge_key_weight", "edge_value_weight")


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
        edge_bias: (E, H), in key's dtype, or in any half type or fp32 beside one. -inf removes an edge from a head. A node
            whose edges are all removed gets 0, as a node without edges does, and gradients stay finite.
        edge_feat: (E, C), a few columns that all heads share.
        edge_key_weight, edge_value_weight: (H * D, C), as nn.Linear(C, H * D).weight, or (H, D, C). One, both, or one for both.
        edge_key, edge_value: (E, H, D). They may be one tensor: it is read once, and its gradient is written once.
        dropout_p, precise, return_weights: see :func:`gat_attention`.

    Numbers, memory, results and errors are as for :func:`gat_attention`, in that what edges add is saved for the backward too. No
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
    check_feature(key, "key")
    shape = key.shape[1:]
    check_heads(query, "query", shape, "heads, dim")
    check_heads(value, "value", shape, "heads, dim")
    dropout_p = check_probability(dropout_p, "dropout_p")
    scale = 1 / math.sqrt(max(shape[1], 1)) if scale is None else check_number(scale, "scale")
    query, key, value = autocast(query), autocast(key), autocast(value)
    has_rows = edge_key is not None or edge_value is not None
    has_columns = edge_feat is not None or edge_key_weight is not None or edge_value_weight is not None
    has_terms = has_rows or has_columns or edge_bias is not None
    terms = NO_TERMS
    if has_terms:
        terms = EdgeTerms(edge_bias, edge_key, edge_value, edge_feat, edge_key_weight, edge_value_weight)
        terms = checked_terms(g, key, terms, _NAMES)
        if query.dtype != key.dtype:  # before it is projected
            raise TypeError(f"query has dtype {query.dtype} and key {key.dtype}; expected equal dtypes")
    seed = draw_seed(dropout_p, key.device)
    if has_terms and not _has_kernels(key, terms):
        out = _composed(g, query, key, value, terms, scale, dropout_p)[0]
    else:
        taken = terms if terms.feat is None or _takes_columns(key, terms) else _as_bias(g, query, terms, scale)
        if needs_grad(query, key, value) or (has_terms and needs_grad(*taken.tensors())):
            sides, short = (*g.csc(), *g.csr()), (g.short_csc, g.short_csr)
            out = apply(_DotAttention, *sides, query, key, value, *taken, scale, dropout_p, seed, precise, *short)[0]
        elif has_terms:
            out = _attended(g.csc(), query, key, value, taken, scale, dropout_p, seed, False, False, g.short_csc)[0]
        else:
            out = _dot(*g.csc(), query, key, value, scale, dropout_p, seed, False, False, g.short_csc)[0]
    if not return_weights:
        return out
    return out, _weights(g, query, key, terms, scale).squeeze(-1).to(out.dtype)


def _has_kernels(key: Tensor, terms: EdgeTerms) -> bool:
    """Whether kernels take these terms, or all but columns in keys, which may become a bias."""
    return has_kernels(key) and (terms.of_values() is None or _takes_columns(key, terms))


def _takes_weights(key: Tensor, terms: EdgeTerms) -> bool:
    """Whether kernels project columns, row by row: those that take all terms, by weights that stay in the cache meanwhile."""
    weight = terms.value_weight if terms.key_weight is None else terms.key_weight
    return limits_of(key) is None and weight is not None and weight.numel() <= _MOST_INSIDE


def _takes_columns(key: Tensor, terms: EdgeTerms) -> bool:
    """Whether kernels take the columns that there are."""
    limits = limits_of(key)
    if terms.feat is None or limits is None:
        return True
    has_rows = terms.key is not None or terms.value is not None
    return terms.feat.shape[1] <= limits.dot_columns and (limits.columns_beside_rows or not has_rows)
