"""GATv2Conv of torch_geometric."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor
from torch_geometric import nn

from ... import ops
from ...common.layers import check_layer
from ...graphs_by_tensor.edge_index import edge_index_of
from ...nn import attention
from ...nn.projections import padded, project
from .base import Attention, UpstreamModule, checked_pair, edge_index_if_unsupported


class GATv2Conv(Attention, UpstreamModule, nn.GATv2Conv):
    """GATv2 layer, torch_geometric.nn.GATv2Conv on :func:`halfgnn.ops.gatv2_attention`. Edge features are projected inside."""

    def forward(self, x, edge_index, edge_attr=None, return_attention_weights=None):
        """Attention over the in-edges of every destination.

        Args:
            x: (N, in_channels), or the pair of (num_src, in_channels) and (num_dst, in_channels).
            edge_index, return_attention_weights: see :meth:`GATConv.forward`.
            edge_attr: (E, edge_dim), or (E,), if edge_dim is given.

        Returns:
            See :meth:`GATConv.forward`.

        Raises:
            ValueError: edge_attr without edge_dim; wrong shapes, devices or ids. TypeError: wrong dtypes.
        """
        unsupported = edge_index_if_unsupported(self, nn.GATv2Conv, edge_index, x)
        if unsupported is not None:
            # propagate_type: (x: PairTensor, alpha: Tensor)
            # edge_updater_type: (x: PairTensor, edge_attr: OptTensor)
            return super().forward(x, unsupported, edge_attr, return_attention_weights)
        if edge_attr is not None and self.lin_edge is None:
            raise ValueError("edge_attr is given, but the module was made without edge_dim")
        x_l, x_r = checked_pair(x, self.lin_l, self.lin_r)
        g, edge_attr = self._graph(edge_index, x_l, (x_l.shape[0], x_r.shape[0]), edge_attr)
        if edge_attr is not None:
            check_layer(edge_attr, "edge_attr", self.lin_edge)
        self._initialize(x_r)
        is_shared = self.share_weights and not isinstance(x, (tuple, list))
        feat_l, feat_r, att = self._project(x_l, None if is_shared else x_r)
        operands, slope, p = (g, feat_l, feat_r, att), self.negative_slope, self._dropout_p()
        shape = (self.heads, self.out_channels, feat_l.shape[-1])
        if not return_attention_weights:
            terms = {} if edge_attr is None else self._edge_terms(edge_attr, *shape)
            return self._finish(ops.gatv2_attention(*operands, slope, p, **terms), x_r)
        edge_feat = None if edge_attr is None or self.lin_edge is None else project(self.lin_edge, edge_attr, *shape)
        out, weight = attention.gatv2_unfused(*operands, attention.leaky_relu(slope), attention.dropout(p), edge_feat)
        out = self._finish(out, x_r, is_new=True)
        return (out, (edge_index_of(g), weight.squeeze(-1))) if return_attention_weights else out

    def _edge_terms(self, edge_attr: Tensor, *shape: int) -> dict[str, Tensor]:
        """Edge features as ops.gatv2_attention takes them: lin_edge is applied inside, if it is plain."""
        assert self.lin_edge is not None
        weight = attention.edge_weight(self.lin_edge, *shape)
        if weight is None:
            return {"edge_feat": project(self.lin_edge, edge_attr, *shape)}
        return {"edge_feat": edge_attr, "edge_weight": weight}

    def _project(self, x_l: Tensor, x_r: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """Features of sources and destinations and the attention, all of one width per head.

        x_r: None if sources and destinations have one projection.
        """
        heads, dim = self.heads, self.out_channels
        width = padded(dim, x_l)
        feat_l = project(self.lin_l, x_l, heads, dim, width)
        feat_r = feat_l if x_r is None else project(self.lin_r, x_r, heads, dim, width)
        att = F.pad(self.att, (0, width - dim)) if width > dim else self.att
        return feat_l, feat_r, att
