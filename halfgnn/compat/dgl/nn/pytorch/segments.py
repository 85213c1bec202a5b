"""The nodes of each graph of a batch, which readouts reduce."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from halfgnn import ops
from halfgnn.common.operands import check_tensor
from halfgnn.graph import Graph
from halfgnn.graph_argument import as_graph


def sizes_of(graph: Any, feat: Any, name: str = "feat") -> Tensor:
    """The number of nodes of each graph of the batch, on the device of feat (N, *). A halfgnn.Graph is one graph.

    Raises:
        ValueError: feat has not one row per node.
    """
    check_tensor(feat, name)
    if hasattr(graph, "batch_num_nodes"):
        sizes, num_nodes = graph.batch_num_nodes().to(feat.device), int(graph.num_nodes())
    else:
        num_nodes = as_graph(graph, "graph").num_src
        sizes = torch.tensor([num_nodes], device=feat.device)
    if feat.dim() == 0 or feat.shape[0] != num_nodes:
        raise ValueError(f"{name} has shape {tuple(feat.shape)}; expected {num_nodes} rows, one per node")
    return sizes


def per_node(sizes: Tensor, x: Tensor, num_nodes: int) -> Tensor:
    """Row i of x (graphs, *) for each of the sizes[i] nodes of graph i: (num_nodes, *)."""
    return ops.copy_v(_nodes_in_graphs(sizes, num_nodes), x)


def softmax(sizes: Tensor, logits: Tensor) -> Tensor:
    """The softmax of logits (N, *) over the nodes of each graph, column by column."""
    return ops.edge_softmax(_nodes_in_graphs(sizes, logits.shape[0]), logits)


def summed(sizes: Tensor, x: Tensor, weight: Tensor | None = None) -> Tensor:
    """The sum over each graph of x (N, *), times weight (N, 1) unless that is None: (graphs, *)."""
    if weight is None:
        return ops.segment_reduce(sizes, x, "sum")
    return ops.u_mul_e_sum(_nodes_in_graphs(sizes, x.shape[0]), x, weight)


def _nodes_in_graphs(sizes: Tensor, num_nodes: int) -> Graph:
    """A graph with an edge for each node, into the destination that stands for the node's graph."""
    indptr = torch.nn.functional.pad(sizes.cumsum(0), (1, 0))
    return Graph(num_nodes, sizes.numel(), (indptr, torch.arange(num_nodes, device=sizes.device), None))
