"""Negative samplers: for seed edges, pairs of nodes that stand for edges that are not there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ....common.arguments import checked_size
from ..heterograph import DGLGraph
from ..random import generator
from ..sampling import global_uniform_negative_sampling

__all__ = ["GlobalUniform", "PerSourceUniform", "Uniform"]


class _NegativeSampler:
    """Called with a graph and ids of edges, or {edge type: ids}, it gives (sources, destinations), or a dict of these."""

    def _generate(self, g: DGLGraph, eids: Tensor, canonical_etype: Any) -> tuple[Tensor, Tensor]:
        raise NotImplementedError

    def __call__(self, g: DGLGraph, eids: Any) -> Any:
        if isinstance(eids, Mapping):
            by_type = {g.to_canonical_etype(etype): ids for etype, ids in eids.items()}
            return {etype: self._generate(g, ids, etype) for etype, ids in by_type.items()}
        return self._generate(g, eids, g.to_canonical_etype(None))


class PerSourceUniform(_NegativeSampler):
    """For each edge k pairs of its source and destinations drawn uniformly from all nodes of their type."""

    def __init__(self, k: int):
        self.k = checked_size(k, "k")

    def _generate(self, g: DGLGraph, eids: Tensor, canonical_etype: Any) -> tuple[Tensor, Tensor]:
        src, _ = g.find_edges(eids, etype=canonical_etype)
        src = src.repeat_interleave(self.k)
        count = g.num_nodes(canonical_etype[2])
        return src, torch.randint(count, src.shape, generator=generator()).to(src)


Uniform = PerSourceUniform


class GlobalUniform(_NegativeSampler):
    """For each edge k pairs that no edge connects, drawn uniformly. See :func:`dgl.sampling.global_uniform_negative_sampling`."""

    def __init__(self, k: int, exclude_self_loops: bool = True, replace: bool = False):
        self.k = checked_size(k, "k")
        self.exclude_self_loops = exclude_self_loops
        self.replace = replace

    def _generate(self, g: DGLGraph, eids: Tensor, canonical_etype: Any) -> tuple[Tensor, Tensor]:
        count = eids.numel() * self.k
        return global_uniform_negative_sampling(g, count, self.exclude_self_loops, self.replace, canonical_etype)
