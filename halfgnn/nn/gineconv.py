"""Graph isomorphism network with edge features."""

from __future__ import annotations

import torch
from torch import nn

from .. import ops
from ..common.arguments import check_number
from ..common.operands import check_operand, check_parameter_device, name_operands, operand_errors
from ..graph_argument import GraphLike, as_graph
from .checks import checked_features
from .features import both_sides
from .projections import applied


class GINEConv(nn.Module):
    """Graph isomorphism layer with edge features (Hu et al., 2020), as dgl.nn.pytorch.GINEConv.

    Args:
        apply_func: function or module applied to the sum, or None.
        init_eps: eps, which is added to the weight 1 of a destination's own features.
        learn_eps: make eps a parameter.
    """

    def __init__(self, apply_func=None, init_eps=0, learn_eps=False):
        super().__init__()
        if apply_func is not None and not callable(apply_func):
            raise TypeError(f"apply_func is {apply_func!r}; expected a module, another callable, or None")
        self.apply_func = apply_func
        eps = torch.tensor([float(check_number(init_eps, "init_eps"))])
        if learn_eps:
            self.eps = nn.Parameter(eps)
        else:
            self.register_buffer("eps", eps)

    def forward(self, graph: GraphLike, node_feat, edge_feat):
        """apply_func((1 + eps) node_feat[v] + sum of relu(node_feat[u] + edge_feat[e]) over in-edges e = (u, v)).

        Args:
            graph: Graph, DGLGraph or block.
            node_feat: (num_src, in_feats), or the pair of it and (num_dst, in_feats).
            edge_feat: (E, in_feats).

        Returns:
            The result of apply_func for (num_dst, in_feats).

        Raises:
            ValueError: wrong shapes or devices. TypeError: wrong dtypes.
        """
        g = as_graph(graph, "graph")
        features = checked_features(g, node_feat, name="node_feat")
        check_parameter_device(features.src, "node_feat", self.eps)
        check_operand(edge_feat, "edge_feat", g, "e")
        h_src, h_dst = both_sides(graph, g, features, name="node_feat")
        if h_src.shape[1:] != h_dst.shape[1:]:
            raise ValueError(
                f"node_feat[0] and node_feat[1] have shapes {tuple(h_src.shape)} and {tuple(h_dst.shape)}; expected one width"
            )
        if edge_feat.shape[1:] != h_src.shape[1:]:
            raise ValueError(
                f"edge_feat has shape {tuple(edge_feat.shape)}; expected {(g.num_edges, *h_src.shape[1:])}, the width of node_feat"
            )
        try:
            summed = ops.gspmm(g, "relu_add", "sum", h_src, edge_feat)
        except operand_errors() as error:
            name_operands(error, lhs_data="node_feat", rhs_data="edge_feat")
            raise
        rst = (1 + self.eps) * h_dst + summed
        return rst if self.apply_func is None else applied(self.apply_func, rst)
