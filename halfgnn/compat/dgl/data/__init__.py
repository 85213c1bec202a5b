"""Data sets: the base class, files of graphs, downloads. The data sets themselves are not here."""

from typing import Any

from . import utils
from .absent import absent_dataset
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
    if name.endswith("Dataset"):
        return absent_dataset(name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
