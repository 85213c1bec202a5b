"""GINConv and GINEConv of torch_geometric."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch_geometric import nn

from ... import ops
from ...common.autograd import snapshot
from ...common.layers import check_layer
from ...common.operands import check_columns, check_operand, name_operands, operand_errors
from ...nn.projections import applied
from .base import (
    ONE_PASS,
    Sums,
    UpstreamModule,
    checked_edge_attr,
    checked_features,
    checked_graph,
    edge_index_if_unsupported,
    node_counts,
)


class GINConv(Sums, UpstreamModule, nn.GINConv):
    """Graph isomorphism layer, torch_geometric.nn.GINConv on :func:`halfgnn.ops.gspmm`.

    Aggregations other than sum, mean, max and min are torch_geometric's.
    """

    def forward(self, x, edge_index, size=None):
        """nn((1 + eps) x[v] + sum of x[u] over in-edges (u, v)).

        Args:
            x: (N, width), or the pair of (num_src, width) and (num_dst, width) or None.
            edge_index: (2, E), or a Graph or DGLGraph.
            size: (num_src, num_dst), or None for the rows of x.

        Returns:
            The result of nn for (num_dst, width).

        Raises:
            ValueError: wrong shapes, devices or ids. TypeError: wrong dtypes.
        """
        unsupported = edge_index_if_unsupported(self, nn.GINConv, edge_index, x, ONE_PASS)
        if unsupported is not None:
            # propagate_type: (x: OptPairTensor)
            return super().forward(x, unsupported, size)
        x_src, x_dst = self._ends(x)
        return self._sum(checked_graph(edge_index, x_src, *node_counts(size, x_src, x_dst)), x_src, x_dst)

    def _ends(self, x: Any) -> Any:
        return checked_features(x, self.eps)

    def _projection(self) -> Any:
        return None

    def _after(self, out: Tensor, x_dst: Tensor | None) -> Tensor:
        return applied(self.nn, out if x_dst is None else out + (1 + self.eps) * x_dst)


class GINEConv(UpstreamModule, nn.GINEConv):
    """Graph isomorphism layer with edge features, torch_geometric.nn.GINEConv on :func:`halfgnn.ops.u_relu_add_e_sum`."""

    def forward(self, x, edge_index, edge_attr=None, size=None):
        """nn((1 + eps) x[v] + sum of relu(x[u] + edge_attr[e]) over in-edges e = (u, v)).

        Args:
            x: (N, width), or the pair of (num_src, width) and (num_dst, width) or None.
            edge_index: (2, E), or a Graph or DGLGraph.
            edge_attr: (E, width), or (E, edge_dim) if edge_dim is given.
            size: (num_src, num_dst), or None for the rows of x.

        Returns:
            The result of nn for (num_dst, width).

        Raises:
            ValueError: wrong shapes, devices or ids. TypeError: wrong dtypes.
        """
        unsupported = edge_index_if_unsupported(self, nn.GINEConv, edge_index, x)
        if unsupported is not None:
            # propagate_type: (x: OptPairTensor, edge_attr: OptTensor)
            return super().forward(x, unsupported, edge_attr, size)
        x_src, x_dst = checked_features(x, self.eps)
        g = checked_graph(edge_index, x_src, *node_counts(size, x_src, x_dst))
        if self.lin is not None:
            edge_attr = checked_edge_attr(g, edge_attr, self.lin)
            check_layer(edge_attr, "edge_attr", self.lin)
            edge_attr = applied(self.lin, edge_attr)
            check_columns(x_src, "x" if x_dst is x_src else "x[0]", edge_attr.shape[1])
        check_operand(edge_attr, "edge_attr", g, "e")
        if edge_attr.shape[1:] != x_src.shape[1:]:
            raise ValueError(
                f"edge_attr has shape {tuple(edge_attr.shape)}; expected {(g.num_edges, *x_src.shape[1:])}, or a module made with "
                "edge_dim"
            )
        try:
            out = ops.gspmm(g, "relu_add", "sum", snapshot(x_src), snapshot(edge_attr))  # x += conv(x, ...) may follow
        except operand_errors() as error:
            name_operands(error, lhs_data="x" if x_dst is x_src else "x[0]", rhs_data="edge_attr")
            raise
        if x_dst is not None:
            out = out + (1 + self.eps) * x_dst
        return applied(self.nn, out)
