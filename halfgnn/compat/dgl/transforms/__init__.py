"""Transforms: graphs made of graphs, as functions and as objects."""

from typing import Any

from . import functional  # noqa: F401  (programs read dgl.transforms.functional)
from .derived import (
    adj_product_graph,
    adj_sum_graph,
    compact_graphs,
    khop_adj,
    khop_graph,
    line_graph,
    metapath_reachable_graph,
)
from .diffusion import GDC, PPR, HeatKernel, SIGNDiffusion
from .edges import (
    add_edges,
    add_nodes,
    add_reverse_edges,
    add_self_loop,
    remove_edges,
    remove_nodes,
    remove_self_loop,
    reverse,
    to_bidirected,
    to_simple,
    to_simple_graph,
)
from .encodings import (
    double_radius_node_labeling,
    lap_pe,
    laplacian_lambda_max,
    laplacian_pe,
    norm_by_dst,
    random_walk_pe,
    shortest_dist,
    svd_pe,
)
from .features import to_bfloat16, to_double, to_float, to_half
from .module import (
    SVDPE,
    AddEdge,
    AddMetaPaths,
    AddReverse,
    AddSelfLoop,
    BaseTransform,
    Compose,
    DropEdge,
    DropNode,
    FeatMask,
    GCNNorm,
    KHopGraph,
    LaplacianPE,
    LapPE,
    LineGraph,
    NodeShuffle,
    RandomWalkPE,
    RemoveSelfLoop,
    RowFeatNormalizer,
    ToLevi,
    ToSimple,
)
from .order import reorder_graph
from .points import knn_graph, radius_graph, segmented_knn_graph
from .to_block import to_block

__all__ = [
    "GDC",
    "PPR",
    "SVDPE",
    "AddEdge",
    "AddMetaPaths",
    "AddReverse",
    "AddSelfLoop",
    "BaseTransform",
    "Compose",
    "DropEdge",
    "DropNode",
    "FeatMask",
    "GCNNorm",
    "HeatKernel",
    "KHopGraph",
    "LapPE",
    "LaplacianPE",
    "LineGraph",
    "NodeShuffle",
    "RandomWalkPE",
    "RemoveSelfLoop",
    "RowFeatNormalizer",
    "SIGNDiffusion",
    "ToLevi",
    "ToSimple",
    "add_edges",
    "add_nodes",
    "add_reverse_edges",
    "add_self_loop",
    "adj_product_graph",
    "adj_sum_graph",
    "compact_graphs",
    "double_radius_node_labeling",
    "khop_adj",
    "khop_graph",
    "knn_graph",
    "lap_pe",
    "laplacian_lambda_max",
    "laplacian_pe",
    "line_graph",
    "metapath_reachable_graph",
    "norm_by_dst",
    "radius_graph",
    "random_walk_pe",
    "remove_edges",
    "remove_nodes",
    "remove_self_loop",
    "reorder_graph",
    "reverse",
    "segmented_knn_graph",
    "shortest_dist",
    "svd_pe",
    "to_bfloat16",
    "to_bidirected",
    "to_block",
    "to_double",
    "to_float",
    "to_half",
    "to_simple",
    "to_simple_graph",
]

_METIS = "halfgnn has no METIS; halfgnn.node_order and dgl.reorder_graph(g, 'rcmk') put neighbours side by side"
LACKING = {
    "metis_partition": _METIS,
    "metis_partition_assignment": _METIS,
    "partition_graph_with_halo": "dgl.in_subgraph and dgl.khop_in_subgraph give parts with their neighbours",
    "sort_csc_by_tag": "biased sampling by tags is not available",
    "sort_csr_by_tag": "biased sampling by tags is not available",
}


def __getattr__(name: str) -> Any:
    if name in LACKING:
        raise AttributeError(f"dgl.{name} is not available in halfgnn.compat.dgl: {LACKING[name]}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
