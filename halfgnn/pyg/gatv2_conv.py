"""GATv2Conv of torch_geometric."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .. import ops
from ..nn import attention
from ..nn.projections import padded, project
from ._conv import Attention, Linear, checked_pair, glorot, optional_linear
from ._graph import edge_index_of


class GATv2Conv(Attention):
    """GATv2 layer, as torch_geometric.nn.GATv2Conv.

    Args:
        in_channels, out_channels, heads, concat, negative_slope, dropout, add_self_loops, fill_value, residual: see
            :class:`GATConv`.
        edge_dim: width of edge features, which are projected and added to those of both ends, inside the attention.
        bias: add a bias to the projections and the result.
        share_weights: project sources and destinations alike.
    """

    def __init__(
        self,
        in_channels,
        out_channels,
        heads=1,
        concat=True,
        negative_slope=0.2,
        dropout=0.0,
        add_self_loops=True,
        edge_dim=None,
        fill_value="mean",
        bias=True,
        share_weights=False,
        residual=False,
        **kwargs,
    ):
        super().__init__(
            in_channels,
            out_channels,
            heads,
            concat,
            negative_slope,
            dropout,
            add_self_loops,
            edge_dim,
            fill_value,
            kwargs,
        )
        self.share_weights = share_weights
        width = heads * out_channels
        src, dst = self._widths
        self.lin_l = Linear(src, width, bias=bias)
        self.lin_r = self.lin_l if share_weights else Linear(dst, width, bias=bias)
        self.att = nn.Parameter(torch.empty(1, heads, out_channels))
        self.lin_edge = optional_linear(edge_dim, width)
        self._add_ends(residual, bias)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Glorot uniform, bias of the result zero."""
        for linear in (self.lin_l, self.lin_r, self.lin_edge, self.res):
            if linear is not None:
                linear.reset_parameters()
        glorot(self.att)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

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
        if edge_attr is not None and self.lin_edge is None:
            raise ValueError("edge_attr is given, but the module was made without edge_dim")
        x_l, x_r = checked_pair(x, self.lin_l, self.lin_r)
        g, edge_attr = self._graph(edge_index, x_l, (x_l.shape[0], x_r.shape[0]), edge_attr)
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
