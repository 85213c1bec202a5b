"""Random numbers of the interface: from PyTorch's generator, or from one of their own after ``dgl.seed``."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import get_worker_info

from ...common.arguments import checked_size
from .base import DGLError, check_idtype, check_weights
from .convert import graph, heterograph
from .heterograph import DGLGraph

__all__ = ["choice", "rand_bipartite", "rand_graph", "seed"]

_own: torch.Generator | None = None


def seed(val: int) -> None:
    """Seed what this package draws. Until then it draws from PyTorch's generator, which ``torch.manual_seed`` seeds."""
    global _own
    _own = torch.Generator().manual_seed(int(val))


def generator() -> torch.Generator | None:
    """The generator on the CPU that is to be drawn from; None for PyTorch's, which each worker of a DataLoader has its own of."""
    return _own if get_worker_info() is None else None


def choice(a: Any, size: int | tuple[int, ...], replace: bool = True, prob: Tensor | None = None) -> Tensor:
    """Random elements of a tensor, or random integers in [0, a).

    Args:
        a: a tensor (n, *), or n.
        size: how many, or the shape of the result.
        replace: whether an element may be chosen again.
        prob: (n,) weights of the elements; by default all are as likely.

    Raises:
        DGLError: more elements than there are, or than have a weight, without replacement.
    """
    population = a.shape[0] if isinstance(a, Tensor) else checked_size(a, "a")
    count = math.prod(checked_size(n, "size") for n in (size if isinstance(size, tuple) else (size,)))
    if (not replace and count > population) or (count and not population):
        raise DGLError(f"size is {size}; expected at most {population}, the number of elements, without replacement")
    chosen = _uniform(population, count, replace) if prob is None else _weighted(prob, population, count, replace)
    if isinstance(a, Tensor):
        chosen = a[chosen.to(a.device)]
    return chosen.reshape(size) if isinstance(size, tuple) else chosen


def _uniform(population: int, count: int, replace: bool) -> Tensor:
    if replace:
        return torch.randint(population, (count,), generator=generator())
    if 4 * count >= population:
        return torch.randperm(population, generator=generator())[:count]
    chosen = torch.empty(0, dtype=torch.int64)
    while chosen.numel() < count:  # the part that repeats is at most a quarter
        chosen = torch.cat([chosen, torch.randint(population, (2 * count,), generator=generator())]).unique()
    return chosen[torch.randperm(chosen.numel(), generator=generator())[:count]]


def _weighted(prob: Tensor, population: int, count: int, replace: bool) -> Tensor:
    weights = prob.detach().double().cpu()
    check_weights(weights, population, "prob")
    if replace:
        bounds = weights.cumsum(0)
        if count and not bounds[-1] > 0:
            raise DGLError(f"prob, of shape {tuple(prob.shape)}, holds zeros only; expected a weight above 0")
        draws = torch.rand(count, dtype=torch.float64, generator=generator()) * bounds[-1]
        return torch.searchsorted(bounds, draws, right=True).clamp(max=population - 1)
    if int((weights > 0).sum()) < count:
        raise DGLError(
            f"prob has {int((weights > 0).sum())} weights above 0; expected at least {count} without replacement"
        )
    # The first arrivals of independent exponential clocks are a weighted choice without replacement.
    arrivals = torch.empty_like(weights).exponential_(generator=generator()) / weights
    return arrivals.nan_to_num(torch.inf).topk(count, largest=False).indices


def rand_graph(num_nodes: int, num_edges: int, idtype: Any = torch.int64, device: Any = "cpu") -> DGLGraph:
    """A graph of random edges, all different, among which self-loops may be."""
    num_nodes = checked_size(num_nodes, "num_nodes")
    edges = choice(num_nodes * num_nodes, checked_size(num_edges, "num_edges"), replace=False)
    ends = edges // num_nodes, edges % num_nodes
    return graph(ends, num_nodes=num_nodes, idtype=check_idtype(idtype), device=device)


def rand_bipartite(
    utype: str,
    etype: str,
    vtype: str,
    num_src_nodes: int,
    num_dst_nodes: int,
    num_edges: int,
    idtype: Any = torch.int64,
    device: Any = "cpu",
) -> DGLGraph:
    """A bipartite graph of random edges, all different."""
    num_src_nodes = checked_size(num_src_nodes, "num_src_nodes")
    num_dst_nodes = checked_size(num_dst_nodes, "num_dst_nodes")
    edges = choice(num_src_nodes * num_dst_nodes, checked_size(num_edges, "num_edges"), replace=False)
    ends = edges // num_dst_nodes, edges % num_dst_nodes
    counts = {utype: num_src_nodes, vtype: num_dst_nodes}
    return heterograph({(utype, etype, vtype): ends}, counts, check_idtype(idtype), device)
