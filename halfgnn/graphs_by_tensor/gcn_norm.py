"""The symmetric normalisation of GCNConv and LGConv."""

from __future__ import annotations

import contextlib

import torch
from torch import Tensor

from .. import ops
from ..common.compat import is_exporting
from ..common.precision import HALF, without_autocast
from ..graph import Graph
from .loops import ORIGIN, with_self_loops


def normalized(
    g: Graph, weight: Tensor | None, dtype: torch.dtype, fill_value: float | None = None
) -> tuple[Graph, Tensor]:
    """The graph, with a self-loop at every node if there is a fill_value, and its weights (E, 1) divided by the roots of degrees.

    As gcn_norm of torch_geometric: degrees are sums of the weights of in-edges. A self-loop that is there already keeps its weight.

    Args:
        weight: (E, 1) or None for ones, also of self-loops.
        dtype: that of features, in which weights are made; fp32 for half precision.
        fill_value: weight of a new self-loop beside weights that are given.
    """
    dtype = torch.float32 if dtype in HALF else dtype
    if weight is not None:
        weight = weight.to(dtype)
        if fill_value is not None:
            looped = with_self_loops(g, g.num_dst)
            g, weight = looped.graph, looped.remaining(weight, fill_value)
        return g, _divided(g, weight)
    g = g if fill_value is None else with_self_loops(g, g.num_dst).graph
    origin = g.cached(ORIGIN, None)
    return g, cached_weights(g, dtype) if origin is None else origin.gcn_weights(dtype)


def cached_weights(g: Graph, dtype: torch.dtype) -> Tensor:
    """The weights (E, 1) of a graph without weights, which are made once."""
    return g.cached("_gcn_weights", lambda g: weights_of_ones(g, dtype), dtype)


def weights_of_ones(g: Graph, dtype: torch.dtype) -> Tensor:
    # Compiling ahead of time fails on a program that switches gradients off inside.
    with contextlib.nullcontext() if is_exporting() else torch.no_grad():
        return _divided(g, torch.ones(g.num_edges, 1, dtype=dtype, device=g.device))


def _divided(g: Graph, weight: Tensor) -> Tensor:
    with without_autocast(g.device):
        degree = ops.copy_e_sum(g, weight)
        root = degree.pow(-0.5)
        root = root.masked_fill(root == float("inf"), 0)
        origin = g.cached(ORIGIN, None)
        src, dst = g.edges() if origin is None else origin.ends()
        return root[src] * weight * root[dst]
