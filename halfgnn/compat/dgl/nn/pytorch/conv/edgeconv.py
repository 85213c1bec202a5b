"""Dynamic graph convolution."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from halfgnn import ops
from halfgnn.common.arguments import checked_size
from halfgnn.common.layers import is_plain
from halfgnn.common.precision import autocast
from halfgnn.compat.dgl.base import DGLError
from halfgnn.graph_argument import GraphLike
from halfgnn.nn.checks import checked_features
from halfgnn.nn.features import both_sides, checked_graph
from halfgnn.nn.projections import applied, linear


class EdgeConv(nn.Module):
    """Edge convolution of dynamic graph CNNs (Wang et al., 2019): the maximum of theta(x_v - x_u) + phi(x_v) over in-edges.

    What v adds is common to its in-edges, so the maximum is one minimum of projected sources, and no message is materialized. The
    batch norm needs the messages.

    Args:
        in_feat, out_feat: widths of input and output.
        batch_norm: normalise messages.
        allow_zero_in_degree: accept nodes without in-edges. They get zero.
    """

    def __init__(self, in_feat, out_feat, batch_norm=False, allow_zero_in_degree=False):
        super().__init__()
        self.batch_norm = batch_norm
        self._allow_zero_in_degree = allow_zero_in_degree
        self.theta = nn.Linear(checked_size(in_feat, "in_feat"), checked_size(out_feat, "out_feat"))
        self.phi = nn.Linear(in_feat, out_feat)
        if batch_norm:
            self.bn = nn.BatchNorm1d(out_feat)

    def set_allow_zero_in_degree(self, set_value: bool) -> None:
        """Whether nodes without in-edges are accepted."""
        self._allow_zero_in_degree = set_value

    def forward(self, g: GraphLike, feat: Any) -> Tensor:
        """feat (num_src, in_feat), or the pair of it and (num_dst, in_feat): (num_dst, out_feat).

        Raises:
            DGLError: the graph has nodes without in-edges. ValueError, TypeError: wrong shapes, devices or dtypes.
        """
        graph = checked_graph(g, self._allow_zero_in_degree, DGLError)
        features = checked_features(graph, feat, self.theta, self.phi)
        h_src, h_dst = (autocast(h) for h in both_sides(g, graph, features))
        if not is_plain(self.theta):
            messages = self.theta(ops.v_sub_u(graph, h_dst, h_src))
            return self._largest(graph, ops.e_add_v(graph, messages, applied(self.phi, h_dst)))
        src = linear(h_src, self.theta.weight, None)
        own = applied(self.theta, h_dst) + applied(self.phi, h_dst)
        if self.batch_norm:
            return self._largest(graph, ops.v_sub_u(graph, own, src))
        rst = own - ops.copy_u_min(graph, src)
        if not self._allow_zero_in_degree:
            return rst
        has_edges = (graph.in_degrees() > 0).view(-1, *[1] * (rst.dim() - 1))
        return torch.where(has_edges, rst, 0.0)

    def _largest(self, graph: Any, messages: Tensor) -> Tensor:
        return ops.copy_e_max(graph, self.bn(messages) if self.batch_norm else messages)
