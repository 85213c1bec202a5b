"""What modules make of an edge_index in compiled code, beside its Graph: self-loops, GCN's weights, the ends of all edges. See
:mod:`.origin`.

They are operators, which find what is cached with the edge_index when the code runs, and return it in copies on write. Traced by
themselves they would be computed at every call, and torch.compile would break its graph at the number of self-loops.

Where kept_rows is a tensor, the graph is the one with new self-loops, and has as many edges as these and the rows of edges that are
no self-loops.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..common.caching import is_captured
from ..common.fake import register_fake, unknown_size
from ..graph import Graph
from .edge_index import fake_side, found_graph, side_of
from .gcn_norm import cached_weights, weights_of_ones
from .loops import with_self_loops
from .made_once import shared_copy
from .new_ids import library

_EDGES = "Tensor edge_index, SymInt num_src, SymInt num_dst, Tensor? kept_rows, SymInt num_loops"
library.define(
    "loops(Tensor edge_index, SymInt num_src, SymInt num_dst, SymInt num_loops) -> "
    "(Tensor kept_rows, Tensor loop_rows, Tensor loop_nodes)"
)
library.define(
    "looped_side(Tensor edge_index, SymInt num_src, SymInt num_dst, Tensor kept_rows, SymInt? num_loops, bool by_src) -> "
    "(Tensor indptr, Tensor indices, Tensor edge_ids)"
)
library.define(f"ends({_EDGES}) -> Tensor")
library.define(f"gcn_weights({_EDGES}, ScalarType dtype) -> Tensor")


# ---- when the code runs ------------------------------------------------------------------------------------------------------


def _graph(edge_index: Tensor, num_src: int, num_dst: int, kept_rows: Tensor | None, num_loops: int) -> Graph:
    g = found_graph(edge_index, num_src, num_dst)
    return g if kept_rows is None else with_self_loops(g, num_loops).graph


def _loops(edge_index: Tensor, num_src: int, num_dst: int, num_loops: int) -> tuple[Tensor, ...]:
    """The rows of edges that are no self-loops, of those that are, and the nodes of these."""
    looped = with_self_loops(found_graph(edge_index, num_src, num_dst), num_loops)
    return tuple(map(shared_copy, looped.rows()))


def _looped_side(
    edge_index: Tensor,
    num_src: int,
    num_dst: int,
    kept_rows: Tensor,
    num_loops: int | None,
    by_src: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """num_loops: None for the graph without any self-loop."""
    if num_loops is not None:
        return side_of(_graph(edge_index, num_src, num_dst, kept_rows, num_loops), by_src)
    looped = with_self_loops(found_graph(edge_index, num_src, num_dst), min(num_src, num_dst))
    return side_of(looped.without, by_src)


def _ends(edge_index: Tensor, num_src: int, num_dst: int, kept_rows: Tensor | None, num_loops: int) -> Tensor:
    """Sources and destinations (2, E), in the order of edge data."""
    g = _graph(edge_index, num_src, num_dst, kept_rows, num_loops)
    return _stacked(g) if is_captured(g.device) else shared_copy(g.cached("_ends", _stacked))


def _stacked(g: Graph) -> Tensor:
    return torch.stack(g.edges())


def _gcn_weights(
    edge_index: Tensor,
    num_src: int,
    num_dst: int,
    kept_rows: Tensor | None,
    num_loops: int,
    dtype: torch.dtype,
) -> Tensor:
    """The weights (E, 1) that GCNConv gives edges of weight 1."""
    g = _graph(edge_index, num_src, num_dst, kept_rows, num_loops)
    if is_captured(g.device):
        return weights_of_ones(g, dtype)
    return shared_copy(cached_weights(g, dtype))


for _function in (_loops, _looped_side, _ends, _gcn_weights):
    library.impl(_function.__name__[1:], _function, "CompositeExplicitAutograd")


# ---- fake kernels ------------------------------------------------------------------------------------------------------------


@register_fake("loops", namespace="halfgnn_pyg")
def _(edge_index, num_src, num_dst, num_loops):
    kept, loops = unknown_size(), unknown_size()
    rows, nodes = edge_index.new_empty(loops, dtype=torch.int64), edge_index.new_empty(loops, dtype=torch.int64)
    return edge_index.new_empty(kept, dtype=torch.int64), rows, nodes


def _num_edges(edge_index: Tensor, kept_rows: Tensor | None, num_loops: int) -> int:
    return edge_index.shape[1] if kept_rows is None else kept_rows.shape[0] + num_loops


@register_fake("looped_side", namespace="halfgnn_pyg")
def _(edge_index, num_src, num_dst, kept_rows, num_loops, by_src):
    num_edges = _num_edges(edge_index, kept_rows, num_loops or 0)
    return fake_side(edge_index, num_edges, num_src if by_src else num_dst, num_src, num_dst)


@register_fake("ends", namespace="halfgnn_pyg")
def _(edge_index, num_src, num_dst, kept_rows, num_loops):
    num_edges = _num_edges(edge_index, kept_rows, num_loops)
    indptr, *_ = fake_side(edge_index, num_edges, num_dst, num_src, num_dst)
    return indptr.new_empty(2, num_edges)


@register_fake("gcn_weights", namespace="halfgnn_pyg")
def _(edge_index, num_src, num_dst, kept_rows, num_loops, dtype):
    return edge_index.new_empty(_num_edges(edge_index, kept_rows, num_loops), 1, dtype=dtype)
