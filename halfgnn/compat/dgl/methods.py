"""Methods of DGLGraph that are functions of other modules with the graph as first argument."""

from . import networkx_graphs, sampling, subgraph, transforms
from .heterograph import DGLGraph

METHODS = {
    "subgraph": subgraph.node_subgraph,
    **{name: getattr(subgraph, name) for name in subgraph.__all__ if name != "node_subgraph"},
    "global_uniform_negative_sampling": sampling.global_uniform_negative_sampling,
    "sample_neighbors": sampling.sample_neighbors,
    "select_topk": sampling.select_topk,
    "add_self_loop": transforms.add_self_loop,
    "line_graph": transforms.line_graph,
    "remove_self_loop": transforms.remove_self_loop,
    "reorder_graph": transforms.reorder_graph,
    "reverse": transforms.reverse,
    "to_networkx": networkx_graphs.to_networkx,
    "to_simple": transforms.to_simple,
}

for name, function in METHODS.items():
    setattr(DGLGraph, name, function)
