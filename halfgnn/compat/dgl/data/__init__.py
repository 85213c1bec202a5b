"""Data sets: the base class, files of graphs, downloads. The data sets themselves are not here."""

from typing import Any

from . import utils
from .dataset import DGLBuiltinDataset, DGLDataset
from .serialize import load_graphs, load_labels, load_tensors, save_graphs, save_tensors
from .utils import Subset, split_dataset

__all__ = [
    "DGLBuiltinDataset",
    "DGLDataset",
    "Subset",
    "load_graphs",
    "load_labels",
    "load_tensors",
    "save_graphs",
    "save_tensors",
    "split_dataset",
    "utils",
]


def __getattr__(name: str) -> Any:
    if name.endswith(("Dataset", "Data")):
        raise AttributeError(
            f"dgl.data.{name} is not available in halfgnn.compat.dgl, which has no data sets: load the graphs that DGL's dgl.save_graphs has"
            " written with dgl.load_graphs, or derive a class from dgl.data.DGLDataset"
        )
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
