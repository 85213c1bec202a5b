"""Edges of MAG240M's files, and the citations in both directions."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from datasets import DataError

from .files import create_npy, make_once, open_made, open_npy


def read_edges(path: Path, num_src: int, num_dst: int) -> tuple[torch.Tensor, torch.Tensor]:
    """(src, dst) of an edge_index.npy."""
    return _checked(open_npy(path, (np.int64, np.int32), (2, None), "c"), path, num_src, num_dst)


def _checked(edges: np.ndarray, path: Path, num_src: int, num_dst: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The rows of an edge index as int64 tensors; DataError for ids out of range."""
    src, dst = (torch.from_numpy(row).long() for row in edges)
    for row, (ids, bound) in enumerate(((src, num_src), (dst, num_dst))):
        low, high = (int(end) for end in torch.aminmax(ids)) if len(ids) else (0, 0)
        if low < 0 or high >= bound:
            raise DataError(f"{path}: row {row} holds the id {low if low < 0 else high}; expected ids in [0, {bound})")
    return src, dst


def undirected(path: Path, num_nodes: int) -> tuple[torch.Tensor, torch.Tensor]:
    """(src, dst) of an edge_index.npy with every edge in both directions and without duplicates, sorted by (dst, src).
    The result is kept beside the file."""

    def write(partial: Path) -> None:
        src, dst = (ids.numpy() for ids in read_edges(path, num_nodes, num_nodes))
        keys = np.empty((2, len(src)), dtype=np.int64)
        for key, row, column in ((keys[0], dst, src), (keys[1], src, dst)):
            np.multiply(row, num_nodes, out=key)
            key += column
        keys = keys.reshape(-1)
        keys.sort()  # in place, unlike np.unique: at full size keys are 21 GB
        first = np.ones(len(keys), dtype=bool)
        np.not_equal(keys[1:], keys[:-1], out=first[1:])
        keys = keys[first]
        edges = create_npy(partial, np.int64, (2, len(keys)))
        np.divmod(keys, num_nodes, out=(edges[1], edges[0]))
        edges.flush()

    target = path.with_name("undirected_edge_index.npy")
    make_once(target, write)
    return _checked(open_made(target, np.int64, (2, None), "c"), target, num_nodes, num_nodes)
