"""halfgnn's operators as operators of PyTorch, for programs that run without halfgnn: see `halfgnn.serving.decompose`.

They compute results and nothing that only a backward reads. Written for runtimes of ONNX: rows are reduced by scatters of single
numbers, because ONNX Runtime's scatter of rows loses updates when several threads write to one (1.32), and half-precision values
are widened to fp32 first, because its scatters have no sums of half-precision values. Sizes may be symbols.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from . import _library, reference  # noqa: F401  (loads torch.ops.halfgnn)

Decomposition = Callable[..., Any]
Optional = Any  # a Tensor or None

OF_HALFGNN: dict[Any, Decomposition] = {}
RESULTS: dict[Any, tuple[int, ...]] = {}  # which results of halfgnn's operators are made; the others are empty
# Of PyTorch's operators, where torch.onnx (2.11) has no translation or a wrong one.
OF_PYTORCH: dict[Any, Decomposition] = {}


def _of(name: str, results: Sequence[int] = (0,)) -> Callable[[Decomposition], Decomposition]:
    operator = getattr(torch.ops.halfgnn, name).default

    def register(function: Decomposition) -> Decomposition:
        OF_HALFGNN[operator], RESULTS[operator] = function, tuple(results)
        return function

    return register


# ---- adjacencies -------------------------------------------------------------------------------------------------------------


@_of("coo_to_csr", (0, 1, 2))
def _coo_to_csr(row: Tensor, col: Tensor, num_rows: int) -> tuple[Tensor, Tensor, Tensor]:
    num_edges = row.shape[0]
    # Keys are unique, because ONNX has no stable sort.
    keys = row.long() * num_edges + torch.arange(num_edges, device=row.device)
    edge_ids = keys.sort()[1]
    counts = _scatter_sum(torch.ones_like(keys), row.long(), num_rows)
    indptr = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
    return indptr.to(row.dtype), col.index_select(0, edge_ids), edge_ids.to(row.dtype)


@_of("transpose", (0, 1, 2))
def _transpose(indptr: Tensor, indices: Tensor, edge_ids: Optional, num_cols: int) -> tuple[Tensor, Tensor, Tensor]:
    rows = _rows(indptr, indices.shape[0]).to(indices.dtype)
    out_indptr, out_indices, order = _coo_to_csr(indices, rows, num_cols)
    return out_indptr, out_indices, order if edge_ids is None else edge_ids.index_select(0, order)


def _rows(indptr: Tensor, num_edges: int) -> Tensor:
    """The row (E,) of every entry of an adjacency, int64."""
    return _runs(indptr[:-1].long(), num_edges)


def _runs(begins: Tensor, total: int) -> Tensor:
    """Which run each of (total,) entries is in, from where runs begin; empty ones begin where the next one does."""
    marks = _scatter_sum(torch.ones_like(begins), begins, total + 1)
    return marks.cumsum(0)[:total] - 1


def _edges(indptr: Tensor, indices: Tensor, edge_ids: Optional) -> tuple[Tensor, Tensor]:
    """The ends of all edges, (E,) int64 each, in the order of edge data."""
    src, dst = indices.long(), _rows(indptr, indices.shape[0])
    if edge_ids is None:
        return src, dst
    order = edge_ids.long()
    return torch.zeros_like(src).scatter(0, order, src), torch.zeros_like(dst).scatter(0, order, dst)


# ---- rows --------------------------------------------------------------------------------------------------------------------


def _wide(*tensors: Optional) -> Any:
    """A tensor, or several, or None, in the dtype in which all of them are computed."""
    dtype = torch.float32
    for x in tensors:
        dtype = dtype if x is None else torch.promote_types(dtype, x.dtype)
    found = tuple(None if x is None else x.to(dtype) for x in tensors)
    return found if len(found) > 1 else found[0]


def _take(data: Optional, index: Tensor | None) -> Optional:
    """Rows of data. index None: all rows in order."""
    return data if data is None or index is None else data.index_select(0, index)


def _spread(x: Tensor, like: Tensor) -> Tensor:
    """x (n, *) with dimensions of size 1 behind, as many as like has more."""
    return x.view(*x.shape, *[1] * (like.dim() - x.dim()))


def _flat(value: Tensor, rows: Tensor) -> tuple[int, Tensor]:
    """How many numbers a row has, and where those of value (E, *) go (E * numbers,)."""
    width = math.prod(value.shape[1:])
    places = rows.unsqueeze(1) * width + torch.arange(width, device=rows.device)
    return width, places.view(-1)


def _scatter_sum(value: Tensor, rows: Tensor, num_rows: int) -> Tensor:
    if value.dim() == 1:
        return value.new_zeros(num_rows).scatter_add(0, rows, value)
    width, places = _flat(value, rows)
    out = value.new_zeros(num_rows * width).scatter_add(0, places, value.reshape(-1))
    return out.view(num_rows, *value.shape[1:])


def _scatter_extreme(reduce: str, value: Tensor, rows: Tensor, num_rows: int) -> Tensor:
    """reduce: max or min. An empty row has -inf or inf."""
    width, places = _flat(value, rows)
    empty = value.new_full((num_rows * width,), -math.inf if reduce == "max" else math.inf)
    return empty.scatter_reduce(0, places, value.reshape(-1), f"a{reduce}").view(num_rows, *value.shape[1:])


def _reduced(reduce: str, value: Tensor, rows: Tensor, indptr: Tensor) -> Tensor:
    """value (E, *) reduced into (num_rows, *); empty rows are 0."""
    num_rows = indptr.shape[0] - 1
    if reduce == "sum":
        return _scatter_sum(value, rows, num_rows)
    counts = _spread((indptr[1:] - indptr[:-1]).to(value.dtype), value)
    if reduce == "mean":
        return _scatter_sum(value, rows, num_rows) / counts.clamp(min=1)
    return torch.where(counts > 0, _scatter_extreme(reduce, value, rows, num_rows), 0)


# ---- sums and messages -------------------------------------------------------------------------------------------------------

_ARITHMETIC: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "add": torch.add,
    "sub": torch.sub,
    "mul": torch.mul,
    "div": torch.div,
    "relu_add": lambda lhs, rhs: torch.relu(lhs + rhs),
}


def _combined(op: str, lhs: Optional, rhs: Optional) -> Tensor:
    """op of operands (E, *), whose trailing shapes broadcast, aligned on the right; wide."""
    if op in ("copy_lhs", "copy_rhs"):
        return _wide(lhs if op == "copy_lhs" else rhs)
    lhs, rhs = _wide(lhs, rhs)
    rank = max(lhs.dim(), rhs.dim())
    lhs, rhs = (x.view(x.shape[0], *[1] * (rank - x.dim()), *x.shape[1:]) for x in (lhs, rhs))
    if op != "dot":
        return _ARITHMETIC[op](lhs, rhs)
    return lhs * rhs if rank == 1 else (lhs * rhs).sum(-1, keepdim=True)


@_of("gspmm")
def _gspmm(
    indptr: Tensor, indices: Tensor, edge_ids: Optional, op: str, reduce: str, lhs: Optional, rhs: Optional,
    out_dtype: torch.dtype | None = None, short_rows: bool = False, save: bool = True, schedule: Optional = None,
) -> tuple[Tensor, ...]:  # fmt: skip
    message = _combined(op, _take(lhs, indices), _take(rhs, edge_ids))
    out = _reduced(reduce, message, _rows(indptr, indices.shape[0]), indptr)
    return out.to(out_dtype or (rhs if op == "copy_rhs" else lhs).dtype), indptr.new_empty(0)


@_of("segment_reduce")
def _segment_reduce(offsets: Tensor, value: Tensor, reduce: str) -> tuple[Tensor, Tensor]:
    out = _reduced(reduce, _wide(value), _rows(offsets, value.shape[0]), offsets)
    return out.to(value.dtype), offsets.new_empty(0)


@_of("copy_u_reduce", range(6))
def _copy_u_reduce(
    indptr: Tensor, indices: Tensor, edge_ids: Optional, feat: Tensor, reduces: str, eps: float,
    out_dtype: torch.dtype | None = None, save: bool = False, short_rows: bool = False,
) -> tuple[Tensor, ...]:  # fmt: skip
    message, rows, names = _wide(feat.index_select(0, indices)), _rows(indptr, indices.shape[0]), reduces.split(",")
    made: dict[str, Tensor] = {
        name: _reduced(name, message, rows, indptr) for name in ("sum", "mean", "max", "min") if name in names
    }
    if "var" in names or "std" in names:
        mean = _reduced("mean", message, rows, indptr)
        made["var"] = _reduced("mean", (message - mean.index_select(0, rows)).square(), rows, indptr)
        made["std"] = torch.where(made["var"] > eps, made["var"].sqrt(), 0)
    results = (made.get(name) for name in ("sum", "mean", "max", "min", "var", "std"))
    dtype = out_dtype or feat.dtype
    return *(feat.new_empty(0) if x is None else x.to(dtype) for x in results), *(feat.new_empty(0) for _ in range(4))


@_of("gsddmm")
def _gsddmm(
    indptr: Tensor, indices: Tensor, edge_ids: Optional, op: str, lhs: Optional, rhs: Optional, lhs_target: str,
    rhs_target: str, out_dtype: torch.dtype | None = None,
) -> Tensor:  # fmt: skip
    src, dst = _edges(indptr, indices, edge_ids)
    ends = {"u": src, "v": dst, "e": None}
    lhs, rhs = None if op == "copy_rhs" else lhs, None if op == "copy_lhs" else rhs
    dtypes = [x.dtype for x in (lhs, rhs) if x is not None]
    out = _combined(op, _take(lhs, ends[lhs_target]), _take(rhs, ends[rhs_target]))
    return out.to(out_dtype or torch.promote_types(dtypes[0], dtypes[-1]))


@_of("code_sum")
def _code_sum(
    indptr: Tensor, indices: Tensor, edge_ids: Optional, reduce: str, codes: Tensor, scale: Tensor, zero_point: Optional,
    weight: Optional, out_dtype: torch.dtype, short_rows: bool = False,
) -> Tensor:  # fmt: skip
    src, dst = _edges(indptr, indices, edge_ids)
    numbers = codes.float()
    values = (numbers if zero_point is None else numbers - zero_point) * scale
    message = values.index_select(0, src)
    if weight is not None:
        shape = (weight.shape[0], *[1] * (message.dim() - weight.dim()), *weight.shape[1:])
        message = message * _wide(weight).view(shape)
    return _reduced(reduce, message, dst, indptr).to(out_dtype)


@_of("u_add_v_add_e")
def _u_add_v_add_e(
    indptr: Tensor, indices: Tensor, edge_ids: Optional, x: Tensor, y: Tensor, z: Tensor,
    out_dtype: torch.dtype | None = None,
) -> Tensor:  # fmt: skip
    src, dst = _edges(indptr, indices, edge_ids)
    of_nodes = _wide(x.index_select(0, src)) + _wide(y.index_select(0, dst))
    return (of_nodes + _wide(z)).to(out_dtype or x.dtype)


@_of("gated_sum", (0, 1))
def _gated_sum(
    indptr: Tensor, indices: Tensor, edge_ids: Optional, value: Tensor, gate_src: Tensor, gate_dst: Tensor,
    gate_edge: Optional, edge_value: Optional, normalize: bool, eps: float, return_edges: bool, save: bool,
    short_rows: bool = False,
) -> tuple[Tensor, ...]:  # fmt: skip
    src, dst = _edges(indptr, indices, edge_ids)
    z = _wide(gate_src.index_select(0, src)) + _wide(gate_dst.index_select(0, dst))
    z = z if gate_edge is None else z + _wide(gate_edge)
    message = _wide(value.index_select(0, src))
    message = message if edge_value is None else message + _wide(edge_value)
    gate = z.sigmoid()
    out = _reduced("sum", gate * message, dst, indptr)
    if normalize:
        total = _reduced("sum", gate, dst, indptr)
        out = out / torch.where(total > 0, total + eps, 1)
    edges = z.to(value.dtype) if return_edges else value.new_empty(0)
    return out.to(value.dtype), edges, value.new_empty(0), value.new_empty(0)


@_of("edge_network", (0, 1))
def _edge_network(
    indptr: Tensor, indices: Tensor, edge_ids: Optional, src: Optional, dst: Optional, edge_feat: Optional,
    edge_weight: Optional, factor: Optional, edge_factor: Optional, src_position: Optional, dst_position: Optional,
    position_weight: Optional, norm_weight: Optional, norm_bias: Optional, weights: Sequence[Tensor],
    biases: Sequence[Optional], activation: str, slope: float, eps: float, reduce: str, residual: bool,
    return_edges: bool, euclidean: bool, tile_edges: int,
) -> tuple[Tensor, ...]:  # fmt: skip
    dtype = next(x.dtype for x in (src, dst, edge_weight) if x is not None)
    ends = _edges(indptr, indices, edge_ids)
    wide_feat = None if edge_feat is None else _wide(edge_feat)
    message: Any = reference.edge_network(
        SimpleNamespace(edges=lambda: ends), _wide(src), _wide(dst),
        [(_wide(weight), _wide(bias)) for weight, bias in zip(weights, biases)],
        edge_feat=wide_feat, edge_weight=_wide(edge_weight),
        positions=None if src_position is None else _wide(src_position, dst_position),
        distance_weight=_wide(position_weight), squared=not euclidean, activation=activation,
        negative_slope=slope, norm=None if norm_weight is None else _wide(norm_weight, norm_bias), eps=eps, reduce="none",
    )  # fmt: skip
    edges = message + wide_feat if residual else message
    edges, out = edges.to(dtype) if return_edges else indptr.new_empty(0), indptr.new_empty(0)
    if reduce != "none":
        message = message if factor is None else message * _wide(factor.index_select(0, ends[0]))
        message = message if edge_factor is None else message * _wide(edge_factor).unsqueeze(1)
        out = _reduced(reduce, message, ends[1], indptr).to(dtype)
    return out, edges, indptr.new_empty(0)


# ---- softmax and attention ---------------------------------------------------------------------------------------------------


@_of("edge_softmax")
def _edge_softmax(indptr: Tensor, edge_ids: Optional, logits: Tensor, short_rows: bool = False) -> Tensor:
    order = torch.arange(logits.shape[0], device=indptr.device)
    _, rows = _edges(indptr, order, edge_ids)
    wide, num_rows = _wide(logits), indptr.shape[0] - 1
    largest = _scatter_extreme("max", wide, rows, num_rows).index_select(0, rows)
    weight = (wide - largest).exp()
    return (weight / _scatter_sum(weight, rows, num_rows).index_select(0, rows)).to(logits.dtype)


def _attend(indptr: Tensor, rows: Tensor, logits: Tensor, *values: Tensor) -> list[Tensor]:
    """The sums (num_rows, H, *) of values (E, H, *) under the softmax of logits (E, H), 0 in a row of nothing but -inf."""
    num_rows = indptr.shape[0] - 1
    largest = _scatter_extreme("max", logits, rows, num_rows)
    largest = torch.where(largest == -math.inf, 0, largest)
    weight = (logits - largest.index_select(0, rows)).exp()
    total = _scatter_sum(weight, rows, num_rows)
    total = torch.where(total == 0, 1, total).unsqueeze(-1)  # divides nodes, which are fewer than edges
    return [_scatter_sum(weight.unsqueeze(-1) * value, rows, num_rows) / total for value in values]


def _refuse_dropout(name: str, dropout_p: float) -> None:
    if dropout_p:
        raise NotImplementedError(
            f"halfgnn.{name} has dropout {dropout_p}; export the model in evaluation: model.eval()"
        )


@_of("head_logits", (0, 1))
def _head_logits(feat: Tensor, attn: Tensor, more_attn: Optional = None) -> tuple[Tensor, ...]:
    rows = _wide(feat)
    return (rows * attn).sum(-1), attn.new_empty(0) if more_attn is None else (rows * more_attn).sum(-1)


@_of("gat_attention")
def _gat_attention(
    indptr: Tensor, indices: Tensor, edge_ids: Optional, feat: Tensor, attn_src: Tensor, attn_dst: Tensor,
    edge_logits: Optional, negative_slope: float, dropout_p: float, seed: Optional, save: bool, precise: bool,
    short_rows: bool = False, schedule: Optional = None,
) -> tuple[Tensor, ...]:  # fmt: skip
    _refuse_dropout("gat_attention", dropout_p)
    rows = _rows(indptr, indices.shape[0])
    logits = _wide(attn_src.index_select(0, indices)) + _wide(attn_dst.index_select(0, rows))
    if edge_logits is not None:
        logits = logits + _wide(_take(edge_logits, edge_ids))
    (out,) = _attend(indptr, rows, F.leaky_relu(logits, negative_slope), _wide(feat.index_select(0, indices)))
    return out.to(feat.dtype), *(feat.new_empty(0) for _ in range(3))


@_of("gatv2_attention")
def _gatv2_attention(
    indptr: Tensor, indices: Tensor, edge_ids: Optional, feat_src: Tensor, feat_dst: Tensor, attn: Tensor,
    negative_slope: float, dropout_p: float, seed: Optional, save: bool, precise: bool, short_rows: bool = False,
    edge_bias: Optional = None, edge_key: Optional = None, edge_feat: Optional = None, edge_weight: Optional = None,
) -> tuple[Tensor, ...]:  # fmt: skip
    _refuse_dropout("gatv2_attention", dropout_p)
    rows = _rows(indptr, indices.shape[0])
    value = _wide(feat_src.index_select(0, indices))
    hidden = value + _wide(feat_dst.index_select(0, rows))
    if edge_key is not None:
        hidden = hidden + _wide(_take(edge_key, edge_ids))
    if edge_feat is not None:
        hidden = hidden + F.linear(*_wide(_take(edge_feat, edge_ids), edge_weight.flatten(0, 1))).view(hidden.shape)
    logits = (F.leaky_relu(hidden, negative_slope) * _wide(attn)).sum(-1)
    if edge_bias is not None:
        logits = logits + _wide(_take(edge_bias, edge_ids))
    (out,) = _attend(indptr, rows, logits, value)
    return out.to(feat_src.dtype), feat_src.new_empty(0), feat_src.new_empty(0)


@_of("dot_attention", (0, 3))
def _dot_attention(
    indptr: Tensor, indices: Tensor, edge_ids: Optional, query: Tensor, key: Tensor, value: Tensor, scale: float,
    dropout_p: float, seed: Optional, save: bool, precise: bool, short_rows: bool = False, edge_bias: Optional = None,
    edge_key: Optional = None, edge_value: Optional = None, edge_key_is_value: bool = False, edge_feat: Optional = None,
    edge_query: Optional = None, need_edge_out: bool = False, edge_key_weight: Optional = None,
    edge_value_weight: Optional = None,
) -> tuple[Tensor, ...]:  # fmt: skip
    _refuse_dropout("dot_attention", dropout_p)
    if edge_key_weight is not None:
        edge_query = torch.bmm(_wide(query).transpose(0, 1), _wide(edge_key_weight)).transpose(0, 1)
    rows = _rows(indptr, indices.shape[0])
    keys, values = (_wide(x.index_select(0, indices)) for x in (key, value))
    if edge_key is not None:
        keys = keys + _wide(_take(edge_key, edge_ids))
    if edge_key_is_value:
        edge_value = edge_key
    if edge_value is not None:
        values = values + _wide(_take(edge_value, edge_ids))
    logits = (_wide(query.index_select(0, rows)) * keys).sum(-1)
    columns: Any = None if edge_feat is None else _wide(_take(edge_feat, edge_ids)).unsqueeze(1)
    if edge_query is not None:
        logits = logits + (edge_query.index_select(0, rows) * columns).sum(-1)
    logits = logits * scale
    if edge_bias is not None:
        logits = logits + _wide(_take(edge_bias, edge_ids))
    sums_columns = need_edge_out or edge_value_weight is not None
    out, *of_edges = _attend(indptr, rows, logits, values, *([columns] if sums_columns else []))
    edge_out = of_edges[0] if need_edge_out else value.new_empty(0)
    if edge_value_weight is not None:
        out = out + torch.bmm(of_edges[0].transpose(0, 1), _wide(edge_value_weight).transpose(1, 2)).transpose(0, 1)
    elif need_edge_out:
        return out, value.new_empty(0), value.new_empty(0), edge_out
    return out.to(value.dtype), value.new_empty(0), value.new_empty(0), edge_out


# ---- operators of PyTorch ----------------------------------------------------------------------------------------------------


def _index_add(x: Tensor, dim: int, index: Tensor, source: Tensor, *, alpha: float = 1) -> Tensor:
    shape = [1] * source.dim()
    shape[dim] = -1
    return x.scatter_add(dim, index.long().view(shape).expand_as(source), source if alpha == 1 else source * alpha)


def _repeat_interleave(x: Tensor, repeats: Tensor, dim: int | None = None, *, output_size: int | None = None) -> Any:
    if output_size is None:
        return NotImplemented
    x, dim = (x.flatten(), 0) if dim is None else (x, dim)
    return x.index_select(dim, _runs(repeats.long().cumsum(0) - repeats, output_size))


def _of_tensors(operator: Any) -> Decomposition:
    """For a parameter and an integer, as in 1 + eps, at which torch.onnx fails."""

    def decomposition(x: Tensor, other: Any, **options: Any) -> Any:
        # A small one: exact in all floating-point types.
        if type(other) is not int or abs(other) > 256 or not x.is_floating_point():
            return NotImplemented
        return operator(x, x.new_full((), other), **options)

    return decomposition


OF_PYTORCH[torch.ops.aten.index_add.default] = _index_add
OF_PYTORCH[torch.ops.aten.repeat_interleave.self_Tensor] = _repeat_interleave
for _name in ("add", "sub", "mul", "div"):
    _operator = getattr(torch.ops.aten, _name).Tensor
    OF_PYTORCH[_operator] = _of_tensors(_operator)
