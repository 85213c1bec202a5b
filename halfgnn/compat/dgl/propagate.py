"""Message passing in the order of a traversal."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from .heterograph import DGLGraph
from .traversal import bfs_nodes_generator, dfs_labeled_edges_generator, topological_nodes_generator

__all__ = ["prop_edges", "prop_edges_dfs", "prop_nodes", "prop_nodes_bfs", "prop_nodes_topo"]


def prop_nodes(
    graph: DGLGraph,
    nodes_generator: Iterable,
    message_func: Any,
    reduce_func: Any,
    apply_node_func: Callable | None = None,
) -> None:
    """Pull messages to each group of nodes, one after the other."""
    graph.prop_nodes(nodes_generator, message_func, reduce_func, apply_node_func)


def prop_edges(
    graph: DGLGraph,
    edges_generator: Iterable,
    message_func: Any,
    reduce_func: Any,
    apply_node_func: Callable | None = None,
) -> None:
    """Pass messages along each group of edges, one after the other."""
    graph.prop_edges(edges_generator, message_func, reduce_func, apply_node_func)


def prop_nodes_bfs(
    graph: DGLGraph,
    source: Any,
    message_func: Any,
    reduce_func: Any,
    reverse: bool = False,
    apply_node_func: Callable | None = None,
) -> None:
    """Pull messages to nodes by their distance from `source`."""
    prop_nodes(graph, bfs_nodes_generator(graph, source, reverse), message_func, reduce_func, apply_node_func)


def prop_nodes_topo(
    graph: DGLGraph,
    message_func: Any,
    reduce_func: Any,
    reverse: bool = False,
    apply_node_func: Callable | None = None,
) -> None:
    """Pull messages to each node after all nodes that lead to it."""
    prop_nodes(graph, topological_nodes_generator(graph, reverse), message_func, reduce_func, apply_node_func)


def prop_edges_dfs(
    graph: DGLGraph,
    source: Any,
    message_func: Any,
    reduce_func: Any,
    reverse: bool = False,
    has_reverse_edge: bool = False,
    has_nontree_edge: bool = False,
    apply_node_func: Callable | None = None,
) -> None:
    """Pass messages along edges in the order of a depth-first search."""
    edges = dfs_labeled_edges_generator(graph, source, reverse, has_reverse_edge, has_nontree_edge, return_labels=False)
    prop_edges(graph, edges, message_func, reduce_func, apply_node_func)
