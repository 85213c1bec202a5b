"""Optional packages. A package that cannot be imported is not tried again."""

from __future__ import annotations

import contextlib
import functools
import importlib
import os
from typing import Any

import torch


class Unavailable(Exception):
    """A backend cannot take part; the message says why, and becomes the note of its row."""


def first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__


@functools.cache
def _attempt(name: str) -> tuple[Any, str]:
    """(the module, "") or (None, why not)"""
    try:
        return importlib.import_module(name), ""
    except Exception as error:  # a wheel built for another torch can fail with any error
        return None, first_line(error)


def import_package(name: str) -> Any:
    """Raises Unavailable with the reason."""
    module, why_not = _attempt(name)
    if module is None:
        raise Unavailable(f"{name} cannot be imported: {why_not}")
    return module


def import_pyg() -> Any:
    """The torch_geometric package."""
    return import_package("torch_geometric")


def import_dgl() -> Any:
    """The dgl package on its PyTorch backend."""
    os.environ.setdefault("DGLBACKEND", "pytorch")  # otherwise the first import writes a file
    return import_package("dgl")


@functools.cache
def dgl_runs_on(device: str) -> bool:
    """Whether this DGL has graphs on the device. PyPI's DGL has them only on the CPU."""
    if device == "cpu":
        return True
    try:
        import_dgl().graph((torch.zeros(1).long(), torch.zeros(1).long())).to(device)
    except Unavailable:
        raise
    except Exception:
        return False
    return True


def set_threads(count: int) -> None:
    """Sets the threads of PyTorch and halfgnn and, if it is installed, of DGL."""
    torch.set_num_threads(count)
    with contextlib.suppress(Unavailable):
        import_dgl().utils.set_num_threads(count)
