"""What is cached with a tensor of ids, while the tensor lives and is not modified in place: its Topology, in one store."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import Any, Generic, NamedTuple, TypeVar

import torch
from torch import Tensor

from ..common.caching import have_same_bits, is_captured, ordinary_tensors
from ..graph import Graph

T = TypeVar("T")
MOST = 16  # graphs of one topology, and other readings of one tensor; the oldest goes first
SELECTED = 2  # how often each edge of an edge_index is in the selections of its columns that are cached


def address_of(tensor: Tensor) -> int:
    """Where the values of a tensor begin. Tensor.data_ptr(), which C++ may write to, would make a copy on write a copy."""
    return torch._C._data_address(tensor) + tensor.storage_offset() * tensor.element_size()  # type: ignore[attr-defined]


def state_of(tensor: Tensor) -> tuple[Any, ...]:
    """What changes when the tensor is modified in place, resized or pointed elsewhere; of a sparse one, that of its indices."""
    try:
        return tensor._version, address_of(tensor), tensor.shape
    except RuntimeError:
        if tensor.layout is torch.strided:
            raise
        return tensor.shape, *map(state_of, _indices_of(tensor))


def _indices_of(matrix: Tensor) -> tuple[Tensor, ...]:
    if matrix.layout is torch.sparse_coo:
        return (matrix._indices(),)
    if matrix.layout is torch.sparse_csr:
        return matrix.crow_indices(), matrix.col_indices()
    return matrix.ccol_indices(), matrix.row_indices()


# ---- values by tensor --------------------------------------------------------------------------------------------------------


class ByTensor(Generic[T]):
    """One value per tensor. It is forgotten with the tensor. Tensors of inference mode have no state, and no value."""

    def __init__(self) -> None:
        self._entries: dict[int, _Entry[T]] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def has_heard_of(self, tensor: Tensor) -> bool:
        """Whether it had a value once. It is the cheapest question."""
        return id(tensor) in self._entries

    def get(self, tensor: Tensor) -> T | None:
        """The value of the tensor as it is now."""
        entry = self._entries.get(id(tensor))
        return entry.value if entry is not None and entry.ref() is tensor and entry.state == state_of(tensor) else None

    def put(self, tensor: Tensor, value: T) -> T:
        return self._put(tensor, value, state_of(tensor))

    def _put(self, tensor: Tensor, value: T, state: Any) -> T:
        key = id(tensor)
        self._entries[key] = _Entry(tensor, value, functools.partial(_forget, self._entries, key), state)
        return value


class ByContent(ByTensor[T]):
    """One value per tensor whose modifications are not counted: a tensor of inference mode on the CPU. The content is compared with
    a copy at every question. That is for what takes longer to make."""

    def get(self, tensor: Tensor) -> T | None:
        entry = self._entries.get(id(tensor))
        if entry is None or entry.ref() is not tensor:
            return None
        copy = entry.state
        is_same = copy.dtype == tensor.dtype and copy.shape == tensor.shape and torch.equal(copy, tensor)
        return entry.value if is_same else None

    def put(self, tensor: Tensor, value: T) -> T:
        return self._put(tensor, value, tensor.clone())


class _Entry(Generic[T]):
    def __init__(self, tensor: Tensor, value: T, forget: Callable[[Any], None], state: Any) -> None:
        self.ref, self.state, self.value = weakref.ref(tensor, forget), state, value


def _forget(entries: dict[int, Any], key: int, ref: Any) -> None:
    entry = entries.get(key)
    if entry is not None and entry.ref is ref:  # not one that another tensor of this id has made since
        del entries[key]


# ---- topologies --------------------------------------------------------------------------------------------------------------


class Topology:
    """Graphs of one content of a tensor, by numbers of nodes; what was derived from it, by how."""

    def __init__(self) -> None:
        self.graphs: dict[Any, Graph] = {}
        self.derived: dict[Any, Topology] = {}
        self.readings: dict[
            Any, Topology
        ] = {}  # of views of the tensor, by their place in it; of other ways to read it
        self.reached: dict[tuple[int, int], Any] = {}  # what reached() caches, by row and number of nodes
        self.made: dict[Any, Any] = {}  # what made_once() of the drop-in caches
        self.lacks_loops: bool | None = None  # None: not known yet
        self.bounds: list[tuple[int, int]] | None = None  # the smallest and the largest id of each row
        self.is_sorted: bool | None = None  # of an index; None: not known yet
        self.num_values = 0  # of what was to go along the edges, or by the index, before
        # Columns of the edge_index by which messages went before, and which of them were asked for last.
        self.selections: list[_Selection] = []
        self.last_selection = 0
        # Of such columns until their content is looked at: the edge_index's topology, its number of edges, and what selected them.
        self.selected_from: tuple[Topology, int, tuple[Tensor, Any] | None] | None = None

    def graph(self, key: Any, make: Callable[[], Graph]) -> Graph:
        """The Graph of this key, which is made at its first use, of ordinary tensors."""
        g = self.graphs.get(key)
        if g is None:
            with ordinary_tensors():
                g = make()._for_all_streams()
            _put_last(self.graphs, key, g)
        return g


class _Selection(NamedTuple):
    """Copies, to which no program can write, of columns of an edge_index and of the mask or index that selected them.

    by: None if it is too large to be held.
    """

    columns: Tensor
    topology: Topology
    by: Tensor | None

    def is_by(self, mask: Tensor) -> bool:
        """Whether an equal mask or index selected them."""
        by = self.by
        return by is not None and by.dtype is mask.dtype and by.shape == mask.shape and _are_equal(by, mask)


def _put_last(values: dict[Any, Any], key: Any, value: Any) -> None:
    while len(values) >= MOST:
        values.pop(next(iter(values)), None)
    values[key] = value


known: ByTensor[Topology] = ByTensor()  # tensors of the same content may share one


def topology_of(tensor: Tensor) -> Topology:
    topology = known.get(tensor)
    if topology is None:
        return known.put(tensor, Topology())
    if topology.selected_from is not None:
        return known.put(tensor, _of_content(tensor, *topology.selected_from))
    return topology


def topology_at(tensor: Tensor, reading: str | tuple[Any, ...] | None = None) -> Topology:
    """The topology of a tensor that may be a view; one that is not cached if modifications of the tensor are not counted.

    A view is known by its base and its place in it, because a program may make it at every call.

    reading: what the tensor is read as, unless as an edge_index or an index.
    """
    if tensor.is_inference():
        return Topology()
    base = tensor._base
    place = None if base is None else _place_in(base, tensor)
    topology = topology_of(tensor if base is None else base)
    if place is None and reading is None:
        return topology
    found = topology.readings.get((reading, place))
    if found is None:
        found = Topology()
        _put_last(topology.readings, (reading, place), found)
    return found


def _place_in(base: Tensor, view: Tensor) -> Any:
    """Where a view is in its base; None if it has all of it, as it is."""
    place = address_of(view) - address_of(base), view.shape, view.stride(), view.dtype
    is_whole = place[0] == 0 and place[1:] == (base.shape, base.stride(), base.dtype)
    return None if is_whole else place


def known_topology(tensor: Tensor) -> Topology | None:
    """That of the tensor, if anything is known of it."""
    return None if known.get(tensor) is None else topology_of(tensor)


def is_known(edge_index: Tensor) -> bool:
    """Whether graphs of the tensor are cached, or would be shared with those of another; not only those of other readings."""
    topology = known.get(edge_index)
    return topology is not None and bool(topology.graphs or not topology.readings)


def is_heard_of(tensor: Tensor) -> bool:
    """Whether anything was asked of the tensor before. It is the cheapest question."""
    return known.has_heard_of(tensor)


def has_graph(tensor: Tensor) -> bool:
    """Whether a graph of the tensor is cached."""
    topology = known.get(tensor)
    return topology is not None and bool(topology.graphs)


# ---- topologies that tensors share -------------------------------------------------------------------------------------------


def share_topology(tensor: Tensor, copy: Tensor) -> None:
    """Lets a copy of the tensor share its topology, if there is one."""
    topology = known_topology(tensor)
    if topology is not None:
        known.put(copy, topology)


def share_graphs(edge_index: Tensor, how: Any, result: Tensor) -> None:
    """Lets all results that were made of edge_index in the same way share their graphs. The way must be a function of its content.

    So a module that makes self-loops at every call does not sort the edges at every call.
    """
    if result is edge_index or edge_index.is_inference() or result.is_inference():
        return
    derived = topology_of(edge_index).derived
    if how not in derived:
        derived[how] = Topology()
    known.put(result, derived[how])


def note_selection(edge_index: Tensor, by: Tensor, columns: Tensor) -> None:
    """Lets the columns of edge_index that a mask or index selected share the graphs of others of the same content, in case messages
    will go by them.

    So a module that selects the edges of a relation at every call does not sort them at every call.
    """
    if not edge_index.is_inference() and not columns.is_inference():
        topology = Topology()
        # Not a mask that takes more memory than the columns.
        is_held = not by.is_inference() and by.numel() * by.element_size() <= columns.numel() * columns.element_size()
        held = (by, state_of(by)) if is_held else None
        topology.selected_from = topology_of(edge_index), edge_index.shape[1], held
        known.put(columns, topology)


def selected_before(edge_index: Tensor, by: Tensor) -> Tensor | None:
    """The columns of edge_index by which messages went before, if an equal mask or index selected them; not to be modified.

    A module asks for those of one relation after another: the next ones are compared first.
    """
    topology = known.get(edge_index)
    selections = () if topology is None else topology.selections
    if topology is None or not selections or by.is_inference():
        return None
    count = len(selections)
    for step in range(count):
        place = (topology.last_selection + 1 + step) % count
        found = selections[place] if place < len(selections) else None  # another thread may have dropped some
        if found is not None and found.is_by(by):
            topology.last_selection = place
            return found.columns
    return None


def _are_equal(mask: Tensor, other: Tensor) -> bool:
    """Whether two masks or indices of the same shape are equal."""
    is_flat = mask.is_cpu and mask.stride() == other.stride() == (1,)
    return have_same_bits(mask, other) if is_flat else torch.equal(mask, other)


def _of_content(columns: Tensor, origin: Topology, num_edges: int, by: tuple[Tensor, Any] | None) -> Topology:
    """The topology of columns that were selected. The last ones are cached, as many as to hold each edge SELECTED times."""
    for other in origin.selections:
        if other.columns.shape == columns.shape and torch.equal(other.columns, columns):
            return other.topology
    topology = Topology()
    if is_captured(columns.device):
        return topology
    with ordinary_tensors():
        copy, is_held = columns.clone(), by is not None and state_of(by[0]) == by[1]
        origin.selections.append(_Selection(copy, topology, by[0].clone() if by is not None and is_held else None))
    known.put(copy, topology)
    while sum(other.columns.shape[1] for other in origin.selections) > SELECTED * num_edges:
        origin.selections.pop(0)
    return topology
