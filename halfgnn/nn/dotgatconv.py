"""Dot-product graph attention."""

from __future__ import annotations

from torch import nn

from ..common.arguments import checked_size, checked_widths
from . import attention
from ._checks import check_projected
from ._features import both_sides, checked_graph
from .projections import padded, project, trimmed


class DotGatConv(attention.Attention):
    """Attention by the scaled dot product of projected features, as dgl.nn.pytorch.DotGatConv.

    Args:
        in_feats: width of the input; a pair for sources and destinations with features of their own.
        out_feats: width of the output a head.
        num_heads: number of heads.
        allow_zero_in_degree: accept nodes without in-edges, which get zero.
    """

    def __init__(self, in_feats, out_feats, num_heads, allow_zero_in_degree=False):
        super().__init__()
        self._in_src_feats, self._in_dst_feats = checked_widths(in_feats, "in_feats")
        self._out_feats = checked_size(out_feats, "out_feats", least=1)
        self._allow_zero_in_degree = allow_zero_in_degree
        self._num_heads = checked_size(num_heads, "num_heads", least=1)
        width = out_feats * num_heads
        if isinstance(in_feats, tuple):
            self.fc_src = nn.Linear(self._in_src_feats, width, bias=False)
            self.fc_dst = nn.Linear(self._in_dst_feats, width, bias=False)
        else:
            self.fc = nn.Linear(self._in_src_feats, width, bias=False)

    def forward(self, graph, feat, get_attention=False):
        """Attention over the in-edges of every destination.

        Args:
            graph: Graph, DGLGraph or block.
            feat: (num_src, in_feats), or, if in_feats is a pair, the pair of it and (num_dst, in_feats).
            get_attention: also return the weights, which costs the memory of all edges.

        The result is a copy of what the backward keeps, if a gradient is recorded: it may be written into.

        Returns:
            (num_dst, num_heads, out_feats); with get_attention the pair of it and (E, num_heads, 1).

        Raises:
            As :class:`GATConv`.
        """
        g = checked_graph(graph, self._allow_zero_in_degree)
        check_projected(self, g, feat, dim=2)
        return forward(self, graph, g, feat, get_attention)


def forward(conv, graph, g, feat, get_attention=False):
    """The forward of `conv`, a DotGatConv of this module or of DGL, on g, the Graph of `graph`."""
    h_src, h_dst = both_sides(graph, g, feat)
    heads, dim = conv._num_heads, conv._out_feats
    width = padded(dim, h_src)
    if hasattr(conv, "fc_src") is not isinstance(feat, tuple):
        raise ValueError(
            "feat and in_feats differ: expected a pair of features where in_feats is a pair, else one tensor"
        )
    if isinstance(feat, tuple):
        feat_src = project(conv.fc_src, h_src, heads, dim, width)
        feat_dst = project(conv.fc_dst, h_dst, heads, dim, width)
    else:
        feat_src = project(conv.fc, h_src, heads, dim, width)
        feat_dst = feat_src[: g.num_dst]
    operands = (g, feat_dst, feat_src, feat_src, dim**-0.5)
    if not get_attention:
        return attention.handed_out(trimmed(attention.dot(*operands), dim))
    rst, weight = attention.dot_unfused(*operands)
    return trimmed(rst, dim).contiguous(), weight
