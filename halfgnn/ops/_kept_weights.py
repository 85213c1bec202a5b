"""Weights of edges that are used again and again, kept in the order in which sums on the CPU read them.

A sum over in-edges walks the edges by destination, and its gradient by source. Weights lie in the order of the edges themselves, so
each is read from somewhere else in memory, which takes longer than the sum where there are many. Constant weights, such as GCN's,
are therefore copied once for each side, and the copies are cached with the Graph.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..common.caching import have_same_bits
from ..graph import Graph

MIN_EDGES = 1 << 14  # fewer weights lie in the cache
FIRST_USE = 3  # of weights, from which on they are kept: to copy them takes as long as a sum saves
MOST_WASTED = 2  # how often weights are kept for nothing before no more are
_KEPT = "_kept_weights"  # of a Graph


class _Weights:
    """Weights, how often they were used in a row, and their copies.

    They are known again by their values, which programs may also change where autograd does not see it: to compare them takes a
    twentieth of what it takes to read them out of order. A GPU would have to be waited for, so this is for the CPU alone.
    """

    __slots__ = ("_address", "_source", "sides", "uses")

    def __init__(self, weight: Tensor) -> None:
        self._address = _address_of(weight)
        self._source: Tensor | None = None
        self.sides: dict[str, Tensor] = {}
        self.uses = 0

    def is_used(self) -> bool:
        return self._source is not None

    def know(self, weight: Tensor) -> bool:
        if self._source is None:  # until there are copies, a guess will do
            return self._address == _address_of(weight)
        source = self._source
        return source.dtype == weight.dtype and source.shape == weight.shape and have_same_bits(source, weight)

    def begin_copies(self, weight: Tensor) -> None:
        if self._source is None:
            self._source = weight.clone()


def _address_of(weight: Tensor) -> int:
    return torch._C._data_address(weight) + weight.storage_offset() * weight.element_size()  # type: ignore[attr-defined]


class _Kept:
    """The weights of a Graph that were used last. Threads may use others at the same time."""

    __slots__ = ("last", "wasted")

    def __init__(self) -> None:
        self.wasted = 0
        self.last: _Weights | None = None

    def see(self, weight: Tensor) -> dict[str, Tensor] | None:
        """Notes a use, and returns the copies, if they are to be used. Those of other weights never get into them."""
        if self.wasted >= MOST_WASTED:
            return None
        weights = self.last  # which another thread may replace from here on
        if weights is None or not weights.know(weight):
            self.wasted += weights is not None and weights.is_used() and weights.uses < 2 * FIRST_USE
            weights = self.last = _Weights(weight)
        weights.uses += 1
        if weights.uses < FIRST_USE:
            return None
        weights.begin_copies(weight)
        return weights.sides


def sorted_weights(g: Graph, weight: Tensor | None, reads_csr: bool) -> tuple[Tensor | None, Tensor | None]:
    """Weights (E, *) that need no gradient in the order of in-edges and of out-edges; None where they are read as they lie.

    reads_csr: whether a backward will read out-edges.
    """
    if torch.compiler.is_compiling() or weight is None or g.num_edges < MIN_EDGES or not _is_constant(weight):
        return None, None
    if g.csc().edge_ids is None and not reads_csr:
        return None, None
    kept = getattr(g, _KEPT, None)
    if kept is None:
        kept = _Kept()
        object.__setattr__(g, _KEPT, kept)
    sides = kept.see(weight)
    if sides is None:
        return None, None
    return (_side(g, sides, "csc", weight), _side(g, sides, "csr", weight) if reads_csr else None)


def _is_constant(weight: Tensor) -> bool:
    if type(weight) is not Tensor or not weight.is_cpu or weight.requires_grad or not weight.is_contiguous():
        return False
    if torch._C._are_functorch_transforms_active():
        return False
    return not (weight.is_inference() or torch._C._len_torch_dispatch_stack())


def _side(g: Graph, sides: dict[str, Tensor], side: str, weight: Tensor) -> Tensor | None:
    edge_ids = getattr(g, side)().edge_ids
    if edge_ids is None:
        return None
    if side not in sides:
        with torch.no_grad():
            sides[side] = weight.index_select(0, edge_ids)
    return sides[side]
