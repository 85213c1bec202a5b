"""The data of the programs: one graph, or a batch of small graphs, with features of nodes and edges."""

from __future__ import annotations

import dataclasses
import functools
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from benchmarks import graphs

FEATURES, HEADS, EDGE_FEATURES = 64, 4, 16
RELATIONS = 4
GRAPH_NODES = 25  # per graph of a batch, about
NODE_TYPES = ("paper", "author")
EDGE_TYPES = (("paper", "cites", "paper"), ("author", "writes", "paper"), ("paper", "written_by", "author"))


@dataclass(frozen=True)
class Size:
    """is_new: every step gets an edge_index that was not seen before. graphs: of a batch of molecules; 0: one random graph."""

    name: str
    nodes: int
    edges: int
    is_new: bool = False
    graphs: int = 0


SIZES = {
    size.name: size
    for size in (
        Size("tiny", 30, 90),
        Size("medium", 3_000, 45_000),
        Size("large", 20_000, 400_000),
        Size("dense", 20_000, 4_000_000),
        Size("huge", 170_000, 2_400_000),  # for a GPU
        Size("new", 800, 1_760, is_new=True, graphs=32),
        Size("new_tiny", 30, 90, is_new=True),
    )
}


@dataclass
class ProgramData:
    """What programs read. N nodes, E edges.

    x (N, 64) and the features of x_dict need gradients, nothing else does. batch (N,) is the ascending graph of each node.
    pseudo (E, 2) is in [0, 1]. edges in edge_index_dict join N / 2 nodes of each type.
    """

    size: Size
    x: Tensor
    edge_index: Tensor
    edge_attr: Tensor
    edge_weight: Tensor
    edge_type: Tensor
    batch: Tensor
    num_graphs: int
    pos: Tensor
    normal: Tensor
    pseudo: Tensor
    x_dict: dict[str, Tensor]
    edge_index_dict: dict[tuple[str, str, str], Tensor]

    @property
    def num_nodes(self) -> int:
        return self.x.size(0)

    @property
    def num_edges(self) -> int:
        return self.edge_index.size(1)

    @property
    def leaves(self) -> list[Tensor]:
        return [self.x, *self.x_dict.values()]

    @functools.cached_property
    def matrix(self) -> Tensor:
        """The graph as a sparse matrix (N, N), CSR: rows are destinations."""
        shape = (self.num_nodes, self.num_nodes)
        return torch.sparse_coo_tensor(self.edge_index.flip(0), self.edge_weight, shape).to_sparse_csr()

    @functools.cached_property
    def sorted_index(self) -> Tensor:
        """edge_index as torch_geometric's EdgeIndex, sorted by destination."""
        from torch_geometric import EdgeIndex

        shape = (self.num_nodes, self.num_nodes)
        return EdgeIndex(self.edge_index, sparse_size=shape).sort_by("col").values

    def for_step(self) -> ProgramData:
        """The data of the next step: with new tensors of indices, if the size says so."""
        if not self.size.is_new:
            return self
        return dataclasses.replace(
            self,
            edge_index=self.edge_index.clone(),
            batch=self.batch.clone(),
            edge_index_dict={name: index.clone() for name, index in self.edge_index_dict.items()},
        )

    def double(self) -> ProgramData:
        """The same in float64, with leaves of its own."""
        return self._changed(lambda tensor: tensor.double() if tensor.is_floating_point() else tensor)

    def to(self, device: str) -> ProgramData:
        """The same on another device, with leaves of its own."""
        return self._changed(lambda tensor: tensor.to(device))

    def _changed(self, change: Callable[[Tensor], Tensor]) -> ProgramData:
        def of(value: Any) -> Any:
            if isinstance(value, dict):
                return {name: of(part) for name, part in value.items()}
            if not isinstance(value, Tensor):
                return value
            return change(value.detach()).requires_grad_(value.requires_grad)

        return ProgramData(**{field.name: of(getattr(self, field.name)) for field in dataclasses.fields(self)})

    def degrees(self) -> Tensor:
        """How many nodes have how many in-edges, as PNA asks for."""
        return torch.bincount(torch.bincount(self.edge_index[1], minlength=self.num_nodes))


def _random_graph(nodes: int, edges: int, seed: int) -> Tensor:
    """Power laws of both degrees, the in-degrees steeper."""
    recipe = graphs.Recipe(nodes, edges, 0.3, 0.6)
    made = graphs.make(recipe, "programs (synthetic)", "insertion", torch.int64, seed)
    return torch.stack([made.src, made.dst])


def _molecule(draw: random.Random, nodes: int) -> list[tuple[int, int]]:
    """A random tree, whose nodes have few neighbours, and three or four edges that close rings; both directions of each."""
    bonds = [(draw.randrange(max(0, i - 4), i), i) for i in range(1, nodes)]
    bonds += [tuple(sorted(draw.sample(range(nodes), 2))) for _ in range(draw.choice((3, 4)))]  # type: ignore[misc]
    return [pair for a, b in bonds for pair in ((a, b), (b, a))]


def _molecules(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """edge_index and batch."""
    draw, edges, sizes = random.Random(seed), [], []
    for _ in range(count):
        nodes, first = draw.randint(GRAPH_NODES - 5, GRAPH_NODES + 5), sum(sizes)
        edges += [(a + first, b + first) for a, b in _molecule(draw, nodes)]
        sizes.append(nodes)
    return torch.tensor(edges).t().contiguous(), torch.arange(count).repeat_interleave(torch.tensor(sizes))


def make(size: Size, seed: int = 0) -> ProgramData:
    if size.graphs:
        edge_index, batch = _molecules(size.graphs, seed)
    else:
        edge_index, batch = _random_graph(size.nodes, size.edges, seed), torch.arange(size.nodes) // GRAPH_NODES
    nodes, edges = batch.numel(), edge_index.size(1)
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator)

    def uniform(*shape: int) -> Tensor:
        return torch.rand(shape, generator=generator)

    return ProgramData(
        size=size,
        x=normal(nodes, FEATURES).requires_grad_(),
        edge_index=edge_index,
        edge_attr=normal(edges, EDGE_FEATURES),
        edge_weight=0.1 + 0.9 * uniform(edges),
        edge_type=torch.randint(RELATIONS, (edges,), generator=generator),
        batch=batch,
        num_graphs=int(batch[-1]) + 1,
        pos=normal(nodes, 3),
        normal=torch.nn.functional.normalize(normal(nodes, 3)),
        pseudo=uniform(edges, 2),
        x_dict={name: normal(nodes // 2, FEATURES).requires_grad_() for name in NODE_TYPES},
        edge_index_dict={
            name: _random_graph(nodes // 2, edges // len(EDGE_TYPES), seed + i) for i, name in enumerate(EDGE_TYPES)
        },
    )
