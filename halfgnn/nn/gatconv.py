"""Graph attention."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ..common.arguments import check_number, check_probability, checked_size, checked_widths
from . import attention
from ._checks import check_edge_numbers, check_projected
from ._features import both_sides, cast_once, checked_graph
from .projections import applied, node_logits, project_with_logits, trimmed


class GATConv(attention.Attention):
    """Graph attention network layer (Velickovic et al., 2018), as dgl.nn.pytorch.GATConv.

    Args:
        in_feats: width of the input; a pair for sources and destinations with features of their own.
        out_feats: width of the output a head.
        num_heads: number of heads.
        feat_drop, attn_drop: dropout of the features and of the attention weights.
        negative_slope: of LeakyReLU.
        residual: add the (projected) features of the destinations.
        activation: function applied at the end.
        allow_zero_in_degree: accept nodes without in-edges, whose sum over edges is zero.
        bias: add a bias; with a projected residual it is that projection's.
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
        super().__init__()
        self._num_heads = checked_size(num_heads, "num_heads", least=1)
        self._in_src_feats, self._in_dst_feats = checked_widths(in_feats, "in_feats")
        self._out_feats = checked_size(out_feats, "out_feats", least=1)
        self._allow_zero_in_degree = allow_zero_in_degree
        check_probability(feat_drop, "feat_drop")
        check_probability(attn_drop, "attn_drop")
        check_number(negative_slope, "negative_slope")
        width = out_feats * num_heads
        if isinstance(in_feats, tuple):
            self.fc_src = nn.Linear(self._in_src_feats, width, bias=False)
            self.fc_dst = nn.Linear(self._in_dst_feats, width, bias=False)
        else:
            self.fc = nn.Linear(self._in_src_feats, width, bias=False)
        self.attn_l = nn.Parameter(torch.empty(1, num_heads, out_feats))
        self.attn_r = nn.Parameter(torch.empty(1, num_heads, out_feats))
        self.feat_drop = nn.Dropout(feat_drop)
        self.attn_drop = nn.Dropout(attn_drop)
        self.leaky_relu = nn.LeakyReLU(negative_slope)
        self.has_linear_res = residual and self._in_dst_feats != width
        self.has_explicit_bias = bias and not self.has_linear_res
        if self.has_linear_res:
            self.res_fc = nn.Linear(self._in_dst_feats, width, bias=bias)
        elif residual:
            self.res_fc = nn.Identity()
        else:
            self.register_buffer("res_fc", None)
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

    def forward(self, graph, feat, edge_weight=None, get_attention=False):
        """Attention over the in-edges of every destination.

        Args:
            graph: Graph, DGLGraph or block.
            feat: (num_src, *, in_feats), or the pair of it and (num_dst, *, in_feats).
            edge_weight: (E,), by which the weights after softmax are multiplied.
            get_attention: also return the weights. Weights and edge_weight cost the memory of all edges.

        Without residual and bias the result is a copy of what the backward keeps, if a gradient is recorded: it may be written
        into.

        Returns:
            (num_dst, *, num_heads, out_feats); with get_attention the pair of it and (E, *, num_heads, 1).

        Raises:
            ValueError: the graph has nodes without in-edges; wrong shapes or devices. TypeError: wrong dtypes.
        """
        g = checked_graph(graph, self._allow_zero_in_degree)
        check_projected(self, g, feat)
        if edge_weight is not None:
            check_edge_numbers(g, edge_weight, feat)
        return forward(self, graph, g, feat, edge_weight, get_attention)


def forward(conv, graph, g, feat, edge_weight=None, get_attention=False):
    """The forward of `conv`, a GATConv of this module or of DGL, on g, the Graph of `graph`."""
    h_src, h_dst = both_sides(graph, g, feat, conv.feat_drop)
    x_src, x_dst = cast_once(g, feat, h_src, h_dst)
    operands = _project(conv, x_src, x_dst if isinstance(feat, tuple) else None, g.num_dst)
    rst, weight = _attend(conv, g, operands, edge_weight, get_attention)
    h_dst = x_dst if isinstance(conv.res_fc, nn.Linear) else h_dst
    rst = finished(conv, trimmed(rst, conv._out_feats), h_dst, is_new=weight is not None)
    return (rst, weight) if get_attention else rst


def _project(conv, x_src: Tensor, x_dst: Tensor | None, num_dst: int) -> tuple[Tensor, Tensor, Tensor]:
    """Features of the sources, and the logits of both sides. x_dst: None where destinations are the first sources."""
    shape = (conv._num_heads, conv._out_feats)
    separate = hasattr(conv, "fc_src")
    if separate and x_dst is None:
        raise ValueError("feat is one tensor, but in_feats a pair; expected a pair of features")
    fc_src, fc_dst = (conv.fc_src, conv.fc_dst) if separate else (conv.fc, conv.fc)
    if x_dst is None:
        ft, (el, er) = project_with_logits(fc_src, x_src, *shape, conv.attn_l, conv.attn_r)
        return ft, el, er[:num_dst]
    ft, (el,) = project_with_logits(fc_src, x_src, *shape, conv.attn_l)
    (er,) = node_logits(fc_dst, x_dst, conv.attn_r)
    return ft, el, er


def _attend(
    conv, g, operands: tuple[Tensor, Tensor, Tensor], edge_weight, get_attention: bool
) -> tuple[Tensor, Tensor | None]:
    """(features of destinations, weights or None: they were not made)"""
    if edge_weight is None and not get_attention and attention.why_unfused(conv) is None:
        slope, p = conv.leaky_relu.negative_slope, attention.dropout_p(conv.attn_drop)
        return attention.gat(g, *operands, None, slope, p), None
    return attention.gat_unfused(g, *operands, None, conv.leaky_relu, conv.attn_drop, edge_weight)


def finished(conv, rst: Tensor, h_dst: Tensor, is_new: bool) -> Tensor:
    """Residual, bias and activation. is_new: rst is kept for no backward."""
    if conv.res_fc is not None:
        rst = rst + applied(conv.res_fc, h_dst).unflatten(-1, (-1, conv._out_feats))
    if conv.has_explicit_bias:
        rst = rst + conv.bias.view(conv._num_heads, conv._out_feats)
    rst = attention.handed_out(rst, is_new or conv.res_fc is not None or conv.has_explicit_bias)
    return conv.activation(rst) if conv.activation else rst
