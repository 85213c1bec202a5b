"""Continuous-filter convolution."""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor, nn

from halfgnn import ops
from halfgnn.common.arguments import checked_size
from halfgnn.graph_argument import GraphLike, as_graph
from halfgnn.nn.checks import check_edge_features, checked_features
from halfgnn.nn.projections import applied


class ShiftedSoftplus(nn.Module):
    """softplus(x) - log(shift), the activation of SchNet."""

    def __init__(self, beta=1, shift=2, threshold=20):
        super().__init__()
        self.shift = shift
        self.softplus = nn.Softplus(beta=beta, threshold=threshold)

    def forward(self, inputs: Tensor) -> Tensor:
        """Like inputs."""
        return self.softplus(inputs) - math.log(self.shift)


class CFConv(nn.Module):
    """Continuous-filter convolution of SchNet (Schuett et al., 2017): sources times filters that a network makes of the edges.

    Args:
        node_in_feats, edge_in_feats: widths of the features of nodes and edges.
        hidden_feats: width of the filters.
        out_feats: width of the output.
    """

    def __init__(self, node_in_feats, edge_in_feats, hidden_feats, out_feats):
        super().__init__()
        hidden = checked_size(hidden_feats, "hidden_feats")
        self.project_edge = nn.Sequential(
            nn.Linear(checked_size(edge_in_feats, "edge_in_feats"), hidden),
            ShiftedSoftplus(),
            nn.Linear(hidden, hidden),
            ShiftedSoftplus(),
        )
        self.project_node = nn.Linear(checked_size(node_in_feats, "node_in_feats"), hidden)
        self.project_out = nn.Sequential(nn.Linear(hidden, checked_size(out_feats, "out_feats")), ShiftedSoftplus())

    def forward(self, g: GraphLike, node_feats: Any, edge_feats: Tensor) -> Tensor:
        """node_feats (num_src, node_in_feats) or a pair, edge_feats (E, edge_in_feats): (num_dst, out_feats).

        Raises:
            ValueError: wrong shapes or devices. TypeError: wrong dtypes.
        """
        graph = as_graph(g)
        src = node_feats[0] if isinstance(node_feats, tuple) else node_feats
        checked_features(graph, src, self.project_node, self.project_node, name="node_feats")
        check_edge_features(graph, edge_feats, "edge_feats", self.project_edge[0])
        filters = applied(self.project_edge, edge_feats)
        return applied(self.project_out, ops.u_mul_e_sum(graph, applied(self.project_node, src), filters))
