"""The disjoint union of copies of one graph. Messages (*, E, D) of several samples on a graph are those of the union, whose rows
lie one after another, where operators would read a copy (E, *, D).
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from ..adjacency import Adjacency
from ..common.ids import INT32_MAX
from ..graph import Graph


def unsafe_view(x: Tensor, shape: tuple[int, ...]) -> Tensor:
    """x, which nothing else refers to, in another shape: no view, which a program may not always modify in place."""
    return torch.ops.aten._unsafe_view(x, shape)


def copies_of(g: Graph, count: int) -> Graph:
    """The disjoint union of so many copies of a graph, whose ids follow one another. The last one is cached with the graph."""
    return g.cached("_copies", partial(_copies_of, count=count), of=count, only_last=True)


def _copies_of(g: Graph, count: int) -> Graph:
    counts = count * g.num_src, count * g.num_dst
    dtype = torch.int32 if g.idtype is torch.int32 and max(*counts, count * g.num_edges) <= INT32_MAX else torch.int64
    csc = _copied(g.csc(), g.num_src, count, dtype)
    return Graph(*counts, csc=csc)


def _copied(side: Adjacency, num_nodes: int, count: int, dtype: torch.dtype) -> Adjacency:
    """num_nodes: of those that indices name."""
    indptr, indices, edge_ids = side
    num_edges = indices.shape[0]
    copy = torch.arange(count, dtype=dtype, device=indices.device).unsqueeze(1)
    starts = (indptr[:-1].to(dtype) + copy * num_edges).flatten()
    end = torch.full((1,), count * num_edges, dtype=dtype, device=indices.device)
    ids = None if edge_ids is None else (edge_ids.to(dtype) + copy * num_edges).flatten()
    return Adjacency(torch.cat([starts, end]), (indices.to(dtype) + copy * num_nodes).flatten(), ids)
