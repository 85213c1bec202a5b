"""Orders in which nodes or edges of a graph are visited, as lists of frontiers: tensors of ids to be visited together."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import zip_longest
from typing import Any

import torch
from torch import Tensor

from .base import DGLError, check_ids, id_tensor
from .heterograph import DGLGraph

__all__ = [
    "bfs_edges_generator",
    "bfs_nodes_generator",
    "dfs_edges_generator",
    "dfs_labeled_edges_generator",
    "topological_nodes_generator",
]

FORWARD, REVERSE, NONTREE = 0, 1, 2  # labels of edges in a depth-first search


def bfs_nodes_generator(graph: DGLGraph, source: Any, reverse: bool = False) -> list[Tensor]:
    """Nodes by their distance from `source`. reverse: along in-edges."""
    return [_sources(graph, source), *(nodes for nodes, _ in _layers(graph, source, reverse))]


def bfs_edges_generator(graph: DGLGraph, source: Any, reverse: bool = False) -> list[Tensor]:
    """Edges by which a breadth-first search finds nodes, one per node. reverse: along in-edges."""
    return [edges for _, edges in _layers(graph, source, reverse)]


def _sources(graph: DGLGraph, source: Any) -> Tensor:
    if len(graph.etypes) != 1 or len(graph.ntypes) != 1:
        raise DGLError(f"graph has the types {graph.ntypes} and {graph.etypes}; expected one of nodes and one of edges")
    ids = id_tensor(source, graph.idtype, graph.device, "source")
    check_ids(ids, graph.num_nodes(), "source", "a node")
    return ids


def _layers(graph: DGLGraph, source: Any, reverse: bool) -> Iterator[tuple[Tensor, Tensor]]:
    """Per layer after the first: the nodes found, and the edges that found them."""
    frontier = _sources(graph, source)
    is_found = torch.zeros(graph.num_nodes(), dtype=torch.bool, device=graph.device)
    is_found[frontier.long()] = True
    while frontier.numel():
        src, dst, ids = graph.in_edges(frontier, "all") if reverse else graph.out_edges(frontier, "all")
        ends = (src if reverse else dst).long()
        is_new = ~is_found[ends]
        ends, ids = ends[is_new], ids[is_new]
        first = torch.full((graph.num_nodes(),), ends.numel(), device=graph.device)
        places = torch.arange(ends.numel(), device=graph.device)
        first.scatter_reduce_(0, ends, places, "amin")  # one edge per node, the first
        chosen = first[ends] == places
        frontier, ids = ends[chosen].to(graph.idtype), ids[chosen]
        is_found[frontier.long()] = True
        if frontier.numel():
            yield frontier, ids


def topological_nodes_generator(graph: DGLGraph, reverse: bool = False) -> list[Tensor]:
    """Nodes after all nodes that lead to them. reverse: along in-edges. Raises DGLError if the graph has a cycle."""
    _sources(graph, [])
    missing = (graph.out_degrees() if reverse else graph.in_degrees()).clone()
    frontiers, count = [], 0
    frontier = (missing == 0).nonzero().squeeze(1).to(graph.idtype)
    while frontier.numel():
        frontiers.append(frontier)
        count += frontier.numel()
        src, dst = graph.in_edges(frontier) if reverse else graph.out_edges(frontier)
        ends = (src if reverse else dst).long()
        missing.index_add_(0, ends, torch.full_like(ends, -1, dtype=missing.dtype))
        frontier = ends[missing[ends] == 0].unique().to(graph.idtype)
    if count != graph.num_nodes():
        raise DGLError("the graph has a cycle; expected one without, whose nodes can be sorted")
    return frontiers


def dfs_edges_generator(graph: DGLGraph, source: Any, reverse: bool = False) -> list[Tensor]:
    """Edges by which a depth-first search from each source finds nodes, step by step. reverse: along in-edges."""
    return dfs_labeled_edges_generator(graph, source, reverse, return_labels=False)


def dfs_labeled_edges_generator(
    graph: DGLGraph,
    source: Any,
    reverse: bool = False,
    has_reverse_edge: bool = False,
    has_nontree_edge: bool = False,
    return_labels: bool = True,
) -> Any:
    """Edges of a depth-first search from each source, step by step, and their labels.

    Labels are 0 for an edge that finds a node, 1 for that edge when the search goes back, 2 for an edge to a node that was found.

    Args:
        reverse: along in-edges.
        has_reverse_edge, has_nontree_edge: whether edges labelled 1 and 2 are given.

    Returns:
        (edges, labels), lists of a tensor per step; only the edges if return_labels is False.
    """
    sources = _sources(graph, source).tolist()
    ends = [end.tolist() for end in graph.all_edges(order="eid")]
    neighbours: list[list[tuple[int, int]]] = [[] for _ in range(graph.num_nodes())]
    for edge, (u, v) in enumerate(zip(*(ends[::-1] if reverse else ends))):
        neighbours[u].append((edge, v))
    wanted = {FORWARD, *[REVERSE] * has_reverse_edge, *[NONTREE] * has_nontree_edge}
    walks = [[step for step in _depth_first(neighbours, start) if step[1] in wanted] for start in sources]
    steps = [[step for step in at if step is not None] for at in zip_longest(*walks)]
    edges, labels = (
        [torch.tensor([step[i] for step in at], dtype=graph.idtype, device=graph.device) for at in steps]
        for i in (0, 1)
    )
    return (edges, labels) if return_labels else edges


def _depth_first(neighbours: list[list[tuple[int, int]]], source: int) -> Iterator[tuple[int, int]]:
    """(edge, label) of a search from `source`."""
    found = {source}
    path = [(-1, iter(neighbours[source]))]
    while path:
        by, remaining = path[-1]
        for edge, node in remaining:
            if node in found:
                yield edge, NONTREE
                continue
            found.add(node)
            yield edge, FORWARD
            path.append((edge, iter(neighbours[node])))
            break
        else:
            path.pop()
            if by >= 0:
                yield by, REVERSE
