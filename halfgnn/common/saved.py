"""The memory that autograd saves of a forward."""

from __future__ import annotations

import weakref
from collections.abc import Sequence

import torch
from torch import Tensor


class SavedMemory:
    """Counts, inside its `with` block, the memory that autograd saves: distinct storages of floating-point tensors.
    Storages of leaves (features, parameters) are not counted, because the caller keeps them anyway. A message of
    halfgnn.pyg's drop-in has no memory of its own: what it would be made of is counted, and its values if they are there.

    at_end: count only what is still saved when the block ends, in which the caller has to keep the results. What autograd
    notes of messages that are never materialized does not exist by then. beside: further tensors that the caller keeps. num_edges:
    count only tensors of so many rows, in some shape.
    """

    def __init__(self, at_end: bool = False, beside: Sequence[Tensor] = (), num_edges: int = 1) -> None:
        self._at_end, self._num_edges = at_end, num_edges
        self._notes: list[weakref.ref[_Saved]] = []
        self._saved: dict[int, torch.UntypedStorage] = {}  # by address; kept alive, so that no address is used again
        self._kept = {_address(x) for x in beside}  # of the caller
        self._hooks = torch.autograd.graph.saved_tensors_hooks(self._pack, lambda saved: saved.tensor)

    def __enter__(self) -> SavedMemory:
        self._hooks.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._hooks.__exit__(*error)
        for note in self._notes:
            saved = note()
            if saved is not None:
                self._count_all(saved.tensor)

    def _pack(self, tensor: Tensor) -> _Saved:
        saved = _Saved(tensor)
        if self._at_end:
            self._notes.append(weakref.ref(saved))
        else:
            self._count_all(tensor)
        return saved

    def _count_all(self, tensor: Tensor) -> None:
        held = getattr(tensor, "held", None)
        for part in [tensor] if held is None else held():
            self._count(part)

    def _count(self, tensor: Tensor) -> None:
        if tensor.layout != torch.strided:
            return
        whole = tensor if tensor._base is None else tensor._base
        storage = tensor.untyped_storage()
        address = _address(tensor)
        if whole.is_leaf and whole.requires_grad:
            self._kept.add(address)
        elif tensor.is_floating_point() and tensor.numel() % self._num_edges == 0:
            self._saved[address] = storage

    @property
    def bytes(self) -> int:
        return sum(s.nbytes() for address, s in self._saved.items() if address not in self._kept)

    @property
    def mebibytes(self) -> float:
        return self.bytes / 2**20


def _address(x: Tensor) -> int:
    """Of its storage. Tensors may share memory until one is modified in place; asking a storage would count as writing."""
    return torch._C._data_address(x) - x.storage_offset() * x.element_size()  # type: ignore[attr-defined]


class _Saved:
    """A tensor that autograd saves, as long as it does."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor
