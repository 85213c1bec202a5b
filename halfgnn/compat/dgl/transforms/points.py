"""Graphs of points: nearest neighbours, and all neighbours within a radius."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ....common.arguments import check_number, checked_integer
from ..base import DGLError, dgl_warning
from ..convert import graph
from ..heterograph import DGLGraph

__all__ = ["knn_graph", "radius_graph", "segmented_knn_graph"]

_ALGORITHMS = ("bruteforce-blas", "bruteforce", "bruteforce-sharemem", "kd-tree", "nn-descent")


def knn_graph(
    x: Tensor, k: int, algorithm: str = "bruteforce-blas", dist: str = "euclidean", exclude_self: bool = False
) -> DGLGraph:
    """A graph with edges from the k nearest points to each point, nearest first.

    Args:
        x: points (N, D), or (B, N, D) for B batched graphs.
        algorithm: all names of them give the exact neighbours, by products of matrices.
        dist: "euclidean" or "cosine".
        exclude_self: a point is not its own neighbour.
    """
    if x.dim() not in (2, 3) or x.shape[0] == 0:
        raise DGLError(f"x has shape {tuple(x.shape)}; expected points (N, D) or (B, N, D), at least one")
    if x.dim() == 2:
        return _knn([x], k, algorithm, dist, exclude_self, is_batch=False)
    return _knn(list(x), k, algorithm, dist, exclude_self)


def segmented_knn_graph(
    x: Tensor,
    k: int,
    segs: Sequence[int],
    algorithm: str = "bruteforce-blas",
    dist: str = "euclidean",
    exclude_self: bool = False,
) -> DGLGraph:
    """Like :func:`knn_graph`, of batched graphs of different sizes. segs: number of points of each, adding up to the rows of x."""
    sizes = segs.tolist() if isinstance(segs, Tensor) else [int(size) for size in segs]
    if x.dim() != 2 or x.shape[0] == 0 or sum(sizes) != x.shape[0] or min(sizes) <= 0:
        raise DGLError(
            f"x has shape {tuple(x.shape)} and segs is {sizes}; expected points (N, D) and positive sizes that add up to N"
        )
    return _knn(list(x.split(sizes)), k, algorithm, dist, exclude_self)


def _knn(sets: list[Tensor], k: int, algorithm: str, dist: str, exclude_self: bool, is_batch: bool = True) -> DGLGraph:
    most = min(len(points) for points in sets) - exclude_self
    if checked_integer(k, "k", "a positive number of neighbours") <= 0:
        raise DGLError(f"k is {k}; expected a positive number of neighbours")
    if algorithm not in _ALGORITHMS:
        raise DGLError(f"algorithm is {algorithm!r}; expected one of {_ALGORITHMS}")
    if dist.lower() not in ("euclidean", "cosine"):
        raise DGLError(f"dist is {dist!r}; expected 'euclidean' or 'cosine'")
    if k > most:
        dgl_warning(
            f"k is {k}; expected at most {most}, the neighbours in the smallest set of points, which is taken",
            stacklevel=3,
        )
        k = most
    device, start, src = sets[0].device, 0, []
    for points in sets:
        src.append(_nearest(points.detach(), k, dist.lower(), exclude_self).reshape(-1) + start)
        start += len(points)
    dst = torch.arange(start, device=device).repeat_interleave(k)
    made = graph((torch.cat(src), dst), num_nodes=start)
    if is_batch:
        counts = torch.tensor([len(points) for points in sets], device=device)
        made.set_batch_num_nodes(counts)
        made.set_batch_num_edges(counts * k)
    return made


def _nearest(points: Tensor, k: int, dist: str, exclude_self: bool) -> Tensor:
    """Places (N, k) of the nearest points, nearest first."""
    points = points if points.dtype == torch.float64 else points.float()
    if dist == "cosine":
        points = points / (points.norm(dim=1, keepdim=True) + 1e-5)
    squares = (points * points).sum(1)
    distances = squares[:, None] + squares[None, :] - 2 * points @ points.T
    if exclude_self:
        distances.fill_diagonal_(torch.inf)
    return distances.topk(k, dim=1, largest=False).indices


def radius_graph(
    x: Tensor,
    r: float,
    p: float = 2,
    self_loop: bool = False,
    compute_mode: str = "donot_use_mm_for_euclid_dist",
    get_distances: bool = False,
) -> Any:
    """A graph with edges between all points (N, D) at most r apart, in both directions.

    Args:
        p: of the p-norm; infinity is allowed.
        compute_mode: see torch.cdist.
        get_distances: return (graph, distances (E, 1)), through which gradients flow.
    """
    if check_number(r, "r") <= 0:
        raise DGLError(f"r is {r}; expected a positive radius")
    if x.dim() != 2 or x.shape[0] == 0:
        raise DGLError(f"x has shape {tuple(x.shape)}; expected points (N, D), at least one")
    points = x if x.dtype == torch.float64 else x.float()
    distances = torch.cdist(points, points, p=p, compute_mode=compute_mode)
    near = distances.detach() <= r
    if not self_loop:
        near.fill_diagonal_(False)
    src, dst = near.nonzero(as_tuple=True)
    made = graph((src, dst), num_nodes=x.shape[0])
    return (made, distances[src, dst].unsqueeze(1).to(x.dtype)) if get_distances else made
