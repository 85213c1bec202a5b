"""Data sets that DGL downloads: programs can import them, and learn at their use that they are not here."""

from __future__ import annotations

import functools
from typing import Any

from ..base import DGLError
from .dataset import DGLDataset


class AbsentDataset(DGLDataset):
    """Raises DGLError when it, or a class derived of it, is constructed."""

    absent = ""  # the name of the data set

    def __init__(self, *args: Any, **kwargs: Any):
        raise DGLError(
            f"dgl.data.{self.absent} is not available in halfgnn.compat.dgl, which downloads no data sets: save the graphs"
            " with DGL's dgl.save_graphs and read them with dgl.load_graphs, or derive a class from dgl.data.DGLDataset"
        )


@functools.cache
def absent_dataset(name: str) -> type[AbsentDataset]:
    """The class that stands for the data set of this name."""
    return type(name, (AbsentDataset,), {"__module__": __name__, "absent": name})
