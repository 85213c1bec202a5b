"""DGL itself, which is imported when something needs it, and not with halfgnn.dgl."""

from __future__ import annotations

import importlib
from typing import Any


def import_dgl(caller: str) -> Any:
    """The package dgl, on PyTorch. The caller is named if DGL is missing (ImportError), or is another one (RuntimeError)."""
    try:
        dgl = importlib.import_module("dgl")
    except ImportError as error:
        raise ImportError(
            f"{caller} needs DGL (from PyPI: pip install dgl==1.1.3), which cannot be imported: {error}"
        ) from error
    if dgl.__name__ != "dgl":  # halfgnn.compat.install("dgl") was called
        raise RuntimeError(f"dgl is {dgl.__name__}, which runs on halfgnn already; {caller} needs DGL itself")
    if dgl.backend.backend_name != "pytorch":
        raise RuntimeError(f"DGL's backend is {dgl.backend.backend_name}; expected pytorch")
    return dgl
