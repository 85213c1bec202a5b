"""GATConv of torch_geometric."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from .. import ops
from ..nn import attention
from ..nn.projections import node_logits, project_with_logits
from ._conv import Attention, Linear, checked_pair, glorot, node_counts, optional_linear
from ._graph import edge_index_of


class GATConv(Attention):
    """Graph attention network layer, as torch_geometric.nn.GATConv.

    Args:
        in_channels: width of the input; a pair for sources and destinations with features of their own.
        out_channels: width of the output per head.
        heads: number of heads.
        concat: concatenate the heads; otherwise average them.
        negative_slope: of LeakyReLU.
        dropout: of the attention weights.
        add_self_loops: replace the graph's self-loops by one at each node.
        edge_dim: width of edge features, whose logits are added to the others.
        fill_value: edge features of self-loops: a number, a tensor, or how to reduce those of the node's in-edges.
        bias: add a bias.
        residual: add the projected features of the destinations.
    """

    att_edge: nn.Parameter | None

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
        self.lin = self.lin_src = self.lin_dst = None
        width = heads * out_channels
        src, dst = self._widths
        if isinstance(in_channels, (tuple, list)):
            self.lin_src = Linear(src, width, bias=False)
            self.lin_dst = Linear(dst, width, bias=False)
        else:
            self.lin = Linear(src, width, bias=False)
        self.att_src = nn.Parameter(torch.empty(1, heads, out_channels))
        self.att_dst = nn.Parameter(torch.empty(1, heads, out_channels))
        self.lin_edge = optional_linear(edge_dim, width)
        self.register_parameter(
            "att_edge", None if edge_dim is None else nn.Parameter(torch.empty(1, heads, out_channels))
        )
        self._add_ends(residual, bias)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Glorot uniform, bias zero."""
        for linear in (self.lin, self.lin_src, self.lin_dst, self.lin_edge, self.res):
            if linear is not None:
                linear.reset_parameters()
        for att in (self.att_src, self.att_dst, self.att_edge):
            glorot(att)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

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
        x_src, x_dst = checked_pair(x, *self._projections(), optional=True)
        g, edge_attr = self._graph(edge_index, x_src, node_counts(size, x_src, x_dst), edge_attr)
        feat, logits_src, logits_dst = self._project(x_src, x_dst, g.num_dst)
        operands = (g, feat, logits_src, logits_dst, self._edge_logits(edge_attr))
        slope, p = self.negative_slope, self._dropout_p()
        if not return_attention_weights:
            return self._finish(ops.gat_attention(*operands, slope, p), x_dst)
        out, weight = attention.gat_unfused(*operands, attention.leaky_relu(slope), attention.dropout(p))
        return self._finish(out, x_dst, is_new=True), (edge_index_of(g), weight.squeeze(-1))

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
