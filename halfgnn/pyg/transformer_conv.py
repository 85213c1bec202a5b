"""TransformerConv of torch_geometric."""

from __future__ import annotations

from .. import nn
from ._conv import check_options, checked_graph, checked_pair
from ._graph import edge_index_of


class TransformerConv(nn.TransformerConv):
    """Graph transformer layer, as torch_geometric.nn.TransformerConv: :class:`halfgnn.nn.TransformerConv` on edge_index."""

    def __init__(
        self,
        in_channels,
        out_channels,
        heads=1,
        concat=True,
        beta=False,
        dropout=0.0,
        edge_dim=None,
        bias=True,
        root_weight=True,
        **kwargs,
    ):
        check_options(in_channels, kwargs)
        super().__init__(in_channels, out_channels, heads, concat, beta, dropout, edge_dim, bias, root_weight)

    def forward(self, x, edge_index, edge_attr=None, return_attention_weights=None):
        """Attention over the in-edges of every destination.

        Args:
            x: (N, in_channels), or the pair of (num_src, in_channels) and (num_dst, in_channels).
            edge_index: (2, E), or a Graph or DGLGraph.
            edge_attr: (E, edge_dim), if edge_dim is given.
            return_attention_weights: if a bool, also return (edge_index, weights (E, heads)). This costs memory for all edges.

        Returns:
            (num_dst, heads * out_channels), or (num_dst, out_channels) without concat; or a pair, see return_attention_weights.

        Raises:
            See :class:`halfgnn.nn.TransformerConv`.
        """
        x_src, x_dst = checked_pair(x, self.lin_key, self.lin_query)
        g = checked_graph(edge_index, x_src, x_src.shape[0], x_dst.shape[0])
        self._check_edges(g, edge_attr, "edge_attr")
        if not isinstance(return_attention_weights, bool):
            return self._forward(g, x_src, x_dst, edge_attr, get_attention=False)
        out, weight = self._forward(g, x_src, x_dst, edge_attr, get_attention=True)
        return out, (edge_index_of(g), weight.squeeze(-1))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.in_channels}, {self.out_channels}, heads={self.heads})"
