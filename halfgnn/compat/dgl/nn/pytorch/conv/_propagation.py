"""Normalised adjacency matrices, which SGConv, TAGConv, APPNPConv, GCN2Conv and ChebConv multiply by features step after step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from halfgnn.common.operands import check_operand
from halfgnn.compat.dgl.base import DGLError
from halfgnn.graph import Graph
from halfgnn.nn import EdgeWeightNorm
from halfgnn.nn.checks import check_edge_numbers
from halfgnn.nn.features import checked_graph, unrounded
from halfgnn.nn.sums import aggregate, scaled


def checked_homograph(graph: Any, feat: Any, allow_zero_in_degree: bool = True, name: str = "feat") -> Graph:
    """The Graph of `graph`, which has one set of nodes, with features `feat`. Raises DGLError for nodes without in-edges."""
    g = checked_graph(graph, allow_zero_in_degree, DGLError)
    if g.num_src != g.num_dst:
        raise ValueError(f"graph has {g.num_src} source and {g.num_dst} destination nodes; expected one set of nodes")
    check_operand(feat, name, g, "u")
    return g


class Propagation:
    """x -> D^-1/2 A D^-1/2 x; with edge weights, which are normalised alike, x -> A_w x.

    D has the in-degrees, those of zero being one. Sums of half-precision values are scaled in fp32 before they are rounded.

    Args:
        edge_weight: (E,) or None.
        by_out_degrees: scale sources by out-degrees.
    """

    def __init__(self, g: Graph, edge_weight: Tensor | None, by_out_degrees: bool = False):
        self.g = g
        self.weight = None
        if edge_weight is not None:
            check_edge_numbers(g, edge_weight)
            self.weight = EdgeWeightNorm("both")(g, edge_weight)
        else:
            self.in_degrees = g.in_degrees()
            self.src_degrees = g.out_degrees() if by_out_degrees else self.in_degrees

    def __call__(self, x: Tensor, drop: Callable[[Tensor], Tensor] | None = None) -> Tensor:
        """One step for x (N, *). drop: dropout of the edges, or None."""
        if self.weight is not None:
            return aggregate(self.g, "sum", x, self.weight if drop is None else drop(self.weight))
        kept = None if drop is None else drop(x.new_ones(self.g.num_edges, 1))
        x = scaled(x, self.src_degrees, -0.5)
        return scaled(aggregate(self.g, "sum", x, kept, unrounded(x)), self.in_degrees, -0.5).to(x.dtype)
