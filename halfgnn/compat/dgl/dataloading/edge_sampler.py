"""Samplers for batches of edges."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from ..base import NID, DGLError
from ..convert import heterograph
from ..heterograph import DGLGraph
from ..subgraph import edge_subgraph
from ..transforms import compact_graphs
from .samplers import Sampler, set_edge_lazy_features

__all__ = ["EdgePredictionSampler", "as_edge_prediction_sampler", "find_exclude_eids"]


def find_exclude_eids(
    g: DGLGraph,
    seed_edges: Any,
    exclude: Any,
    reverse_eids: Any = None,
    reverse_etypes: Mapping[Any, Any] | None = None,
    output_device: Any = None,
) -> Any:
    """Ids of the edges, or {edge type: ids}, that a sample around seed edges leaves out; None for none.

    Args:
        exclude: None; "self" for the seed edges; "reverse_id" for them and reverse_eids[them]; "reverse_types" for them and the
            edges with the same ids of the types that `reverse_etypes` gives for theirs; a function of seed_edges; or ids.
        reverse_eids: (E,) per edge the id of its reverse, or {edge type: ids}.
        reverse_etypes: {edge type: edge type of the reverse edges}.
    """
    excluded = _excluded(g, seed_edges, exclude, reverse_eids, reverse_etypes)
    if excluded is None or output_device is None:
        return excluded
    if isinstance(excluded, Mapping):
        return {etype: ids.to(output_device) for etype, ids in excluded.items()}
    return excluded.to(output_device)


def _excluded(g: DGLGraph, seeds: Any, exclude: Any, reverse_eids: Any, reverse_etypes: Any) -> Any:
    if exclude is None or isinstance(exclude, (Tensor, Mapping)):
        return exclude
    if callable(exclude):
        return exclude(seeds)
    if exclude == "self":
        return seeds
    if exclude == "reverse_id":
        if not isinstance(seeds, Mapping):
            return torch.cat([seeds, reverse_eids[seeds.long()].to(seeds)])
        reverses = {g.to_canonical_etype(etype): ids for etype, ids in reverse_eids.items()}
        by_type = {g.to_canonical_etype(etype): ids for etype, ids in seeds.items()}
        return {etype: torch.cat([ids, reverses[etype][ids.long()].to(ids)]) for etype, ids in by_type.items()}
    if exclude == "reverse_types":
        by_type = {g.to_canonical_etype(etype): ids for etype, ids in seeds.items()}
        excluded = dict(by_type)
        for etype, reverse in reverse_etypes.items():
            ids = by_type.get(g.to_canonical_etype(etype))
            if ids is not None:
                key = g.to_canonical_etype(reverse)
                excluded[key] = torch.cat([excluded[key], ids]).unique() if key in excluded else ids
        return excluded
    raise DGLError(f"exclude is {exclude!r}; expected None, 'self', 'reverse_id', 'reverse_types', a function or ids")


class EdgePredictionSampler(Sampler):
    """Samples around the ends of seed edges, and of negative edges. See :func:`as_edge_prediction_sampler`."""

    def __init__(
        self,
        sampler: Any,
        exclude: Any = None,
        reverse_eids: Any = None,
        reverse_etypes: Any = None,
        negative_sampler: Callable[[DGLGraph, Any], Any] | None = None,
        prefetch_labels: Any = None,
    ):
        self.sampler = sampler
        self.exclude = exclude
        self.reverse_eids = reverse_eids
        self.reverse_etypes = reverse_etypes
        self.negative_sampler = negative_sampler
        self.prefetch_labels = prefetch_labels or []
        self.output_device = sampler.output_device

    def sample(self, g: DGLGraph, seed_edges: Any) -> Any:
        """(ids of input nodes, graph of the seed edges, blocks), and between them the graph of negative edges if there are any."""
        if isinstance(seed_edges, Mapping):
            seed_edges = {g.to_canonical_etype(etype): ids for etype, ids in seed_edges.items()}
        pairs = [edge_subgraph(g, seed_edges, relabel_nodes=False, output_device=self.output_device)]
        if self.negative_sampler is not None:
            pairs.append(self._negatives(g, seed_edges).to(pairs[0].device))
        pairs = compact_graphs(pairs)
        excluded = find_exclude_eids(g, seed_edges, self.exclude, self.reverse_eids, self.reverse_etypes)
        inputs, _, blocks = self.sampler.sample(g, pairs[0].ndata[NID], excluded)
        set_edge_lazy_features(pairs[0], self.prefetch_labels)
        return inputs, *pairs, blocks

    def _negatives(self, g: DGLGraph, seed_edges: Any) -> DGLGraph:
        assert self.negative_sampler is not None
        ends = self.negative_sampler(g, seed_edges)
        if not isinstance(ends, Mapping):
            ends = {g.to_canonical_etype(None): ends}
        ends = {g.to_canonical_etype(etype): pair for etype, pair in ends.items()}
        none = torch.empty(0, dtype=g.idtype, device=next(iter(ends.values()))[0].device)
        return heterograph(
            {etype: ends.get(etype, (none, none)) for etype in g.canonical_etypes},
            {ntype: g.num_nodes(ntype) for ntype in g.ntypes},
            idtype=g.idtype,
        )


def as_edge_prediction_sampler(
    sampler: Any,
    exclude: Any = None,
    reverse_eids: Any = None,
    reverse_etypes: Any = None,
    negative_sampler: Callable[[DGLGraph, Any], Any] | None = None,
    prefetch_labels: Any = None,
) -> EdgePredictionSampler:
    """A sampler for batches of edges, from one for batches of nodes.

    Args:
        sampler: with a method sample(g, nodes, edges to leave out), as :class:`NeighborSampler` has.
        exclude, reverse_eids, reverse_etypes: see :func:`find_exclude_eids`.
        negative_sampler: a function of the graph and the seed edges, which gives pairs (sources, destinations); see
            :mod:`dgl.dataloading.negative_sampler`.
        prefetch_labels: features of the seed edges that a DataLoader fetches.
    """
    return EdgePredictionSampler(sampler, exclude, reverse_eids, reverse_etypes, negative_sampler, prefetch_labels)
