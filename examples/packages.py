"""What a program says if a package that it needs is not installed."""

from __future__ import annotations

import importlib.util

INSTALL = {
    "dgl": "`pip install dgl==1.1.3` (for Python 3.10 and 3.11)",
    "matplotlib": "`pip install matplotlib`",
    "pyarrow": "`pip install pyarrow`",
    "torch_geometric": "`pip install torch_geometric`",
    "tqdm": "`pip install tqdm`",
}


def is_installed(name: str) -> bool:
    """Whether a package can be imported. It is not imported."""
    return importlib.util.find_spec(name) is not None


def explained(error: ImportError) -> str:
    """An error of an import in one sentence, with what to type if the package is missing."""
    name = (error.name or "").partition(".")[0]
    if name in INSTALL and not is_installed(name):
        return f"{name} is needed and not installed: {INSTALL[name]}"
    return str(error)
