"""Features of authors and institutions: means over the nodes that they are linked to."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from halfgnn import ops

from .files import create_npy, make_once, open_made, open_npy
from .heterodata import csc_graph


def mean_features(source: Path, target: Path, edges, shape: tuple[int, int], memory: int) -> Path:
    """`target`, float16 of `shape`: row v is the mean over edges (u, v) of the rows u of `source`."""

    def write(partial: Path) -> None:
        inputs = open_npy(source, (np.float16,), (None, shape[1]))
        num_src, num_dst = len(inputs), shape[0]
        graph = csc_graph(*edges, num_src, num_dst, _idtype(num_src, num_dst, len(edges[0])))
        outputs = create_npy(partial, np.float16, shape)
        step = max(1, memory // (2 * (num_src + num_dst)))  # columns; a column has 2 bytes per node
        for first in range(0, shape[1], step):
            columns = slice(first, first + step)
            chunk = torch.from_numpy(np.array(inputs[:, columns], order="C"))
            outputs[:, columns] = ops.copy_u_mean(graph, chunk).numpy()
        outputs.flush()

    make_once(target, write)
    open_made(target, np.float16, shape)
    return target


def _idtype(*counts: int) -> torch.dtype:
    return torch.int32 if max(counts) < 2**31 else torch.int64
