"""Weights of edges that are used again and again, kept in the order in which sums read them.

A sum over in-edges walks the edges by destination, and its gradient by source. Weights lie in the order of the edges themselves, so
each is read from somewhere else in memory, which takes longer than the sum where there are many. Constant weights, such as GCN's,
are therefore copied once for each side, and the copies are kept with the Graph.
"""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch import Tensor

from ..common.caching import cacheable, is_captured, read_cached
from ..graph import Graph

MIN_EDGES = 1 << 14  # fewer weights lie in the cache
FIRST_USE = 3  # of weights, from which on they are kept: to copy them takes as long as a sum saves
MOST_WASTED = 2  # how often weights are kept for nothing before no more are
_KEPT = "_kept_weights"  # of a Graph


class _Kept:
    """The weights of a Graph that were used last.

    They are known again as the same tensor, not modified since, or on the CPU by their values: to compare them takes a twentieth of
    what it takes to read them out of order.
    """

    __slots__ = ("address", "ref", "sides", "source", "uses", "version", "wasted")

    def __init__(self) -> None:
        self.wasted = 0
        self._begin(None)

    def _begin(self, weight: Tensor | None) -> None:
        self.ref: Any = None
        self.source: Tensor | None = None
        self.sides: dict[str, Any] = {}
        self.uses = 0
        if weight is not None:
            self._note(weight)

    def _note(self, weight: Tensor) -> None:
        self.ref, self.version = weakref.ref(weight), weight._version
        self.address = torch._C._data_address(weight) + weight.storage_offset()  # type: ignore[attr-defined]

    def see(self, weight: Tensor) -> bool:
        """Notes a use, and says whether the copies are to be used."""
        if self.wasted >= MOST_WASTED:
            return False
        if not self._knows(weight):
            self.wasted += self.source is not None and self.uses < 2 * FIRST_USE
            self._begin(weight)
        self.uses += 1
        if self.uses < FIRST_USE:
            return False
        if self.source is None:
            self.source = weight.clone() if weight.is_cpu else weight
        return True

    def _knows(self, weight: Tensor) -> bool:
        if self.ref is None:
            return False
        if self.ref() is weight and self.version == weight._version:
            return True
        if not weight.is_cpu:
            return False
        if self.source is None:  # until there are copies, a guess will do
            is_same = self.address == torch._C._data_address(weight) + weight.storage_offset()  # type: ignore[attr-defined]
        else:
            is_same = self.source.dtype == weight.dtype and torch.equal(self.source, weight)
        if is_same:
            self._note(weight)
        return is_same


def sorted_weights(g: Graph, weight: Tensor | None, reads_csr: bool) -> tuple[Tensor | None, Tensor | None]:
    """Weights (E, *) that need no gradient in the order of in-edges and of out-edges; None where they are read as they lie.

    reads_csr: whether a backward will read out-edges.
    """
    if weight is None or g.num_edges < MIN_EDGES or not _is_constant(weight):
        return None, None
    kept = getattr(g, _KEPT, None)
    if kept is None:
        kept = _Kept()
        object.__setattr__(g, _KEPT, kept)
    if not kept.see(weight):
        return None, None
    return (_side(g, kept, "csc", weight), _side(g, kept, "csr", weight) if reads_csr else None)


def _is_constant(weight: Tensor) -> bool:
    if type(weight) is not Tensor or weight.requires_grad or not weight.is_contiguous():
        return False
    if torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active():
        return False
    return not (weight.is_inference() or torch._C._len_torch_dispatch_stack() or is_captured(weight.device))


def _side(g: Graph, kept: _Kept, side: str, weight: Tensor) -> Tensor | None:
    edge_ids = getattr(g, side)().edge_ids
    if edge_ids is None:
        return None
    if side not in kept.sides:
        with torch.no_grad():
            copy = weight.index_select(0, edge_ids)
        kept.sides[side] = cacheable(copy, [copy])
    return read_cached(kept.sides[side])
