"""Graphs whose rows have given degrees."""

import torch

from halfgnn import Graph

PIECE = 512  # edges from which a row is cut (csrc/cuda/kernels/core/rows.cuh)
CUT = [PIECE - 1, PIECE, PIECE + 1, 0, 2 * PIECE, 2 * PIECE + 1, 1, 3000, 0, 17 * PIECE + 5, 2]

# Rows that start and end where units, steps and chunks of ids do, rows of no edges, long ones among short ones.
FEW_EDGES = {
    "empty": [0] * 5,
    "one": [1],
    "none to three": [i % 4 for i in range(16)] + [3] * 16 + [0] * 9 + [1],
    "around 32 and 64": [31, 32, 33, 1, 63, 64, 65, 0, 16, 15, 17, 8, 7, 9, 24, 4],
    "long among short": [2, 5, 0, PIECE + 3, 7, 1, 40, 300, 6, PIECE - 1, 3, 2 * PIECE, 0, 0, 12, 5, 7],
    "skewed": [0, 0, 7, 0, 100, 2, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 50, 0],
}


def graph_of(degrees, num_src=37, idtype=torch.int64, identity=False):
    """Destinations of these degrees. identity: edges lie in CSC order, without edge ids."""
    degrees = torch.tensor(degrees)
    dst = torch.repeat_interleave(torch.arange(len(degrees)), degrees)
    src = torch.arange(len(dst)) * 7919 % num_src
    if not identity:
        order = torch.randperm(len(dst), generator=torch.Generator().manual_seed(3))
        src, dst = src[order], dst[order]
    g = Graph.from_edges(src.to(idtype), dst.to(idtype), num_src=num_src, num_dst=len(degrees), sort=identity)
    return g[0] if identity else g
