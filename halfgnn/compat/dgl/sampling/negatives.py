"""Pairs of nodes that no edge connects."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ....common.arguments import check_number, checked_size
from ..base import DGLError
from ..heterograph import DGLGraph
from ..random import generator

__all__ = ["global_uniform_negative_sampling"]

_ROUNDS = 4  # draws before a shortage is given back


def global_uniform_negative_sampling(
    g: DGLGraph,
    num_samples: int,
    exclude_self_loops: bool = True,
    replace: bool = False,
    etype: Any = None,
    redundancy: float | None = None,
) -> tuple[Tensor, Tensor]:
    """Random pairs (sources, destinations) that no edge of a type connects, at most `num_samples`.

    Args:
        exclude_self_loops: no pairs of a node and itself.
        replace: a pair may come again.
        etype: the edge type; needed if there are several.
        redundancy: by how much more pairs are drawn in each of a few rounds; by default as many again.

    A graph in which few pairs are free gives fewer.
    """
    etid, src_type, dst_type = g._ends_of(etype)
    relation = g._graph.relations[etid]
    taken = relation.pairs()[0]
    num_samples = checked_size(num_samples, "num_samples")
    more = 1.0 if redundancy is None else check_number(redundancy, "redundancy")
    if more < 0:
        raise DGLError(f"redundancy is {redundancy}; expected a number of at least 0")
    count = int(num_samples * (1 + more)) + 1
    keys = torch.empty(0, dtype=torch.int64, device=g.device)
    if relation.num_src and relation.num_dst:
        for _ in range(_ROUNDS):
            src, dst = (
                torch.randint(n, (count,), generator=generator()).to(g.device)
                for n in (relation.num_src, relation.num_dst)
            )
            if exclude_self_loops and src_type == dst_type:
                src, dst = src[src != dst], dst[src != dst]
            drawn = relation.key(src, dst)
            place = torch.searchsorted(taken, drawn).clamp(max=max(taken.numel() - 1, 0))
            free = drawn if not taken.numel() else drawn[taken[place] != drawn]
            keys = torch.cat([keys, free])
            keys = keys if replace else keys.unique()
            if keys.numel() >= num_samples:
                break
    keys = keys[torch.randperm(keys.numel(), generator=generator()).to(g.device)[:num_samples]]
    return (keys // max(relation.num_dst, 1)).to(g.idtype), (keys % max(relation.num_dst, 1)).to(g.idtype)
