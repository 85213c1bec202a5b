"""Graph attention with logits of both ends at once."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .. import ops
from ..graph_argument import GraphLike
from . import attention
from .checks import checked_features, projections
from .features import Features, cast_sides, checked_graph
from .projections import padded, project, trimmed


class GATv2Conv(attention.Attention):
    """GATv2 layer (Brody, Alon and Yahav, 2022), as dgl.nn.pytorch.GATv2Conv.

    Args:
        in_feats, out_feats, num_heads, feat_drop, attn_drop, negative_slope, residual, activation, allow_zero_in_degree: see
            :class:`GATConv`.
        bias: of the projections.
        share_weights: project sources and destinations by one layer, if in_feats is no pair.
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
        super().__init__(in_feats, out_feats, num_heads, allow_zero_in_degree)
        width = out_feats * num_heads
        self.fc_src = nn.Linear(self._in_src_feats, width, bias=bias)
        if share_weights and not isinstance(in_feats, tuple):
            self.fc_dst = self.fc_src
        else:
            self.fc_dst = nn.Linear(self._in_dst_feats, width, bias=bias)
        self.attn = nn.Parameter(torch.empty(1, num_heads, out_feats))
        self._add_submodules(feat_drop, attn_drop, negative_slope)
        self._add_residual(residual, bias)
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

    def forward(self, graph: GraphLike, feat, get_attention=False):
        """Attention over the in-edges of every destination.

        Args:
            graph: Graph, DGLGraph or block.
            feat: (num_src, in_feats), or the pair of it and (num_dst, in_feats).
            get_attention: also return the weights. This costs memory for all edges and features.

        The result may be written into. If a gradient is recorded, it is a copy of what the backward keeps, unless there is a
        residual.

        Returns:
            (num_dst, num_heads, out_feats); with get_attention the pair of it and (E, num_heads, 1).

        Raises:
            See :class:`GATConv`.
        """
        g = checked_graph(graph, self._allow_zero_in_degree, self.zero_in_degree_error)
        features = checked_features(g, feat, *projections(self), dim=2)
        return forward(self, graph, g, features, get_attention)


def forward(conv, graph, g, feat: Features, get_attention=False):
    """The forward of `conv`, a GATv2Conv of this module or of DGL, on g, the Graph of `graph`."""
    x = cast_sides(graph, g, feat, conv.feat_drop)
    is_shared = conv.share_weights and x.own_dst is None
    can_fuse = attention.why_unfused(conv) is None
    width = padded(conv._out_feats, x.src) if can_fuse else conv._out_feats  # a user's activation must see no padding
    operands = (g, *_project(conv, x.src, None if is_shared else x.dst, g.num_dst, width))
    if get_attention or not can_fuse:
        rst, weight = attention.gatv2_unfused(*operands, conv.leaky_relu, conv.attn_drop)
    else:
        rst = ops.gatv2_attention(*operands, conv.leaky_relu.negative_slope, attention.dropout_p(conv.attn_drop))
        weight = None
    h_dst = x.dst if isinstance(conv.res_fc, nn.Linear) else x.uncast_dst
    rst = attention.finished(conv, trimmed(rst, conv._out_feats), h_dst, is_new=weight is not None)
    return (rst, weight) if get_attention else rst


def _project(conv, x_src: Tensor, x_dst: Tensor | None, num_dst: int, width: int) -> tuple[Tensor, Tensor, Tensor]:
    """Features of sources and destinations and the attention, of `width` per head. x_dst: None if it is projected with x_src."""
    heads, dim = conv._num_heads, conv._out_feats
    feat_src = project(conv.fc_src, x_src, heads, dim, width)
    feat_dst = feat_src[:num_dst] if x_dst is None else project(conv.fc_dst, x_dst, heads, dim, width)
    attn = F.pad(conv.attn, (0, width - dim)) if width > dim else conv.attn
    return feat_src, feat_dst, attn
