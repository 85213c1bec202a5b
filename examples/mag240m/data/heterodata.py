"""A heterogeneous graph for node classification over sampled blocks. Every relation has both directions, as two edge types."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from halfgnn import Graph, HeteroGraph

EdgeType = tuple[str, str, str]  # source type, relation, destination type


@dataclass
class HeteroData:
    """A graph of several node and edge types. One node type has labels.

    edges: edge type -> (src, dst), int64 (E,) each, on the CPU. Some are copy-on-write memory maps of a file.
    features: node type -> float16 (N, D), a tensor or the path of a .npy file to be memory-mapped.
    target: the node type with labels.
    labels: int64 (N of target,), -1 if unknown.
    train, val, test: int64 ids of target nodes. Those of train and val have labels.
    source: the source of the data, in words.
    """

    name: str
    source: str
    edges: dict[EdgeType, tuple[torch.Tensor, torch.Tensor]]
    num_nodes: dict[str, int]
    features: dict[str, Path | torch.Tensor]
    target: str
    labels: torch.Tensor
    train: torch.Tensor
    val: torch.Tensor
    test: torch.Tensor
    num_classes: int

    def graph(self) -> HeteroGraph:
        """A new HeteroGraph on the CPU, with int32 ids if they fit.

        Edges are stored in CSC order, so edge ids are not positions in `edges`. While an edge type is converted, its edges are in
        memory twice.

        Raises ValueError for ids that are not nodes.
        """
        most = max(*self.num_nodes.values(), *(len(src) for src, _ in self.edges.values()))
        idtype = torch.int32 if most < 2**31 else torch.int64
        relations = {
            (src_type, relation, dst_type): csc_graph(
                src, dst, self.num_nodes[src_type], self.num_nodes[dst_type], idtype
            )
            for (src_type, relation, dst_type), (src, dst) in self.edges.items()
        }
        return HeteroGraph(relations, num_src=self.num_nodes, num_dst=self.num_nodes)


def csc_graph(src, dst, num_src: int, num_dst: int, idtype: torch.dtype):
    """A halfgnn.Graph of these edges in CSC order."""
    graph, _ = Graph.from_edges(src.to(idtype), dst.to(idtype), num_src=num_src, num_dst=num_dst, sort=True)
    return graph
