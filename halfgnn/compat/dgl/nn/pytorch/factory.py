"""Modules that make graphs of points."""

from __future__ import annotations

import importlib
from typing import Any

from torch import Tensor, nn

from halfgnn.common.arguments import check_number, checked_size


def pairwise_squared_distance(x: Tensor) -> Tensor:
    """x (*, N, D): the squared distances (*, N, N)."""
    squares = x.square().sum(-1, keepdim=True)
    return squares + squares.transpose(-1, -2) - 2 * x @ x.transpose(-1, -2)


class KNNGraph(nn.Module):
    """The graph with edges from the k nearest points to each point: dgl.knn_graph as a module."""

    def __init__(self, k):
        super().__init__()
        self.k = checked_size(k, "k", least=1)

    def forward(self, x: Tensor, algorithm="bruteforce-blas", dist="euclidean", exclude_self=False) -> Any:
        """x (N, D), or (B, N, D) for a batch of point sets."""
        return _of_dgl("knn_graph")(x, self.k, algorithm=algorithm, dist=dist, exclude_self=exclude_self)


class SegmentedKNNGraph(nn.Module):
    """KNNGraph of point sets of different sizes: dgl.segmented_knn_graph as a module."""

    def __init__(self, k):
        super().__init__()
        self.k = checked_size(k, "k", least=1)

    def forward(self, x: Tensor, segs: Any, algorithm="bruteforce-blas", dist="euclidean", exclude_self=False) -> Any:
        """x (N, D), segs: the number of points of each set."""
        options = {"algorithm": algorithm, "dist": dist, "exclude_self": exclude_self}
        return _of_dgl("segmented_knn_graph")(x, self.k, segs, **options)


class RadiusGraph(nn.Module):
    """The graph with edges between points no further apart than r: dgl.radius_graph as a module."""

    def __init__(self, r, p=2, self_loop=False, compute_mode="donot_use_mm_for_euclid_dist"):
        super().__init__()
        self.r, self.p, self.self_loop, self.compute_mode = check_number(r, "r"), p, self_loop, compute_mode

    def forward(self, x: Tensor, get_distances: bool = False) -> Any:
        """x (N, D). With get_distances the pair of the graph and the distances (E, 1)."""
        return _of_dgl("radius_graph")(x, self.r, self.p, self.self_loop, self.compute_mode, get_distances)


def _of_dgl(name: str) -> Any:
    """A function of the package itself, which imports this module."""
    return getattr(importlib.import_module("halfgnn.compat.dgl"), name)
