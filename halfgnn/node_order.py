"""reorder and locality: an order of nodes in which neighbours are near one another, and what an order is worth."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, overload

import torch
from torch import Tensor

from .adjacency import Adjacency
from .common.arguments import check_number, checked_size
from .common.caching import ordinary_tensors, refuse_capture
from .common.ids import INT32_MAX
from .common.operands import check_dense, check_tensor
from .graph import Graph
from .graph_argument import as_graph

WINDOW = 4096  # rows of 128 half-precision values in 1 MiB, about a core's own cache


def locality(g: Any, window: int = WINDOW) -> float:
    """The share of gathers that find their row in a cache of the last `window` different rows.

    A sum over in-edges gathers the rows of sources in the order of `g.csc().indices`, one destination after the other. An LRU cache
    of `window` rows serves this share of the gathers, and the others wait for memory or for a larger cache. The share depends on
    how nodes are numbered, which :func:`reorder` changes.

    Args:
        g: a :class:`halfgnn.Graph`, which may be bipartite, or a DGLGraph of one edge type.
        window: how many rows fit into the cache. The default fits 128 half-precision values into 1 MiB, about a core's own cache.

    It is computed on the CPU, in a few tenths of a second at most: of more than 2**22 edges a sample is taken. For a graph on a GPU
    that is a device synchronisation.

    Returns:
        A number in [0, 1]. A graph without edges has 1.

    Raises:
        TypeError, ValueError: g is no graph, or on meta; a window below 1; 2**31 sources or more.
        RuntimeError: a CUDA graph is being captured.
    """
    graph, window = as_graph(g), _checked_window(window)
    _check_readable(graph, graph.num_src)
    return _locality(graph.csc().indices, graph.num_src, window)


@dataclass(frozen=True, repr=False, eq=False)
class Reordering:
    """A graph with other ids for its nodes, and the way there and back. :func:`reorder` makes it.

        r = halfgnn.reorder(g)
        x, labels, train_mask = r.permute(x, labels, train_mask)
        train_ids = r.new_ids[train_ids]              # ids of nodes, in place of a mask
        out = r.restore(model(r.graph, x))            # rows in the order of g

    Edges keep their data: row e of edge data belongs to the same edge in `g` and in `graph`.

    Attributes:
        graph: the graph with its new ids, on the device of g, with its dtype of ids.
        node_ids: (N,), for every new id the old one: permute(x) is x[node_ids].
        new_ids: (N,), for every old id the new one: restore(y) is y[new_ids].
        window: rows of the cache that the two localities are of.
        locality_before, locality_after: :func:`locality` of g and of `graph`. If `is_identity`, what the new order would have had.
        is_identity: whether ids are as they were, because another order would have gained too little.
    """

    graph: Graph
    node_ids: Tensor
    new_ids: Tensor
    window: int
    locality_before: float
    locality_after: float
    is_identity: bool

    @overload
    def permute(self, x: Tensor, /) -> Tensor: ...
    @overload
    def permute(self, x: Tensor, /, *more: Tensor) -> tuple[Tensor, ...]: ...
    def permute(self, x: Tensor, /, *more: Tensor) -> Tensor | tuple[Tensor, ...]:
        """Rows of nodes (N, *), of any dtype and on any device, in the order of the new ids. Differentiable.

        Of several tensors it returns a tuple: ``x, labels = r.permute(x, labels)``.
        """
        return self._taken((x, *more), "x", self.node_ids)

    @overload
    def restore(self, y: Tensor, /) -> Tensor: ...
    @overload
    def restore(self, y: Tensor, /, *more: Tensor) -> tuple[Tensor, ...]: ...
    def restore(self, y: Tensor, /, *more: Tensor) -> Tensor | tuple[Tensor, ...]:
        """Rows of nodes (N, *) in the order of the new ids, back in that of the old ids. Of several tensors too. Differentiable."""
        return self._taken((y, *more), "y", self.new_ids)

    @staticmethod
    def _taken(tensors: tuple[Tensor, ...], name: str, ids: Tensor) -> Tensor | tuple[Tensor, ...]:
        names = [name, *(f"more[{i}]" for i in range(len(tensors) - 1))]
        for data, name in zip(tensors, names):
            check_tensor(data, name)
            check_dense(data, name)
            if data.dim() == 0 or data.shape[0] != ids.numel():
                raise ValueError(f"{name} has shape {tuple(data.shape)}; expected {ids.numel()} rows, one per node")
        taken = tuple(data.index_select(0, ids.to(data.device)) for data in tensors)
        return taken if len(taken) > 1 else taken[0]

    def __repr__(self) -> str:
        kept = ", too little to change ids" if self.is_identity else ""
        return (
            f"Reordering({self.node_ids.numel()} nodes: a cache of {self.window} rows serves {self.locality_before:.1%} of gathers "
            f"before, {self.locality_after:.1%} after{kept})"
        )


def reorder(g: Any, *, window: int = WINDOW, least_gain: float = 0.02) -> Reordering:
    """New ids for the nodes of a graph that put neighbours near one another, so that caches serve more of what operators gather.

    Nodes are sorted by communities, communities of communities and so on. Communities are found by rounds of label propagation that
    maximise modularity (Raghavan et al., 2007; Blondel et al., 2008), and the order follows their hierarchy, as in Rabbit order
    (Arai et al., 2016). That takes as long as about ten sums of 128 features. It is done on the CPU, to which a graph on a GPU is
    copied. The result is the same for any number of threads.

    A graph gains if it has communities that its ids do not show yet. Random and R-MAT graphs have none. The result says what to
    expect before any data is permuted: its `locality_before` and `locality_after`. :func:`locality` alone is cheaper. If it is 0.9,
    there is nothing to gain.

    Args:
        g: a :class:`halfgnn.Graph` whose sources and destinations are the same N nodes, or a DGLGraph of one edge type.
        window: rows of the cache that the localities are of, see :func:`locality`. The order itself does not depend on it.
        least_gain: by how much locality must rise. Otherwise ids stay as they are.

    Returns:
        A :class:`Reordering`, with the graph and what permutes features, labels and masks.

    Raises:
        TypeError, ValueError: g is no graph; it is bipartite, or has several edge types; 2**31 nodes or more; a graph on meta.
        RuntimeError: a CUDA graph is being captured.
    """
    graph, window = as_graph(g), _checked_window(window)
    least_gain = check_number(least_gain, "least_gain")
    if graph.num_src != graph.num_dst:
        raise ValueError(
            f"g has {graph.num_src} sources and {graph.num_dst} destinations; expected a graph whose sources and destinations are "
            "the same nodes"
        )
    _check_readable(graph, graph.num_src)
    csc, csr = graph.csc(), graph.csr()
    with ordinary_tensors():
        sides = [t.cpu() for t in (csc.indptr, csc.indices, csr.indptr, csr.indices)]
        new_ids = torch.ops.halfgnn.reorder.default(*sides).to(graph.device)
        node_ids = _inverse(new_ids)
        permuted = _permuted(graph, new_ids, node_ids)
    before, after = (_locality(x.csc().indices, graph.num_src, window) for x in (graph, permuted))
    is_identity = after < before + least_gain
    if is_identity:
        with ordinary_tensors():
            node_ids = new_ids = torch.arange(graph.num_src, dtype=graph.idtype, device=graph.device)
    return Reordering(graph if is_identity else permuted, node_ids, new_ids, window, before, after, is_identity)


# ---- parts -------------------------------------------------------------------------------------------------------------------


def _checked_window(window: Any) -> int:
    return min(checked_size(window, "window", least=1), INT32_MAX)


def _check_readable(graph: Graph, num_nodes: int) -> None:
    if graph.device.type == "meta":
        raise ValueError("g is on meta, which holds no ids; expected another device")
    if num_nodes > INT32_MAX:
        raise ValueError(f"g has {num_nodes} nodes; expected at most {INT32_MAX}")
    refuse_capture(graph.device, "the order of nodes is made on the CPU", "call reorder or locality")


def _locality(sources: Tensor, num_src: int, window: int) -> float:
    with ordinary_tensors():
        hits, gathers = torch.ops.halfgnn.locality.default(sources.cpu(), num_src, window).tolist()
    return hits / gathers if gathers else 1.0


def _inverse(permutation: Tensor) -> Tensor:
    places = torch.arange(permutation.numel(), dtype=permutation.dtype, device=permutation.device)
    return torch.empty_like(permutation).index_copy_(0, permutation.long(), places)


def _permuted(graph: Graph, new_ids: Tensor, node_ids: Tensor) -> Graph:
    """The edges of a row stay in their order, and so does what they sum to, to the last bit."""

    def side(adjacency: Adjacency) -> Adjacency:
        indptr, indices, edge_ids = adjacency
        degrees = indptr.diff().index_select(0, node_ids)
        new_indptr = torch.zeros_like(indptr)
        torch.cumsum(degrees, 0, dtype=indptr.dtype, out=new_indptr[1:])
        moved = (
            indptr[:-1].index_select(0, node_ids) - new_indptr[:-1]
        )  # by how many places each row comes from further on
        places = torch.arange(indices.numel(), dtype=indptr.dtype, device=indptr.device)
        places += torch.repeat_interleave(moved, degrees, output_size=indices.numel())
        new_indices = new_ids.index_select(0, indices.index_select(0, places))
        return Adjacency(new_indptr, new_indices, places if edge_ids is None else edge_ids.index_select(0, places))

    bounds = graph.max_in_degree, graph.max_out_degree
    return Graph(graph.num_src, graph.num_dst, side(graph.csc()), side(graph.csr()), *bounds)


torch.serialization.add_safe_globals([Reordering])
