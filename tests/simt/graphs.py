"""Graphs whose rows have given degrees."""

import torch

from halfgnn import Graph

PIECE = 512  # edges from which a row is cut (csrc/cuda/kernels/core/rows.cuh)
CUT = [PIECE - 1, PIECE, PIECE + 1, 0, 2 * PIECE, 2 * PIECE + 1, 1, 3000, 0, 17 * PIECE + 5, 2]


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
