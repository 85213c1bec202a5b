"""Edges by which messages go: those of a call of MessagePassing.propagate, or of an edge_index that is known."""

from __future__ import annotations

from torch import Tensor

from ..graph import Graph
from ..graphs_by_tensor.edge_index import graph_of, graph_with, reached
from ..graphs_by_tensor.store import address_of
from .copies import copies_of


class Propagation:
    """Edges, by the rows of an edge_index (2, E).

    size: the numbers of nodes of both rows; None where PyG does not know them yet, which it fills in later.
    refusal: why messages fall back to PyG; None if they do not.
    """

    __slots__ = ("__weakref__", "edge_index", "refusal", "size")

    def __init__(self, edge_index: Tensor, size: list[int | None], refusal: str | None = None) -> None:
        self.edge_index, self.size, self.refusal = edge_index, size, refusal

    @property
    def num_edges(self) -> int:
        return self.edge_index.shape[1]

    def ids(self, row: int) -> Tensor:
        """The ids (E,) of the nodes of a row."""
        return self.edge_index[row]

    def reached(self, row: int, num_nodes: int) -> Tensor | None:
        """Which of the nodes (num_nodes,) of a row have an edge; None if all have one."""
        return reached(self.edge_index, row, num_nodes)

    def may_read(self, x: Tensor) -> bool:
        """Whether values may be looked at without waiting for them."""
        return not x.is_cuda

    def projection_of(self, rows: Tensor) -> tuple[Tensor, Tensor] | None:
        """Columns (E, C) and a weight (H * D, C) of which rows of edges (E, H, D) are the linear layer, where that is known."""
        return None

    def row_of(self, index: Tensor) -> int | None:
        """Which row of edge_index the tensor is, in the same memory; None if it is neither."""
        edges = self.edge_index
        strides = edges.stride()
        if index.dtype is not edges.dtype or index.stride() != strides[1:] or index.shape != edges.shape[1:]:
            return None
        offset = address_of(index) - address_of(edges)
        row = 0 if offset == 0 else 1 if offset == strides[0] * edges.element_size() else None
        return row if row is None or index.device == edges.device else None

    def ends_in(self, index: Tensor, owner: Propagation, row: int) -> bool:
        """Whether an index, which is that row of another propagation, is that row of this one."""
        return owner.edge_index is self.edge_index or self.row_of(index) == row

    def into(self, row: int, num_into: int, num_from: int) -> Graph:
        """The Graph whose edges end in the nodes of one row, with the numbers of nodes of that row and of the other."""
        if row == 1:
            return graph_of(self.edge_index, num_from, num_into)
        return turned(graph_of(self.edge_index, num_into, num_from))

    def ending_in(self, row: int, num_into: int) -> Graph:
        """As `into`, for operators that read the one side only."""
        num_from = self.size[1 - row]
        if num_from is not None:
            return self.into(row, num_into, num_from)
        g = self.graph_with(row, num_into)
        return g if row == 1 else turned(g)

    def copies(self, count: int) -> Propagation | None:
        """The edges of so many samples on the same graph; None if their Graphs are not cached."""
        return Copies(self, count)

    def graph_with(self, row: int, num_nodes: int) -> Graph:
        """The Graph from the nodes of row 0 to those of row 1, so many of one row and at least as many of the other."""
        return graph_with(self.edge_index, row, num_nodes)


class Pairs(Propagation):
    """The edges of another propagation, whose nodes of one row are pairs of a node and something else."""

    __slots__ = ("origin", "row")

    def __init__(self, edge_index: Tensor, origin: Propagation, row: int) -> None:
        super().__init__(edge_index, [size if i != row else None for i, size in enumerate(origin.size)], origin.refusal)
        self.origin, self.row = origin, row

    def row_of(self, index: Tensor) -> int | None:
        row = self.origin.row_of(index)
        return None if row == self.row else row


class Copies(Propagation):
    """So many copies of the edges of another propagation, of which nothing but Graphs is asked."""

    __slots__ = ("count", "origin")

    def __init__(self, origin: Propagation, count: int) -> None:
        super().__init__(origin.edge_index, [None if n is None else n * count for n in origin.size], origin.refusal)
        self.origin, self.count = origin, count

    def ids(self, row: int) -> Tensor:
        raise NotImplementedError

    def into(self, row: int, num_into: int, num_from: int) -> Graph:
        return copies_of(self.origin.into(row, num_into // self.count, num_from // self.count), self.count)

    def graph_with(self, row: int, num_nodes: int) -> Graph:
        return copies_of(self.origin.graph_with(row, num_nodes // self.count), self.count)


def turned(g: Graph) -> Graph:
    """The reversed graph. It is cached with the graph, because to make it takes longer than a small reduction."""
    return g.cached("_reversed", _reverse, has_tensors=False)


def _reverse(g: Graph) -> Graph:
    g.csc(), g.csr()  # made once for all reversed graphs
    return g.reverse()
