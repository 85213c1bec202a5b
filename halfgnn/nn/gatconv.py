"""Graph attention."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ..graph_argument import GraphLike
from . import attention
from .checks import check_edge_numbers, checked_features, projections
from .features import Features, cast_sides, checked_graph
from .projections import node_logits, project_with_logits, trimmed


class GATConv(attention.Attention):
    """Graph attention network layer (Velickovic et al., 2018), as dgl.nn.pytorch.GATConv.

    Args:
        in_feats: width of the input; a pair for sources and destinations with features of their own.
        out_feats: width of the output per head.
        num_heads: number of heads.
        feat_drop, attn_drop: dropout of the features and of the attention weights.
        negative_slope: of LeakyReLU.
        residual: add the features of the destinations, projected if their width is another.
        activation: function applied at the end.
        allow_zero_in_degree: accept nodes without in-edges. Their sum over edges is zero.
        bias: add a bias. If the residual is projected, it is the bias of that projection.
    """

    def __init__(
        self,
        in_feats,
        out_feats,
        num_heads,
        feat_drop=0.0,
        attn_drop=0.0,
        negative_slope=0.2,
        residual=False,
        activation=None,
        allow_zero_in_degree=False,
        bias=True,
    ):
        super().__init__(in_feats, out_feats, num_heads, allow_zero_in_degree)
        width = out_feats * num_heads
        self._add_projections(in_feats)
        self.attn_l = nn.Parameter(torch.empty(1, num_heads, out_feats))
        self.attn_r = nn.Parameter(torch.empty(1, num_heads, out_feats))
        self._add_submodules(feat_drop, attn_drop, negative_slope)
        self._add_residual(residual, bias)
        self.has_linear_res = residual and self._in_dst_feats != width
        self.has_explicit_bias = bias and not self.has_linear_res
        if self.has_explicit_bias:
            self.bias = nn.Parameter(torch.empty(width))
        else:
            self.register_buffer("bias", None)
        self.reset_parameters()
        self.activation = activation

    def reset_parameters(self) -> None:
        """Glorot normal, biases zero."""
        gain = nn.init.calculate_gain("relu")
        linears = [self.fc] if hasattr(self, "fc") else [self.fc_src, self.fc_dst]
        for weight in (*(linear.weight for linear in linears), self.attn_l, self.attn_r):
            nn.init.xavier_normal_(weight, gain=gain)
        if self.has_explicit_bias:
            nn.init.zeros_(self.bias)
        if self.has_linear_res:
            nn.init.xavier_normal_(self.res_fc.weight, gain=gain)
            if self.res_fc.bias is not None:
                nn.init.zeros_(self.res_fc.bias)

    def forward(self, graph: GraphLike, feat, edge_weight=None, get_attention=False):
        """Attention over the in-edges of every destination.

        Args:
            graph: Graph, DGLGraph or block.
            feat: (num_src, *, in_feats), or the pair of it and (num_dst, *, in_feats).
            edge_weight: (E,), multiplies the weights after softmax.
            get_attention: also return the weights. This and edge_weight cost memory for all edges.

        The result may be written into. If a gradient is recorded, it is a copy of what the backward keeps, unless there is a
        residual or bias.

        Returns:
            (num_dst, *, num_heads, out_feats); with get_attention the pair of it and (E, *, num_heads, 1).

        Raises:
            ValueError: the graph has nodes without in-edges; wrong shapes or devices. TypeError: wrong dtypes.
        """
        g = checked_graph(graph, self._allow_zero_in_degree, self.zero_in_degree_error)
        features = checked_features(g, feat, *projections(self))
        if edge_weight is not None:
            check_edge_numbers(g, edge_weight, features.src.dtype)
        return forward(self, graph, g, features, edge_weight, get_attention)


def forward(conv, graph, g, feat: Features, edge_weight=None, get_attention=False):
    """The forward of `conv`, a GATConv of this module or of DGL, on g, the Graph of `graph`."""
    x = cast_sides(graph, g, feat, conv.feat_drop)
    operands = (g, *project_sides(conv, x.src, x.own_dst, g.num_dst))
    if get_attention or edge_weight is not None or attention.why_unfused(conv) is not None:
        rst, weight = attention.gat_unfused(*operands, None, conv.leaky_relu, conv.attn_drop, edge_weight)
    else:
        rst = attention.gat(*operands, conv.leaky_relu.negative_slope, attention.dropout_p(conv.attn_drop))
        weight = None
    h_dst = x.dst if isinstance(conv.res_fc, nn.Linear) else x.uncast_dst
    rst = attention.finished(conv, trimmed(rst, conv._out_feats), h_dst, is_new=weight is not None, bias=conv.bias)
    return (rst, weight) if get_attention else rst


def project_sides(conv, x_src: Tensor, x_dst: Tensor | None, num_dst: int) -> tuple[Tensor, Tensor, Tensor]:
    """Features of the sources, and the logits of both sides. x_dst: None if the destinations are the first sources."""
    shape = (conv._num_heads, conv._out_feats)
    is_separate = hasattr(conv, "fc_src")
    if is_separate and x_dst is None:
        raise ValueError("feat is one tensor, but in_feats is a pair; expected a pair of features")
    fc_src, fc_dst = (conv.fc_src, conv.fc_dst) if is_separate else (conv.fc, conv.fc)
    if x_dst is None:
        ft, (el, er) = project_with_logits(fc_src, x_src, *shape, conv.attn_l, conv.attn_r)
        return ft, el, er[:num_dst]
    ft, (el,) = project_with_logits(fc_src, x_src, *shape, conv.attn_l)
    (er,) = node_logits(fc_dst, x_dst, conv.attn_r)
    return ft, el, er
