"""Every public operator in plain PyTorch: the specification that the kernels are tested against.

The functions have the names, arguments and results of :mod:`halfgnn.ops`, and take a :class:`halfgnn.Graph`. They gather
rows, combine them edge by edge and reduce them with ``index_add`` and ``scatter_reduce``, so they need memory proportional to
the number of edges times the feature size, and plain autograd differentiates them, twice if need be.

**They compute in the dtype of their inputs**, except that ``out_dtype`` converts the operands first. Run on float64 they are
the truth; run on float16 or bfloat16 they are the same formula by PyTorch in that type, which is the yardstick for the
kernels' rounding error. Nothing is checked beyond the names of operators and the shapes that must broadcast.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = [
    "copy_u_reduce",
    "dot_attention",
    "dropout_mask",
    "edge_network",
    "edge_softmax",
    "gat_attention",
    "gated_sum",
    "gather_rows",
    "gatv2_attention",
    "gsddmm",
    "gspmm",
    "segment_reduce",
    "u_add_v_add_e",
]

_ARITHMETIC: dict[str, Callable[..., Tensor]] = {
    "add": torch.add,
    "sub": torch.sub,
    "mul": torch.mul,
    "div": torch.div,
    "relu_add": lambda lhs, rhs: torch.relu(lhs + rhs),
}


def gspmm(g, op, reduce_op, lhs_data, rhs_data, *, out_dtype=None) -> Tensor:
    """``out[v] = reduce over in-edges e = (u, v) of op(lhs_data[u], rhs_data[e])``.

    Shapes: lhs_data (num_src, *), rhs_data (num_edges, *), trailing dimensions broadcast right-aligned; result (num_dst, *).
    op: add, sub, mul, div, relu_add (relu(lhs + rhs)), copy_lhs, copy_rhs. reduce_op: sum, mean, max, min.

    A node without in-edges gets 0. max and min take the first winner in CSC order (the first NaN, if there is one), and only
    that edge receives a gradient. The result has ``out_dtype``, by default that of lhs_data (of rhs_data for copy_rhs).
    """
    indptr, src, edge_ids = g.csc()
    dst = _rows(indptr)
    lhs = None if op == "copy_rhs" else _take(lhs_data, src)
    rhs = None if op == "copy_lhs" else _take(rhs_data, edge_ids)
    message = _combine(op, lhs, rhs, out_dtype)
    reduced = _reduce(reduce_op, message, dst, g.num_dst)
    return reduced.to(out_dtype or (rhs_data if lhs is None else lhs_data).dtype)


def copy_u_reduce(g, x, reduces, *, eps=1e-5, out_dtype=None) -> tuple[Tensor, ...]:
    """``out[v] = reduce over in-edges (u, v) of x[u]`` for every reduction in ``reduces``, as a tuple.

    x (num_src, *); results (num_dst, *). sum, mean, max, min: as in gspmm. var: the mean of ``(x[u] - mean[v])**2``. std: the root
    of var where var is greater than eps; elsewhere it and its gradient are 0 (torch_geometric's StdAggregation). A node without
    in-edges gets 0.
    """
    indptr, src, _ = g.csc()
    dst = _rows(indptr)
    wide = _take(x, src) if out_dtype is None else _take(x, src).to(out_dtype)

    def reduced(name):
        if name not in ("var", "std"):
            return _reduce(name, wide, dst, g.num_dst)
        mean = _reduce("mean", wide, dst, g.num_dst)
        var = _reduce("mean", (wide - mean[dst]) ** 2, dst, g.num_dst)
        if name == "var":
            return var
        small = var <= eps
        return torch.where(small, 0.0, torch.where(small, 1.0, var).sqrt())

    return tuple(reduced(name).to(out_dtype or x.dtype) for name in reduces)


def gsddmm(g, op, lhs_data, rhs_data, lhs_target="u", rhs_target="v", *, out_dtype=None) -> Tensor:
    """``out[e] = op(lhs_data[lhs_target of e], rhs_data[rhs_target of e])`` for every edge, in edge-data order.

    Targets: u (source), v (destination) or e (the edge itself). The result has ``out_dtype``, by default that to which PyTorch
    promotes the operands' dtypes. op: add, sub, mul, div, dot, copy_lhs, copy_rhs. Trailing
    dimensions broadcast right-aligned; dot sums the last one, which must be equal on both sides, and keeps it as 1 (for two
    1-D operands it is the product).
    """
    src, dst = g.edges()
    rows = {"u": src, "v": dst, "e": None}
    lhs = None if op == "copy_rhs" else _take(lhs_data, rows[lhs_target])
    rhs = None if op == "copy_lhs" else _take(rhs_data, rows[rhs_target])
    message = _combine(op, lhs, rhs, out_dtype)
    return message if out_dtype is None else message.to(out_dtype)


def u_add_v_add_e(g, x, y, z, *, out_dtype=None) -> Tensor:
    """``out[e] = x[u] + y[v] + z[e]`` for every edge e = (u, v); operands of one trailing shape."""
    src, dst = g.edges()
    x, y, z = (t if out_dtype is None else t.to(out_dtype) for t in (_take(x, src), _take(y, dst), z))
    return x + y + z


def edge_softmax(g, logits, norm_by="dst") -> Tensor:
    """Softmax of logits (num_edges, *) over the in-edges (norm_by="dst") or out-edges ("src") of every node.

    Each trailing position is normalised by itself. A row of nothing but -inf, or with +inf, gives NaN, as in torch.softmax.
    """
    if norm_by not in ("src", "dst"):
        raise ValueError(f"norm_by is {norm_by!r}; expected 'dst' or 'src'")
    src, dst = g.edges()
    row, num_rows = (dst, g.num_dst) if norm_by == "dst" else (src, g.num_src)
    row = row.long()
    # The maximum only shifts the exponent: softmax does not depend on it, so no gradient goes through it.
    largest = _scatter_extreme("max", logits.detach(), row, num_rows)
    weight = (logits - largest[row]).exp()
    return weight / _scatter_sum(weight, row, num_rows)[row]


def gat_attention(g, feat, attn_src, attn_dst, edge_logits=None, negative_slope=0.2, mask=None) -> Tensor:
    """``out[v] = sum over in-edges e = (u, v) of softmax(LeakyReLU(attn_src[u] + attn_dst[v] + edge_logits[e])) mask[e] feat[u]``.

    Shapes: feat (num_src, H, D), attn_src (num_src, H), attn_dst (num_dst, H), edge_logits and mask (num_edges, H); result
    (num_dst, H, D). mask: the factors of dropout, see :func:`dropout_mask`.
    """
    logits = gsddmm(g, "add", attn_src, attn_dst)
    if edge_logits is not None:
        logits = logits + edge_logits
    return _attend(g, torch.nn.functional.leaky_relu(logits, negative_slope), mask, feat)


def gatv2_attention(
    g, feat_src, feat_dst, attn, negative_slope=0.2, mask=None, *, edge_bias=None, edge_feat=None, edge_weight=None
) -> Tensor:
    """gat_attention with logits ``<attn, LeakyReLU(feat_src[u] + feat_dst[v])> + edge_bias[e]``, attn (H, D), and values feat_src.

    edge_feat is added inside the LeakyReLU: (num_edges, H, D), or (num_edges, C) times edge_weight (H * D, C) or (H, D, C).
    """
    hidden = gsddmm(g, "add", feat_src, feat_dst)
    if edge_feat is not None and edge_weight is None:
        hidden = hidden + edge_feat
    if edge_weight is not None:
        hidden = hidden + _projected(edge_feat, edge_weight, hidden.shape[1:])
    logits = (torch.nn.functional.leaky_relu(hidden, negative_slope) * attn).sum(-1)
    return _attend(g, logits if edge_bias is None else logits + edge_bias, mask, feat_src)


def dot_attention(
    g,
    query,
    key,
    value,
    scale,
    mask=None,
    *,
    edge_bias=None,
    edge_feat=None,
    edge_key_weight=None,
    edge_value_weight=None,
    edge_key=None,
    edge_value=None,
) -> Tensor:
    """gat_attention with logits ``scale <query[v], key of e> + edge_bias[e]`` and values ``value of e``.

    ``key of e`` is ``key[u] + edge_key[e] + edge_key_weight edge_feat[e]``, and ``value of e`` is made the same way. Shapes:
    edge_bias (num_edges, H), edge_key and edge_value (num_edges, H, D), edge_feat (num_edges, C), weights (H * D, C) or (H, D, C).
    """
    key, value = (
        _of_edges(g, x, rows, edge_feat, weight)
        for x, rows, weight in ((key, edge_key, edge_key_weight), (value, edge_value, edge_value_weight))
    )
    logits = gsddmm(g, "dot", key, query, "e", "v").squeeze(-1) * scale
    return _attend(g, logits if edge_bias is None else logits + edge_bias, mask, value, "copy_rhs")


def _of_edges(g, rows, edge_rows, edge_feat, weight) -> Tensor:
    """(num_edges, H, D): rows of the sources, edge_rows, and edge_feat times the weight of each head."""
    rows = gsddmm(g, "copy_lhs", rows, None, "u")
    if edge_rows is not None:
        rows = rows + edge_rows
    if weight is not None:
        rows = rows + _projected(edge_feat, weight, rows.shape[1:])
    return rows


def _projected(edge_feat, weight, shape) -> Tensor:
    """edge_feat (num_edges, C) times the weight (H * D, C) or (H, D, C), for shape (H, D)."""
    return torch.einsum("ec,hdc->ehd", edge_feat, weight.reshape(*shape, edge_feat.shape[1]))


def _attend(g, logits, mask, value, op="mul") -> Tensor:
    """op: mul for values of sources, copy_rhs for values of edges."""
    weights = _masked_softmax(g, logits)
    if mask is not None:
        weights = weights * mask
    weights = weights.unsqueeze(-1)
    return gspmm(g, op, "sum", value, weights) if op == "mul" else gspmm(g, op, "sum", None, value * weights)


def _masked_softmax(g, logits) -> Tensor:
    """edge_softmax, but 0, with gradients of 0, in a row of nothing but -inf."""
    _, dst = g.edges()
    largest = _scatter_extreme("max", logits.detach(), dst.long(), g.num_dst)
    is_masked = (largest == -torch.inf)[dst.long()]
    return edge_softmax(g, logits.masked_fill(is_masked, 0)).masked_fill(is_masked, 0)


def dropout_mask(seed, num_edges, heads, dropout_p) -> Tensor:
    """(num_edges, heads) in float64: 0 if the fused attentions drop the weight under this seed, otherwise 1 / (1 - dropout_p).

    Philox-4x32-10 (Salmon et al., 2011): the word of edge e and head h is word h % 4 under the key seed[0] and the counter
    (e, h // 4, seed[1]), low words first. An entry is dropped if its word is below dropout_p 2**32.
    """
    word = 2**32 - 1
    key, salt = seed
    device = seed.device if isinstance(seed, Tensor) else None
    edge = torch.arange(num_edges, device=device).unsqueeze(1).expand(num_edges, -(-heads // 4))
    quad = torch.arange(-(-heads // 4), device=device).expand_as(edge)
    counter = [edge & word, edge >> 32, quad, torch.zeros_like(edge) + (salt & word)]
    keys = [key & word, key >> 32 & word]
    for _ in range(10):
        high0, low0 = _multiply_words(0xD2511F53, counter[0])
        high1, low1 = _multiply_words(0xCD9E8D57, counter[2])
        counter = [high1 ^ counter[1] ^ keys[0], low1, high0 ^ counter[3] ^ keys[1], low0]
        keys = [(keys[0] + 0x9E3779B9) & word, (keys[1] + 0xBB67AE85) & word]
    random = torch.stack(counter, -1).flatten(1)[:, :heads]
    threshold = min(round(dropout_p * 2**32), word)
    return (random >= threshold).double() * (0.0 if dropout_p == 1 else 1 / (1 - dropout_p))


def _multiply_words(factor: int, x: Tensor) -> tuple[Tensor, Tensor]:
    """High and low 32 bits of factor * x, for x in [0, 2**32) held in int64."""
    low, high = factor * (x & 0xFFFF), factor * (x >> 16)
    return (high + (low >> 16)) >> 16, (low + ((high & 0xFFFF) << 16)) & 0xFFFFFFFF


def gated_sum(
    g, value, gate_src, gate_dst, gate_edge=None, edge_value=None, *, normalize=False, eps=1e-6, return_edges=False
) -> Tensor | tuple[Tensor, Tensor]:
    """``out[v] = sum over in-edges e = (u, v) of sigmoid(z[e]) (value[u] + edge_value[e])``.

    ``z[e] = gate_src[u] + gate_dst[v] + gate_edge[e]``. Shapes: value and gate_src (num_src, *), gate_dst (num_dst, *), gate_edge
    and edge_value (num_edges, *) or None. normalize divides by the sum of sigmoid(z) plus eps. return_edges: also z. A node
    without in-edges gets 0.
    """
    src, dst = (x.long() for x in g.edges())
    z = _take(gate_src, src) + _take(gate_dst, dst)
    if gate_edge is not None:
        z = z + gate_edge
    gate = z.sigmoid()
    message = _take(value, src) if edge_value is None else _take(value, src) + edge_value
    out = _scatter_sum(gate * message, dst, g.num_dst)
    if normalize:
        has_edges = (g.in_degrees() > 0).view(-1, *[1] * (value.dim() - 1))
        out = out / torch.where(has_edges, _scatter_sum(gate, dst, g.num_dst) + eps, 1)
    return (out, z) if return_edges else out


_ACTIVATIONS: dict[str, Callable[..., Tensor]] = {
    "relu": torch.relu,
    "silu": F.silu,
    "gelu": F.gelu,
    "tanh": torch.tanh,
    "softplus": F.softplus,
    "leaky_relu": F.leaky_relu,
}


def edge_network(
    g, src=None, dst=None, layers=(), *, edge_feat=None, edge_weight=None, positions=None, distance_weight=None, squared=True,
    activation="silu", negative_slope=0.01, norm=None, eps=1e-5, factor=None, edge_factor=None, reduce="sum", return_edges=False,
    residual=False,
) -> Tensor | tuple[Tensor, Tensor]:  # fmt: skip
    """``out[v] = reduce over in-edges e = (u, v) of factor[u] edge_factor[e] m[e]``, where a network makes ``m[e]`` of
    ``src[u] + dst[v] + edge_weight edge_feat[e] + distance[e] distance_weight``: `layers`, each behind the activation, and a norm.

    Shapes: src (num_src, F), dst (num_dst, F), edge_feat (num_edges, C), edge_weight (F, C), positions (num_src, P) and
    (num_dst, P), distance_weight (F,), factor (num_src, *), edge_factor (num_edges,). Terms and factors that are None are left out.
    squared: a distance is not its root. residual: edges return edge_feat + m. reduce none: edges alone. Empty nodes get 0.
    """
    ends = [x.long() for x in g.edges()]
    terms = [_take(x, at) for x, at in zip((src, dst), ends) if x is not None]
    if edge_feat is not None:
        terms.append(F.linear(edge_feat, edge_weight))
    if positions is not None:
        offsets = _take(positions[0], ends[0]) - _take(positions[1], ends[1])
        square = offsets.square().sum(1, keepdim=True)
        distance = square if squared else torch.linalg.vector_norm(offsets, dim=1, keepdim=True)
        terms.append(distance.to(distance_weight.dtype) * distance_weight)
    message = sum(terms[1:], terms[0])
    slope = (negative_slope,) if activation == "leaky_relu" else ()
    for weight, bias in layers:
        message = F.linear(_ACTIVATIONS[activation](message, *slope), weight, bias)
    if norm is not None:
        message = F.layer_norm(message, message.shape[1:], norm[0], norm[1], eps)
    edges = message + edge_feat if residual else message
    if reduce == "none":
        return edges
    if factor is not None:
        message = message * _take(factor, ends[0])
    if edge_factor is not None:
        message = message * edge_factor.unsqueeze(1)
    out = gspmm(g, "copy_rhs", reduce, None, message)
    return (out, edges) if return_edges else out


def segment_reduce(seglen, value, reducer="sum") -> Tensor:
    """Reduces consecutive runs of rows: segment s is the next ``seglen[s]`` rows of value (n, *); result (len(seglen), *).

    reducer: sum, mean, max, min, with the rules of gspmm for empty segments, ties and NaN.
    """
    seglen = torch.as_tensor(seglen, device=value.device).long()
    segment = torch.arange(seglen.numel(), device=value.device).repeat_interleave(seglen)
    if segment.numel() != value.shape[0]:
        raise ValueError(f"seglen sums to {segment.numel()}, but value has {value.shape[0]} rows")
    return _reduce(reducer, value, segment, seglen.numel())


def gather_rows(table, ids, *, scale=None, zero_point=None, out_dtype=torch.float16) -> Tensor:
    """``out[i] = table[ids[i]]``. With a scale ``(table[ids[i]] - zero_point) * scale`` in scale's dtype, rounded to out_dtype."""
    if scale is None:
        return _take(table, ids)
    codes = table.to(scale.dtype)  # the types of 8 bits have no index_select on every device
    return _take((codes if zero_point is None else codes - zero_point) * scale, ids).to(out_dtype)


def _rows(indptr: Tensor) -> Tensor:
    """The row of every entry of a compressed adjacency."""
    count = indptr.diff().long()
    return torch.arange(count.numel(), device=indptr.device).repeat_interleave(count)


def _take(data: Tensor, index: Tensor | None) -> Tensor:
    """Rows of data. index None: all rows in order."""
    return data if index is None else data.index_select(0, index.long())


def _combine(op: str, lhs: Tensor | None, rhs: Tensor | None, dtype) -> Tensor:
    """op(lhs, rhs) for operands with one row per edge. If dtype is not None, they are converted to it first."""
    operands = [x if dtype is None else x.to(dtype) for x in (lhs, rhs) if x is not None]
    if op in ("copy_lhs", "copy_rhs"):
        return operands[0]
    left, right = _align(*operands)
    if op == "dot":
        return _dot(left, right)
    if op not in _ARITHMETIC:
        raise ValueError(f"op is {op!r}; expected an operator of gspmm or gsddmm")
    return _ARITHMETIC[op](left, right)


def _align(lhs: Tensor, rhs: Tensor) -> tuple[Tensor, Tensor]:
    """Inserts dimensions of size 1 after the first until both have the same rank: (E, K) with (E, H, D) becomes (E, 1, K)."""
    rank = max(lhs.dim(), rhs.dim())

    def padded(x):
        return x.reshape(x.shape[:1] + (1,) * (rank - x.dim()) + x.shape[1:])

    return padded(lhs), padded(rhs)


def _dot(lhs: Tensor, rhs: Tensor) -> Tensor:
    if lhs.dim() == 1:
        return lhs * rhs
    if lhs.shape[-1] != rhs.shape[-1]:
        raise ValueError(f"the last dimensions are {lhs.shape[-1]} and {rhs.shape[-1]}; expected equal ones for dot")
    return (lhs * rhs).sum(-1, keepdim=True)


def _reduce(reduce_op: str, value: Tensor, row: Tensor, num_rows: int) -> Tensor:
    """Reduces value (E, *) into (num_rows, *) by row (E,)."""
    if reduce_op == "sum":
        return _scatter_sum(value, row, num_rows)
    if reduce_op == "mean":
        count = torch.bincount(row, minlength=num_rows).clamp(min=1).to(value.dtype)
        return _scatter_sum(value, row, num_rows) / count.view(-1, *[1] * (value.dim() - 1))
    if reduce_op in ("max", "min"):
        return _first_extreme(reduce_op, value, row, num_rows)
    raise ValueError(f"the reduction is {reduce_op!r}; expected sum, mean, max or min")


def _scatter_sum(value: Tensor, row: Tensor, num_rows: int) -> Tensor:
    return value.new_zeros((num_rows, *value.shape[1:])).index_add(0, row, value)


def _scatter_extreme(reduce_op: str, value: Tensor, row: Tensor, num_rows: int) -> Tensor:
    """Largest or smallest value of each row: NaN if the row has one, 0 if the row is empty."""
    zeros = value.new_zeros((num_rows, *value.shape[1:]))
    return zeros.scatter_reduce(0, _spread(row, value), value, f"a{reduce_op}", include_self=False)


def _first_extreme(reduce_op: str, value: Tensor, row: Tensor, num_rows: int) -> Tensor:
    """_scatter_extreme, but gathered from the first winner, so that autograd sends the gradient there alone."""
    count = value.shape[0]
    index = _spread(row, value)
    best = _scatter_extreme(reduce_op, value.detach(), row, num_rows).gather(0, index)
    wins = (value == best) | (value.isnan() & best.isnan())
    position = torch.where(wins, _spread(torch.arange(count, device=row.device), value), count)
    winner = position.new_full((num_rows, *value.shape[1:]), count).scatter_reduce(0, index, position, "amin")
    # Rows without entries point one past the end, at a row of zeros.
    return torch.cat([value, value.new_zeros((1, *value.shape[1:]))]).gather(0, winner)


def _spread(row: Tensor, value: Tensor) -> Tensor:
    """row (E,) repeated over the trailing dimensions of value (E, *), as scatter and gather take it."""
    return row.view(-1, *[1] * (value.dim() - 1)).expand(value.shape)
