"""All transforms that are functions of graphs."""

from .derived import (
    adj_product_graph,
    adj_sum_graph,
    compact_graphs,
    khop_adj,
    khop_graph,
    line_graph,
    metapath_reachable_graph,
)
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
from .order import reorder_graph
from .points import knn_graph, radius_graph, segmented_knn_graph

__all__ = [
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
    "to_double",
    "to_float",
    "to_half",
    "to_simple",
    "to_simple_graph",
]
