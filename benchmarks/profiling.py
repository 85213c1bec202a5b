"""Calls for a profiler: ``ncu --profile-from-start off python -m benchmarks of_nodes --profile --device cuda``."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch

from . import inputs, memory
from .case import Case


@contextlib.contextmanager
def _profiled(device: str) -> Iterator[None]:
    """Kernels that are launched inside are those that ncu reports."""
    if device != "cuda":
        yield
        return
    torch.cuda.synchronize()
    torch.cuda.profiler.start()
    yield
    torch.cuda.synchronize()
    torch.cuda.profiler.stop()


def run_case(case: Case, device: str) -> None:
    """One call of halfgnn, after one that a profiler does not see."""
    inputs.forget(0)
    memory.release()
    for backend in case.backends:
        if backend.name != "halfgnn":
            continue
        call = backend.make()
        with backend.context():
            call()
            with _profiled(device):
                call()
