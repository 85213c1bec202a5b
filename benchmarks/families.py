"""What the subcommands measure: families of cases, and groups of families, in the order in which they run."""

from __future__ import annotations

from . import targets

FAMILIES = {
    "spmm": "copy_u and u_mul_e sums and maxima",
    "sddmm": "u_dot_v and u_add_v",
    "softmax": "edge_softmax",
    "messages": "rows of nodes with rows of edges: u_add_e_sum, u_relu_add_e_sum, u_mul_e_sum, u_add_v_add_e, gated_sum",
    "edges": "copy_e_sum, e_sub_v and e_div_v, one number per edge and head",
    "attention": "gat_attention, gatv2_attention and dot_attention, fused and unfused",
    "layer": "a step of dgl.nn modules, as they are, under the drop-in, and fused",
    "edge_layer": "a step of modules with features of edges: torch_geometric's, dgl.nn's and halfgnn's",
    "edge_network": "a step of a network on every edge: halfgnn's, plain, compiled, and under torch.utils.checkpoint",
    "train": "training steps of GAT, GCN and SAGE: time, memory, losses",
    "overhead": "microseconds per call and per training step, from 30 nodes to 4 M edges",
    "limits": "copy_u_sum beside other gathers and copies",
    "several": "copy_u_reduce: mean, max, min and std at once",
    "reorder": "copy_u_sum under the node ids of halfgnn.reorder and of others, and the time of reordering",
}
GROUPS = {
    "operators": ("spmm", "attention", "sddmm", "softmax", "messages", "edges", "limits"),
    "of_nodes": ("spmm", "attention", "sddmm", "softmax", "edges", "limits"),  # without rows of features per edge
    "marked": ("spmm", "sddmm", "softmax", "layer", "limits"),
    "edge_features": targets.EDGE_FAMILIES,
    "all": tuple(FAMILIES),
}


def families_of(command: str) -> tuple[str, ...]:
    """Those of a group, or the family of that name."""
    return GROUPS.get(command, (command,))
