"""What is made of a tensor of ids once, and returned as copies on write."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from ..common.caching import cacheable, may_cache, ordinary_tensors, read_cached
from .store import Topology, share_topology

_MOST_MADE = 8  # results per content; the oldest goes first


def made_once(topology: Topology, key: Any, make: Callable[[], tuple[Any, ...]]) -> tuple[Any, ...]:
    """Values, the first of them a tensor, that are made once per content."""
    values = topology.made.get(key)
    if values is not None:
        return read_cached(values)
    with ordinary_tensors():
        new = make()
    if may_cache(new[0].device):
        others = list(topology.made.items())[1 - _MOST_MADE :]  # another thread may do the same
        topology.made = {**dict(others), key: cacheable(new, [x for x in new if isinstance(x, Tensor)])}
    return new


def copies_made_once(topology: Topology, key: Any, make: Callable[[], tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
    """Tensors that are made once per content, in copies on write."""
    return tuple(map(shared_copy, made_once(topology, key, make)))


def shared_copy(tensor: Tensor) -> Tensor:
    """A copy on write of ids, of which is known what is known of them."""
    with ordinary_tensors():
        copy = tensor._lazy_clone()  # type: ignore[attr-defined]
    share_topology(tensor, copy)
    return copy
