"""GATConv of torch_geometric."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch_geometric import nn

from ... import ops
from ...graphs_by_tensor.edge_index import edge_index_of
from ...nn import attention
from ...nn.projections import node_logits, project_with_logits
from .base import Attention, UpstreamModule, checked_pair, edge_index_if_unsupported, node_counts


class GATConv(Attention, UpstreamModule, nn.GATConv):
    """Graph attention network layer, torch_geometric.nn.GATConv on :func:`halfgnn.ops.gat_attention`."""

    def forward(self, x, edge_index, edge_attr=None, size=None, return_attention_weights=None):
        """Attention over the in-edges of every destination.

        Args:
            x: (N, in_channels), or the pair of (num_src, in_channels) and (num_dst, in_channels) or None.
            edge_index: (2, E), or a Graph or DGLGraph.
            edge_attr: (E, edge_dim), or (E,); ignored without edge_dim.
            size: (num_src, num_dst), by default from x.
            return_attention_weights: if true, also return (edge_index, weights (edges, heads)), with self-loops. This costs memory
                for all edges.

        The result may be written into. If a gradient is recorded, it is a copy of what the backward keeps, unless heads are
        averaged or there is a residual or bias.

        Returns:
            (num_dst, heads * out_channels), or (num_dst, out_channels) without concat; or a pair, see return_attention_weights.

        Raises:
            ValueError: wrong shapes, devices or ids. TypeError: wrong dtypes.
        """
        unsupported = edge_index_if_unsupported(self, nn.GATConv, edge_index, x)
        if unsupported is not None:
            # propagate_type: (x: OptPairTensor, alpha: Tensor)
            # edge_updater_type: (alpha: OptPairTensor, edge_attr: OptTensor)
            return super().forward(x, unsupported, edge_attr, size, return_attention_weights)
        x_src, x_dst = self._ends(x)
        g, edge_attr = self._graph(edge_index, x_src, node_counts(size, x_src, x_dst), edge_attr)
        self._initialize(x_dst)
        feat, logits_src, logits_dst = self._project(x_src, x_dst, g.num_dst)
        operands = (g, feat, logits_src, logits_dst, self._edge_logits(edge_attr))
        slope, p = self.negative_slope, self._dropout_p()
        if not return_attention_weights:
            return self._finish(ops.gat_attention(*operands, slope, p), x_dst)
        out, weight = attention.gat_unfused(*operands, attention.leaky_relu(slope), attention.dropout(p))
        return self._finish(out, x_dst, is_new=True), (edge_index_of(g), weight.squeeze(-1))

    def _ends(self, x: Any) -> Any:
        """x of sources and of destinations, checked."""
        return checked_pair(x, *self._projections(), optional=True)

    def _projections(self) -> tuple[Any, Any]:
        """The layers that project sources and destinations."""
        return (self.lin_src, self.lin_dst) if self.lin is None else (self.lin, self.lin)

    def _project(self, x_src: Tensor, x_dst: Tensor | None, num_dst: int) -> tuple[Tensor, Tensor, Tensor]:
        """Features of the sources, and the logits of both sides."""
        lin_src, lin_dst = self._projections()
        shape = (self.heads, self.out_channels)
        if x_dst is x_src and lin_dst is lin_src:
            feat, (src, dst) = project_with_logits(lin_src, x_src, *shape, self.att_src, self.att_dst)
            return feat, src, dst
        feat, (src,) = project_with_logits(lin_src, x_src, *shape, self.att_src)
        if x_dst is None:
            return feat, src, src.new_zeros((num_dst, self.heads))
        (dst,) = node_logits(lin_dst, x_dst, self.att_dst)
        return feat, src, dst

    def _edge_logits(self, edge_attr: Tensor | None) -> Tensor | None:
        if edge_attr is None:
            return None
        assert self.att_edge is not None
        return node_logits(self.lin_edge, edge_attr, self.att_edge)[0]
