"""How large a call is, how often its index was used, and whether that is worth a Graph; the numbers are in thresholds.py."""

from __future__ import annotations

import weakref
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...drop_in.checkpoint import is_checkpointed
from ...graphs_by_tensor.store import is_heard_of, known
from . import thresholds


def weighed(num_values: int, device_of: Any, speed: int = thresholds.GPU_SPEED) -> int:
    """So many values, or on a GPU those that take as long on a core: what limits are compared with."""
    return num_values // speed if device_of.is_cuda else num_values


def weighed_rows(x: Tensor, num_entries: int) -> int:
    """The values of x[index], of an index with so many entries."""
    width = x.numel() // x.shape[0]
    return weighed(num_entries * (max(width, thresholds.SORTED_WIDTH) if x.is_cuda else width), x)


def has_gradient(x: Any) -> bool:
    return x.requires_grad and torch.is_grad_enabled()


def is_small(src: Tensor, reduction: str | None) -> bool:
    """Whether a reduction of src falls back to PyG even if its graph is known. It costs less than a microsecond."""
    limits = thresholds.LIMITS.get(reduction)  # type: ignore[arg-type]
    if limits is None:
        return False
    num_values = src.numel() // thresholds.GPU_SPEED if src.is_cuda else src.numel()
    if num_values >= limits.known[0] and num_values >= limits.known[src.requires_grad and torch.is_grad_enabled()]:
        return limits.width > 1 and not src.is_cuda and (src.dim() < 2 or num_values < limits.width * src.shape[0])
    return True


class Size(NamedTuple):
    """Values that go along edges or by an index.

    kind: whose limits of thresholds.py hold. is_extreme: of messages, whether their largest or smallest are taken.
    """

    values: int
    with_gradient: bool
    kind: str = "message"
    is_extreme: bool = False

    @classmethod
    def of(cls, x: Any, kind: str) -> Size:
        """Of a reduction of x."""
        num_values = x.numel() // thresholds.GPU_SPEED if x.is_cuda else x.numel()
        return cls(num_values, x.requires_grad and torch.is_grad_enabled(), kind)

    def is_below_limit(self) -> bool:
        """Whether the library is faster even if the graph is cached."""
        limits = thresholds.LIMITS.get(self.kind)
        return limits is not None and self._weight() < limits.known[self.with_gradient]

    def pays(self, seen: int) -> bool:
        """Whether to make the graph of an edge_index for it. seen: values that the library took before.

        In a checkpoint what was seen must not decide.
        """
        limits = thresholds.LIMITS.get(self.kind)
        if limits is None or is_checkpointed():
            return True
        least = limits.new[self.with_gradient]
        return self._weight() >= least or seen >= thresholds.REUSE * least

    def pays_for(self, edge_index: Tensor) -> bool:
        """Whether to make the graph of edge_index for it, if that is not cached. Its values are counted."""
        topology = known.get(edge_index)
        if topology is None:
            return self.pays(count_values(edge_index, self.values))
        seen = topology.num_values  # self-loops are added at every call, to a topology that is shared
        topology.num_values += self.values
        return bool(topology.graphs) or self.pays(seen)

    def pays_for_sorting(self, num_rows: int, is_sorted: bool) -> bool:
        """Whether to reduce it, which has so many rows, by an index that was not seen before, and is sorted or not."""
        limits = thresholds.LIMITS.get(self.kind)
        if limits is None:
            return True
        if self.values < limits.new[self.with_gradient]:
            return False
        return is_sorted or self.values >= max(thresholds.FEW_UNSORTED, limits.unsorted, limits.sorted_width * num_rows)

    def is_repeated(self, seen: int) -> bool:
        """Whether so many values went by an index before that it will be used on. One step may use it in each layer."""
        limits = thresholds.LIMITS.get(self.kind)
        return limits is None or is_checkpointed() or _seen_often_enough(seen, limits.new[self.with_gradient])

    def is_first_use(self, index: Tensor, last: Tensor | None) -> bool:
        """Whether it falls back to PyG because nothing is known of the index, nor of the tensor that it is a view of.

        last: the edge_index of the last call in this thread.

        Its values are counted. That takes 2 microseconds, and to look an index up takes 20.
        """
        if index.is_inference():
            return False
        base = index._base
        index = index if base is None else base
        if is_heard_of(index) or (last is not None and is_heard_of(last)):
            return False
        limits = thresholds.LIMITS.get(self.kind)
        if limits is None or is_checkpointed():
            return False
        # So many values, at least, are worth the graph of an index, or of the edge_index that has it as a row.
        of_messages = thresholds.LIMITS.get("message", limits).new[self.with_gradient]
        least = again = min(limits.new[self.with_gradient], of_messages)
        if base is last is not None and least:
            least = max(least, thresholds.FEW_UNSORTED, limits.unsorted)  # edges are rarely sorted
            again = max(least, of_messages)  # messages of the same step were counted too
        return self.values < least and not _seen_often_enough(count_values(index, self.values), again)

    def _weight(self) -> int:
        return self.values * (thresholds.EXTREME if self.is_extreme else 1)


def _seen_often_enough(seen: int, least: int) -> bool:
    return seen > 0 and seen >= thresholds.REUSE * least


def may_share(edge_index: Tensor) -> bool:
    """Whether to cache what is made of edge_index, in case messages of usual width will go along it. Calls are counted."""
    if not is_heard_of(edge_index):
        return not is_new_and_small(edge_index, edge_index.numel() * thresholds.USUAL_WIDTH // 2, True)
    topology = known.get(edge_index)
    if topology is not None and topology.derived:
        return True
    return Size(edge_index.numel() * thresholds.USUAL_WIDTH // 2, True).pays_for(edge_index)


def is_new_and_small(
    edge_index: Tensor, num_values: int, with_gradient: bool, is_extreme: bool = False, counts: bool = True
) -> bool:
    """Whether no Graph is made for so many values of messages along an edge_index that was not heard of, as the caller has asked.

    It is Size.pays_for() in fewer calls, for batches of small graphs, whose edge_index is new in every step. counts: the values are
    counted. Otherwise they are counted if the answer is True.
    """
    limits = thresholds.LIMITS.get("message")
    weight = num_values * thresholds.EXTREME if is_extreme else num_values
    is_small = limits is not None and weight < (least := limits.new[with_gradient]) and not is_checkpointed()
    if not is_small and not counts:
        return False
    seen = count_values(edge_index, num_values)
    if is_small and seen >= thresholds.REUSE * least:
        is_small = False
        if not counts:  # the caller does
            _seen[id(edge_index)][1] -= num_values
    return is_small


# ---- uses of what has no graph -------------------------------------------------------------------------------------------------

# By id: a reference to an edge_index without a graph, and how many values of messages went along it. To know it costs more.
_seen: dict[int, list[Any]] = {}
_MOST_SEEN = 256


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


def count_of(index: Tensor) -> list[Any]:
    """[a reference to an index, how many values were counted], of one of which some were just counted."""
    return _seen[id(index)]


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
