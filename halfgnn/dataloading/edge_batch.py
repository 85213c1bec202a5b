"""EdgeBatch: seed edges for link prediction, edges that are not there, and the blocks around the ends of both."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..graph import Graph
from ..heterograph import Block, EdgeType


@dataclass(frozen=True)
class EdgeBatch:
    """A batch of edges. A model takes features of `input_nodes` and `blocks`, and its results belong to `output_nodes`.

    Attributes:
        input_nodes, output_nodes: ids; {node type: ids} for a HeteroGraph.
        positive: the seed edges, in their order, among the output nodes of their types.
        negative: drawn edges, those of seed edge i from row i * negatives on. None without negatives.
        blocks: one per layer, input layer first.
    """

    input_nodes: Any
    output_nodes: Any
    positive: Graph
    negative: Graph | None
    blocks: list[Block]


def edge_batch(
    ends: tuple[Tensor, Tensor],
    etype: EdgeType,
    negatives: int,
    num_dst: int,
    seed: int,
    sample: Callable[[dict[str, Tensor], int], Any],
) -> EdgeBatch:
    """sample: of ({node type: ids}, seed). num_dst: nodes from which destinations of negative edges are drawn."""
    if negatives < 0:
        raise ValueError(f"negatives is {negatives}; expected at least 0")
    generator = torch.Generator().manual_seed(seed)
    src, dst = ends
    shape = (len(src) * negatives,)
    others = torch.randint(max(num_dst, 1), shape, generator=generator).to(dst.dtype)
    src_type, _, dst_type = etype
    if src_type == dst_type:
        ids, places = torch.cat([src, dst, others]).unique(return_inverse=True)
        seeds, (src_at, dst_at, others_at) = {src_type: ids}, places.split([len(src), len(dst), len(others)])
    else:
        src_ids, src_at = src.unique(return_inverse=True)
        dst_ids, places = torch.cat([dst, others]).unique(return_inverse=True)
        seeds, (dst_at, others_at) = {src_type: src_ids, dst_type: dst_ids}, places.split([len(dst), len(others)])
    num_seeds = len(seeds[src_type]), len(seeds[dst_type])
    positive = _pairs(src_at, dst_at, *num_seeds)
    negative = _pairs(src_at.repeat_interleave(negatives), others_at, *num_seeds) if negatives else None
    input_nodes, output_nodes, blocks = sample(seeds, seed)
    return EdgeBatch(input_nodes, output_nodes, positive, negative, blocks)


def _pairs(src: Tensor, dst: Tensor, num_src: int, num_dst: int) -> Graph:
    return Graph.from_edges(src.int(), dst.int(), num_src=num_src, num_dst=num_dst, check=False)


def without_edges(offsets: Tensor, sources: Tensor, edges: Tensor, excluded: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The edges of a block's relation that are not among the ids `excluded`. Nodes stay."""
    if not len(excluded) or not len(edges):
        return offsets, sources, edges
    known = excluded.to(edges.dtype).sort().values
    at = torch.searchsorted(known, edges).clamp_(max=len(known) - 1)
    is_kept = known[at] != edges
    kept_before = torch.zeros(len(edges) + 1, dtype=torch.int32)
    torch.cumsum(is_kept, 0, dtype=torch.int32, out=kept_before[1:])
    return kept_before[offsets.long()], sources[is_kept], edges[is_kept]
