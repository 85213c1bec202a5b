"""ResGatedGraphConv of torch_geometric."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.nn import Sigmoid
from torch_geometric import nn

from ... import ops
from ...common.arguments import checked_widths
from ...common.operands import check_columns, check_operand, check_parameter
from ...common.precision import autocast
from ...drop_in.gate import Reason
from ...nn.projections import applied, is_just, is_product, linear
from .base import UpstreamModule, checked_graph, checked_pair, edge_index_if_unsupported


class ResGatedGraphConv(UpstreamModule, nn.ResGatedGraphConv):
    """Residual gated graph convolution, torch_geometric.nn.ResGatedGraphConv on :func:`halfgnn.ops.gated_sum`.

    Another `act` than nn.Sigmoid runs separate operators, which keep tensors of the edges. Edge features add to gates and values:
    their two projections are saved for the backward. With edge_dim, projections that are more than linear layers (hooks,
    subclasses) run torch_geometric's forward, which joins features of nodes and edges before them.
    """

    def forward(self, x, edge_index, edge_attr=None):
        """lin_skip x[v] + sum of act(lin_key x[v] + lin_query x[u]) lin_value x[u] over in-edges (u, v), x joined to edge_attr.

        Args:
            x: (N, in_channels), or the pair of (num_src, in_channels) and (num_dst, in_channels).
            edge_index: (2, E), or a Graph or DGLGraph.
            edge_attr: (E, edge_dim), if edge_dim is given.

        Returns:
            (num_dst, out_channels).

        Raises:
            ValueError: edge_attr without edge_dim or the other way round; wrong shapes, devices or ids. TypeError: wrong dtypes.
        """
        unsupported = edge_index_if_unsupported(
            self, nn.ResGatedGraphConv, edge_index, x, reason=self._projections_reason()
        )
        if unsupported is not None:
            # propagate_type: (k: Tensor, q: Tensor, v: Tensor, edge_attr: OptTensor)
            return super().forward(x, unsupported, edge_attr)
        if (edge_attr is None) != (self.edge_dim is None):
            raise ValueError(
                f"edge_attr is {'not ' if edge_attr is None else ''}given, but edge_dim is {self.edge_dim}"
            )
        # Weights are read once: parametrizations may count that.
        weights = None if edge_attr is None else [layer.weight for layer in self._projections()]
        x_src, x_dst = self._checked_pair(x, weights)
        g = checked_graph(edge_index, x_src, x_src.shape[0], x_dst.shape[0])
        if edge_attr is not None:
            check_operand(edge_attr, "edge_attr", g, "e")
            check_columns(edge_attr, "edge_attr", self.edge_dim)
            for weight in weights or ():
                check_parameter(edge_attr, "edge_attr", weight)
            edge_attr = autocast(edge_attr)
        out = self._sum(g, x_src, x_dst, edge_attr, weights)
        if self.lin_skip is not None:
            out = out + applied(self.lin_skip, x_dst)
        return out if self.bias is None else out + self.bias

    def _projections(self) -> tuple[Any, ...]:
        return self.lin_key, self.lin_query, self.lin_value

    def _projections_reason(self) -> str | None:
        """Why torch_geometric must project features of nodes joined to those of edges: a layer is more than its product."""
        if self.edge_dim is None or all(is_product(layer) for layer in self._projections()):
            return None
        return Reason.PROJECTIONS

    def _checked_pair(self, x: Any, weights: list[Tensor] | None) -> tuple[Tensor, Tensor]:
        if weights is None:
            return checked_pair(x, self.lin_query, self.lin_key)
        x_src, x_dst = checked_pair(x, None, None)
        is_pair = isinstance(x, (tuple, list))
        for part, name, width in zip((x_src, x_dst), ("x[0]", "x[1]") if is_pair else ("x", "x"), _widths(self)):
            check_columns(part, name, width)
            for weight in weights:
                check_parameter(part, name, weight)
        return x_src, x_dst

    def _sum(
        self, g: Any, x_src: Tensor, x_dst: Tensor, edge_attr: Tensor | None, weights: list[Tensor] | None
    ) -> Tensor:
        is_fused = is_just(self.act, Sigmoid)
        if edge_attr is None or weights is None:
            # In torch_geometric's order: layers with a width of -1 draw their parameters here.
            key = applied(self.lin_key, x_dst)
            query, value = applied(self.lin_query, x_src), applied(self.lin_value, x_src)
            if is_fused:
                return ops.gated_sum(g, value, query, key)
            return ops.u_mul_e_sum(g, value, self.act(ops.u_add_v(g, query, key)))
        # A layer's product with joined features is the sum of two products.
        src, dst = _widths(self)
        of_key, of_query, of_value = weights
        value = linear(x_src, of_value[:, :src], self.lin_value.bias)
        query = linear(x_src, of_query[:, :src], self.lin_query.bias)
        key = linear(x_dst, of_key[:, :dst], self.lin_key.bias)
        gate_edge = linear(edge_attr, of_key[:, dst:] + of_query[:, src:], None)
        edge_value = linear(edge_attr, of_value[:, src:], None)
        if is_fused:
            return ops.gated_sum(g, value, query, key, gate_edge, edge_value)
        gate = self.act(ops.u_add_v_add_e(g, query, key, gate_edge))
        return ops.u_mul_e_sum(g, value, gate) + ops.copy_e_sum(g, gate * edge_value)


def _widths(conv: Any) -> tuple[int, int]:
    return checked_widths(conv.in_channels, "in_channels", (tuple, list))
