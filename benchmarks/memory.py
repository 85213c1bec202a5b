"""The memory that a case needs, the peak memory of a call, and what a forward saves for its backward."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import re
from collections.abc import Callable
from pathlib import Path

import torch

from halfgnn.common.saved import SavedMemory

from .case import Case

__all__ = [
    "Peak",
    "SavedMemory",
    "allocated_bytes",
    "give_back",
    "is_lacking",
    "needed_bytes",
    "peak_of_allocations",
    "release",
    "resident_bytes",
]


def needed_bytes(case: Case) -> int:
    """The memory that an operator's case takes beside its graph, from shapes alone. All backends are prepared before the
    first is timed; in a backward each has leaves and a result of its own. Backends that keep rows of features per edge are not
    counted: they are prepared last, and take part if they leave room."""
    shared: dict[torch.dtype, int] = {}
    resident = working = 0
    for backend in case.backends:
        problem = backend.problem
        if problem is None or backend.messages:
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
    """Gives what PyTorch's allocator keeps of a GPU's memory to the next backend."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


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


def peak_of_allocations(step: Callable[[], object]) -> int:
    """The most bytes that PyTorch has allocated for tensors on the CPU during a step, beside those before it. What the C library
    keeps of freed memory is not counted."""
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities, profile_memory=True) as profiler:
        step()
    events = [x for x in profiler.profiler.kineto_results.events() if x.name() == "[memory]"]
    total = peak = 0
    for event in sorted(events, key=lambda x: x.start_ns()):
        total += event.nbytes()
        peak = max(peak, total)
    return peak


def _reset_high_water() -> bool:
    give_back()  # otherwise the C library reuses freed memory, and no growth is seen
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


def resident_bytes() -> int:
    """What the process has in memory; 0 if the system does not say."""
    return _resident("VmRSS") or 0


def give_back() -> None:
    """Gives what is freed back to the system."""
    gc.collect()
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


class _MallInfo(ctypes.Structure):
    """glibc's struct mallinfo2."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            "arena",
            "ordblks",
            "smblks",
            "hblks",
            "hblkhd",
            "usmblks",
            "fsmblks",
            "uordblks",
            "fordblks",
            "keepcost",
        )
    ]


def allocated_bytes() -> int | None:
    """What the C library's malloc has given out, in all of its arenas; None if the library does not say."""
    try:
        info = ctypes.CDLL(None).mallinfo2
    except (OSError, AttributeError):
        return None
    info.restype = _MallInfo
    found = info()
    return found.uordblks + found.hblkhd
