"""Graphs with self-loops."""

from __future__ import annotations

import torch
from torch import Tensor

from .. import ops
from ..common.caching import Cached, cacheable, may_cache, ordinary_tensors, refuse_capture
from ..common.compat import disable, is_exporting
from ..common.precision import without_autocast
from ..graph import Graph

ORIGIN = "_origin"  # under which a graph of compiled code has its Origin
_LOOPS = "_loops"  # under which WithSelfLoops are cached with a graph


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

    def _for_all_streams(self) -> WithSelfLoops | Cached[WithSelfLoops]:
        """The form in which to cache it, just made on the current stream."""
        self.graph._for_all_streams()
        return cacheable(self, [self.kept_rows, self._loop_rows, self._loop_nodes, *self._edges])

    @property
    def without(self) -> Graph:
        """The graph without any self-loop. It is built at its first use and cached."""
        g = self._without
        if g is None:
            src, dst = self._edges
            g = Graph.from_edges(src, dst, num_src=self.graph.num_src, num_dst=self.graph.num_dst, check=False)
            if may_cache(g.device):
                self._without = g._for_all_streams()
        return g

    def rows(self) -> tuple[Tensor, Tensor, Tensor]:
        """The rows of edges that are no self-loops, of those that are, and the nodes of these."""
        kept_rows = self.kept_rows
        if kept_rows is None:
            num_edges = self.graph.num_edges - self.num_loops
            kept_rows = self.graph.cached("_all_rows", lambda g: torch.arange(num_edges, device=g.device))
        return kept_rows, self._loop_rows, self._loop_nodes

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
    origin = g.cached(ORIGIN, None)
    if origin is not None:
        return origin.with_self_loops(num_loops)
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
