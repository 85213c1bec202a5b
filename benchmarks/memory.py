"""The peak memory of a call, and the memory that a forward keeps for its backward."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import re
import weakref
from pathlib import Path

import torch
from torch import Tensor

from .case import Case


def needed_bytes(case: Case) -> int:
    """The memory that an operator's case takes beside its graph, from shapes alone. All contestants are prepared before the
    first is timed; in a backward each has leaves and a result of its own. Contestants that keep rows of features per edge are not
    counted: they are prepared last, and take part if they leave room."""
    shared: dict[torch.dtype, int] = {}
    resident = working = 0
    for contestant in case.contestants:
        problem = contestant.problem
        if problem is None or contestant.messages:
            continue
        operands, result = problem.operand_bytes, problem.result_bytes
        shared[problem.dtype] = operands + (0 if problem.is_forward else result)
        resident += 0 if problem.is_forward else operands + result
        working = max(working, result if problem.is_forward else operands)
    return sum(shared.values()) + resident + working


def is_lacking(error: BaseException) -> bool:
    """Whether an allocation of a GPU's or the host's memory failed."""
    return isinstance(error, (torch.OutOfMemoryError, MemoryError)) or "can't allocate memory" in str(error)


def release() -> None:
    """Gives what PyTorch's allocator keeps of a GPU's memory to the next contestant."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


class Kept:
    """Counts, inside its `with` block, the memory that autograd saves: distinct storages of floating-point tensors.
    Storages of leaves (features, parameters) are not counted, because the caller keeps them anyway. A message of
    halfgnn.pyg's drop-in has no memory of its own: what it would be made of is counted, and its values if they are there.

    at_end: count only what is still saved when the block ends, in which the caller has to keep the results. What autograd
    notes of messages that are never formed is gone by then.
    """

    def __init__(self, at_end: bool = False) -> None:
        self._at_end = at_end
        self._notes: list[weakref.ref[_Saved]] = []
        self._saved: dict[int, torch.UntypedStorage] = {}  # by address; kept alive, so that no address is used again
        self._leaves: set[int] = set()
        self._hooks = torch.autograd.graph.saved_tensors_hooks(self._pack, lambda saved: saved.tensor)

    def __enter__(self) -> Kept:
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


class Peak:
    """Measures, inside its `with` block, the largest growth of the memory in use. On a GPU that is the memory of
    PyTorch's allocator, otherwise the resident memory of the process. Linux keeps a high-water mark of it that can be
    reset."""

    def __init__(self, device: str) -> None:
        self.on_gpu = device == "cuda"
        self.bytes: int | None = None  # None: this system does not report it

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
        ctypes.CDLL(None).malloc_trim(0)  # otherwise the C library reuses freed memory, and no growth is seen
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
