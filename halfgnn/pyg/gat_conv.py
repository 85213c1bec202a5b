"""GATConv of torch_geometric."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ..common.arguments import check_number, check_probability, checked_size, checked_widths
from ..nn import attention
from ..nn.projections import node_logits, padded, project_with_logits, trimmed
from . import _conv
from ._conv import Attention, Linear, check_options, checked_fill_value, glorot, optional_linear
from ._graph import edge_index_of


class GATConv(Attention):
    """Graph attention network layer, as torch_geometric.nn.GATConv.

    Args:
        in_channels: width of the input; a pair for sources and destinations with features of their own.
        out_channels: width of the output a head.
        heads: number of heads.
        concat: concatenate the heads; else average them.
        negative_slope: of LeakyReLU.
        dropout: of the attention weights.
        add_self_loops: replace the self-loops of the graph by one at each node.
        edge_dim: width of edge features, which add to the logits.
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
        check_options(in_channels, kwargs)
        super().__init__()
        src, dst = checked_widths(in_channels, "in_channels", (tuple, list))
        self.in_channels = in_channels
        self.out_channels = checked_size(out_channels, "out_channels", least=1)
        self.heads = checked_size(heads, "heads", least=1)
        self.concat = concat
        self.negative_slope = check_number(negative_slope, "negative_slope")
        self.dropout = check_probability(dropout, "dropout")
        self.add_self_loops = add_self_loops
        self.edge_dim = None if edge_dim is None else checked_size(edge_dim, "edge_dim")
        self.fill_value = checked_fill_value(fill_value)
        self.lin = self.lin_src = self.lin_dst = None
        width = heads * out_channels
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
        self._add_ends(dst, residual, bias)
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
            return_attention_weights: if true, also return (edge_index, weights (edges, heads)), with self-loops; costs the
                memory of all edges.

        With concat and without residual and bias the result is a copy of what the backward keeps, if a gradient is recorded: it may
        be written into.

        Returns:
            (num_dst, heads * out_channels), or (num_dst, out_channels) unless concat; or a pair, see above.

        Raises:
            ValueError: wrong shapes, devices or ids. TypeError: wrong dtypes.
        """
        lin_src, lin_dst = (self.lin_src, self.lin_dst) if self.lin is None else (self.lin, self.lin)
        x_src, x_dst = _conv.checked_pair(x, lin_src, lin_dst, optional=True)
        size = _conv.checked_size(size, x_src, x_dst)
        edge_attr = None if self.lin_edge is None else edge_attr
        g, edge_attr = self._graph(edge_index, x_src, size, edge_attr)
        feat, logits = self._project(lin_src, lin_dst, x_src, x_dst, size[1])
        edge_logits = None
        if edge_attr is not None:
            (edge_logits,) = node_logits(self.lin_edge, edge_attr, self.att_edge)
        operands, slope, p = (g, feat, *logits, edge_logits), self.negative_slope, self._dropout_p()
        if return_attention_weights:
            out, weight = attention.gat_unfused(*operands, attention.leaky_relu(slope), attention.dropout(p))
        else:
            out, weight = attention.gat(*operands, slope, p), None
        out = self._finished(trimmed(out, self.out_channels), x_dst, is_new=weight is not None)
        return out if weight is None else (out, (edge_index_of(g), weight.squeeze(-1)))

    def _project(self, lin_src, lin_dst, x_src: Tensor, x_dst: Tensor | None, num_dst: int):
        """Features of the sources, and the logits of both sides."""
        shape = (self.heads, self.out_channels, padded(self.out_channels, x_src))
        if x_dst is x_src and lin_dst is lin_src:
            return project_with_logits(lin_src, x_src, *shape, self.att_src, self.att_dst)
        feat, (src,) = project_with_logits(lin_src, x_src, *shape, self.att_src)
        if x_dst is None:
            return feat, (src, src.new_zeros((num_dst, self.heads)))
        return feat, (src, *node_logits(lin_dst, x_dst, self.att_dst))
