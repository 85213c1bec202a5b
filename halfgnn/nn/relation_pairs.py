"""Edges of several types, by pairs of a type and a destination: one row per pair, so one matrix product per type."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ..common.caching import ordinary_tensors, unwrapped
from ..graph import Graph
from ..graphs_by_tensor.store import state_of


class Pairs(NamedTuple):
    """The pairs of a relation and a destination that have an edge, by relation."""

    into: Graph  # from the sources to the pairs
    out_of: Graph  # from the pairs to the destinations
    ends: list[int]  # for every relation the number of pairs of it and of those before it

    def _for_all_streams(self) -> Pairs:
        self.into._for_all_streams(), self.out_of._for_all_streams()
        return self


def pair_of_edge(edge_type: Tensor, dst: Tensor, num_dst: int, num_relations: int) -> Tensor:
    """The number of every edge's pair among all pairs of a relation and a destination."""
    low, high = (int(x) for x in torch.aminmax(edge_type)) if edge_type.numel() else (0, 0)
    if low < 0 or high >= num_relations:
        wrong = low if low < 0 else high
        raise ValueError(f"edge_type holds {wrong}; expected relations in [0, {num_relations})")
    return edge_type.to(dst.dtype) * num_dst + dst


def pairs_of(g: Graph, edge_type: Tensor, num_relations: int, of_sources: bool = False) -> Pairs:
    """The pairs of g for edge_type (E,), cached with g as long as the same edge_type comes.

    of_sources: pairs of a type and a source, which are those of g's reverse: `into` comes from the destinations.

    Raises:
        ValueError: types out of range.
    """
    edge_type = unwrapped(edge_type, "edge_type")

    def make(g: Graph) -> Pairs:
        return _made(g.reverse() if of_sources else g, edge_type.long(), num_relations)

    if edge_type.is_inference():
        with ordinary_tensors():
            return make(g)
    name = "_pairs_of_sources" if of_sources else "_pairs"
    of = edge_type, *state_of(edge_type), num_relations  # a tensor's hash is its id
    return g.cached(name, make, of, only_last=True, when_traced=True)


def _made(g: Graph, edge_type: Tensor, num_relations: int) -> Pairs:
    src, dst = g.edges()
    keys, pair_ids = torch.unique(pair_of_edge(edge_type, dst.long(), g.num_dst, num_relations), return_inverse=True)
    ids = torch.arange(keys.numel(), device=g.device).to(src.dtype)
    last = torch.arange(1, num_relations + 1, device=g.device) * g.num_dst
    into = Graph.from_edges(src, pair_ids.to(src.dtype), num_src=g.num_src, num_dst=keys.numel(), check=False)
    nodes = (keys % max(g.num_dst, 1)).to(src.dtype)
    out_of = Graph.from_edges(ids, nodes, num_src=keys.numel(), num_dst=g.num_dst, check=False)
    return Pairs(into, out_of, torch.searchsorted(keys, last).tolist())
