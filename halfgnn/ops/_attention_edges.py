"""Terms of edges in dot attention: the autograd Function, its projections, and the composition where a back end has no kernel.

docs/attention.md has the method. Features of edges meet a head as W_k^T query, and leave it as a weighted sum that W_v projects.
So rows of H * D elements per edge are never made.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ..common.autograd import apply, inputs_of, is_recorded, pull_back, recorded, saved_tensors
from ..common.fake import register_fake
from ..common.operands import check_operand, check_rows, check_tensor
from ..common.precision import autocast, without_autocast
from ..reference import dropout_mask
from ._operands import devices_without, graph_of, needs_grad
from .edge_softmax import edge_softmax
from .sddmm import gsddmm
from .spmm import gspmm

_dot = torch.ops.halfgnn.dot_attention_edges.default
_dot_backward = torch.ops.halfgnn.dot_attention_edges_backward.default


class EdgeTerms(NamedTuple):
    """What edges add to dot attention. feat is projected to keys and values by key_weight and value_weight, (H, D, C).

    A tensor that is both key and value is given once, so that its gradient is summed before it is rounded.
    """

    bias: Tensor | None = None
    key: Tensor | None = None
    value: Tensor | None = None  # None although there are values, if key_is_value
    feat: Tensor | None = None
    key_weight: Tensor | None = None
    value_weight: Tensor | None = None  # None although values are projected, if one_weight
    key_is_value: bool = False
    one_weight: bool = False

    def tensors(self) -> tuple[Tensor | None, ...]:
        return self[:-2]

    def of_values(self) -> Tensor | None:
        """The weight of values."""
        return self.key_weight if self.one_weight else self.value_weight


# ---- checks ------------------------------------------------------------------------------------------------------------------


def checked_terms(
    g, like: Tensor, name: str, bias: Any, feat: Any, key_weight: Any, value_weight: Any, key: Any, value: Any
) -> EdgeTerms | None:
    """The terms as autocast casts them, or None if there are none. like: a feature (rows, H, D), the argument `name`, as cast."""
    if bias is None and feat is None and key_weight is None and value_weight is None and key is None and value is None:
        return None
    heads, dim = like.shape[1:]
    one_weight = key_weight is not None and key_weight is value_weight
    if bias is not None:
        check_operand(bias, "edge_bias", g, "e")
        check_shape(bias, "edge_bias", (g.num_edges, heads), "edges, heads")
        bias = bias_like(bias, like)
    weights = {"edge_key_weight": key_weight, "edge_value_weight": value_weight}
    given = [x for x, weight in weights.items() if weight is not None]
    if feat is None and given:
        raise ValueError(f"{given[0]} is given, but edge_feat is None; expected both")
    if feat is not None:
        check_operand(feat, "edge_feat", g, "e")
        if feat.dim() != 2:
            raise ValueError(f"edge_feat has shape {tuple(feat.shape)}; expected (edges, columns)")
        if not given:
            raise ValueError("edge_feat is given; expected also edge_key_weight, edge_value_weight or both")
        shape = (heads, dim, feat.shape[1])
        weights["edge_value_weight"] = None if one_weight else value_weight
        key_weight, value_weight = (
            None if weight is None else checked_weight(weight, x, shape, like.device) for x, weight in weights.items()
        )
        feat = autocast(feat)
        if feat.shape[1] == 0:  # which adds nothing
            feat = key_weight = value_weight = None
    for x, rows in (("edge_key", key), ("edge_value", value)):
        if rows is not None:
            check_operand(rows, x, g, "e")
            check_shape(rows, x, (g.num_edges, heads, dim), "edges, heads, dim")
    key_is_value = key is not None and key is value
    key, value = autocast(key), None if key_is_value else autocast(value)
    terms = EdgeTerms(bias, key, value, feat, key_weight, value_weight, key_is_value, one_weight and feat is not None)
    names = ("edge_key", "edge_value", "edge_feat", "edge_key_weight", "edge_value_weight")
    for x, tensor in zip(names, terms.tensors()[1:]):
        if tensor is not None and tensor.dtype != like.dtype:
            raise TypeError(f"{x} has dtype {tensor.dtype}; expected that of {name}, {like.dtype}")
    return terms


def check_shape(data: Tensor, name: str, shape: tuple[int, ...], what: str) -> None:
    if tuple(data.shape) != shape:
        raise ValueError(f"{name} has shape {tuple(data.shape)}; expected ({what}) = {shape}")


def checked_weight(weight: Any, name: str, shape: tuple[int, int, int], device: torch.device) -> Tensor:
    """weight as (H, D, C)."""
    check_tensor(weight, name)
    heads, dim, columns = shape
    if tuple(weight.shape) not in (shape, (heads * dim, columns)):
        raise ValueError(
            f"{name} has shape {tuple(weight.shape)}; expected (heads * dim, columns of edge_feat) = {(heads * dim, columns)}, "
            f"or {shape}"
        )
    check_rows(weight, name, weight.shape[0], "v", device)
    return autocast(weight).view(shape) if weight.is_contiguous() else autocast(weight).reshape(shape)


def bias_like(bias: Tensor, feat: Tensor) -> Tensor:
    """bias in feat's dtype or fp32. Autocast does not round an fp32 bias."""
    if bias.dtype == feat.dtype:
        return bias
    if feat.dtype == torch.float64 or bias.dtype not in (torch.float16, torch.bfloat16, torch.float32):
        raise TypeError(
            f"edge_bias has dtype {bias.dtype}; expected that of the features, {feat.dtype}, or torch.float32 with halves"
        )
    return bias.float()


# ---- fake kernels ------------------------------------------------------------------------------------------------------------


def wide_type(*dtypes: torch.dtype) -> torch.dtype:
    """The dtype in which operands are added up."""
    return functools.reduce(torch.promote_types, dtypes, torch.float32)


@register_fake("dot_attention_edges")
def _(
    indptr, indices, edge_ids, query, key, value, edge_bias, edge_key, edge_value, edge_key_is_value, edge_feat, edge_query,
    scale, dropout_p, seed, need_edge_out, save, precise, short_rows=False,
):  # fmt: skip
    rows, wide = (indptr.shape[0] - 1, key.shape[1]), wide_type(key.dtype)
    keep = save and precise and not need_edge_out and key.dtype.itemsize == 2
    shape = (*rows, key.shape[2])
    return (
        key.new_empty(shape, dtype=wide if need_edge_out else key.dtype),
        key.new_empty(rows if save else (0,), dtype=wide),
        key.new_empty(shape if keep else (0,)),
        key.new_empty((*rows, edge_feat.shape[1]) if need_edge_out else (0,), dtype=wide),
    )


@register_fake("dot_attention_edges_backward")
def _(
    indptr, indices, edge_ids, out_indptr, out_indices, out_edge_ids, query, key, value, edge_bias, edge_key, edge_value,
    edge_key_is_value, edge_feat, edge_query, scale, dropout_p, seed, grad, grad_edge_out, out, lse, out_residual,
    need_edge_bias, need_edge_key, need_edge_value, need_edge_feat, short_rows=False, out_short_rows=False,
):  # fmt: skip
    def gradient(data, needed):
        return data.new_empty(data.shape) if needed else key.new_empty((0,))

    wide = wide_type(key.dtype)
    return (
        query.new_empty(query.shape, dtype=query.dtype if edge_query is None else wide),
        key.new_empty(key.shape),
        value.new_empty(value.shape),
        gradient(edge_bias, need_edge_bias),
        gradient(edge_key, need_edge_key),
        gradient(edge_value, need_edge_value),
        gradient(edge_feat, need_edge_feat),
        key.new_empty((0,), dtype=wide) if edge_query is None else edge_query.new_empty(edge_query.shape),
    )


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
        return torch.bmm(rows.to(columns.dtype).permute(1, 2, 0), columns.transpose(0, 1))


# ---- autograd ----------------------------------------------------------------------------------------------------------------


def _attended(sides, query, key, value, terms: EdgeTerms, scale, dropout_p, seed, save, precise, short_rows):
    """(out, lse, out_residual, edge_out), with values of edges in out, which is rounded once."""
    edge_query = None if terms.key_weight is None else _to_columns(query, terms.key_weight)
    out, lse, residual, edge_out = _dot(
        *sides, query, key, value, terms.bias, terms.key, terms.value, terms.key_is_value, terms.feat, edge_query, scale,
        dropout_p, seed, terms.of_values() is not None, save, precise, short_rows,
    )  # fmt: skip
    value_weight = terms.of_values()
    if value_weight is not None:
        total = out + _from_columns(edge_out, value_weight)
        if total.dtype == value.dtype:  # total.to() would be the same tensor, which compiled code loses the gradient of
            return total, lse, residual, edge_out
        out = total.to(value.dtype)
        if save and precise:
            residual = (total - out).nan_to_num(0, 0, 0).to(value.dtype)
    return out, lse, residual, edge_out


def _gradients(
    sides, query, key, value, terms: EdgeTerms, scale, dropout_p, seed, grad, out, lse, residual, edge_out, needs, short
):
    """Those of query, key and value and of the terms. One that is not needed is empty."""
    edge_query = None if terms.key_weight is None else _to_columns(query, terms.key_weight)
    value_weight = terms.of_values()
    grad_edge_out = None if value_weight is None else _to_columns(grad, value_weight)
    of_query, of_key, of_value, of_bias, of_edge_key, of_edge_value, of_feat, of_edge_query = _dot_backward(
        *sides, query, key, value, terms.bias, terms.key, terms.value, terms.key_is_value, terms.feat, edge_query, scale,
        dropout_p, seed, grad, grad_edge_out, out, lse, residual, needs.bias, needs.key, needs.value, needs.feat, *short,
    )  # fmt: skip
    if terms.key_weight is not None:
        of_query = (of_query + _from_columns(of_edge_query, terms.key_weight)).to(query.dtype)
    of_weights = _weight_gradients(query, of_edge_query, grad, edge_out, terms, needs)
    return of_query, of_key, of_value, of_bias, of_edge_key, of_edge_value, of_feat, *of_weights


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
        x = _DotInputs(*inputs)
        ctx.mark_non_differentiable(*output[1:])
        ctx.set_materialize_grads(False)
        in_edges, out_edges = (x.indptr, x.indices, x.edge_ids), (x.out_indptr, x.out_indices, x.out_edge_ids)
        terms = (x.edge_bias, x.edge_key, x.edge_value, x.edge_feat, x.key_weight, x.value_weight)
        ctx.save_for_backward(*in_edges, *out_edges, x.query, x.key, x.value, *terms, x.seed, *output)
        ctx.shared, ctx.scale, ctx.dropout_p = (x.key_is_value, x.one_weight), x.scale, x.dropout_p
        ctx.short = x.short_rows, x.out_short_rows

    @staticmethod
    def backward(ctx, grad, *_):
        if grad is None:
            return tuple(_DotInputs())
        needs = _DotInputs(*ctx.needs_input_grad)
        wanted = tuple(
            getattr(needs, name)
            for name in ("edge_bias", "edge_key", "edge_value", "edge_feat", "key_weight", "value_weight")
        )
        saved = saved_tensors(ctx, "dot_attention")
        args = *ctx.shared, ctx.scale, ctx.dropout_p, *wanted, *ctx.short, grad, *saved
        if is_recorded():
            needed = needs.query, needs.key, needs.value, *wanted
            again = functools.partial(composed_gradients, needed, ctx.scale, ctx.dropout_p, shared=ctx.shared)
            found = recorded("dot_attention", _flat_gradients, args, again, (*saved[:16], grad))
        else:
            found = _flat_gradients(*args)
        named = dict(zip(_DIFFERENTIABLE, found))
        return tuple(_DotInputs(**{name: x if getattr(needs, name) else None for name, x in named.items()}))


_DotInputs = inputs_of(_DotAttention)
_DIFFERENTIABLE = (
    "query", "key", "value", "edge_bias", "edge_key", "edge_value", "edge_feat", "key_weight", "value_weight",
)  # fmt: skip


def _flat_gradients(key_is_value, one_weight, scale, dropout_p, *wanted_and_saved):
    """_gradients of what the Function saved."""
    wanted, short, grad, saved = wanted_and_saved[:6], wanted_and_saved[6:8], wanted_and_saved[8], wanted_and_saved[9:]
    sides, (query, key, value), terms, (seed, *results) = saved[:6], saved[6:9], saved[9:15], saved[15:]
    return _gradients(
        sides, query, key, value, EdgeTerms(*terms, key_is_value, one_weight), scale, dropout_p, seed, grad, *results,
        EdgeTerms(*wanted), short,
    )  # fmt: skip


def composed_gradients(needed, scale, dropout_p, *saved, shared=(False, False)):
    """The same as functions of the operands, of terms if there are any, and of grad, which autograd differentiates."""
    *operands, seed, grad = saved[6:]
    g = graph_of(saved[:3], saved[3:6], operands[1].shape[0], grad.shape[0])
    all_terms = functools.partial(EdgeTerms, key_is_value=shared[0], one_weight=shared[1])

    def composed(query, key, value, *terms):
        return composed_dot(g, query, key, value, all_terms(*terms), scale, dropout_p, seed)[:1]

    return pull_back(composed, operands, needed, (grad,))


# ---- the operator ------------------------------------------------------------------------------------------------------------


# The devices whose back end has kernels for terms of edges, and those of them whose kernels take heads of a few bytes, few columns,
# and no columns beside rows: CUDA, which also lacks reorder. This alone decides between kernels and the composition.
_DEVICES = {"cpu", "cuda"} - devices_without("dot_attention_edges")
_LIMITED = devices_without("reorder")
_MAX_HEAD_BYTES, _MAX_COLUMNS = 512, 128


def is_limited(feat: Tensor) -> bool:
    return feat.device.type in _LIMITED


def has_kernels(feat: Tensor, dtype: torch.dtype | None = None) -> bool:
    """Whether kernels take features of nodes (rows, H, D), of feat's dtype or another, with a bias or rows of edges."""
    if is_limited(feat) and feat.shape[2] * (dtype or feat.dtype).itemsize > _MAX_HEAD_BYTES:
        return False
    return feat.device.type in _DEVICES


def _takes_columns(key: Tensor, terms: EdgeTerms) -> bool:
    """Whether these kernels take the columns that there are."""
    if terms.feat is None or not is_limited(key):
        return True
    return terms.key is None and terms.value is None and terms.feat.shape[1] <= _MAX_COLUMNS


def dot_attention(
    g, query: Tensor, key: Tensor, value: Tensor, terms: EdgeTerms, scale: float, dropout_p: float, seed, precise: bool
) -> Tensor:
    """Dot attention with terms of edges, of checked operands."""
    takes_columns = _takes_columns(key, terms)
    if not has_kernels(key) or (not takes_columns and terms.of_values() is not None):
        return composed_dot(g, query, key, value, terms, scale, dropout_p)[0]
    if not takes_columns:
        terms = _as_bias(g, query, terms, scale)
    if needs_grad(query, key, value, *terms.tensors()):
        sides, short = (*g.csc(), *g.csr()), (g.short_csc, g.short_csr)
        return apply(_DotAttention, *sides, query, key, value, *terms, scale, dropout_p, seed, precise, *short)[0]
    return _attended(g.csc(), query, key, value, terms, scale, dropout_p, seed, False, False, g.short_csc)[0]


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


def dot_weights(g, query: Tensor, key: Tensor, terms: EdgeTerms, scale: float) -> Tensor:
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


def masked_softmax(g, logits: Tensor) -> Tensor:
    """edge_softmax, but 0 with a gradient of 0 where all logits of a row are -inf."""
    best = gspmm(g, "copy_rhs", "max", None, logits.detach())
    is_masked = gsddmm(g, "copy_rhs", None, (best == -torch.inf).to(logits.dtype), "u", "v") > 0
    return edge_softmax(g, logits.masked_fill(is_masked, 0)).masked_fill(is_masked, 0)


def with_dropout(weights: Tensor, dropout_p: float, seed: Tensor | None) -> Tensor:
    """Weights (E, H, 1) after dropout by the kernels' numbers, or without a seed by torch's."""
    if seed is None:
        return F.dropout(weights, dropout_p, dropout_p > 0)
    num_edges, heads = weights.shape[:2]
    return weights * dropout_mask(seed, num_edges, heads, dropout_p).to(weights.dtype).unsqueeze(-1)


def composed_dot(
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
    terms = EdgeTerms._make([*(x if x is None else x.to(wide) for x in terms.tensors()), *terms[-2:]])
    weights = dot_weights(g, query, key, terms, scale)
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
