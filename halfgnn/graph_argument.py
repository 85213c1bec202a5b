"""The graph argument of operators and modules: a Graph or HeteroGraph, or what stands for one."""

from __future__ import annotations

from .dgl_index import is_dgl_graph
from .graph import Graph
from .heterograph import Block, HeteroGraph


def as_graph(g, name: str = "g", expected: str = "a halfgnn.Graph or a DGLGraph") -> Graph:
    """The Graph itself, or that of a DGLGraph (made once and kept with it), of a Block, or of a HeteroGraph's only relation."""
    if isinstance(g, Graph):
        return g
    if isinstance(g, Block):
        return as_graph(g.graph, name, expected)
    if isinstance(g, HeteroGraph):
        if len(g) > 1:
            raise ValueError(f"{name} has {len(g)} edge types; expected one: pass {name}[edge type]")
        return g[g.canonical_etypes[0]]
    if is_dgl_graph(g):
        return Graph.from_dgl(g)
    raise TypeError(f"{name} is a {type(g).__name__}; expected {expected}")


def as_heterograph(g, name: str = "g") -> HeteroGraph:
    """The HeteroGraph itself, or that of a DGLGraph (kept with it) or Block."""
    g = g.topology if isinstance(g, Block) else g
    if isinstance(g, HeteroGraph):
        return g
    if is_dgl_graph(g):
        return HeteroGraph.from_dgl(g)
    raise TypeError(f"{name} is a {type(g).__name__}; expected a halfgnn.HeteroGraph or a DGLGraph")
