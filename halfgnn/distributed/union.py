"""Union: the nodes of all types of a heterograph, numbered one type after another, and its edges likewise."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..common.caching import ordinary_tensors
from ..graph import Graph
from ..heterograph import EdgeType, HeteroGraph


class Kind(NamedTuple):
    """A node or edge type: which ids it has in the union."""

    first: int
    size: int

    @property
    def end(self) -> int:
        return self.first + self.size

    def has(self, ids: Tensor) -> Tensor:
        return (ids >= self.first) & (ids < self.end)


class Union(NamedTuple):
    """The ids of all node types and edge types. In `partition.json` they are lists of [name, count]."""

    nodes: dict[str, Kind]
    edges: dict[EdgeType, Kind]

    @classmethod
    def of(cls, g: HeteroGraph) -> Union:
        """Raises ValueError if the sources and destinations of a type are not the same nodes."""
        for ntype, count in g.num_dst.items():
            if g.num_src.get(ntype, count) != count:
                raise ValueError(
                    f"graph has {g.num_src[ntype]} sources and {count} destinations of type {ntype!r}; expected the same nodes"
                )
        return cls(_kinds({**g.num_src, **g.num_dst}), _kinds({etype: g.num_edges(etype) for etype in g}))

    @classmethod
    def read(cls, description: dict[str, Any]) -> Union | None:
        """That of a partition; None if it is of a homogeneous graph."""
        if "node_types" not in description:
            return None
        edges = {(source, name, target): count for (source, name, target), count in description["edge_types"]}
        return cls(_kinds(dict(description["node_types"])), _kinds(edges))

    def kind(self, of: Any) -> tuple[str, Kind]:
        """Of a node type or an edge type: whether it is of "nodes" or "edges", and its ids. Raises ValueError for others."""
        of = tuple(of) if isinstance(of, list) else of
        for what, kinds in (("nodes", self.nodes), ("edges", self.edges)):
            if of in kinds:
                return what, kinds[of]
        types = ", ".join(repr(name) for name in (*self.nodes, *self.edges))
        raise ValueError(f"of is {of!r}; expected a node type or an edge type of the partition: {types}")

    def joined(self, by_type: Mapping[str, Any], name: str) -> Tensor:
        """Numbers of the nodes of all types, one after another. Raises ValueError if a type is missing or of another size."""
        if set(by_type) != set(self.nodes):
            raise ValueError(f"{name} has {sorted(by_type)}; expected all node types, {sorted(self.nodes)}")
        tensors = [torch.as_tensor(by_type[ntype]) for ntype in self.nodes]
        for (ntype, kind), x in zip(self.nodes.items(), tensors):
            if x.shape != (kind.size,):
                raise ValueError(f"{name}[{ntype!r}] has shape {tuple(x.shape)}; expected ({kind.size},)")
        return torch.cat(tensors)

    def description(self) -> dict[str, Any]:
        return {
            "node_types": [[ntype, kind.size] for ntype, kind in self.nodes.items()],
            "edge_types": [[list(etype), kind.size] for etype, kind in self.edges.items()],
        }


def as_union(g: HeteroGraph) -> tuple[Graph, Union]:
    """A heterograph as a homogeneous Graph, whose edge ids are those of the union."""
    g = g.to("cpu")
    union = Union.of(g)
    num_nodes = sum(kind.size for kind in union.nodes.values())
    ends: tuple[list[Tensor], list[Tensor]] = ([], [])
    with ordinary_tensors():
        for etype in g:
            for found, ids, ntype in zip(ends, g[etype].edges(), (etype[0], etype[2])):
                found.append(ids.long() + union.nodes[ntype].first)
        src, dst = (torch.cat(found) for found in ends)
    return Graph.from_edges(src, dst, num_src=num_nodes, num_dst=num_nodes, check=False), union


def _kinds(counts: dict[Any, int]) -> dict[Any, Kind]:
    kinds, first = {}, 0
    for name, count in counts.items():
        kinds[name] = Kind(first, count)
        first += count
    return kinds
