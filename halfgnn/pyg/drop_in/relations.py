"""Weights of relations, ``weight[edge_type]``: one matrix per edge, of few different ones.

They are materialized if anything but a product with one row per edge reads them. That product is made for each node and relation,
or for the edges of a relation at a time.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ...common.precision import without_autocast
from ...drop_in.gate import types_on
from ...expressions.expression import Expression, Gather
from ...expressions.propagation import Pairs, Propagation
from ...expressions.values import Evaluation, Rows, materialize
from ...graphs_by_tensor.edge_index import holds_ids_below
from ...graphs_by_tensor.made_once import made_once
from ...graphs_by_tensor.pairs import with_pairs
from ...graphs_by_tensor.store import topology_of
from .accounts import routed
from .call import current

_SMALLEST = 65_536  # values of weights per edge that are materialized without more ado
_MOST_RELATIONS = 512


class Relations(Propagation):
    """The edges of ``weight[edge_type]``, whose nodes on both sides are relations."""

    __slots__ = ()


def may_be_weights(table: Tensor, edge_type: Tensor) -> bool:
    """Whether table[edge_type] has the shape of weights of relations, of which there are few: the cheapest question."""
    return table.dim() == 3 and table.shape[0] <= min(_MOST_RELATIONS, edge_type.shape[0] // 2)


def weights(table: Tensor, edge_type: Tensor) -> Gather | None:
    """table[edge_type] of a table (R, K, M), edge_type (E,); None if it is to be materialized at once."""
    num_relations, num_edges = table.shape[0], edge_type.shape[0]
    propagation = current()
    if propagation is None or propagation.refusal is not None or propagation.edge_index.shape[1] != num_edges:
        return None  # the index is hardly of edges
    if type(table) not in (Tensor, nn.Parameter) or table.layout != torch.strided or table.device != edge_type.device:
        return None
    if not may_be_weights(table, edge_type) or table[0].numel() * num_edges < _SMALLEST:
        return None
    if table.dtype not in types_on(table.device.type) or table.is_inference() or edge_type.is_inference():
        return None
    edges = _edges_of(edge_type)
    if not holds_ids_below(edges, 0, num_relations):
        return None
    return Gather(table, Relations(edges, [num_relations, num_relations]), 0, edges[0])


def are_weights(x: Any) -> bool:
    return isinstance(x, Gather) and type(x.propagation) is Relations


def _edges_of(edge_type: Tensor) -> Tensor:
    """An edge_index from relations to themselves. It is cached with edge_type."""
    (edges,) = made_once(topology_of(edge_type), None, lambda: (torch.stack([edge_type, edge_type]),))
    return edges


def product(x: Expression | Tensor, weights: Gather) -> Expression | Tensor | None:
    """x (E, 1, K) times the weights, (E, 1, M); None if they have to be materialized."""
    if x.dim() != 3 or x.shape[1] != 1 or weights.is_watched():
        return None
    if x.shape[0] != weights.shape[0] or x.shape[2] != weights.shape[1]:
        return None
    if isinstance(x, Expression):
        if x.row is not None and x.edge_dim == 0 and not x.is_watched() and x.num_rows * weights.num_rows <= x.shape[0]:
            return _of_nodes(x, weights)
        x = materialize(x)
    return _of_edges(x, weights)


def _table(weights: Gather) -> Tensor:
    weights.grad_bypassed |= weights.requires_grad and torch.is_grad_enabled()
    table = weights.current()
    return table if weights.requires_grad or not table.requires_grad else table.detach()


def _of_nodes(x: Expression, weights: Gather) -> Expression:
    """The products of all nodes with all relations: rows of pairs of both."""
    routed["relations:nodes"] += 1
    with without_autocast(x.device):
        rows = Evaluation(x).of(x)
    assert isinstance(rows, Rows) and x.row is not None
    table = _table(weights)
    num_relations, inputs, outputs = table.shape
    y = rows.x.reshape(-1, inputs) @ table.transpose(0, 1).reshape(inputs, num_relations * outputs)
    pairs = _pairs(x.propagation, x.row, weights, num_relations)
    return Gather(y.view(-1, 1, outputs), pairs, x.row, pairs.edge_index[x.row])


def _pairs(propagation: Propagation, row: int, weights: Gather, num_relations: int) -> Propagation:
    """The same edges, whose nodes of one row are pairs of a node and a relation."""

    def make() -> tuple[Tensor]:
        edge_index = propagation.edge_index
        return (with_pairs(edge_index, row, edge_index[row], weights.ids, num_relations),)

    key = topology_of(weights.propagation.edge_index), row, num_relations
    (pairs,) = made_once(topology_of(propagation.edge_index), key, make)
    return Pairs(pairs, propagation, row)


def _of_edges(x: Tensor, weights: Gather) -> Tensor:
    """A product per relation, of the rows of its edges."""
    routed["relations:edges"] += 1
    table = _table(weights)

    def make() -> tuple[Tensor, Tensor, list[int]]:
        order = torch.argsort(weights.ids, stable=True)
        return order, torch.argsort(order), torch.bincount(weights.ids, minlength=len(table)).tolist()

    order, places, counts = made_once(topology_of(weights.propagation.edge_index), len(table), make)
    parts = x[:, 0].index_select(0, order).split(counts)
    out = torch.cat([part @ matrix for part, matrix in zip(parts, table.unbind())])
    return out.index_select(0, places).unsqueeze(1)
