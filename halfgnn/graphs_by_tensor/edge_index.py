"""Graphs of edge_index, and what is asked of its ids. Both are cached with the tensor."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from ..common.caching import cacheable, is_captured, may_cache, ordinary_tensors, read_cached, refuse_capture, unwrapped
from ..common.compat import disable, guard_or_true, is_exporting
from ..common.fake import register_fake
from ..common.ids import INT32_MAX, check_count, check_edge_index, check_ends, check_readable, exported_ids
from ..graph import Graph
from ..graph_argument import as_graph
from .new_ids import copy_new, library
from .origin import Origin
from .store import ByContent, Topology, is_known, known, topology_of

_known_in_inference: ByContent[Topology] = ByContent()


def graph_of(edge_index: Any, num_src: int, num_dst: int) -> Graph:
    """The Graph of edge_index: a tensor (2, E), or a Graph or DGLGraph in its place.

    The Graph is cached while the tensor lives and is not modified in place. Modifications of a tensor of inference mode are not
    counted: on the CPU it is compared with a copy at every call, and on a GPU, which such a question would wait for, it is
    converted at every call.

    Raises:
        ValueError: edge_index is not (2, E), or holds ids out of range (checked at the first call, with a device synchronisation);
            or it is a Graph with other numbers of nodes.
        TypeError: edge_index is no dense tensor of integers. Graph.from_torch_sparse takes sparse ones.
        RuntimeError: edge_index has to be converted and checked while a CUDA graph is captured.
    """
    num_src, num_dst = check_count(num_src, "num_src"), check_count(num_dst, "num_dst")
    if isinstance(edge_index, Tensor):
        if torch.compiler.is_compiling():
            is_dense = edge_index.layout == torch.strided
            return (_traced if is_dense else _graph_of_tensor)(edge_index, num_src, num_dst)
        # Mostly it is known: what torch.compile must not trace takes longer to call.
        topology = known.get(edge_index)
        g = None if topology is None else topology.graphs.get((num_src, num_dst))
        return _graph_of_tensor(edge_index, num_src, num_dst) if g is None else g
    g = as_graph(edge_index, "edge_index", "a tensor (2, E) of integers, a halfgnn.Graph or a DGLGraph")
    if g.num_src != num_src or g.num_dst != num_dst:
        raise ValueError(
            f"edge_index is a graph of {g.num_src} source and {g.num_dst} destination nodes; expected {num_src} and {num_dst}, "
            "one per row of x"
        )
    return g


@disable("halfgnn.pyg sorts the edges when it first sees an edge_index; give the module a halfgnn.Graph")
def _graph_of_tensor(edge_index: Any, num_src: int, num_dst: int) -> Graph:
    if hasattr(edge_index, "as_tensor"):  # torch_geometric.EdgeIndex
        edge_index = edge_index.as_tensor()
    edge_index = unwrapped(edge_index, "edge_index")
    if edge_index.layout != torch.strided:
        raise TypeError(f"edge_index has layout {edge_index.layout}; pass halfgnn.Graph.from_torch_sparse(edge_index)")
    if not edge_index.is_inference():
        topology = topology_of(edge_index)
    elif edge_index.is_cpu:
        topology = _known_in_inference.get(edge_index) or _known_in_inference.put(edge_index, Topology())
    else:
        return _make(edge_index, num_src, num_dst)
    return topology.graph((num_src, num_dst), lambda: _make(edge_index, num_src, num_dst))


# ---- compiled code -----------------------------------------------------------------------------------------------------------

library.define(
    "graph_side(Tensor edge_index, SymInt num_src, SymInt num_dst, bool by_src, int wraps=0) -> "
    "(Tensor indptr, Tensor indices, Tensor edge_ids)"
)


def _traced(edge_index: Any, num_src: int, num_dst: int) -> Graph:
    """The Graph of an input of compiled code, whose sides are asked for when the code runs.

    An exported program makes them itself, by operators that need no Python.
    """
    edge_index = edge_index.as_tensor() if hasattr(edge_index, "as_tensor") else edge_index
    if is_exporting():
        check_edge_index(edge_index)
        message = "edge_index holds an id that is no row of x"
        src, dst = (exported_ids(row, count, message) for row, count in zip(edge_index, (num_src, num_dst)))
        return Graph.from_edges(src, dst, num_src=num_src, num_dst=num_dst, check=False)
    csc, csr = (torch.ops.halfgnn_pyg.graph_side(edge_index, num_src, num_dst, by_src) for by_src in (False, True))
    copy_new(edge_index, csc)
    copy_new(edge_index, csr)
    return Origin(edge_index, num_src, num_dst).remember(Graph(num_src, num_dst, csc, csr))


def _graph_side(
    edge_index: Tensor, num_src: int, num_dst: int, by_src: bool, wraps: int = 0
) -> tuple[Tensor, Tensor, Tensor]:
    """wraps: of which rows negative ids are those of the last nodes, as bits."""
    return side_of(found_graph(edge_index, num_src, num_dst, wraps), by_src)


def found_graph(edge_index: Tensor, num_src: int, num_dst: int, wraps: int = 0) -> Graph:
    """The Graph of an edge_index when compiled code runs. See _graph_side."""
    if is_captured(edge_index.device):
        src, dst = edge_index
        return captured_graph(src, dst, num_src, num_dst, wraps)
    if wraps and edge_index.numel() and min(low for low, _ in _bounds_of(edge_index)) < 0:
        return _make(torch.stack(wrapped(edge_index, (num_src, num_dst), wraps)), num_src, num_dst)
    return _graph_of_tensor(edge_index, num_src, num_dst)


def captured_graph(src: Tensor, dst: Tensor, num_src: int, num_dst: int, wraps: int) -> Graph:
    """The Graph of edges in a CUDA graph, whose replay makes it again of other ids: without questions to the device.

    A replay with ids out of range fails an assertion of the device.
    """
    rows = wrapped((src, dst), (num_src, num_dst), wraps)
    message = "a compiled gather or sum has an id that is no row"
    src, dst = (exported_ids(ids, count, message) for ids, count in zip(rows, (num_src, num_dst)))
    if max(num_src, num_dst, src.shape[0]) <= INT32_MAX:
        src, dst = src.int(), dst.int()
    return Graph.from_edges(src, dst, num_src=num_src, num_dst=num_dst, check=False)


def wrapped(rows: Iterable[Tensor], counts: Iterable[int], wraps: int) -> list[Tensor]:
    """Rows of ids, in some of which negative ids are those of the last nodes."""
    pairs = enumerate(zip(rows, counts))
    return [torch.where(ids < 0, ids + count, ids) if wraps >> row & 1 else ids for row, (ids, count) in pairs]


def side_of(g: Graph, by_src: bool) -> tuple[Tensor, Tensor, Tensor]:
    """A side of a cached graph for compiled code, which may write to the memory of what it has read: in copies on write."""
    indptr, indices, edge_ids = g.csr() if by_src else g.csc()
    if edge_ids is None:
        edge_ids = g.cached("_edge_order", _edge_order)
    with ordinary_tensors():
        return indptr._lazy_clone(), indices._lazy_clone(), edge_ids._lazy_clone()  # type: ignore[attr-defined]


def _edge_order(g: Graph) -> Tensor:
    return torch.arange(g.num_edges, dtype=g.idtype, device=g.device)


library.impl("graph_side", _graph_side, "CompositeExplicitAutograd")


@register_fake("graph_side", namespace="halfgnn_pyg")
def _(edge_index, num_src, num_dst, by_src, wraps=0):
    return fake_side(edge_index, edge_index.shape[1], num_src if by_src else num_dst, num_src, num_dst)


def fake_side(ids: Tensor, num_edges: int, num_rows: int, *counts: int) -> tuple[Tensor, Tensor, Tensor]:
    """A side of so many rows. counts: of nodes."""
    # How many edges there are with self-loops is known when the code runs.
    is_short = all(guard_or_true(count <= INT32_MAX) for count in (num_edges, *counts))
    sizes = (num_rows + 1, num_edges, num_edges)
    indptr, indices, edge_ids = (ids.new_empty(size, dtype=torch.int32 if is_short else ids.dtype) for size in sizes)
    return indptr, indices, edge_ids


# ---- what is asked of an edge_index ------------------------------------------------------------------------------------------


def holds_ids_below(edge_index: Tensor, row: int, num_nodes: int) -> bool:
    """Whether a row of edge_index, which has edges, holds ids of so many nodes only. It is read once."""
    low, high = _bounds_of(edge_index)[row]
    return low >= 0 and high < num_nodes


def _bounds_of(edge_index: Tensor) -> list[tuple[int, int]]:
    """The smallest and the largest id of each row of edge_index, which has edges. They are cached."""
    if edge_index.is_inference():
        return _bounds(edge_index)
    topology = topology_of(edge_index)
    if topology.bounds is None:
        topology.bounds = _bounds(edge_index)
    return topology.bounds


def _bounds(edge_index: Tensor) -> list[tuple[int, int]]:
    low, high = (x.tolist() for x in torch.aminmax(edge_index, dim=1))
    return list(zip(low, high))


def reached(edge_index: Tensor, row: int, num_nodes: int) -> Tensor | None:
    """Which of the nodes (num_nodes,) of a row of edge_index have an edge; None if all have one. It is cached."""
    if edge_index.is_inference():
        return _reached(edge_index[row], num_nodes)
    masks = topology_of(edge_index).reached
    if (row, num_nodes) not in masks:
        with ordinary_tensors():
            if not may_cache(edge_index.device):
                return _reached(edge_index[row], num_nodes)
            mask = _reached(edge_index[row], num_nodes)
            masks[row, num_nodes] = cacheable(None if mask.all() else mask, [mask])
    return read_cached(masks[row, num_nodes])


def _reached(ids: Tensor, num_nodes: int) -> Tensor:
    return torch.zeros(num_nodes, dtype=torch.bool, device=ids.device).index_fill_(0, ids.long(), True)


def graph_with(edge_index: Tensor, row: int, num_nodes: int) -> Graph:
    """A Graph of edge_index, which has edges, with so many nodes on the side of one row, and at least as many on the other.

    Raises: see graph_of.
    """
    if is_known(edge_index):
        for counts, g in list(topology_of(edge_index).graphs.items()):
            if counts[row] == num_nodes:
                return g
    _, high = _bounds_of(edge_index)[1 - row]
    others = max(num_nodes, high + 1)
    return graph_of(edge_index, *((num_nodes, others) if row == 0 else (others, num_nodes)))


def lacks_loops(edge_index: Tensor) -> bool:
    """Whether no edge is a self-loop. It is read at the second question; until then the answer is False."""
    topology = topology_of(edge_index)
    if topology.derived and topology.lacks_loops is None:
        topology.lacks_loops = edge_index.dim() == 2 and not bool((edge_index[0] == edge_index[1]).any())
    return bool(topology.lacks_loops)


def _make(edge_index: Tensor, num_src: int, num_dst: int) -> Graph:
    refuse_capture(
        edge_index.device,
        "edge_index is not known yet, so the device has to check its ids",
        "call the module once with this tensor, or make its graph with halfgnn.pyg.graph_of and pass that",
    )
    with ordinary_tensors():
        _check(edge_index, num_src, num_dst)
        if max(num_src, num_dst, edge_index.shape[1]) <= INT32_MAX:
            edge_index = edge_index.int()  # half the bytes per edge
        return Graph.from_edge_index(edge_index, num_src=num_src, num_dst=num_dst, check=False)


def _check(edge_index: Tensor, num_src: int, num_dst: int) -> None:
    check_edge_index(edge_index)
    if edge_index.shape[1] == 0:
        return
    check_readable(edge_index, "edge_index")
    sides = zip(_bounds_of(edge_index), (("source", num_src), ("destination", num_dst)))
    for row, ((low, high), (what, count)) in enumerate(sides):
        check_ends(low, high, f"edge_index[{row}]", count, f"the {what} nodes: x has a row per node")


def edge_index_of(g: Graph) -> Tensor:
    """PyG's edge_index (2, E)."""
    return torch.stack(g.edges()).long()
