"""Graphs by name: seeded synthetic graphs, whose labels say so, and data sets, whose labels are their plain names.

Synthetic graphs are of three kinds:

* Without communities, the source and the destination of an edge are drawn independently, each from a power law over the
  nodes. The weight of a node is rank ** -exponent, and ranks are random.
* With communities (degree-corrected, as in Karrer and Newman, 2011), the second end is also drawn by its weight: with
  probability `mix` from the community of the first end, otherwise from all nodes.
* R-MAT (Chakrabarti, Zhan and Faloutsos, 2004): see Rmat.

Symmetric graphs have every edge in both directions. Edges may repeat. Node ids are random, so nodes with neighbouring
ids have nothing in common. Real data sets are often better for caches.

Order of edge data: ``insertion`` is the order in which edges were drawn, like that of an edge list from a file. Edge
data is then scattered over the rows of the adjacency. ``sorted`` is the order of the in-adjacency (CSC).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor
from torch.nn.functional import pad

from halfgnn import Graph

from .optional import import_dgl

CHUNK = 1 << 20  # edges that are drawn at a time, to bound memory; the edges of R-MAT depend on it
ORDERS = ("insertion", "sorted")


@dataclass(frozen=True)
class Recipe:
    """Sizes are those of the named data set if there is one. Skews are exponents."""

    num_nodes: int
    num_edges: int  # without those of the hub
    src_skew: float
    dst_skew: float  # not used for symmetric graphs, whose two ends have the same distribution
    communities: int = 1
    mix: float = 0.0
    symmetric: bool = False
    hub_edges: int = 0  # into one node, from nodes that are drawn like sources


@dataclass(frozen=True)
class Rmat:
    """Each edge descends a square of 2^k by 2^k nodes, quadrant by quadrant. k is the smallest that has room for the
    nodes.

    Edges that end beyond num_nodes are drawn again, so that any number of nodes has the distribution of R-MAT, cut off.
    Repeated edges and self-loops stay, as in Graph500's lists; they cost a kernel as much as other edges. Node ids are
    random. Symmetric graphs have every edge in both directions.
    """

    num_nodes: int
    num_edges: int
    symmetric: bool = False
    quadrants: tuple[float, float, float, float] = (0.57, 0.19, 0.19, 0.05)  # Graph500's; rows are sources

    @property
    def levels(self) -> int:
        return max(1, (self.num_nodes - 1).bit_length())


# The skews of the large graphs give about the largest degree of the data sets that they are named after.
RECIPES = {
    "arxiv": Recipe(169_343, 1_166_243, 0.4, 0.7),
    "powerlaw-20k": Recipe(20_000, 4_000_000, 0.6, 0.6),
    "batch-size": Recipe(20_000, 400_000, 0.4, 0.4),
    "tiny": Recipe(200, 1_500, 0.5, 0.5),
    "tiny-communities": Recipe(200, 1_500, 0.5, 0.5, communities=4, mix=0.7, symmetric=True),
    "tiny-hub": Recipe(200, 1_500, 0.4, 0.7, communities=4, mix=0.7, hub_edges=3_000),
    "cora-size": Recipe(2_708, 10_556, 0.6, 0.6, communities=7, mix=0.8, symmetric=True),
    "reddit-size": Recipe(232_965, 114_615_892, 0.34, 0.34, communities=41, mix=0.7, symmetric=True),
    "products-size": Recipe(2_449_029, 123_718_280, 0.44, 0.44, communities=47, mix=0.8, symmetric=True),
    "reddit-tenth": Recipe(23_297, 11_461_590, 0.34, 0.34, communities=41, mix=0.7, symmetric=True),
    "proteins-size": Recipe(132_534, 79_122_504, 0.24, 0.24, communities=8, mix=0.9, symmetric=True),
    "arxiv-size": Recipe(169_343, 1_166_243, 0.39, 0.74, communities=40, mix=0.6),
    "arxiv-size-sym": Recipe(169_343, 2_332_486, 0.66, 0.66, communities=40, mix=0.6, symmetric=True),
    "arxiv-size-hub": Recipe(169_343, 1_166_243, 0.39, 0.74, communities=40, mix=0.6, hub_edges=1_000_000),
    "arxiv-random": Recipe(169_343, 1_166_243, 0.0, 0.0),
    "communities-400k": Recipe(400_000, 6_000_000, 0.4, 0.4, communities=400, mix=0.8, symmetric=True),
    "tiny-rmat": Rmat(200, 1_500),
    "cora-rmat": Rmat(2_708, 10_556, symmetric=True),
    "arxiv-rmat": Rmat(169_343, 1_166_243),
    "proteins-rmat": Rmat(132_534, 79_122_504, symmetric=True),
    "reddit-rmat": Rmat(232_965, 114_615_892, symmetric=True),
    "products-rmat": Rmat(2_449_029, 123_718_280, symmetric=True),
}
REAL = ("cora", "citeseer", "pubmed", "reddit", "ogbn-arxiv", "ogbn-proteins", "ogbn-products")
NAMES = (*RECIPES, *REAL)
MINIATURE = Recipe(300, 4_000, 0.6, 0.6)


def _draw(num_nodes: int, num_edges: int, skew: float, generator: torch.Generator) -> Tensor:
    """Node ids (num_edges,) int64 from a power law over num_nodes nodes of random rank."""
    weight = torch.arange(1, num_nodes + 1, dtype=torch.float64) ** -skew
    ranks = torch.multinomial(weight, num_edges, replacement=True, generator=generator)
    return torch.randperm(num_nodes, generator=generator)[ranks]


def _in_chunks(function: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
    """function(*inputs) in chunks of CHUNK elements. `function` treats each element alone."""
    return torch.cat([function(*part) for part in zip(*(x.split(CHUNK) for x in inputs))])


class _Nodes:
    """Nodes in the order of their communities. They are drawn by weight, from all nodes or from one community."""

    def __init__(self, recipe: Recipe, skew: float, generator: torch.Generator):
        self.generator, self.count = generator, recipe.num_nodes
        device = generator.device
        rank = torch.randperm(self.count, generator=generator, device=device) + 1
        weight = rank.double() ** -skew
        self.below = pad(weight.cumsum(0), (1, 0))  # for each node the weight of all nodes before it
        self.bounds = torch.arange(recipe.communities + 1, device=device) * self.count // recipe.communities
        self.below_bounds = self.below[self.bounds]

    def uniform(self, count: int) -> Tensor:
        return torch.rand(count, dtype=torch.float64, generator=self.generator, device=self.generator.device)

    def _at(self, weight: Tensor) -> Tensor:
        return (torch.searchsorted(self.below, weight, right=True) - 1).clamp_(0, self.count - 1).int()

    def draw(self, count: int) -> Tensor:
        return _in_chunks(self._at, self.uniform(count).mul_(self.below[-1]))

    def draw_near(self, others: Tensor, mix: float) -> Tensor:
        """One node for each node of `others`, with probability `mix` from the same community."""

        def choose(others: Tensor, near: Tensor, uniform: Tensor) -> Tensor:
            community = torch.searchsorted(self.bounds, others.long(), right=True) - 1
            low = torch.where(near, self.below_bounds[community], 0.0)
            high = torch.where(near, self.below_bounds[community + 1], self.below[-1])
            return self._at(low + uniform * (high - low))

        return _in_chunks(choose, others, self.uniform(others.numel()) < mix, self.uniform(others.numel()))


def _names(num_nodes: int, generator: torch.Generator) -> Tensor:
    """Random names of nodes (num_nodes,), int32."""
    return torch.randperm(num_nodes, generator=generator, device=generator.device).int()


def _draw_communities(recipe: Recipe, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """(src, dst, the community of every node), on the generator's device."""
    sources = _Nodes(recipe, recipe.src_skew, generator)
    targets = sources if recipe.symmetric else _Nodes(recipe, recipe.dst_skew, generator)
    src = sources.draw(recipe.num_edges // 2 if recipe.symmetric else recipe.num_edges)
    dst = targets.draw_near(src, recipe.mix)
    if recipe.symmetric:
        src, dst = torch.cat([src, dst]), torch.cat([dst, src])
    if recipe.hub_edges:
        src = torch.cat([src, sources.draw(recipe.hub_edges)])
        dst = torch.cat([dst, dst.new_full((recipe.hub_edges,), recipe.num_nodes // 2)])
    names = _names(recipe.num_nodes, generator)
    places = torch.arange(recipe.num_nodes, device=generator.device)
    communities = torch.empty_like(places)
    communities[names] = torch.searchsorted(sources.bounds, places, right=True) - 1
    return names[src], names[dst], communities


def _paths(quadrants: Sequence[float], levels: int, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """For every path down `levels` levels (4 ** levels,): cumulative probability, and the bits of its source and
    destination."""
    probability, src, dst = torch.ones(1, dtype=torch.float64), torch.zeros(1).int(), torch.zeros(1).int()
    for _ in range(levels):
        probability = torch.outer(probability, torch.tensor(quadrants, dtype=torch.float64)).flatten()
        src = (2 * src[:, None] + torch.tensor([0, 0, 1, 1])).int().flatten()
        dst = (2 * dst[:, None] + torch.tensor([0, 1, 0, 1])).int().flatten()
    return probability.cumsum(0).to(device), src.to(device), dst.to(device)


def _rmat_chunk(recipe: Rmat, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Ends of `count` edges without those beyond the nodes, drawn up to six levels at a time."""
    src = dst = torch.zeros(count, dtype=torch.int32, device=generator.device)
    for begin in range(0, recipe.levels, 6):
        levels = min(6, recipe.levels - begin)
        below, src_bits, dst_bits = _paths(recipe.quadrants, levels, generator.device)
        drawn = torch.rand(count, dtype=torch.float64, generator=generator, device=generator.device) * below[-1]
        path = torch.searchsorted(below, drawn, right=True).clamp_(max=below.numel() - 1)
        src, dst = (src << levels) + src_bits[path], (dst << levels) + dst_bits[path]
    inside = (src < recipe.num_nodes) & (dst < recipe.num_nodes)
    return src[inside], dst[inside]


def _draw_rmat(recipe: Rmat, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """(src, dst), int32, on the generator's device."""
    left = recipe.num_edges // 2 if recipe.symmetric else recipe.num_edges
    chunks = []
    while left > 0:
        chunks.append(tuple(ends[:left] for ends in _rmat_chunk(recipe, min(CHUNK, 2 * left), generator)))
        left -= chunks[-1][0].numel()
    src, dst = (torch.cat(ends) for ends in zip(*chunks))
    if recipe.symmetric:
        src, dst = torch.cat([src, dst]), torch.cat([dst, src])
    names = _names(recipe.num_nodes, generator)
    return names[src], names[dst]


class BenchGraph:
    """An edge list with its halfgnn and DGL graphs, which are made on first use."""

    communities: Tensor | None = None  # (N,) int64, the community of every node, if there are communities

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
        graph.csr()  # so that no backend is timed with the conversion
        return graph

    @cached_property
    def edge_index(self) -> Tensor:
        """(2, E) int64, the format of PyG."""
        return torch.stack([self.src.long(), self.dst.long()])

    @cached_property
    def dgl(self):
        graph = import_dgl().graph((self.src, self.dst), num_nodes=self.num_nodes)
        graph.create_formats_()
        return graph

    @cached_property
    def dgl_other_ids(self):
        """The DGL graph with int64 ids if these are int32, and the other way round."""
        graph = self.dgl.long() if self.src.dtype == torch.int32 else self.dgl.int()
        graph.create_formats_()
        return graph


def _ordered(
    label: str, order: str, src: Tensor, dst: Tensor, num_nodes: int, idtype: torch.dtype, device: str
) -> BenchGraph:
    if order not in ORDERS:
        raise ValueError(f"order is {order!r}; expected one of {ORDERS}")
    src, dst = src.to(device), dst.to(device)
    if order == "sorted":
        by_row = torch.argsort(dst, stable=True)
        src, dst = src[by_row], dst[by_row]
    return BenchGraph(label, order, src.to(idtype), dst.to(idtype), num_nodes)


def make(
    recipe: Recipe | Rmat, label: str, order: str, idtype: torch.dtype, seed: int = 0, device: str = "cpu"
) -> BenchGraph:
    """The graph of `recipe`. Both orders have the same edges. Another device draws other edges."""
    is_plain = isinstance(recipe, Recipe) and recipe.communities == 1
    generator = torch.Generator("cpu" if is_plain else device).manual_seed(seed)
    communities = None
    if isinstance(recipe, Rmat):
        src, dst = _draw_rmat(recipe, generator)
    elif is_plain:
        src = _draw(recipe.num_nodes, recipe.num_edges, recipe.src_skew, generator)
        dst = _draw(recipe.num_nodes, recipe.num_edges, recipe.dst_skew, generator)
    else:
        src, dst, communities = _draw_communities(recipe, generator)
    made = _ordered(label, order, src, dst, recipe.num_nodes, idtype, device)
    made.communities = communities
    return made


class NoData(RuntimeError):
    """A data set is not available on this machine; the message says why."""


def _real(name: str, order: str, idtype: torch.dtype, device: str) -> BenchGraph:
    """The data set with the edges of its package, without self-loops."""
    from examples import datasets

    try:
        src, dst, num_nodes = datasets.edges(name)
    except (datasets.DataError, ImportError) as error:
        raise NoData(str(error)) from error
    return _ordered(name, order, src, dst, num_nodes, idtype, device)


def named(name: str, order: str, idtype: torch.dtype, device: str = "cpu") -> BenchGraph:
    """The graph called `name` in NAMES. Raises NoData if the data set is not here and its package cannot download it."""
    if name not in NAMES:
        raise ValueError(f"graph is {name!r}; expected one of {', '.join(NAMES)}")
    if name in REAL:
        return _real(name, order, idtype, device)
    return make(RECIPES[name], f"{name} (synthetic)", order, idtype, device=device)
