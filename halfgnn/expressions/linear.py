"""Linear layers of expressions, computed for nodes where they can be.

A layer of features that are joined is the sum of the layers of the parts, and that of x_j - x_i a difference of two of nodes. This
is the first layer of EdgeConv, CGConv, PNA and of networks of meshes.
"""

from __future__ import annotations

import copy
import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..common.autograd import snapshot
from ..common.precision import HALF, computed_type, without_autocast
from .accounts import routed
from .copies import unsafe_view
from .expression import ORDINARY, Expression, Gather
from .rules import extended
from .values import ALL, EDGES, Combined, Evaluation, Joined, Rows, Value, sum_of

Terms = dict[int | str, list[tuple[Tensor, Tensor]]]  # by whose rows they are: rows, and their part of the weight


def linear(x: Expression, weight: Tensor, bias: Tensor | None) -> Expression | Tensor | None:
    """torch.nn.functional.linear of an expression; None if it has to be materialized."""
    if x.edge_dim == x.dim() - 1 or not _is_plain(weight) or x.shape[-1] != weight.shape[-1]:
        return None
    evaluation, num_edges = Evaluation(x), x.shape[x.edge_dim]
    if x.row is not None and x.num_rows <= num_edges and not x.is_watched():
        return _of_one_side(x, evaluation, weight, bias)
    dtype = computed_type(x)
    with without_autocast(x.device):
        value = evaluation.of(x)
        # Under autocast features may be fp32, whose layers are as good as those of PyTorch unless they are subtracted.
        is_wide = dtype in HALF and not _reads_edges(value) and (x.dtype in HALF or _subtracts(value))
        terms = _terms(value, weight, evaluation, num_edges, is_wide or dtype not in HALF)
    if terms is None:
        return None
    if not is_wide:
        return _sum(terms, bias, evaluation, x, dtype, may_split=True)
    with without_autocast(x.device):  # rounded once: nodes are fewer than edges
        terms = {of: [(y, w.float()) for y, w in pairs] for of, pairs in terms.items()}
        out = _sum(terms, None if bias is None else bias.float(), evaluation, x, torch.float32, may_split=False)
        assert isinstance(out, Tensor)
        return out.to(dtype)


def _of_one_side(x: Expression, evaluation: Evaluation, weight: Tensor, bias: Tensor | None) -> Expression:
    """An expression again, of the nodes' projected features."""
    with without_autocast(x.device):
        value = evaluation.of(x)
    assert isinstance(value, Rows) and x.row is not None
    routed["linear"] += 1
    y = F.linear(snapshot(_read(value.x, x.row, weight, evaluation)), weight, bias)
    return _gathered(y, x, x.row)


def _gathered(rows: Tensor, like: Expression, side: int) -> Gather:
    """Rows of a side's nodes (N, *) for every edge of an expression, in its dimension of edges."""
    dim, edges = like.edge_dim, like.propagation
    return Gather(rows if dim == 0 else rows.movedim(0, dim), edges, side, edges.ids(side), dim)


def _is_plain(weight: Any) -> bool:
    """Whether it is a matrix of numbers."""
    is_tensor = type(weight) in ORDINARY and weight.layout == torch.strided
    return is_tensor and weight.is_floating_point() and weight.dim() == 2


def _read(x: Tensor, row: int, weight: Tensor, evaluation: Evaluation) -> Tensor:
    """Rows of nodes, of which only those that an edge reads may be infinite: the weight's gradient is a product with them all."""
    return evaluation.read(x, row, True) if weight.requires_grad and torch.is_grad_enabled() else x


def _terms(value: Value, weight: Tensor, evaluation: Evaluation, num_edges: int, may_subtract: bool) -> Terms | None:
    """What the layer is the sum of, if there is anything that nodes can compute.

    may_subtract: whether a difference of layers is as good as the layer of a difference. In half precision it is not, if the two
    are near.
    """
    terms: Terms = {}

    if isinstance(value, Joined):
        widths = [_width(part) for part in value.parts]
        for part, columns in zip(value.parts, weight.split(widths, 1)):
            _add_terms(terms, part, columns, evaluation, num_edges, may_subtract)
    elif isinstance(value, Combined) and _is_split(value, weight, may_subtract):
        _add_terms(terms, value, weight, evaluation, num_edges, may_subtract)
    return terms if terms.keys() - {EDGES} else None


def _add_terms(
    terms: Terms, value: Value, weight: Tensor, evaluation: Evaluation, num_edges: int, may_subtract: bool
) -> None:
    if isinstance(value, Combined) and _is_split(value, weight, may_subtract):
        _add_terms(terms, value.first, weight, evaluation, num_edges, may_subtract)
        second = weight if value.op == "add" else -weight
        _add_terms(terms, value.second, second, evaluation, num_edges, may_subtract)
    elif isinstance(value, Rows) and value.side != ALL and value.x.shape[0] <= num_edges:
        x = _read(value.x, value.side, weight, evaluation) if isinstance(value.side, int) else value.x
        terms.setdefault(value.side, []).append((x, weight))
    else:
        x = evaluation.tensor_of(value)
        terms.setdefault(EDGES, []).append((x.expand(num_edges, *x.shape[1:]), weight))


def _is_split(value: Combined, weight: Tensor, may_subtract: bool) -> bool:
    """Whether the layer of a sum or difference is one of layers of nodes."""
    return (may_subtract or not _subtracts(value)) and value.op in ("add", "sub") and _are_nodes(value, weight.shape[1])


def _subtracts(value: Value) -> bool:
    """Whether rows are subtracted, which may be nearly equal."""
    if isinstance(value, Joined):
        return any(map(_subtracts, value.parts))
    return isinstance(value, Combined) and (value.op == "sub" or value.is_difference)


def _are_nodes(value: Combined, width: int) -> bool:
    """Whether both are rows of nodes of the same width."""
    parts = value.first, value.second
    return all(isinstance(x, Rows) and isinstance(x.side, int) and x.x.shape[-1] == width for x in parts)


def _reads_edges(value: Value) -> bool:
    """Whether a part has to be projected for each edge."""
    parts = value.parts if isinstance(value, Joined) else (value,)
    return not all(
        isinstance(x.side, int) if isinstance(x, Rows) else isinstance(x, Combined) and _is_difference(x) for x in parts
    )


def _is_difference(value: Combined) -> bool:
    return value.op in ("add", "sub") and _are_nodes(value, _width(value))


def _width(value: Value) -> int:
    if isinstance(value, Rows):
        return value.x.shape[-1] if isinstance(value.x, Tensor) and value.x.dim() else 1
    if isinstance(value, Joined):
        return sum(map(_width, value.parts))
    parts = (value.first, value.second) if isinstance(value, Combined) else (value.sum,)
    return max(map(_width, parts))


def _sum(
    terms: Terms, bias: Tensor | None, evaluation: Evaluation, x: Expression, dtype: torch.dtype, may_split: bool
) -> Expression | Tensor:
    layers: list[Rows] = []
    for of, pairs in terms.items():
        if of != EDGES and bias is not None:
            out, bias = _layer(pairs, bias, dtype, x.edge_dim), None
        else:
            out = _layer(pairs, None, dtype, x.edge_dim)
        layers.append(Rows(of, out))
    routed["linear"] += 1
    if may_split and terms.keys() == {0, 1}:
        return _as_expression({layer.side: layer.x for layer in layers}, x)
    with without_autocast(x.device):
        if x.edge_dim == 0:
            return evaluation.tensor_of(sum_of(layers))
        return _of_samples(layers, evaluation, x)


def _of_samples(layers: list[Rows], evaluation: Evaluation, x: Expression) -> Tensor:
    """The sum of layers (N or E, *, D) as a tensor (*, E, D): of edges of as many copies of the graph as there are samples."""
    samples, dim = x.shape[: x.edge_dim], x.edge_dim
    count = math.prod(samples)
    # Rows of one side alone are taken by its ids, which copies do not have.
    is_whole = count > 0 and len(layers) > 1 and all(layer.x.shape[1:-1] == samples for layer in layers)
    edges = evaluation.propagation.copies(count) if is_whole else None
    if edges is None:
        return evaluation.tensor_of(sum_of(layers)).movedim(0, dim).contiguous()
    of_all = copy.copy(evaluation)
    of_all.propagation, of_all.num_nodes = edges, {row: count * n for row, n in evaluation.num_nodes.items()}
    rows = [Rows(layer.side, layer.x.movedim(0, dim).flatten(0, dim)) for layer in layers]
    out = of_all.tensor_of(sum_of(rows))
    return unsafe_view(out, (*samples, -1, out.shape[-1]))


def _as_expression(rows: dict[int | str, Tensor], x: Expression) -> Expression:
    """The sum of the rows of both ends, which is materialized by what does not reduce it at once."""
    ends = tuple(_gathered(y, x, int(side)) for side, y in rows.items())
    lazy = extended(torch.ops.aten.add.Tensor, ends, {})
    assert lazy is not None
    lazy.cache.is_split = True
    return lazy


def _layer(pairs: list[tuple[Tensor, Tensor]], bias: Tensor | None, dtype: torch.dtype, dim: int) -> Tensor:
    """The sum of the layers of rows of the same nodes, in a dtype. Weights of the same rows are added up first.

    dim: of rows, in memory. It is the first one here.
    """
    by_rows: dict[int, tuple[Tensor, Tensor]] = {}
    for x, weight in pairs:
        known = by_rows.get(id(x))
        by_rows[id(x)] = (x, weight if known is None else known[1] + weight)
    first, *others = [(snapshot(x).movedim(0, dim).to(dtype), weight) for x, weight in by_rows.values()]
    out = F.linear(*first, bias)
    for x, weight in others:
        out = out + F.linear(x, weight)
    return out.movedim(dim, 0)
