"""Merges: graphs over the same nodes as one graph with all their edges."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from .base import DGLError
from .frame import Frame
from .heterograph import DGLGraph
from .topology import Relation

__all__ = ["merge"]


def merge(graphs: Sequence[DGLGraph]) -> DGLGraph:
    """A graph with the edges of all graphs, one after the other, between as many nodes as the largest has.

    Features of edges are those of the first graph, which all must have. Features of nodes are of the last graph that has the node.

    Raises:
        DGLError: no graphs, or graphs of different types.
    """
    graphs = list(graphs)
    if not graphs:
        raise DGLError("graphs is empty; expected at least one graph")
    first = graphs[0]
    for i, graph in enumerate(graphs):
        if (graph.ntypes, graph.canonical_etypes) != (first.ntypes, first.canonical_etypes):
            raise DGLError(
                f"graphs[{i}] has other types than graphs[0]; expected {first.ntypes} and {first.canonical_etypes}"
            )
    graphs = [graph.to(first.device).astype(first.idtype) for graph in graphs]
    counts = [max(numbers) for numbers in zip(*(graph._graph.node_counts for graph in graphs))]
    relations, edge_frames = [], []
    for i, (src_type, dst_type) in enumerate(first._graph.metagraph.ends):
        ends = [graph._graph.relations[i].edges() for graph in graphs]
        src, dst = (torch.cat([end[side] for end in ends]) for side in (0, 1))
        relations.append(Relation.from_edges(src, dst, counts[src_type], counts[dst_type], check=False))
        frames = [graph._edge_frames[i] for graph in graphs]
        edge_frames.append(
            Frame({name: torch.cat([frame[name] for frame in frames]) for name in frames[0]}, src.numel())
        )
    node_frames = [
        _overlaid([graph._node_frames[i] for graph in graphs], count, first.device) for i, count in enumerate(counts)
    ]
    return first._with(first._graph.with_relations(relations, counts), node_frames, edge_frames)


def _overlaid(frames: Sequence[Frame], count: int, device: torch.device) -> Frame:
    whole = Frame(num_rows=count)
    for frame in frames:
        whole.update_rows(torch.arange(frame.num_rows, device=device), frame)
    return whole
