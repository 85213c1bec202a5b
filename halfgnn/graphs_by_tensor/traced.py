"""Graphs in compiled code of an index, and of the two ends of edges in tensors of their own: operators, which find them when the
code runs. That of an edge_index is in :mod:`.edge_index`.

All have an argument wraps: negative ids are those of the last nodes, as in x[ids]; of several rows, as bits.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..common.caching import is_captured
from ..common.fake import register_fake
from ..common.ids import INT32_MAX, check_ends, check_range
from ..graph import Graph
from .edge_index import captured_graph, fake_side, side_of, wrapped
from .index import bounds_of, graph_of_index
from .new_ids import library
from .store import MOST, Topology, topology_at

library.define(
    "index_side(Tensor index, int row, SymInt num_rows, bool wraps) -> (Tensor indptr, Tensor indices, Tensor edge_ids)"
)
library.define(
    "pair_side(Tensor src, Tensor dst, SymInt num_src, SymInt num_dst, bool by_src, int wraps) -> "
    "(Tensor indptr, Tensor indices, Tensor edge_ids)"
)


def _index_side(index: Tensor, row: int, num_rows: int, wraps: bool) -> tuple[Tensor, Tensor, Tensor]:
    """The rows of the Graph with an edge per entry of an index (E,), or of a row of an edge_index (2, E); row -1: of an index.

    Raises ValueError if the index holds an id that is no row.
    """
    ids = index if row < 0 else index[row]
    if is_captured(ids.device):
        return side_of(captured_graph(ids, ids, num_rows, num_rows, 3 * wraps), by_src=False)
    topology = topology_at(ids)
    if wraps and bounds_of(topology, ids)[0] < 0:
        topology, (ids,) = Topology(), wrapped([ids], [num_rows], 1)
    check_ends(*bounds_of(topology, ids), "index", num_rows, "the rows that it reduces into")
    return side_of(graph_of_index(topology, ids, num_rows), by_src=False)


@register_fake("index_side", namespace="halfgnn_pyg")
def _(index, row, num_rows, wraps):
    return fake_side(index, index.shape[-1], num_rows, num_rows)


def _pair_side(
    src: Tensor, dst: Tensor, num_src: int, num_dst: int, by_src: bool, wraps: int
) -> tuple[Tensor, Tensor, Tensor]:
    """A side of the Graph of edges from src to dst, (E,) each.

    Raises ValueError if one holds an id that is no row.
    """
    if is_captured(src.device):
        return side_of(captured_graph(src, dst, num_src, num_dst, wraps), by_src)
    topology = _topology_of_pair(src, dst)
    if wraps:
        src, dst = wrapped((src, dst), (num_src, num_dst), wraps)
    g = topology.graph((num_src, num_dst), lambda: _make(src, dst, num_src, num_dst))
    return side_of(g, by_src)


@register_fake("pair_side", namespace="halfgnn_pyg")
def _(src, dst, num_src, num_dst, by_src, wraps):
    return fake_side(src, src.shape[0], num_src if by_src else num_dst, num_src, num_dst)


def _topology_of_pair(src: Tensor, dst: Tensor) -> Topology:
    """That of the edges between two tensors. It is forgotten with either, and once either is modified in place."""
    pairs, of_src = topology_at(dst, "destinations").derived, topology_at(src, "sources")
    if of_src not in pairs:
        while len(pairs) >= MOST:
            pairs.pop(next(iter(pairs)))
        pairs[of_src] = Topology()
    return pairs[of_src]


def _make(src: Tensor, dst: Tensor, num_src: int, num_dst: int) -> Graph:
    for ids, name, count in ((src, "src", num_src), (dst, "dst", num_dst)):
        check_range(ids, name, count, f"the nodes of {name}")
    if max(num_src, num_dst, src.shape[0]) <= INT32_MAX:
        src, dst = src.int(), dst.int()
    return Graph.from_edges(src, dst, num_src=num_src, num_dst=num_dst, check=False)


for _name, _function in (("index_side", _index_side), ("pair_side", _pair_side)):
    library.impl(_name, _function, "CompositeExplicitAutograd")


def graph_of_row(index: Tensor, row: int, num_rows: int, wraps: bool) -> Graph:
    """The Graph by which rows of edges are reduced into num_rows others, while code is traced. See _index_side."""
    side = torch.ops.halfgnn_pyg.index_side(index, row, num_rows, wraps)
    return Graph(num_rows, num_rows, side)


def graph_of_pair(src: Tensor, dst: Tensor, num_src: int, num_dst: int, wraps: int) -> Graph:
    """The Graph of the edges from src to dst, while code is traced. See _pair_side."""
    csc, csr = (torch.ops.halfgnn_pyg.pair_side(src, dst, num_src, num_dst, by_src, wraps) for by_src in (False, True))
    return Graph(num_src, num_dst, csc, csr)


def graph_of_edge_index(edge_index: Tensor, num_src: int, num_dst: int, wraps: int) -> Graph:
    """The Graph of an edge_index, while code is traced."""
    csc, csr = (
        torch.ops.halfgnn_pyg.graph_side(edge_index, num_src, num_dst, by_src, wraps) for by_src in (False, True)
    )
    return Graph(num_src, num_dst, csc, csr)
