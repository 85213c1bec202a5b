"""Graph attention whose logits depend on both ends at once."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from ..common.arguments import check_number, check_probability, checked_size, checked_widths
from . import attention
from ._checks import check_projected
from ._features import both_sides, cast_once, checked_graph
from .projections import applied, padded, project, trimmed


class GATv2Conv(attention.Attention):
    """GATv2 layer (Brody, Alon and Yahav, 2022), as dgl.nn.pytorch.GATv2Conv.

    Args:
        in_feats, out_feats, num_heads, feat_drop, attn_drop, negative_slope, residual, activation, allow_zero_in_degree: see
            :class:`GATConv`.
        bias: of the projections.
        share_weights: project sources and destinations alike (one in_feats only).
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
        share_weights=False,
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
        self.fc_src = nn.Linear(self._in_src_feats, width, bias=bias)
        if share_weights and not isinstance(in_feats, tuple):
            self.fc_dst = self.fc_src
        else:
            self.fc_dst = nn.Linear(self._in_dst_feats, width, bias=bias)
        self.attn = nn.Parameter(torch.empty(1, num_heads, out_feats))
        self.feat_drop = nn.Dropout(feat_drop)
        self.attn_drop = nn.Dropout(attn_drop)
        self.leaky_relu = nn.LeakyReLU(negative_slope)
        if residual and self._in_dst_feats != width:
            self.res_fc = nn.Linear(self._in_dst_feats, width, bias=bias)
        elif residual:
            self.res_fc = nn.Identity()
        else:
            self.register_buffer("res_fc", None)
        self.activation = activation
        self.share_weights = share_weights
        self.bias = bias
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Glorot normal, biases zero."""
        gain = nn.init.calculate_gain("relu")
        linears = [self.fc_src] if self.share_weights else [self.fc_src, self.fc_dst]
        for linear in linears:
            nn.init.xavier_normal_(linear.weight, gain=gain)
        nn.init.xavier_normal_(self.attn, gain=gain)
        if isinstance(self.res_fc, nn.Linear):
            nn.init.xavier_normal_(self.res_fc.weight, gain=gain)
            linears.append(self.res_fc)
        if self.bias:
            for linear in linears:
                nn.init.zeros_(linear.bias)

    def forward(self, graph, feat, get_attention=False):
        """Attention over the in-edges of every destination.

        Args:
            graph: Graph, DGLGraph or block.
            feat: (num_src, in_feats), or the pair of it and (num_dst, in_feats).
            get_attention: also return the weights, which costs the memory of all edges and features.

        Without residual the result is a copy of what the backward keeps, if a gradient is recorded: it may be written into.

        Returns:
            (num_dst, num_heads, out_feats); with get_attention the pair of it and (E, num_heads, 1).

        Raises:
            As :class:`GATConv`.
        """
        g = checked_graph(graph, self._allow_zero_in_degree)
        check_projected(self, g, feat, dim=2)
        return forward(self, graph, g, feat, get_attention)


def forward(conv, graph, g, feat, get_attention=False):
    """The forward of `conv`, a GATv2Conv of this module or of DGL, on g, the Graph of `graph`."""
    h_src, h_dst = both_sides(graph, g, feat, conv.feat_drop)
    heads, dim = conv._num_heads, conv._out_feats
    x_src, x_dst = cast_once(g, feat, h_src, h_dst)
    unfused = attention.why_unfused(conv)
    width = padded(dim, x_src) if unfused is None else dim  # what is called in place of LeakyReLU sees no padding
    feat_src = project(conv.fc_src, x_src, heads, dim, width)
    if conv.share_weights and not isinstance(feat, tuple):
        feat_dst = feat_src[: g.num_dst]
    else:
        feat_dst = project(conv.fc_dst, x_dst, heads, dim, width)
    attn = F.pad(conv.attn, (0, width - dim)) if width > dim else conv.attn
    operands, weight = (g, feat_src, feat_dst, attn), None
    is_fused = not get_attention and unfused is None
    if is_fused:
        rst = attention.gatv2(*operands, conv.leaky_relu.negative_slope, attention.dropout_p(conv.attn_drop))
    else:
        rst, weight = attention.gatv2_unfused(*operands, conv.leaky_relu, conv.attn_drop)
    rst = trimmed(rst, dim)
    if conv.res_fc is not None:
        h_dst = x_dst if isinstance(conv.res_fc, nn.Linear) else h_dst
        rst = rst + applied(conv.res_fc, h_dst).unflatten(-1, (-1, dim))
    rst = attention.handed_out(rst, not is_fused or conv.res_fc is not None)
    if conv.activation:
        rst = conv.activation(rst)
    return (rst, weight) if get_attention else rst
