"""What a forward keeps for its backward."""

from __future__ import annotations

import torch
from torch import Tensor


class Kept:
    """Counts, while in force, the memory that autograd saves: distinct storages of floating-point tensors, but not those of
    leaves, which the caller keeps anyhow (features, parameters)."""

    def __init__(self) -> None:
        self._saved: dict[int, torch.UntypedStorage] = {}  # by address; held, so that no address is used again
        self._leaves: set[int] = set()
        self._hooks = torch.autograd.graph.saved_tensors_hooks(self._pack, lambda tensor: tensor)

    def __enter__(self) -> Kept:
        self._hooks.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._hooks.__exit__(*error)

    def _pack(self, tensor: Tensor) -> Tensor:
        whole = tensor if tensor._base is None else tensor._base
        storage = tensor.untyped_storage()
        if whole.is_leaf and whole.requires_grad:
            self._leaves.add(storage.data_ptr())
        elif tensor.is_floating_point() and tensor.layout == torch.strided:
            self._saved[storage.data_ptr()] = storage
        return tensor

    @property
    def mebibytes(self) -> float:
        return sum(s.nbytes() for address, s in self._saved.items() if address not in self._leaves) / 2**20
