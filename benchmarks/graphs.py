"""Seeded synthetic graphs. None of them is a real data set; their labels say so.

An edge draws its source and its destination independently, each from a power law over the nodes:
node weights are rank ** -exponent, ranks dealt at random. Edges may repeat. Order: ``insertion`` is
the order in which edges were drawn, as an edge list from a file has it, so that edge data is
scattered over the rows of the adjacency; ``sorted`` is the order of the in-adjacency (CSC).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from halfgnn import Graph

ORDERS = ("insertion", "sorted")


@dataclass(frozen=True)
class Recipe:
    """Sizes are those of the named data set where there is one; skews are exponents."""

    num_nodes: int
    num_edges: int
    src_skew: float
    dst_skew: float


RECIPES = {
    "arxiv": Recipe(169_343, 1_166_243, 0.4, 0.7),
    "powerlaw-20k": Recipe(20_000, 4_000_000, 0.6, 0.6),
    "cora": Recipe(2_708, 10_556, 0.4, 0.4),
    "tiny": Recipe(200, 1_500, 0.5, 0.5),
}
MINIATURE = Recipe(300, 4_000, 0.6, 0.6)


def _draw(num_nodes: int, num_edges: int, skew: float, generator: torch.Generator) -> Tensor:
    """Node ids (num_edges,) int64 from a power law over num_nodes nodes of random rank."""
    weight = torch.arange(1, num_nodes + 1, dtype=torch.float64) ** -skew
    ranks = torch.multinomial(weight, num_edges, replacement=True, generator=generator)
    return torch.randperm(num_nodes, generator=generator)[ranks]


class BenchGraph:
    """An edge list with its halfgnn and DGL graphs, made when first asked for."""

    def __init__(self, label: str, order: str, src: Tensor, dst: Tensor, num_nodes: int):
        self.label, self.order = label, order
        self.src, self.dst, self.num_nodes = src, dst, num_nodes

    @property
    def num_edges(self) -> int:
        return self.src.numel()

    @cached_property
    def halfgnn(self) -> Graph:
        made = Graph.from_edges(
            self.src,
            self.dst,
            num_src=self.num_nodes,
            num_dst=self.num_nodes,
            sort=self.order == "sorted",
        )
        graph = made[0] if isinstance(made, tuple) else made
        graph.csr()  # conversions are nobody's to pay for while the clock runs
        return graph

    @cached_property
    def dgl(self):
        from .baselines import import_dgl

        graph = import_dgl().graph((self.src, self.dst), num_nodes=self.num_nodes)
        graph.create_formats_()
        return graph


def make(recipe: Recipe, label: str, order: str, idtype: torch.dtype, seed: int = 0) -> BenchGraph:
    """The graph of `recipe`; the same edges for either order."""
    generator = torch.Generator().manual_seed(seed)
    src = _draw(recipe.num_nodes, recipe.num_edges, recipe.src_skew, generator)
    dst = _draw(recipe.num_nodes, recipe.num_edges, recipe.dst_skew, generator)
    if order == "sorted":
        by_row = torch.argsort(dst, stable=True)
        src, dst = src[by_row], dst[by_row]
    elif order != "insertion":
        raise ValueError(f"order is {order!r}; expected one of {ORDERS}")
    return BenchGraph(label, order, src.to(idtype), dst.to(idtype), recipe.num_nodes)


def synthetic(name: str, order: str, idtype: torch.dtype, seed: int = 0) -> BenchGraph:
    """The graph called `name` in RECIPES, labelled synthetic."""
    if name not in RECIPES:
        raise ValueError(f"graph is {name!r}; expected one of {', '.join(RECIPES)}")
    return make(RECIPES[name], f"{name} (synthetic)", order, idtype, seed)


def describe(graph: BenchGraph) -> str:
    """Sizes and quantiles of the degrees, in one line."""
    parts = [f"{graph.label}: {graph.num_nodes:,} nodes, {graph.num_edges:,} edges"]
    for what, ends in (("in", graph.dst), ("out", graph.src)):
        degree = torch.bincount(ends.long(), minlength=graph.num_nodes).sort().values
        last = graph.num_nodes - 1
        quantiles = [int(degree[int(q * last)]) for q in (0.0, 0.1, 0.5, 0.9, 0.99, 1.0)]
        parts.append(f"{what}-degrees 0/10/50/90/99/100 %: " + " ".join(map(str, quantiles)))
    return "; ".join(parts)
