"""DGL's graphs and message passing, on halfgnn's operators.

``from halfgnn.compat import dgl``, or ``halfgnn.compat.install("dgl")`` before a program's own ``import dgl``.
"""

from typing import Any

from . import (  # noqa: F401 (methods adds to DGLGraph)
    backend,
    data,
    dataloading,
    function,
    init,
    methods,
    multiprocessing,
    nn,
    ops,
    sampling,
    sparse,
    transform,
    transforms,
)
from .base import ALL, EID, ETYPE, NID, NTYPE, DGLError, DGLWarning
from .batch import batch, slice_batch, unbatch
from .convert import (
    bipartite_from_scipy,
    block_to_graph,
    create_block,
    from_scipy,
    graph,
    heterograph,
    to_heterogeneous,
    to_homogeneous,
)
from .data import load_graphs, save_graphs
from .dataloading import set_dst_lazy_features, set_edge_lazy_features, set_node_lazy_features, set_src_lazy_features
from .frame import LazyFeature
from .global_config import is_libxsmm_enabled, use_libxsmm
from .heterograph import DGLBlock, DGLGraph, DGLHeteroGraph
from .homophily import (
    adjusted_homophily,
    edge_homophily,
    edge_label_informativeness,
    linkx_homophily,
    node_homophily,
    node_label_informativeness,
)
from .merge import merge
from .mpops import copy_u, copy_v, u_add_v, u_div_v, u_dot_v, u_mul_v, u_sub_v
from .networkx_graphs import bipartite_from_networkx, from_networkx, to_networkx
from .propagate import prop_edges, prop_edges_dfs, prop_nodes, prop_nodes_bfs, prop_nodes_topo
from .random import rand_bipartite, rand_graph, seed
from .readout import (
    broadcast_edges,
    broadcast_nodes,
    max_edges,
    max_nodes,
    mean_edges,
    mean_nodes,
    readout_edges,
    readout_nodes,
    softmax_edges,
    softmax_nodes,
    sum_edges,
    sum_nodes,
    topk_edges,
    topk_nodes,
)
from .sampling import sample_neighbors
from .subgraph import (
    edge_subgraph,
    edge_type_subgraph,
    in_subgraph,
    khop_in_subgraph,
    khop_out_subgraph,
    node_subgraph,
    node_type_subgraph,
    out_subgraph,
)
from .transforms import *  # noqa: F403
from .traversal import (
    bfs_edges_generator,
    bfs_nodes_generator,
    dfs_edges_generator,
    dfs_labeled_edges_generator,
    topological_nodes_generator,
)
from .utils import apply_each

__all__ = [
    "ALL",
    "EID",
    "ETYPE",
    "NID",
    "NTYPE",
    "DGLBlock",
    "DGLError",
    "DGLGraph",
    "DGLHeteroGraph",
    "DGLWarning",
    "LazyFeature",
    "adjusted_homophily",
    "apply_each",
    "batch",
    "bfs_edges_generator",
    "bfs_nodes_generator",
    "bipartite_from_networkx",
    "bipartite_from_scipy",
    "block_to_graph",
    "broadcast_edges",
    "broadcast_nodes",
    "copy_u",
    "copy_v",
    "create_block",
    "data",
    "dataloading",
    "dfs_edges_generator",
    "dfs_labeled_edges_generator",
    "edge_homophily",
    "edge_label_informativeness",
    "edge_subgraph",
    "edge_type_subgraph",
    "from_networkx",
    "from_scipy",
    "function",
    "graph",
    "heterograph",
    "in_subgraph",
    "is_libxsmm_enabled",
    "khop_in_subgraph",
    "khop_out_subgraph",
    "linkx_homophily",
    "load_graphs",
    "max_edges",
    "max_nodes",
    "mean_edges",
    "mean_nodes",
    "merge",
    "nn",
    "node_homophily",
    "node_label_informativeness",
    "node_subgraph",
    "node_type_subgraph",
    "ops",
    "out_subgraph",
    "prop_edges",
    "prop_edges_dfs",
    "prop_nodes",
    "prop_nodes_bfs",
    "prop_nodes_topo",
    "rand_bipartite",
    "rand_graph",
    "readout_edges",
    "readout_nodes",
    "sample_neighbors",
    "sampling",
    "save_graphs",
    "seed",
    "set_dst_lazy_features",
    "set_edge_lazy_features",
    "set_node_lazy_features",
    "set_src_lazy_features",
    "slice_batch",
    "softmax_edges",
    "softmax_nodes",
    "sum_edges",
    "sum_nodes",
    "to_heterogeneous",
    "to_homogeneous",
    "to_networkx",
    "topk_edges",
    "topk_nodes",
    "topological_nodes_generator",
    "transform",
    "transforms",
    "u_add_v",
    "u_div_v",
    "u_dot_v",
    "u_mul_v",
    "u_sub_v",
    "unbatch",
    "use_libxsmm",
]
__all__ += transforms.__all__

__version__ = "2.4.0"  # of DGL's interface

_LACKING = {
    "from_cugraph": "dgl.graph(('csr', ...)) takes the tensors of a cugraph.Graph",
    "to_cugraph": "g.adj_tensors('csr') gives the tensors that cugraph.Graph takes",
    "hetero_from_shared_memory": "pickle the graph to a worker: torch.multiprocessing shares its tensors",
    "distributed": "halfgnn has no distributed graph store",
    "DistGraph": "halfgnn has no distributed graph store",
    "graphbolt": "dgl.dataloading has samplers and data loaders",
    "optim": "torch.nn.Embedding(sparse=True) with torch.optim.SparseAdam trains embeddings of nodes",
    "storages": "halfgnn.dataloading.FeatureStore keeps features on disk or in memory, g.get_node_storage in a graph",
    **transforms.LACKING,
}


def __getattr__(name: str) -> Any:
    if name in _LACKING:
        raise AttributeError(f"dgl.{name} is not available in halfgnn.compat.dgl: {_LACKING[name]}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
