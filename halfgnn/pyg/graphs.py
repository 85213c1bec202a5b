"""Graphs of edge_index, which are made once, and self-loops."""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch import Tensor

from .. import ops
from ..common.by_tensor import ByContent, ByTensor, state_of
from ..common.compat import disable, is_exporting
from ..common.fake import register_fake
from ..common.ids import INT32_MAX, check_count, check_edge_index, check_ends, check_readable, exported_ids
from ..common.kept import Kept, kept, may_keep, ordinary_tensors, refuse_capture, taken, unwrapped
from ..common.precision import without_autocast
from ..graph import Graph
from ..graph_argument import as_graph
from .drop_in import thresholds as _worth

FILLS = ("add", "sum", "mean", "min", "max", "mul")  # how the features of in-edges are reduced to those of a self-loop
_SELECTED = 2  # how often each edge of an edge_index is in the selections of its columns that are kept
_LOOPS = "_loops"  # under which WithSelfLoops are cached with a graph


class Topology:
    """Graphs of one content of edge_index, or of an index (_indices.py), by numbers of nodes; what was derived from it, by how."""

    def __init__(self) -> None:
        self.graphs: dict[tuple[int, int], Graph] = {}
        self.derived: dict[Any, Topology] = {}
        self.views: dict[Any, Topology] = {}  # of indices that are views of the tensor, by their place in it
        self.reached: dict[tuple[int, int], Any] = {}  # what reached() keeps, by row and number of nodes
        self.made: dict[Any, Any] = {}  # what made_once() of _remembered.py keeps
        self.lacks_loops: bool | None = None  # None: not known yet
        self.bounds: list[tuple[int, int]] | None = None
        self.is_sorted: bool | None = None  # of an index; None: not known yet
        self.num_values = 0  # of what was to go along the edges, or by the index, before
        # Columns of the edge_index by which messages went before, with their state and topology.
        self.selections: list[tuple[Tensor, Any, Topology]] = []
        # Of such columns until their content is looked at: the edge_index's topology, and its number of edges.
        self.selected_from: tuple[Topology, int] | None = None


# By edge_index or index: its topology, which others of the same content share.
_known: ByTensor[Topology] = ByTensor()
_known_in_inference: ByContent[Topology] = ByContent()
# By id: a reference to an edge_index without a graph, and how many values of messages went along it. To know it costs more.
_seen: dict[int, list[Any]] = {}
_MOST_SEEN = 256


def graph_of(edge_index: Any, num_src: int, num_dst: int) -> Graph:
    """The Graph of edge_index: a tensor (2, E), or a Graph or DGLGraph in its place.

    The Graph is kept while the tensor lives and is not written to. Writes to a tensor of inference mode are not counted: on the CPU
    it is compared with a copy at every call, and on a GPU, which such a question would wait for, it is converted at every call.

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
        topology = _known.get(edge_index)
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
        graphs = topology_of(edge_index).graphs
    elif edge_index.is_cpu:
        topology = _known_in_inference.get(edge_index)
        graphs = (topology or _known_in_inference.put(edge_index, Topology())).graphs
    else:
        return _make(edge_index, num_src, num_dst)
    if (num_src, num_dst) not in graphs:
        graphs[num_src, num_dst] = _make(edge_index, num_src, num_dst)._for_all_streams()
    return graphs[num_src, num_dst]


# ---- compiled code -----------------------------------------------------------------------------------------------------------

library = torch.library.Library("halfgnn_pyg", "DEF")
library.define(
    "graph_side(Tensor edge_index, SymInt num_src, SymInt num_dst, bool by_src) -> "
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
    return Graph(num_src, num_dst, csc, csr)


def _graph_side(edge_index: Tensor, num_src: int, num_dst: int, by_src: bool) -> tuple[Tensor, Tensor, Tensor]:
    """A side of the kept graph. It is copied, because compiled code may write into the memory of what it has read."""
    g = _graph_of_tensor(edge_index, num_src, num_dst)
    indptr, indices, edge_ids = g.csr() if by_src else g.csc()
    if edge_ids is None:
        edge_ids = torch.arange(g.num_edges, dtype=indices.dtype, device=g.device)
    return indptr.clone(), indices.clone(), edge_ids.clone()


library.impl("graph_side", _graph_side, "CompositeExplicitAutograd")


@register_fake("graph_side", namespace="halfgnn_pyg")
def _(edge_index, num_src, num_dst, by_src):
    num_edges = edge_index.shape[1]
    is_short = max(num_src, num_dst, num_edges) <= INT32_MAX
    sizes = ((num_src if by_src else num_dst) + 1, num_edges, num_edges)
    return tuple(edge_index.new_empty(size, dtype=torch.int32 if is_short else edge_index.dtype) for size in sizes)


# ---- what is kept ------------------------------------------------------------------------------------------------------------


def topology_of(edge_index: Tensor) -> Topology:
    topology = _known.get(edge_index)
    if topology is None:
        return _known.put(edge_index, Topology())
    if topology.selected_from is not None:
        return _known.put(edge_index, _of_content(edge_index, *topology.selected_from))
    return topology


def known_topology(edge_index: Tensor) -> Topology | None:
    """That of the tensor, if anything is known of it."""
    return None if _known.get(edge_index) is None else topology_of(edge_index)


def share_topology(edge_index: Tensor, copy: Tensor) -> None:
    """Lets a copy of edge_index share its topology, if there is one."""
    topology = known_topology(edge_index)
    if topology is not None:
        _known.put(copy, topology)


def is_known(edge_index: Tensor) -> bool:
    """Whether graphs of the tensor are kept, or would be shared with those of another; not only those of its rows by themselves."""
    topology = _known.get(edge_index)
    return topology is not None and bool(topology.graphs or not topology.views)


def is_heard_of(index: Tensor) -> bool:
    """Whether anything was asked of the tensor before. It is the cheapest question."""
    return _known.has_heard_of(index)


def has_graph(edge_index: Tensor) -> bool:
    """Whether a graph of the tensor is kept."""
    topology = _known.get(edge_index)
    return topology is not None and bool(topology.graphs)


def holds_ids_below(edge_index: Tensor, row: int, num_nodes: int) -> bool:
    """Whether a row of edge_index, which has edges, holds ids of so many nodes only. It is read once."""
    low, high = _bounds_of(edge_index)[row]
    return low >= 0 and high < num_nodes


def _bounds_of(edge_index: Tensor) -> list[tuple[int, int]]:
    """The smallest and the largest id of each row of edge_index, which has edges. They are kept."""
    if edge_index.is_inference():
        return _bounds(edge_index)
    topology = topology_of(edge_index)
    if topology.bounds is None:
        topology.bounds = _bounds(edge_index)
    return topology.bounds


def _bounds(edge_index: Tensor) -> list[tuple[int, int]]:
    low, high = (x.tolist() for x in torch.aminmax(edge_index, dim=1))
    return list(zip(low, high))


def is_worth_a_graph(
    edge_index: Tensor, num_values: int, with_gradient: bool, is_extreme: bool = False, kind: str = "message"
) -> bool:
    """Whether messages of so many values are worth the graph of edge_index, if that is not made yet. They are counted.

    kind: whose limits of _worth.py hold.
    """
    topology = _known.get(edge_index)
    if topology is not None:  # self-loops are added at every call, to a topology that is shared
        topology.num_values += num_values
        seen = topology.num_values - num_values
        return bool(topology.graphs) or _worth.is_worth_a_graph(num_values, seen, with_gradient, is_extreme, kind)
    seen = count_values(edge_index, num_values)
    return _worth.is_worth_a_graph(num_values, seen, with_gradient, is_extreme, kind)


def count_values(index: Tensor, num_values: int) -> int:
    """Counts values that go along an edge_index, or by an index, of which nothing is known. Returns how many there were before."""
    count = _seen.get(id(index))
    if count is None or count[0]() is not index:
        if len(_seen) >= _MOST_SEEN:
            _forget_seen()
        _seen[id(index)] = [weakref.ref(index), num_values]
        return 0
    count[1] += num_values
    return count[1] - num_values


def _forget_seen() -> None:
    """Makes room in _seen: of tensors that are gone, or of all."""
    for key, (ref, _) in list(_seen.items()):
        if ref() is None:
            del _seen[key]
    if len(_seen) > _MOST_SEEN // 2:
        _seen.clear()


def seen_by(index: Tensor) -> int:
    """How many values went by the index before anything was known of it."""
    count = _seen.get(id(index))
    return 0 if count is None or count[0]() is not index else count[1]


def may_share(edge_index: Tensor) -> bool:
    """Whether to remember what is made of edge_index, in case messages of usual width will go along it. Calls are counted."""
    topology = _known.get(edge_index)
    if topology is not None and topology.derived:
        return True
    return is_worth_a_graph(edge_index, edge_index.numel() * _worth.USUAL_WIDTH // 2, True)


def reached(edge_index: Tensor, row: int, num_nodes: int) -> Tensor | None:
    """Which of the nodes (num_nodes,) of a row of edge_index have an edge; None if all have one. It is kept."""
    if edge_index.is_inference():
        return _reached(edge_index[row], num_nodes)
    masks = topology_of(edge_index).reached
    if (row, num_nodes) not in masks:
        with ordinary_tensors():
            if not may_keep(edge_index.device):
                return _reached(edge_index[row], num_nodes)
            mask = _reached(edge_index[row], num_nodes)
            masks[row, num_nodes] = kept(None if mask.all() else mask, [mask])
    return taken(masks[row, num_nodes])


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


def share_graphs(edge_index: Tensor, how: Any, result: Tensor) -> None:
    """Lets all results that were made of edge_index in the same way share their graphs. The way must be a function of its content.

    So a module that makes self-loops at every call does not sort the edges at every call.
    """
    if result is edge_index or edge_index.is_inference() or result.is_inference():
        return
    derived = topology_of(edge_index).derived
    if how not in derived:
        derived[how] = Topology()
    _known.put(result, derived[how])


def lacks_loops(edge_index: Tensor) -> bool:
    """Whether no edge is a self-loop. It is read at the second question; until then the answer is False."""
    topology = topology_of(edge_index)
    if topology.derived and topology.lacks_loops is None:
        topology.lacks_loops = edge_index.dim() == 2 and not bool((edge_index[0] == edge_index[1]).any())
    return bool(topology.lacks_loops)


def note_selection(edge_index: Tensor, columns: Tensor) -> None:
    """Lets some columns of edge_index share the graphs of others of the same content, in case messages will go by them.

    So a module that selects the edges of a relation at every call does not sort them at every call.
    """
    if not edge_index.is_inference() and not columns.is_inference():
        topology = Topology()
        topology.selected_from = topology_of(edge_index), edge_index.shape[1]
        _known.put(columns, topology)


def _of_content(columns: Tensor, origin: Topology, num_edges: int) -> Topology:
    """The topology of columns that were selected. The last ones are kept, as many as to hold each edge _SELECTED times."""
    for known, state, topology in origin.selections:
        if known.shape == columns.shape and state == state_of(known) and torch.equal(known, columns):
            return topology
    topology = Topology()
    origin.selections.append((columns, state_of(columns), topology))
    while sum(known.shape[1] for known, *_ in origin.selections) > _SELECTED * num_edges:
        origin.selections.pop(0)
    return topology


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


class WithSelfLoops:
    """A graph whose self-loops (node i to node i) are replaced by one at each of the first `num_loops` nodes, in PyG's order."""

    def __init__(self, g: Graph, num_loops: int) -> None:
        with ordinary_tensors(g.csc().indices):
            src, dst = g.edges()
            rows = (src != dst).nonzero().squeeze(1)
            # Rows of edge data; None: all. The sizes of an exported program may not be compared.
            self.kept_rows = None if not is_exporting() and rows.numel() == g.num_edges else rows
            self._loop_rows = (src == dst).nonzero().squeeze(1)  # the other ones, and their nodes
            self._loop_nodes = dst[self._loop_rows].long()
            self.num_loops = num_loops
            self._edges = (src, dst) if self.kept_rows is None else (src[rows], dst[rows])
            loops = torch.arange(num_loops, dtype=src.dtype, device=src.device)
            src, dst = (torch.cat([ends, loops]) for ends in self._edges)
        self.graph = Graph.from_edges(src, dst, num_src=g.num_src, num_dst=g.num_dst, check=False)
        self._without: Graph | None = None

    def _for_all_streams(self) -> WithSelfLoops | Kept[WithSelfLoops]:
        """The form in which to cache it, just made on the current stream."""
        self.graph._for_all_streams()
        return kept(self, [self.kept_rows, self._loop_rows, self._loop_nodes, *self._edges])

    @property
    def without(self) -> Graph:
        """The graph without any self-loop. It is made at its first use and kept."""
        g = self._without
        if g is None:
            src, dst = self._edges
            g = Graph.from_edges(src, dst, num_src=self.graph.num_src, num_dst=self.graph.num_dst, check=False)
            if may_keep(g.device):
                self._without = g._for_all_streams()
        return g

    def edge_data(self, data: Tensor, fill_value: float | Tensor | str | None) -> Tensor:
        """Edge data of the original graph, followed by that of the self-loops.

        fill_value: the data of a self-loop, as a number or tensor; or "add", "mean", "min", "max" or "mul", the reduction of the
        data of the node's in-edges.
        """
        data = data if self.kept_rows is None else data[self.kept_rows]
        return torch.cat([data, self._loop_data(data, fill_value)])

    def remaining(self, data: Tensor, fill_value: float) -> Tensor:
        """The same, but a node that had a self-loop keeps the data of that (of one, if there were several)."""
        loops = data.new_full((self.num_loops, *data.shape[1:]), fill_value)
        loops = loops.index_put((self._loop_nodes,), data[self._loop_rows])
        return torch.cat([data if self.kept_rows is None else data[self.kept_rows], loops])

    def _loop_data(self, data: Tensor, fill_value: float | Tensor | str | None) -> Tensor:
        size = (self.num_loops, *data.shape[1:])
        if isinstance(fill_value, Tensor):
            try:
                return fill_value.to(data).expand(size)
            except RuntimeError:
                shape = tuple(fill_value.shape)
                raise ValueError(f"fill_value has shape {shape}; expected one that expands to {size}") from None
        if not isinstance(fill_value, str):
            return data.new_full(size, 1.0 if fill_value is None else fill_value)
        if fill_value == "mul":
            index = self._edges[1].long().view(-1, *[1] * (data.dim() - 1)).expand_as(data)
            product = data.new_ones((self.graph.num_dst, *size[1:]))
            return product.scatter_reduce(0, index, data, "prod")[: self.num_loops]
        reduce = {"add": "sum"}.get(fill_value, fill_value)
        with without_autocast(data.device):
            return ops.gspmm(self.without, "copy_rhs", reduce, None, data)[: self.num_loops]


def with_self_loops(g: Graph, num_loops: int) -> WithSelfLoops:
    """Made once and cached with the graph. Raises RuntimeError if it has to be made while a CUDA graph is captured."""
    if is_exporting():
        return WithSelfLoops(g, num_loops)
    looped = g.cached(_LOOPS, None, num_loops)
    return _make_self_loops(g, num_loops) if looped is None else looped


@disable(
    "the module adds self-loops, and how many edges that makes is known only when the code runs; give it the graph of "
    "halfgnn.pyg.ToGraph(self_loops=True), and make it with add_self_loops=False"
)
def _make_self_loops(g: Graph, num_loops: int) -> WithSelfLoops:
    refuse_capture(
        g.device,
        "the module makes the graph's self-loops and asks the device how many there are",
        "call the module once with this graph, or construct it with add_self_loops=False",
    )
    return g.cached(_LOOPS, lambda g: WithSelfLoops(g, num_loops), num_loops)
