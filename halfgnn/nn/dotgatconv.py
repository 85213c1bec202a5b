"""Dot-product graph attention."""

from __future__ import annotations

from torch import Tensor

from ..graph_argument import GraphLike
from . import attention
from .checks import checked_features, projections
from .features import Features, both_sides, checked_graph
from .projections import padded, project, trimmed


class DotGatConv(attention.Attention):
    """Attention by the scaled dot product of projected features, as dgl.nn.pytorch.DotGatConv.

    Args:
        in_feats: width of the input; a pair for sources and destinations with features of their own.
        out_feats: width of the output per head.
        num_heads: number of heads.
        allow_zero_in_degree: accept nodes without in-edges. They get zero.
    """

    def __init__(self, in_feats, out_feats, num_heads, allow_zero_in_degree=False):
        super().__init__(in_feats, out_feats, num_heads, allow_zero_in_degree)
        self._add_projections(in_feats)

    def forward(self, graph: GraphLike, feat, get_attention=False):
        """Attention over the in-edges of every destination.

        Args:
            graph: Graph, DGLGraph or block.
            feat: (num_src, in_feats), or, if in_feats is a pair, the pair of it and (num_dst, in_feats).
            get_attention: also return the weights. This costs memory for all edges.

        The result may be written into. If a gradient is recorded, it is a copy of what the backward keeps.

        Returns:
            (num_dst, num_heads, out_feats); with get_attention the pair of it and (E, num_heads, 1).

        Raises:
            See :class:`GATConv`.
        """
        g = checked_graph(graph, self._allow_zero_in_degree, self.zero_in_degree_error)
        features = checked_features(g, feat, *projections(self), dim=2)
        return forward(self, graph, g, features, get_attention)


def forward(conv, graph, g, feat: Features, get_attention=False):
    """The forward of `conv`, a DotGatConv of this module or of DGL, on g, the Graph of `graph`."""
    h_src, h_dst = both_sides(graph, g, feat)
    if hasattr(conv, "fc_src") is (feat.dst is None):
        raise ValueError(
            "feat and in_feats differ; expected a pair of features if in_feats is a pair, otherwise one tensor"
        )
    key, query = _project(conv, h_src, None if feat.dst is None else h_dst, g.num_dst)
    operands = (g, query, key, key, conv._out_feats**-0.5)  # keys are values too
    rst, weight = attention.dot(*operands, get_attention=get_attention)
    rst = attention.safe_to_modify(trimmed(rst, conv._out_feats))
    return (rst, weight) if get_attention else rst


def _project(conv, h_src: Tensor, h_dst: Tensor | None, num_dst: int) -> tuple[Tensor, Tensor]:
    """Features of sources and of destinations. h_dst: None if the destinations are the first sources."""
    shape = (conv._num_heads, conv._out_feats, padded(conv._out_feats, h_src))
    if h_dst is None:
        feat_src = project(conv.fc, h_src, *shape)
        return feat_src, feat_src[:num_dst]
    return project(conv.fc_src, h_src, *shape), project(conv.fc_dst, h_dst, *shape)
