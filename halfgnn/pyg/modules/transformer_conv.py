"""TransformerConv of torch_geometric."""

from __future__ import annotations

from torch_geometric import nn

from ...graphs_by_tensor.edge_index import edge_index_of
from ...nn.transformerconv import DotAttention
from .base import UpstreamModule, checked_graph, checked_pair, edge_index_if_unsupported


class TransformerConv(DotAttention, UpstreamModule, nn.TransformerConv):
    """Graph transformer layer, torch_geometric.nn.TransformerConv on :func:`halfgnn.ops.dot_attention`."""

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
        unsupported = edge_index_if_unsupported(self, nn.TransformerConv, edge_index, x)
        if unsupported is not None:
            # propagate_type: (query: Tensor, key: Tensor, value: Tensor, edge_attr: OptTensor)
            return super().forward(x, unsupported, edge_attr, return_attention_weights)
        x_src, x_dst = checked_pair(x, self.lin_key, self.lin_query)
        g = checked_graph(edge_index, x_src, x_src.shape[0], x_dst.shape[0])
        self._check_edges(g, edge_attr, "edge_attr")
        if not isinstance(return_attention_weights, bool):
            return self._forward(g, x_src, x_dst, edge_attr, get_attention=False)
        out, weight = self._forward(g, x_src, x_dst, edge_attr, get_attention=True)
        return out, (edge_index_of(g), weight.squeeze(-1))
