"""Graph attention with features of edges in logits and values."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from .. import ops
from ..common.arguments import checked_size
from ..common.layers import is_plain
from ..common.precision import autocast, without_autocast
from ..graph_argument import GraphLike
from . import attention
from .checks import check_edge_features, checked_features, projections
from .features import cast_sides, checked_graph, unrounded
from .gatconv import project_sides
from .projections import node_logits, project, project_with_logits, trimmed


class EdgeGATConv(attention.Attention):
    """GAT layer with edge features (Monninger et al., 2023), as dgl.nn.pytorch.EdgeGATConv.

    Args:
        in_feats, out_feats, num_heads, feat_drop, attn_drop, negative_slope, activation, allow_zero_in_degree: see
            :class:`GATConv`.
        edge_feats: width of the edge features, which are projected and added to those of the sources.
        residual: add the features of the destinations, projected.
        bias: add a bias.
    """

    def __init__(
        self,
        in_feats,
        edge_feats,
        out_feats,
        num_heads,
        feat_drop=0.0,
        attn_drop=0.0,
        negative_slope=0.2,
        residual=True,
        activation=None,
        allow_zero_in_degree=False,
        bias=True,
    ):
        super().__init__(in_feats, out_feats, num_heads, allow_zero_in_degree)
        width = out_feats * num_heads
        self._edge_feats = checked_size(edge_feats, "edge_feats")
        self._add_projections(in_feats)
        self.attn_l = nn.Parameter(torch.empty(1, num_heads, out_feats))
        self.attn_r = nn.Parameter(torch.empty(1, num_heads, out_feats))
        self._add_submodules(feat_drop, attn_drop, negative_slope)
        if bias:
            self.bias = nn.Parameter(torch.empty(width))
        else:
            self.register_buffer("bias", None)
        if residual:
            self.res_fc = nn.Linear(self._in_dst_feats, width, bias=False)
        else:
            self.register_buffer("res_fc", None)
        self.fc_edge = nn.Linear(edge_feats, width, bias=False)
        self.attn_edge = nn.Parameter(torch.empty(1, num_heads, out_feats))
        self.reset_parameters()
        self.activation = activation

    def reset_parameters(self) -> None:
        """Glorot normal, bias zero."""
        gain = nn.init.calculate_gain("relu")
        linears: list[Any] = [self.fc] if hasattr(self, "fc") else [self.fc_src, self.fc_dst]
        weights = (
            *(linear.weight for linear in linears),
            self.attn_l,
            self.attn_r,
            self.fc_edge.weight,
            self.attn_edge,
        )
        for weight in weights:
            nn.init.xavier_normal_(weight, gain=gain)
        if self.bias is not None:
            nn.init.zeros_(self.bias)
        if self.res_fc is not None:
            nn.init.xavier_normal_(self.res_fc.weight, gain=gain)

    def forward(self, graph: GraphLike, feat, edge_feat, get_attention=False):
        """Attention over the in-edges of every destination.

        Args:
            graph: Graph, DGLGraph or block.
            feat: (num_src, in_feats), or the pair of it and (num_dst, in_feats).
            edge_feat: (E, edge_feats).
            get_attention: also return the weights. This costs memory for all edges and features.

        The result may be written into. It costs numbers of edges and heads, logits, but no features of edges.

        Returns:
            (num_dst, num_heads, out_feats); with get_attention the pair of it and (E, num_heads, 1).

        Raises:
            See :class:`GATConv`.
        """
        g = checked_graph(graph, self._allow_zero_in_degree, self.zero_in_degree_error)
        features = checked_features(g, feat, *projections(self), dim=2)
        check_edge_features(g, edge_feat, "edge_feat", self.fc_edge)
        x = cast_sides(graph, g, features, self.feat_drop)
        feat_src, *logits = project_sides(self, x.src, x.own_dst, g.num_dst)
        edge_feat = autocast(edge_feat)
        rows = None  # projected edge features, if fc_edge must be called: once, as pre-hooks may count calls
        if is_plain(self.fc_edge):
            (of_edges,) = node_logits(self.fc_edge, edge_feat, self.attn_edge)
        else:
            rows, (of_edges,) = project_with_logits(
                self.fc_edge, edge_feat, self._num_heads, self._out_feats, self.attn_edge
            )
        with without_autocast(feat_src.device):
            scores = ops.u_add_v(g, *(logit.to(of_edges.dtype) for logit in logits)) + of_edges
        weight = None
        if get_attention or attention.why_unfused(self) is not None:
            rst, weight = self._unfused(g, feat_src, edge_feat, rows, scores)
        else:
            rst = self._fused(g, feat_src, edge_feat, rows, scores)
        rst = attention.finished(self, trimmed(rst, self._out_feats), x.dst, is_new=weight is not None, bias=self.bias)
        return (rst, weight) if get_attention else rst

    def _shape(self, feat_src: Tensor) -> tuple[int, int, int]:
        return self._num_heads, self._out_feats, feat_src.shape[-1]

    def _fused(self, g, feat_src: Tensor, edge_feat: Tensor, rows: Tensor | None, scores: Tensor) -> Tensor:
        """Dot attention whose logits are its bias: queries are zero. rows: the projected edge_feat, or None if not made."""
        weight = None if rows is not None else attention.edge_weight(self.fc_edge, *self._shape(feat_src))
        terms: dict[str, Any]
        if weight is None:
            terms = {"edge_value": self._rows(feat_src, edge_feat, rows)}
        else:
            terms = {"edge_feat": edge_feat, "edge_value_weight": weight}
        query = feat_src.new_zeros(g.num_dst, *feat_src.shape[1:])
        p = attention.dropout_p(self.attn_drop)
        return ops.dot_attention(g, query, feat_src, feat_src, 1.0, p, edge_bias=self.leaky_relu(scores), **terms)

    def _rows(self, feat_src: Tensor, edge_feat: Tensor, rows: Tensor | None) -> Tensor:
        return project(self.fc_edge, edge_feat, *self._shape(feat_src)) if rows is None else rows

    def _unfused(
        self, g, feat_src: Tensor, edge_feat: Tensor, rows: Tensor | None, scores: Tensor
    ) -> tuple[Tensor, Tensor]:
        """The same operator by operator, and the weights after dropout."""
        rows = self._rows(feat_src, edge_feat, rows)
        with without_autocast(feat_src.device):
            logits = attention.called(self.leaky_relu, scores.unsqueeze(-1))
            weight = attention.called(self.attn_drop, ops.edge_softmax(g, logits))
            out = ops.u_mul_e_sum(g, feat_src, weight, out_dtype=unrounded(feat_src)) + ops.copy_e_sum(g, rows * weight)
        return out.to(feat_src.dtype), weight.to(feat_src.dtype)
