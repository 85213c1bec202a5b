"""The memory that autograd saves of a forward."""

from __future__ import annotations

import weakref

import torch
from torch import Tensor


class SavedMemory:
    """Counts, inside its `with` block, the memory that autograd saves: distinct storages of floating-point tensors.
    Storages of leaves (features, parameters) are not counted, because the caller keeps them anyway. A message of
    halfgnn.pyg's drop-in has no memory of its own: what it would be made of is counted, and its values if they are there.

    at_end: count only what is still saved when the block ends, in which the caller has to keep the results. What autograd
    notes of messages that are never materialized is gone by then.
    """

    def __init__(self, at_end: bool = False) -> None:
        self._at_end = at_end
        self._notes: list[weakref.ref[_Saved]] = []
        self._saved: dict[int, torch.UntypedStorage] = {}  # by address; kept alive, so that no address is used again
        self._leaves: set[int] = set()
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
        # Tensors may share memory until one of them is written to; asking a storage for its address would count as writing.
        address = torch._C._data_address(tensor) - tensor.storage_offset() * tensor.element_size()  # type: ignore[attr-defined]
        if whole.is_leaf and whole.requires_grad:
            self._leaves.add(address)
        elif tensor.is_floating_point():
            self._saved[address] = storage

    @property
    def mebibytes(self) -> float:
        return sum(s.nbytes() for address, s in self._saved.items() if address not in self._leaves) / 2**20


class _Saved:
    """A tensor that autograd saves, as long as it does."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor
