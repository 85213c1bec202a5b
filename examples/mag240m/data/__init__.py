"""The graphs that the program can train on: IMDB, MAG240M, and synthetic graphs with MAG240M's schema."""

from __future__ import annotations

import os
from pathlib import Path

from .heterodata import HeteroData
from .imdb import load_imdb
from .mag240m import DEFAULT_MEMORY, load_mag240m
from .synthetic import make_synthetic

__all__ = ["HeteroData", "load", "make_synthetic"]


def load(
    where: str | os.PathLike,
    *,
    data_dir: str | os.PathLike | None = None,
    scale: float = 0.001,
    seed: int = 0,
    memory: int = DEFAULT_MEMORY,
) -> HeteroData:
    """Loads "imdb", "synthetic", or a directory in MAG240M's layout.

    data_dir: the folder for synthetic data; default: ``~/.cache/halfgnn``. scale, seed: of the synthetic data. memory:
    see `mag240m.load_mag240m`.

    Raises DataError if the data is missing or wrong, and ValueError for an impossible scale, seed or memory.
    """
    if where == "imdb":
        return load_imdb()
    if where != "synthetic":
        return load_mag240m(where, memory)
    parent = data_dir or Path.home() / ".cache" / "halfgnn"
    root = Path(parent) / f"mag240m-synthetic-scale{scale}-seed{seed}"
    return load_mag240m(make_synthetic(root, scale, seed), memory)
