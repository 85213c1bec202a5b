"""How often an edge_index or an index was used, and whether that makes its graph worth while."""

from __future__ import annotations

import weakref
from typing import Any

from torch import Tensor

from ...graphs_by_tensor.store import known
from . import thresholds as _worth

# By id: a reference to an edge_index without a graph, and how many values of messages went along it. To know it costs more.
_seen: dict[int, list[Any]] = {}
_MOST_SEEN = 256


def is_worth_a_graph(
    edge_index: Tensor, num_values: int, with_gradient: bool, is_extreme: bool = False, kind: str = "message"
) -> bool:
    """Whether messages of so many values are worth the graph of edge_index, if that is not made yet. They are counted.

    kind: whose limits of _worth.py hold.
    """
    topology = known.get(edge_index)
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
    topology = known.get(edge_index)
    if topology is not None and topology.derived:
        return True
    return is_worth_a_graph(edge_index, edge_index.numel() * _worth.USUAL_WIDTH // 2, True)
