"""Edges of compiled code, by the tensors that hold the ids of their ends. Their Graphs are found when the code runs."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor, fx

from ..common.fx_nodes import name_of, value_of
from ..expressions.expression import Expression
from ..expressions.propagation import Propagation, turned
from ..graph import Graph
from ..graphs_by_tensor.new_ids import copied_ids, is_cached
from ..graphs_by_tensor.pairs import edges_of_pairs
from ..graphs_by_tensor.traced import graph_of_edge_index, graph_of_pair, graph_of_row
from .projections import Projections
from .recognize import Index, Reduction, gather_of

T = TypeVar("T")


class TracedEdges(Propagation):
    """The edges of an edge_index (2, E).

    key: the tensor by which its Graph is found, see add_keys. is_new: whether compiled code makes the ids itself, see new_ids.
    wraps: whether negative ids are those of the last rows, by rows as bits.
    """

    __slots__ = ("_made", "is_new", "key", "projections", "wraps")

    def __init__(self, edge_index: Tensor, is_new: bool, projections: Projections) -> None:
        super().__init__(edge_index, [None, None])
        self.key, self.is_new, self.wraps, self.projections = edge_index, is_new, 0, projections
        self._made: dict[Any, Any] = {}

    def into(self, row: int, num_into: int, num_from: int) -> Graph:
        counts = (num_from, num_into) if row == 1 else (num_into, num_from)
        g = self._found(("edges", *map(str, counts)), lambda: self._graph(*counts))
        return g if row == 1 else self._found(("turned", *map(str, counts)), lambda: turned(g))

    def ending_in(self, row: int, num_into: int) -> Graph:
        num_from = self.size[1 - row]
        if num_from is not None:
            return self.into(row, num_into, num_from)
        return self._found(("row", row, str(num_into)), lambda: self._graph_of_row(row, num_into))

    def copies(self, count: int) -> None:
        return None

    def graph_with(self, row: int, num_nodes: int) -> Graph:
        raise NotImplementedError  # lowering() gives the numbers of nodes of both rows where they are needed

    def reached(self, row: int, num_nodes: int) -> Tensor:
        return self.ending_in(row, num_nodes).in_degrees() > 0

    def may_read(self, x: Tensor) -> bool:
        return False

    def projection_of(self, rows: Tensor) -> tuple[Tensor, Tensor] | None:
        return self.projections.of(rows)

    def pairs(self, row: int, num_nodes: int, types: Tensor, of_types: TracedEdges, num_types: int) -> TracedRelations:
        """The edges whose nodes of a row are pairs of a node and a type. types (E,), of_types: edges that they are the ids of."""
        return TracedRelations(self, row, num_nodes, types, of_types, num_types)

    def has(self, x: Expression, row: int) -> bool:
        """Whether an expression is of these edges, and can be reduced into the nodes of a row."""
        edges = x.propagation
        return edges is self or (isinstance(edges, TracedRelations) and edges.origin is self and edges.row != row)

    def _edge_index(self) -> Tensor:
        return self._own(self.key)

    def _found(self, key: Any, make: Callable[[], T]) -> T:
        if key not in self._made:
            self._made[key] = make()
        return self._made[key]

    def _own(self, ids: Tensor) -> Tensor:
        """The tensor of ids that a Graph is cached with."""
        return self._found(("ids", id(ids)), lambda: copied_ids(ids)) if self.is_new else ids

    def _graph(self, num_src: int, num_dst: int) -> Graph:
        return graph_of_edge_index(self._edge_index(), num_src, num_dst, self.wraps)

    def _graph_of_row(self, row: int, num_rows: int) -> Graph:
        return graph_of_row(self._own(self.key), row, num_rows, bool(self.wraps >> row & 1))


class TracedPairs(TracedEdges):
    """The edges from nodes src (E,) to nodes dst (E,)."""

    __slots__ = ("_ends",)

    def __init__(self, src: Tensor, dst: Tensor, is_new: bool, projections: Projections) -> None:
        super().__init__(dst, is_new, projections)
        self._ends = src, dst

    @property
    def num_edges(self) -> int:
        return self.edge_index.shape[0]

    def ids(self, row: int) -> Tensor:
        return self._ends[row]

    def _graph(self, num_src: int, num_dst: int) -> Graph:
        src, dst = map(self._own, self._ends)
        return graph_of_pair(src, dst, num_src, num_dst, self.wraps)

    def _graph_of_row(self, row: int, num_rows: int) -> Graph:
        return graph_of_row(self._own(self._ends[row]), -1, num_rows, bool(self.wraps >> row & 1))

    def _edge_index(self) -> Tensor:
        return self._found("edge_index", lambda: torch.stack(self._ends))


class TracedRelations(TracedEdges):
    """The edges of others, whose nodes of one row are pairs of a node and a type. See TracedEdges.pairs."""

    __slots__ = ("origin", "row")

    def __init__(
        self, origin: TracedEdges, row: int, num_nodes: int, types: Tensor, of_types: TracedEdges, num_types: int
    ) -> None:
        wraps = (origin.wraps >> row & 1) | (of_types.wraps & 2)
        args = origin._edge_index(), row, of_types._own(types), num_nodes, num_types, wraps
        edge_index, key = edges_of_pairs(*args)
        super().__init__(edge_index, False, origin.projections)
        self.key, self.origin, self.row, self.wraps = key, origin, row, origin.wraps & ~(1 << row)
        self.size[1 - row] = origin.size[1 - row]


class GraphEdges:
    """The edges whose ends indices of the graph are."""

    def __init__(self, nodes: list[fx.Node], reductions: dict[fx.Node, Reduction], projections: Projections) -> None:
        self._found: dict[Any, tuple[TracedEdges, int]] = {}
        self._projections = projections
        gathers = [found for node in nodes if (found := gather_of(node)) is not None]
        self._uses = [(x.ids, value_of(x.x).shape[x.dim]) for x in gathers]
        self._uses += [(x.ids, x.num_rows) for x in reductions.values()]
        self._reduced = {x.ids for x in reductions.values()}
        counted = self._reduced | {x.ids for x in gathers if not x.may_wrap}
        self._wrapping = {x.ids for x in gathers if x.may_wrap} - counted
        self._pairs = self._paired()

    def _paired(self) -> dict[Index, tuple[Index, int]]:
        """Of two indices of their own, of one length, the other one, and which row each is."""
        by_length: dict[str, dict[Index, None]] = {}
        for index, _ in self._uses:
            if index.row is None:
                by_length.setdefault(str(value_of(index.node).shape[0]), {})[index] = None
        pairs = {}
        for indices in by_length.values():
            if len(indices) == 2:
                first, second = indices
                src, dst = (first, second) if second in self._reduced else (second, first)
                pairs[src], pairs[dst] = (dst, 0), (src, 1)
        return pairs

    def forget(self) -> None:
        """What is made by operators that are not in the graph any more."""
        for edges, _ in self._found.values():
            edges._made.clear()

    def of(self, index: Index) -> tuple[TracedEdges, int] | None:
        if _is_selection(index.node):
            return None
        key = index.node if index.row is not None else index
        if key not in self._found and not self._find(index, key):
            return None
        edges, row = self._found[key]
        return edges, row if index.row is None else index.row

    def _find(self, index: Index, key: Any) -> bool:
        ids = value_of(index.node)
        if index.row is not None:
            edges = TracedEdges(ids, not is_cached(index.node), self._projections)
            edges.key = value_of(key_of(index.node) or index.node)
            self._note_sizes(edges, {row: Index(index.node, row) for row in (0, 1)})
            self._found[key] = edges, 0
            return True
        if index not in self._pairs:
            edges = TracedPairs(ids, ids, not is_cached(index.node), self._projections)
            self._note_sizes(edges, {0: index, 1: index})
            self._found[key] = edges, 1
            return True
        other, row = self._pairs[index]
        src, dst = (index, other) if row == 0 else (other, index)
        is_new = not (is_cached(src.node) and is_cached(dst.node))
        edges = TracedPairs(value_of(src.node), value_of(dst.node), is_new, self._projections)
        self._note_sizes(edges, {0: src, 1: dst})
        self._found[src], self._found[dst] = (edges, 0), (edges, 1)
        return True

    def _note_sizes(self, edges: TracedEdges, rows: dict[int, Index]) -> None:
        """The numbers of nodes of both rows, where all that goes by them agrees on it."""
        for row, index in rows.items():
            edges.wraps |= (1 << row) * (index in self._wrapping)
            sizes = {str(size): size for used, size in self._uses if used == index}
            edges.size[row] = next(iter(sizes.values())) if len(sizes) == 1 else None


def _is_selection(node: fx.Node) -> bool:
    """Whether ids are those of edges that an operator of halfgnn leaves, each once: a sum by them needs no Graph."""
    source = node.args[0] if name_of(node) == "getitem" else None
    if not isinstance(source, fx.Node) or not str(source.target).startswith("halfgnn_pyg."):
        return False
    return _results_of(source)[node.args[1]].name in ("kept_rows", "loop_rows")


def add_keys(graph: fx.Graph) -> None:
    """Adds the results `key` of operators of halfgnn that return an edge_index, and hands them to other such operators."""
    for node in list(graph.nodes):
        if not str(node.target).startswith("halfgnn_pyg."):
            continue
        key = key_of(node.args[0])
        if key is not None:
            node.args = key, *node.args[1:]
        place = next((place for place, x in enumerate(_results_of(node)) if x.name == "key"), None)
        if place is not None:
            with graph.inserting_after(node):
                graph.call_function(operator.getitem, (node, place)).meta["example_value"] = value_of(node)[place]


def key_of(node: Any) -> fx.Node | None:
    """The same edge_index as a result of an operator of halfgnn, in a tensor that nothing but such operators reads.

    None if a node is no such edge_index.
    """
    source = node.args[0] if isinstance(node, fx.Node) and name_of(node) == "getitem" and node.args[1] == 0 else None
    if not isinstance(source, fx.Node) or not str(source.target).startswith("halfgnn_pyg."):
        return None
    places = [place for place, x in enumerate(_results_of(source)) if x.name == "key"]
    return next((user for user in source.users if name_of(user) == "getitem" and user.args[1] in places), None)


def _results_of(node: fx.Node) -> Any:
    target: Any = node.target
    return getattr(target, "default", target)._schema.returns
