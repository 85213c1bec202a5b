"""What a call of MessagePassing.propagate knows: its edge_index, and the numbers of nodes on both sides."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator
from typing import Any

from torch import Tensor

from ...graph import Graph
from ...graphs_by_tensor.edge_index import graph_of, graph_with
from ...graphs_by_tensor.store import is_heard_of, is_known
from ..modules.base import refuse_module
from . import thresholds as _worth
from .uses import count_values


class Propagation:
    """Edges, by the rows of an edge_index (2, E).

    size: the numbers of nodes of both rows; None where PyG does not know them yet, which it fills in later.
    refusal: why messages are left to PyG; None if they are not.
    """

    __slots__ = ("__weakref__", "edge_index", "refusal", "size")

    def __init__(self, edge_index: Tensor, size: list[int | None], refusal: str | None = None) -> None:
        self.edge_index, self.size, self.refusal = edge_index, size, refusal

    def row_of(self, index: Tensor) -> int | None:
        """Which row of edge_index the tensor is, in the same memory; None if it is neither."""
        edges = self.edge_index
        strides = edges.stride()
        if index.dtype is not edges.dtype or index.stride() != strides[1:] or index.shape != edges.shape[1:]:
            return None
        offset = index.data_ptr() - edges.data_ptr()
        row = 0 if offset == 0 else 1 if offset == strides[0] * edges.element_size() else None
        return row if row is None or index.device == edges.device else None

    def ends_in(self, index: Tensor, owner: Propagation, row: int) -> bool:
        """Whether an index, which is that row of another propagation, is that row of this one."""
        return owner.edge_index is self.edge_index or self.row_of(index) == row

    def into(self, row: int, num_into: int, num_from: int) -> Graph:
        """The Graph whose edges end in the nodes of one row, with the numbers of nodes of that row and of the other."""
        if row == 1:
            return graph_of(self.edge_index, num_from, num_into)
        return _turned(graph_of(self.edge_index, num_into, num_from))

    def ending_in(self, row: int, num_into: int) -> Graph:
        """As `into`, for operators that read the one side only."""
        num_from = self.size[1 - row]
        if num_from is not None:
            return self.into(row, num_into, num_from)
        g = graph_with(self.edge_index, row, num_into)
        return g if row == 1 else _turned(g)


class Pairs(Propagation):
    """The edges of another propagation, whose nodes of one row are pairs of a node and something else."""

    __slots__ = ("origin", "row")

    def __init__(self, edge_index: Tensor, origin: Propagation, row: int) -> None:
        super().__init__(edge_index, [size if i != row else None for i, size in enumerate(origin.size)], origin.refusal)
        self.origin, self.row = origin, row

    def row_of(self, index: Tensor) -> int | None:
        row = self.origin.row_of(index)
        return None if row == self.row else row


def _turned(g: Graph) -> Graph:
    """The reversed graph. It is cached with the graph, because to make it takes longer than a small reduction."""
    return g.cached("_reversed", _reverse, has_tensors=False)


def _reverse(g: Graph) -> Graph:
    g.csc(), g.csr()  # made once for all reversed graphs
    return g.reverse()


# The last call in each thread, whose edge_index and module are not kept alive: [references to both, size, reference to the
# Propagation that messages of the call hold].
_last = threading.local()


def begin(edge_index: Tensor | None, size: list[int | None], module: Any) -> None:
    """Notes a call of a module. edge_index: None if it is no dense tensor."""
    _last.call = None if edge_index is None else [weakref.ref(edge_index), weakref.ref(module), size, _nothing]


def _nothing() -> None:
    """What a reference to a Propagation is while there is none."""


def current_edges() -> Tensor | None:
    """The edge_index of the last call in this thread, if it is a dense tensor that is alive."""
    call = getattr(_last, "call", None)
    return None if call is None else call[0]()


def current_module() -> Any:
    """The module of the last call in this thread, if it is alive."""
    call = getattr(_last, "call", None)
    return None if call is None else call[1]()


def current() -> Propagation | None:
    call = getattr(_last, "call", None)
    if call is None:
        return None
    propagation = call[3]()
    if propagation is None:
        edge_index, module = call[0](), call[1]()
        if edge_index is None or module is None:
            return None
        # Under this flow torch_geometric notes the number of rows of x[0] for row 0 of edge_index, by whose row 1 it gathers x[0].
        size = [None, None] if module.flow == "target_to_source" else call[2]
        propagation = Propagation(edge_index, size, refuse_module(module))
        call[3] = weakref.ref(propagation)
    return propagation


def plain(index: Any) -> Any:
    """The tensor that holds an index or edge_index, which may be a torch_geometric.Index or EdgeIndex."""
    return index.as_tensor() if type(index) is not Tensor and hasattr(index, "as_tensor") else index


def owner_of(index: Any) -> tuple[Propagation, int] | None:
    """(propagation, row) of an index that is a row of the last call's edge_index, or of another whose graph is kept."""
    index = plain(index)
    for propagation in _candidates(index):
        row = propagation.row_of(index)
        if row is not None:
            return propagation, row
    return None


def _candidates(index: Tensor) -> Iterator[Propagation]:
    last = current()
    if last is not None:
        yield last
    base = None if index.is_inference() else index._base
    if base is not None and base.dim() == 2 and base.shape[0] == 2 and is_known(base):
        yield Propagation(base, [None, None])


def is_first_use(index: Tensor, num_values: int, with_gradient: bool, reduction: str) -> bool:
    """Whether values that go by an index stay PyG's because nothing is known of it, nor of the tensor that it is a view of.

    They are counted. That takes 2 microseconds, and to look an index up takes 20.
    """
    if index.is_inference():
        return False
    last, base = current_edges(), index._base
    index = index if base is None else base
    if is_heard_of(index) or (last is not None and is_heard_of(last)):
        return False
    least = _worth.least_new(reduction, with_gradient)
    again = least
    if base is last is not None and least:
        least = max(least, _worth.FEW_UNSORTED)  # edges are rarely sorted
        again = max(least, _worth.least_new("message", with_gradient))  # messages of the same step were counted too
    return num_values < least and not _worth.is_enough(count_values(index, num_values), again)
