"""What a call takes at its peak, and what a forward keeps for its backward."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import re
from pathlib import Path

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


class Peak:
    """Counts, while in force, by how much memory in use grows at most: on a GPU that of PyTorch's allocator, else the resident
    memory of the process, of which Linux keeps a high-water mark that can be set back."""

    def __init__(self, device: str) -> None:
        self.on_gpu = device == "cuda"
        self.bytes: int | None = None  # None: this system does not tell

    def __enter__(self) -> Peak:
        if self.on_gpu:
            torch.cuda.reset_peak_memory_stats()
            self._before: int | None = torch.cuda.memory_allocated()
        else:
            self._before = _resident("VmRSS") if _reset_high_water() else None
        return self

    def __exit__(self, *error: object) -> None:
        highest = torch.cuda.max_memory_allocated() if self.on_gpu else _resident("VmHWM")
        if self._before is not None and highest is not None:
            self.bytes = highest - self._before


def _reset_high_water() -> bool:
    gc.collect()
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)  # the C library keeps what was freed, and would hand it out again unseen
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return False
    return True


def _resident(field: str) -> int | None:
    try:
        found = re.search(rf"^{field}:\s+(\d+) kB", Path("/proc/self/status").read_text(), re.MULTILINE)
    except OSError:
        return None
    return int(found.group(1)) * 1024 if found else None
