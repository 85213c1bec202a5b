"""What torch.compile traces where modules make something of a Graph of an edge_index: calls of the operators of
:mod:`.traced_loops`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..graph import Graph
from .loops import ORIGIN, WithSelfLoops
from .new_ids import copy_new


class Origin:
    """The edges of a Graph in compiled code, as the operators take them. kept_rows: None of a graph without new self-loops."""

    def __init__(
        self, edge_index: Tensor, num_src: int, num_dst: int, kept_rows: Tensor | None = None, num_loops: int | None = 0
    ) -> None:
        self.edge_index = edge_index
        self._arguments = edge_index, num_src, num_dst, kept_rows, num_loops

    def ends(self) -> Tensor:
        """Sources and destinations (2, E), in the order of edge data."""
        results = torch.ops.halfgnn_pyg.ends(*self._arguments)
        copy_new(self.edge_index, results)
        return results

    def gcn_weights(self, dtype: torch.dtype) -> Tensor:
        """The weights (E, 1) that GCNConv gives edges of weight 1."""
        results = torch.ops.halfgnn_pyg.gcn_weights(*self._arguments, dtype)
        copy_new(self.edge_index, results)
        return results

    def looped(self, kept_rows: Tensor | None, num_loops: int | None) -> Graph:
        """The graph with new self-loops, or with num_loops None the one without any."""
        edge_index, num_src, num_dst, *_ = self._arguments
        origin = Origin(edge_index, num_src, num_dst, kept_rows, num_loops)
        g = Graph(num_src, num_dst, origin._looped_side(by_src=False), origin._looped_side(by_src=True))
        return g if num_loops is None else origin.remember(g)

    def _looped_side(self, by_src: bool) -> tuple[Tensor, ...]:
        results = torch.ops.halfgnn_pyg.looped_side(*self._arguments, by_src)
        copy_new(self.edge_index, results)
        return results

    def loops(self, num_loops: int) -> tuple[Tensor, Tensor, Tensor]:
        """The rows of edges that are no self-loops, of those that are, and the nodes of these."""
        results = torch.ops.halfgnn_pyg.loops(*self._arguments[:3], num_loops)
        copy_new(self.edge_index, results)
        return results

    def remember(self, g: Graph) -> Graph:
        g.cached(ORIGIN, lambda _: self, has_tensors=False, when_traced=True)
        return g

    def with_self_loops(self, num_loops: int) -> WithSelfLoops:
        return _TracedSelfLoops(self, num_loops)


class _TracedSelfLoops(WithSelfLoops):
    """Of an edge_index (2, E), whose number of self-loops is known when the code runs."""

    def __init__(self, origin: Origin, num_loops: int) -> None:
        self.kept_rows, self._loop_rows, self._loop_nodes = origin.loops(num_loops)
        self.num_loops, self._origin = num_loops, origin
        self.graph = origin.looped(self.kept_rows, num_loops)
        src, dst = origin.ends().index_select(1, self.kept_rows)
        self._edges = src, dst

    @property
    def without(self) -> Graph:
        return self._origin.looped(self.kept_rows, None)
