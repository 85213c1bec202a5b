"""Edges of compiled code, by the tensors that hold the ids of their ends. Their Graphs are found when the code runs."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from ..expressions.propagation import Propagation, turned
from ..graph import Graph
from ..graphs_by_tensor.traced import graph_of_edge_index, graph_of_pair, graph_of_row


class TracedEdges(Propagation):
    """The edges of an edge_index (2, E).

    is_new: whether the compiled code makes the ids itself.
    """

    __slots__ = ("_graphs", "is_new")

    def __init__(self, edge_index: Tensor, is_new: bool) -> None:
        super().__init__(edge_index, [None, None])
        self.is_new = is_new
        self._graphs: dict[Any, Graph] = {}

    def into(self, row: int, num_into: int, num_from: int) -> Graph:
        counts = (num_from, num_into) if row == 1 else (num_into, num_from)
        g = self._found(("edges", *map(str, counts)), lambda: self._graph(*counts))
        return g if row == 1 else self._found(("turned", *map(str, counts)), lambda: turned(g))

    def ending_in(self, row: int, num_into: int) -> Graph:
        num_from = self.size[1 - row]
        if num_from is not None:
            return self.into(row, num_into, num_from)
        return self._found(("row", row, str(num_into)), lambda: self._graph_of_row(row, num_into))

    def graph_with(self, row: int, num_nodes: int) -> Graph:
        raise NotImplementedError  # lowering() gives the numbers of nodes of both rows where they are needed

    def reached(self, row: int, num_nodes: int) -> Tensor:
        indptr = self.ending_in(row, num_nodes).csc().indptr
        return indptr[1:] > indptr[:-1]

    def may_read(self, x: Tensor) -> bool:
        return False

    def _found(self, key: Any, make: Any) -> Graph:
        if key not in self._graphs:
            self._graphs[key] = make()
        return self._graphs[key]

    def _graph(self, num_src: int, num_dst: int) -> Graph:
        return graph_of_edge_index(self.edge_index, num_src, num_dst, self.is_new)

    def _graph_of_row(self, row: int, num_rows: int) -> Graph:
        return graph_of_row(self.edge_index, row, num_rows, self.is_new)


class TracedPairs(TracedEdges):
    """The edges from nodes src (E,) to nodes dst (E,)."""

    __slots__ = ("_ends",)

    def __init__(self, src: Tensor, dst: Tensor, is_new: bool) -> None:
        super().__init__(dst, is_new)
        self._ends = src, dst

    @property
    def num_edges(self) -> int:
        return self.edge_index.shape[0]

    def ids(self, row: int) -> Tensor:
        return self._ends[row]

    def _graph(self, num_src: int, num_dst: int) -> Graph:
        return graph_of_pair(*self._ends, num_src, num_dst, self.is_new)

    def _graph_of_row(self, row: int, num_rows: int) -> Graph:
        return graph_of_row(self._ends[row], -1, num_rows, self.is_new)
