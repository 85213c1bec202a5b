"""How much labels of neighbours agree: measures of a labelled graph, as numbers.

All take a graph of one type and labels y (N,), integers from 0.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ...ops import copy_e_mean
from .heterograph import DGLGraph
from .transforms import to_bidirected

__all__ = [
    "adjusted_homophily",
    "edge_homophily",
    "edge_label_informativeness",
    "linkx_homophily",
    "node_homophily",
    "node_label_informativeness",
]


def _agreement(graph: DGLGraph, y: Tensor) -> Tensor:
    """(E,) 1 for edges within a class, 0 for others."""
    src, dst = graph.edges()
    return (y[src.long()] == y[dst.long()]).float()


def node_homophily(graph: DGLGraph, y: Tensor) -> float:
    """The mean over nodes of the share of in-edges from the node's own class; 0 for nodes without any (arXiv:2002.05287)."""
    return copy_e_mean(graph, _agreement(graph, y)).mean().item()


def edge_homophily(graph: DGLGraph, y: Tensor) -> float:
    """The share of edges within a class (arXiv:2006.11468)."""
    return _agreement(graph, y).mean().item()


def linkx_homophily(graph: DGLGraph, y: Tensor) -> float:
    """The mean over classes of what their share of edges within exceeds that of random edges (arXiv:2110.14446)."""
    num_classes = int(y.max()) + 1
    labels = y[graph.edges()[1].long()]
    within = torch.bincount(labels, _agreement(graph, y), num_classes)
    edges, nodes = torch.bincount(labels, minlength=num_classes), torch.bincount(y, minlength=num_classes)
    excess = within / edges - nodes / graph.num_nodes()
    return excess.nan_to_num(0).clamp(min=0).sum().item() / (num_classes - 1)


def adjusted_homophily(graph: DGLGraph, y: Tensor) -> float:
    """Edge homophily, 0 for edges that are independent of labels, 1 at most. Edges count in both directions (arXiv:2209.06177)."""
    graph = _undirected(graph, y)
    expected = (_degrees_of_classes(graph, y) / graph.num_edges()).square().sum()
    return ((edge_homophily(graph, y) - expected) / (1 - expected)).item()


def edge_label_informativeness(graph: DGLGraph, y: Tensor, eps: float = 1e-8) -> float:
    """How much of a label's entropy a neighbour's label takes away, for a random edge (arXiv:2209.06177)."""
    graph = _undirected(graph, y)
    degrees = _degrees_of_classes(graph, y)
    shares = degrees / degrees.sum()
    pairs = _pairs_of_classes(graph, y, torch.ones(graph.num_edges(), device=y.device)) / graph.num_edges() + eps
    return (2 - (pairs * pairs.log()).sum() / (shares * shares.log()).sum()).item()


def node_label_informativeness(graph: DGLGraph, y: Tensor, eps: float = 1e-8) -> float:
    """Like :func:`edge_label_informativeness`, for a random edge of a random node."""
    graph = _undirected(graph, y)
    degrees = graph.in_degrees().float()
    of_classes = _degrees_of_classes(graph, y)
    weights = 1 / ((degrees > 0).sum() * degrees[graph.edges()[0].long()])
    pairs = _pairs_of_classes(graph, y, weights) + eps
    nodes, edges = torch.bincount(y) / len(y), of_classes / of_classes.sum()
    information = (pairs * (pairs / (nodes[:, None] * edges[None, :])).log()).sum()
    return (-information / (nodes * nodes.log()).sum()).item()


def _undirected(graph: DGLGraph, y: Tensor) -> DGLGraph:
    return to_bidirected(graph.cpu()).to(y.device)


def _degrees_of_classes(graph: DGLGraph, y: Tensor) -> Tensor:
    return torch.bincount(y, graph.in_degrees().float())


def _pairs_of_classes(graph: DGLGraph, y: Tensor, weights: Tensor) -> Tensor:
    """(C, C) the weights of edges by the labels of their ends."""
    src, dst = (y[ends.long()] for ends in graph.edges())
    num_classes = int(y.max()) + 1
    return torch.bincount(src * num_classes + dst, weights, num_classes**2).reshape(num_classes, num_classes)
