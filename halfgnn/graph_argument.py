"""The graph argument of operators and modules: a Graph or HeteroGraph, or what stands for one.

An object with a method ``__halfgnn_graph__()`` stands for the Graph or HeteroGraph that it returns, as a Block does.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch

from .common.operands import as_tensor
from .dgl_index import is_dgl_graph
from .graph import Graph
from .heterograph import Block, HeteroGraph


class DGLGraph(Protocol):
    """What type checkers see of a dgl.DGLGraph: DGL is not imported, and has no types."""

    @property
    def canonical_etypes(self) -> list[tuple[str, str, str]]: ...
    @property
    def is_block(self) -> bool: ...
    @property
    def srcdata(self) -> Any: ...


HeteroGraphLike = HeteroGraph | Block | DGLGraph  # what modules of several edge types take
GraphLike = Graph | HeteroGraphLike  # what operators and other modules take: a HeteroGraph of one edge type


def as_graph(g, name: str = "g", expected: str = "a halfgnn.Graph or a DGLGraph") -> Graph:
    """The Graph itself, or that of a DGLGraph (cached with it), of a Block, or of a HeteroGraph's only relation."""
    if isinstance(g, Graph):
        return g
    if hasattr(g, "__halfgnn_graph__"):
        return as_graph(g.__halfgnn_graph__(), name, expected)
    if isinstance(g, HeteroGraph):
        return g.only_relation(name)
    if is_dgl_graph(g):
        return Graph.from_dgl(g)
    raise TypeError(f"{name} is a {type(g).__name__}; expected {expected}{_remedy(g, name)}")


def _remedy(g, name: str) -> str:
    """How to make a Graph of what was given in place of one, if that is clear."""
    if isinstance(g, (tuple, list)) and g and isinstance(g[0], Graph):  # what from_edges(sort=True) returns
        return f", which is {name}[0]: a constructor with sort=True returns the pair (Graph, order of the edges)"
    if isinstance(getattr(g, "graph", None), Graph):  # a Reordering
        return f": pass {name}.graph"
    if isinstance(g, torch.Tensor) and g.layout in (torch.sparse_coo, torch.sparse_csr, torch.sparse_csc):
        return f": halfgnn.Graph.from_torch_sparse({name}) makes one"
    if isinstance(g, torch.Tensor) and g.dim() == 2 and g.shape[0] == 2:
        return f": halfgnn.Graph.from_edge_index({name}, num_nodes=N) makes one"
    if isinstance(g, torch.Tensor) and g.dim() == 2 and g.shape[1] == 2 and not g.is_floating_point():
        return f": halfgnn.Graph.from_edge_index({name}.t(), num_nodes=N) makes one"
    if isinstance(g, torch.Tensor) and g.dim() > 0:
        return f": the order of arguments is ({name}, features)"
    made = as_tensor(g, name).removeprefix(": ")
    if made:  # halfgnn.pyg takes the tensor itself
        return (
            f": {made}" if name == "edge_index" else f": halfgnn.Graph.from_edge_index({made}, num_nodes=N) makes one"
        )
    if isinstance(g, (tuple, list)) and len(g) == 2:
        return f": halfgnn.Graph.from_edges(*{name}, num_src=N, num_dst=N) makes one"
    if hasattr(g, "tocsr"):
        return f": halfgnn.Graph.from_scipy({name}) makes one"
    return ""


def as_heterograph(g, name: str = "g") -> HeteroGraph:
    """The HeteroGraph itself, or that of a DGLGraph (cached with it) or Block."""
    g = g.__halfgnn_graph__() if hasattr(g, "__halfgnn_graph__") else g
    if isinstance(g, HeteroGraph):
        return g
    if is_dgl_graph(g):
        return HeteroGraph.from_dgl(g)
    remedy = (
        f": halfgnn.HeteroGraph({{(source type, edge type, destination type): {name}}})" if isinstance(g, Graph) else ""
    )
    raise TypeError(f"{name} is a {type(g).__name__}; expected a halfgnn.HeteroGraph or a DGLGraph{remedy}")


def as_graph_or_heterograph(g, name: str = "g") -> Graph | HeteroGraph:
    """A HeteroGraph as it is, or of a DGLGraph with several edge types; otherwise a Graph, see :func:`as_graph`."""
    g = g.__halfgnn_graph__() if hasattr(g, "__halfgnn_graph__") else g
    has_types = isinstance(g, HeteroGraph) or (is_dgl_graph(g) and len(g.canonical_etypes) > 1)
    return as_heterograph(g, name) if has_types else as_graph(g, name)


def is_graph(x: Any) -> bool:
    """Whether what was given, for example in place of features, is a graph."""
    return isinstance(x, (Graph, HeteroGraph)) or hasattr(x, "__halfgnn_graph__") or is_dgl_graph(x)
