"""Edges whose nodes of one row are pairs of a node and the edge's type: rows of a table of all nodes' products with the matrices of
all types.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..common.caching import is_captured
from ..common.fake import register_fake
from ..common.ids import check_range, exported_ids
from .edge_index import wrapped
from .made_once import copies_made_once, shared_copy
from .new_ids import library
from .store import topology_at, topology_of

library.define(
    "edges_of_pairs(Tensor edge_index, int row, Tensor types, SymInt num_nodes, SymInt num_types, int wraps) -> "
    "(Tensor edge_index, Tensor key)"
)


def with_pairs(edge_index: Tensor, row: int, nodes: Tensor, types: Tensor, num_types: int) -> Tensor:
    """edge_index (2, E) with the ids ``nodes * num_types + types`` in a row. nodes, types: (E,), in range."""
    pairs = nodes * num_types + types
    return torch.stack((pairs, edge_index[1]) if row == 0 else (edge_index[0], pairs))


def _edges_of_pairs(
    edge_index: Tensor, row: int, types: Tensor, num_nodes: int, num_types: int, wraps: int
) -> tuple[Tensor, Tensor]:
    """The edges in compiled code, which are cached with edge_index (2, E) and types (E,); and once more, for operators alone.

    wraps: whether negative nodes (1) and types (2) are those of the last ones, as bits. Raises ValueError if others are out of
    range.
    """
    counts = num_nodes, num_types

    def make() -> tuple[Tensor]:
        nodes, relations = wrapped((edge_index[row], types), counts, wraps)
        if is_captured(edge_index.device):
            message = "a compiled product with the matrices of relations has an id that is no node, or no relation"
            nodes, relations = exported_ids(nodes, num_nodes, message), exported_ids(relations, num_types, message)
        else:
            check_range(nodes, "index", num_nodes, "the nodes")
            check_range(relations, "index", num_types, "the relations")
        edges = with_pairs(edge_index, row, nodes, relations, num_types)
        topology_of(edges)  # which copies share
        return (edges,)

    if is_captured(edge_index.device):  # a replay may find other ids
        (edges,) = make()
        return edges, edges.clone()
    key = topology_at(types, "types"), row, *counts, wraps
    (edges,) = copies_made_once(topology_at(edge_index), key, make)
    return edges, shared_copy(edges)


library.impl("edges_of_pairs", _edges_of_pairs, "CompositeExplicitAutograd")


@register_fake("edges_of_pairs", namespace="halfgnn_pyg")
def _(edge_index, row, types, num_nodes, num_types, wraps):
    return torch.empty_like(edge_index), torch.empty_like(edge_index)


def edges_of_pairs(
    edge_index: Tensor, row: int, types: Tensor, num_nodes: int, num_types: int, wraps: int
) -> tuple[Tensor, Tensor]:
    """The edges while code is traced, and the tensor by which their Graphs are found. See _edges_of_pairs."""
    return torch.ops.halfgnn_pyg.edges_of_pairs(edge_index, row, types, num_nodes, num_types, wraps)
