"""Convolution with a matrix per edge."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from halfgnn import ops
from halfgnn.common.arguments import checked_size, checked_widths
from halfgnn.common.operands import check_operand
from halfgnn.graph_argument import GraphLike, as_graph
from halfgnn.nn.checks import checked_features
from halfgnn.nn.features import cast_sides

from ._aggregators import add_bias, add_residual, check_aggregator, finished


class NNConv(nn.Module):
    """Convolution with edge networks of neural message passing (Gilmer et al., 2017).

    Args:
        in_feats: width of the input; a pair for sources and destinations with features of their own.
        out_feats: width of the output.
        edge_func: module or function that makes (E, in_feats * out_feats) of the features of edges, a matrix per edge.
        aggregator_type: "sum", "mean" or "max". A maximum is taken before the sum over in_feats.
        residual: add the features of the destinations, projected if their width is another.
        bias: add a bias.
    """

    bias: nn.Parameter | None

    def __init__(self, in_feats, out_feats, edge_func, aggregator_type="mean", residual=False, bias=True):
        super().__init__()
        check_aggregator(aggregator_type)
        self._in_src_feats, self._in_dst_feats = checked_widths(in_feats, "in_feats")
        self._out_feats = checked_size(out_feats, "out_feats")
        self.edge_func = edge_func
        self._aggre_type = aggregator_type
        add_residual(self, residual, self._in_dst_feats, out_feats)
        add_bias(self, bias, out_feats)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Glorot normal for the residual, bias zero. edge_func is left."""
        if self.bias is not None:
            nn.init.zeros_(self.bias)
        if isinstance(self.res_fc, nn.Linear):
            nn.init.xavier_normal_(self.res_fc.weight, gain=nn.init.calculate_gain("relu"))

    def forward(self, graph: GraphLike, feat: Any, efeat: Tensor) -> Tensor:
        """The aggregate of feat[u] edge_func(efeat)[e] over in-edges e = (u, v).

        Args:
            feat: (num_src, in_feats), or the pair of it and (num_dst, in_feats).
            efeat: (E, *), what edge_func takes.

        Returns:
            (num_dst, out_feats)

        Raises:
            ValueError: wrong shapes or devices. TypeError: wrong dtypes.
        """
        g = as_graph(graph, "graph")
        features = checked_features(g, feat, dim=2)
        check_operand(efeat, "efeat", g, "e")
        x = cast_sides(graph, g, features)
        matrices = self.edge_func(efeat).view(-1, self._in_src_feats, self._out_feats)
        if self._aggre_type == "max":
            rst = ops.u_mul_e_max(g, x.src.unsqueeze(-1), matrices).sum(1)
        else:
            messages = torch.bmm(ops.copy_u(g, x.src).unsqueeze(1), matrices).squeeze(1)
            rst = ops.gspmm(g, "copy_rhs", self._aggre_type, None, messages)
        return finished(self, rst, x.dst)
