"""Gated graph convolution with edge features."""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from .. import ops
from ..common.arguments import check_probability, checked_size
from ..common.layers import check_layer
from ..common.operands import check_columns, check_operand, width_of
from ..common.precision import autocast
from ..graph_argument import GraphLike, as_graph
from .projections import applied


class GatedGCNConv(nn.Module):
    """GatedGCN layer (Bresson and Laurent, 2017), as dgl.nn.pytorch.GatedGCNConv of DGL 2.

    Args:
        input_feats, edge_feats, output_feats: widths of features of nodes, of edges, and of both results.
        dropout: of both results.
        batch_norm: normalise both results by batch. The two layers are made in any case.
        residual: add the inputs to the results. Without effect unless all three widths are equal.
        activation: function applied to both results, or None.
    """

    def __init__(
        self, input_feats, edge_feats, output_feats, dropout=0, batch_norm=True, residual=True, activation=F.relu
    ):
        super().__init__()
        if activation is not None and not callable(activation):
            raise TypeError(f"activation is {activation!r}; expected a function or None")
        input_feats, edge_feats, output_feats = (
            checked_size(input_feats, "input_feats"),
            checked_size(edge_feats, "edge_feats"),
            checked_size(output_feats, "output_feats", least=1),
        )
        self.dropout = nn.Dropout(check_probability(dropout, "dropout"))
        self.batch_norm = batch_norm
        self.residual = residual and input_feats == output_feats == edge_feats
        self.A = nn.Linear(input_feats, output_feats)
        self.B = nn.Linear(input_feats, output_feats)
        self.D = nn.Linear(input_feats, output_feats)
        self.E = nn.Linear(input_feats, output_feats)
        self.C = nn.Linear(edge_feats, output_feats)
        self.bn_node = nn.BatchNorm1d(output_feats)
        self.bn_edge = nn.BatchNorm1d(output_feats)
        self.activation = activation

    def forward(self, graph: GraphLike, feat, edge_feat):
        """Node features A feat[v] + sum of sigmoid(z[e]) B feat[u] / (sum of sigmoid(z[e]) + 1e-6), and edge features z.

        z[e] = D feat[u] + E feat[v] + C edge_feat[e], over in-edges e = (u, v). Then both results are normalised, activated,
        dropped out and added to the inputs.

        Args:
            graph: Graph or DGLGraph of one node type.
            feat: (N, input_feats).
            edge_feat: (num_edges, edge_feats).

        Returns:
            (N, output_feats) and (num_edges, output_feats).

        Raises:
            ValueError: wrong shapes or devices. TypeError: wrong dtypes.
        """
        g = as_graph(graph, "graph")
        if g.num_src != g.num_dst:
            raise ValueError(
                f"graph has {g.num_src} source and {g.num_dst} destination nodes; expected one set of nodes"
            )
        _check(g, feat, "feat", "u", self.A)
        _check(g, edge_feat, "edge_feat", "e", self.C)
        x, e = autocast(feat), autocast(edge_feat)
        summed, z = ops.gated_sum(
            g,
            applied(self.B, x),
            applied(self.D, x),
            applied(self.E, x),
            applied(self.C, e),
            normalize=True,
            return_edges=True,
        )
        return (
            self._finish(applied(self.A, x) + summed, feat, self.bn_node),
            self._finish(z, edge_feat, self.bn_edge),
        )

    def _finish(self, out: Tensor, feat: Tensor, norm: nn.Module) -> Tensor:
        if self.batch_norm:
            out = norm(out)
        if self.activation is not None:
            out = self.activation(out)
        out = self.dropout(out)
        return feat + out if self.residual else out


def _check(g: Any, x: Any, name: str, target: str, layer: nn.Module) -> None:
    check_operand(x, name, g, target)
    check_columns(x, name, width_of(layer))
    check_layer(x, name, layer)
