"""Seeded synthetic graphs. None of them is a real data set; their labels say so.

Without communities an edge draws its source and its destination independently, each from a power law over the nodes: node
weights are rank ** -exponent, ranks dealt at random. With communities (degree-corrected, as in Karrer and Newman, 2011) the
second end is drawn, by its weight too, from the community of the first with probability `mix`, else from all nodes. Symmetric
graphs have every edge in both directions. Edges may repeat. Node ids are dealt at random, so that neighbours in the numbering
have nothing in common: real data sets are often kinder to caches.

Order: ``insertion`` is the order in which edges were drawn, as an edge list from a file has it, so that edge data is scattered
over the rows of the adjacency; ``sorted`` is the order of the in-adjacency (CSC).
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
    num_edges: int  # without those of the hub
    src_skew: float
    dst_skew: float  # not of symmetric graphs, whose ends are alike
    communities: int = 1
    mix: float = 0.0
    symmetric: bool = False
    hub_edges: int = 0  # into one node, from nodes drawn as sources are


# The skews of the large graphs give about the largest degree of their namesakes.
RECIPES = {
    "arxiv": Recipe(169_343, 1_166_243, 0.4, 0.7),
    "powerlaw-20k": Recipe(20_000, 4_000_000, 0.6, 0.6),
    "cora": Recipe(2_708, 10_556, 0.4, 0.4),
    "tiny": Recipe(200, 1_500, 0.5, 0.5),
    "tiny-communities": Recipe(200, 1_500, 0.5, 0.5, communities=4, mix=0.7, symmetric=True),
    "tiny-hub": Recipe(200, 1_500, 0.4, 0.7, communities=4, mix=0.7, hub_edges=3_000),
    "reddit-size": Recipe(232_965, 114_615_892, 0.34, 0.34, communities=41, mix=0.7, symmetric=True),
    "products-size": Recipe(2_449_029, 123_718_280, 0.44, 0.44, communities=47, mix=0.8, symmetric=True),
    "reddit-tenth": Recipe(23_297, 11_461_590, 0.34, 0.34, communities=41, mix=0.7, symmetric=True),
    "proteins-size": Recipe(132_534, 79_122_504, 0.24, 0.24, communities=8, mix=0.9, symmetric=True),
    "arxiv-size": Recipe(169_343, 1_166_243, 0.39, 0.74, communities=40, mix=0.6),
    "arxiv-size-sym": Recipe(169_343, 2_332_486, 0.66, 0.66, communities=40, mix=0.6, symmetric=True),
    "arxiv-size-hub": Recipe(169_343, 1_166_243, 0.39, 0.74, communities=40, mix=0.6, hub_edges=1_000_000),
}
MINIATURE = Recipe(300, 4_000, 0.6, 0.6)


def _draw(num_nodes: int, num_edges: int, skew: float, generator: torch.Generator) -> Tensor:
    """Node ids (num_edges,) int64 from a power law over num_nodes nodes of random rank."""
    weight = torch.arange(1, num_nodes + 1, dtype=torch.float64) ** -skew
    ranks = torch.multinomial(weight, num_edges, replacement=True, generator=generator)
    return torch.randperm(num_nodes, generator=generator)[ranks]


class _Nodes:
    """Nodes in the order of their communities, to be drawn by weight from all of them or from one community."""

    def __init__(self, recipe: Recipe, skew: float, generator: torch.Generator):
        self.generator, self.count = generator, recipe.num_nodes
        device = generator.device
        rank = torch.randperm(self.count, generator=generator, device=device) + 1
        weight = rank.double() ** -skew
        self.below = torch.nn.functional.pad(weight.cumsum(0), (1, 0))  # the weight of all nodes before each
        bounds = torch.arange(recipe.communities + 1, device=device) * self.count // recipe.communities
        self.bounds = bounds
        self.below_bounds = self.below[bounds]

    def uniform(self, count: int) -> Tensor:
        return torch.rand(count, dtype=torch.float64, generator=self.generator, device=self.generator.device)

    def _at(self, weight: Tensor) -> Tensor:
        return (torch.searchsorted(self.below, weight, right=True) - 1).clamp_(0, self.count - 1)

    def draw(self, count: int) -> Tensor:
        return self._at(self.uniform(count) * self.below[-1])

    def draw_near(self, others: Tensor, mix: float) -> Tensor:
        """One node for each of others, of the same community with probability mix."""
        near = self.uniform(others.numel()) < mix
        community = torch.searchsorted(self.bounds, others, right=True) - 1
        low = torch.where(near, self.below_bounds[community], 0.0)
        high = torch.where(near, self.below_bounds[community + 1], self.below[-1])
        return self._at(low + self.uniform(others.numel()) * (high - low))


def _draw_communities(recipe: Recipe, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """(src, dst, the community of every node), int64, on the generator's device."""
    sources = _Nodes(recipe, recipe.src_skew, generator)
    targets = sources if recipe.symmetric else _Nodes(recipe, recipe.dst_skew, generator)
    src = sources.draw(recipe.num_edges // 2 if recipe.symmetric else recipe.num_edges)
    dst = targets.draw_near(src, recipe.mix)
    if recipe.symmetric:
        src, dst = torch.cat([src, dst]), torch.cat([dst, src])
    if recipe.hub_edges:
        src = torch.cat([src, sources.draw(recipe.hub_edges)])
        dst = torch.cat([dst, dst.new_full((recipe.hub_edges,), recipe.num_nodes // 2)])
    names = torch.randperm(recipe.num_nodes, generator=generator, device=generator.device)
    places = torch.arange(recipe.num_nodes, device=generator.device)
    communities = torch.empty_like(places)
    communities[names] = torch.searchsorted(sources.bounds, places, right=True) - 1
    return names[src], names[dst], communities


class BenchGraph:
    """An edge list with its halfgnn and DGL graphs, made when first asked for."""

    communities: Tensor | None = None  # (N,) int64, of every node, where there are any

    def __init__(self, label: str, order: str, src: Tensor, dst: Tensor, num_nodes: int):
        self.label, self.order = label, order
        self.src, self.dst, self.num_nodes = src, dst, num_nodes

    @property
    def num_edges(self) -> int:
        return self.src.numel()

    @property
    def device(self) -> str:
        return self.src.device.type

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
    def edge_index(self) -> Tensor:
        """(2, E) int64, as PyG has it."""
        return torch.stack([self.src.long(), self.dst.long()])

    @cached_property
    def dgl(self):
        from .baselines import import_dgl

        graph = import_dgl().graph((self.src, self.dst), num_nodes=self.num_nodes)
        graph.create_formats_()
        return graph


def make(recipe: Recipe, label: str, order: str, idtype: torch.dtype, seed: int = 0, device: str = "cpu") -> BenchGraph:
    """The graph of `recipe`; the same edges for either order. Other edges on another device."""
    if order not in ORDERS:
        raise ValueError(f"order is {order!r}; expected one of {ORDERS}")
    has_communities = recipe.communities > 1
    generator = torch.Generator(device if has_communities else "cpu").manual_seed(seed)
    communities = None
    if has_communities:
        src, dst, communities = _draw_communities(recipe, generator)
    else:
        src = _draw(recipe.num_nodes, recipe.num_edges, recipe.src_skew, generator).to(device)
        dst = _draw(recipe.num_nodes, recipe.num_edges, recipe.dst_skew, generator).to(device)
    if order == "sorted":
        by_row = torch.argsort(dst, stable=True)
        src, dst = src[by_row], dst[by_row]
    made = BenchGraph(label, order, src.to(idtype), dst.to(idtype), recipe.num_nodes)
    made.communities = communities
    return made


def synthetic(name: str, order: str, idtype: torch.dtype, seed: int = 0, device: str = "cpu") -> BenchGraph:
    """The graph called `name` in RECIPES, labelled synthetic."""
    if name not in RECIPES:
        raise ValueError(f"graph is {name!r}; expected one of {', '.join(RECIPES)}")
    return make(RECIPES[name], f"{name} (synthetic)", order, idtype, seed, device)


def describe(graph: BenchGraph) -> str:
    """Sizes and quantiles of the degrees, in one line."""
    parts = [f"{graph.label}: {graph.num_nodes:,} nodes, {graph.num_edges:,} edges"]
    for what, ends in (("in", graph.dst), ("out", graph.src)):
        degree = torch.bincount(ends.long(), minlength=graph.num_nodes).sort().values
        last = graph.num_nodes - 1
        quantiles = [int(degree[int(q * last)]) for q in (0.0, 0.1, 0.5, 0.9, 0.99, 1.0)]
        parts.append(f"{what}-degrees 0/10/50/90/99/100 %: " + " ".join(map(str, quantiles)))
    return "; ".join(parts)
