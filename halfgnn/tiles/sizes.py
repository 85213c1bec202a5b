"""How many edges a tile has: a number, or as many as a memory cap holds."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..common.arguments import checked_integer
from ..common.saved import SavedMemory

_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "ki": 2**10, "mi": 2**20, "gi": 2**30}
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(k|m|g|ki|mi|gi)?b\s*", re.IGNORECASE)
PROBED = 16_384  # edges of which is measured what a function makes per edge
_WORKING = (
    2  # times what a tile saves for its backward: as much again for gradients and for what is about to be dropped
)
_SHARE = 4  # "auto": a part of the free memory


def checked_tile(tile: Any) -> int | str:
    """A number of edges, "auto", or a size in bytes as "512MiB".

    Raises TypeError or ValueError for others.
    """
    if isinstance(tile, str):
        if tile != "auto":
            bytes_of(tile)
        return tile
    edges = checked_integer(tile, "tile", 'a number of edges, a size such as "512MiB", or "auto"')
    if edges < 1:
        raise ValueError(f"tile is {edges}; expected a number of edges of 1 or more")
    return edges


def bytes_of(tile: str) -> int:
    match = _SIZE.fullmatch(tile)
    size = 0.0 if match is None else float(match[1]) * _UNITS[(match[2] or "").lower()]
    if not 1 <= size < math.inf:
        raise ValueError(f'tile is {tile!r}; expected a number of edges, a size such as "512MiB", or "auto"')
    return int(size)


def memory_for(tile: str, device: torch.device) -> int:
    """The bytes that a tile may take."""
    return free_memory(device) // _SHARE if tile == "auto" else bytes_of(tile)


def free_memory(device: torch.device) -> int:
    """In bytes. Raises ValueError on a system that does not say."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    try:
        found = re.search(r"MemAvailable:\s+(\d+) kB", Path("/proc/meminfo").read_text())
    except OSError:
        found = None
    if found is None:
        raise ValueError(
            'tile is "auto", and this system does not say how much memory is free: pass a size such as "512MiB"'
        )
    return int(found[1]) * 1024


def working_bytes(run: Callable[[], Any], num_edges: int, beside: Sequence[Tensor]) -> float:
    """What run(), on so many edges, makes per edge, in bytes. Random numbers are drawn as if it had not run.

    beside: tensors that are there without it.
    """
    devices, num_edges = [torch.cuda.current_device()] if torch.cuda.is_initialized() else [], max(num_edges, 1)
    with torch.random.fork_rng(devices), torch.enable_grad(), SavedMemory(beside=beside, num_edges=num_edges) as kept:
        run()
    return _WORKING * kept.bytes / num_edges


def edges_in(memory: int, per_edge: float) -> int:
    """How many edges of so many bytes each; what needs none is not divided."""
    return max(int(memory / per_edge), 1) if per_edge else 2**62
