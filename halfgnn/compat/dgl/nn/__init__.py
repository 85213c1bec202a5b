"""The modules of dgl.nn, with its constructors, state dicts and results, on halfgnn's operators."""

from __future__ import annotations

from typing import Any

from . import functional, pytorch
from .pytorch import *  # noqa: F403

__all__ = [*pytorch.__all__, "functional", "pytorch"]


def __getattr__(name: str) -> Any:
    return getattr(pytorch, name)
