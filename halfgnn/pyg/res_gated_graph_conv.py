"""ResGatedGraphConv of torch_geometric."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .. import ops
from ..common.arguments import checked_size, checked_widths
from ..common.operands import check_columns, check_operand, check_parameter
from ..common.precision import autocast
from ..nn.projections import applied, is_just
from ._conv import check_options, checked_graph, checked_pair


class ResGatedGraphConv(nn.Module):
    """Residual gated graph convolution (Bresson and Laurent, 2017), as torch_geometric.nn.ResGatedGraphConv.

    Args:
        in_channels: width of the features, or the pair of those of sources and destinations.
        out_channels: width of the result.
        act: the gate's function. Another one than nn.Sigmoid runs separate operators, which keep tensors of the edges.
        edge_dim: width of edge features, which are joined to those of both ends. Values then keep tensors of the edges.
        root_weight: add a projection of the destination's own features.
        bias: add a bias to the result.
    """

    lin_skip: nn.Linear | None
    bias: nn.Parameter | None

    def __init__(
        self, in_channels, out_channels, act=nn.Sigmoid(), edge_dim=None, root_weight=True, bias=True, **kwargs  # noqa: B008
    ):  # fmt: skip
        check_options(in_channels, kwargs)
        super().__init__()
        if not callable(act):
            raise TypeError(f"act is {act!r}; expected a function")
        self.in_channels = in_channels
        self.out_channels = checked_size(out_channels, "out_channels", least=1)
        self.act = act
        self.edge_dim = None if edge_dim is None else checked_size(edge_dim, "edge_dim")
        self.root_weight = root_weight
        src, dst = checked_widths(in_channels, "in_channels", (tuple, list))
        edge = self.edge_dim or 0
        self.lin_key = nn.Linear(dst + edge, out_channels)
        self.lin_query = nn.Linear(src + edge, out_channels)
        self.lin_value = nn.Linear(src + edge, out_channels)
        self._widths = src, dst
        self.register_module("lin_skip", nn.Linear(dst, out_channels, bias=False) if root_weight else None)
        self.register_parameter("bias", nn.Parameter(torch.empty(out_channels)) if bias else None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Uniform, bias of the result zero."""
        for linear in (self.lin_key, self.lin_query, self.lin_value, self.lin_skip):
            if linear is not None:
                linear.reset_parameters()
        if self.bias is not None:
            nn.init.zeros_(self.bias)

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
        if (edge_attr is None) != (self.edge_dim is None):
            raise ValueError(
                f"edge_attr is {'not ' if edge_attr is None else ''}given, but edge_dim is {self.edge_dim}"
            )
        x_src, x_dst = self._checked_pair(x)
        g = checked_graph(edge_index, x_src, x_src.shape[0], x_dst.shape[0])
        if edge_attr is not None:
            check_operand(edge_attr, "edge_attr", g, "e")
            check_columns(edge_attr, "edge_attr", self.edge_dim)
            edge_attr = autocast(edge_attr)
        out = self._sum(g, x_src, x_dst, edge_attr)
        if self.lin_skip is not None:
            out = out + applied(self.lin_skip, x_dst)
        return out if self.bias is None else out + self.bias

    def _checked_pair(self, x: Any) -> tuple[Tensor, Tensor]:
        if self.edge_dim is None:
            return checked_pair(x, self.lin_query, self.lin_key)
        x_src, x_dst = checked_pair(x, None, None)
        is_pair = isinstance(x, (tuple, list))
        for part, name, width in zip((x_src, x_dst), ("x[0]", "x[1]") if is_pair else ("x", "x"), self._widths):
            check_columns(part, name, width)
            check_parameter(part, name, self.lin_key.weight)
        return x_src, x_dst

    def _sum(self, g: Any, x_src: Tensor, x_dst: Tensor, edge_attr: Tensor | None) -> Tensor:
        is_fused = is_just(self.act, nn.Sigmoid)
        if edge_attr is None:
            operands = applied(self.lin_value, x_src), applied(self.lin_query, x_src), applied(self.lin_key, x_dst)
            if is_fused:
                return ops.gated_sum(g, *operands)
            return ops.u_mul_e_sum(g, operands[0], self.act(ops.u_add_v(g, *operands[1:])))
        # A layer's product with joined features is the sum of two products.
        src, dst = self._widths
        value, query, key = (
            F.linear(x, layer.weight[:, :width], layer.bias)
            for x, layer, width in (
                (x_src, self.lin_value, src),
                (x_src, self.lin_query, src),
                (x_dst, self.lin_key, dst),
            )
        )
        gate_edge = F.linear(edge_attr, self.lin_key.weight[:, dst:] + self.lin_query.weight[:, src:])
        edge_value = F.linear(edge_attr, self.lin_value.weight[:, src:])
        if is_fused:
            out, z = ops.gated_sum(g, value, query, key, gate_edge, return_edges=True)
            gate = z.sigmoid()
        else:
            gate = self.act(ops.u_add_v_add_e(g, query, key, gate_edge))
            out = ops.u_mul_e_sum(g, value, gate)
        return out + ops.copy_e_sum(g, gate * edge_value)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.in_channels}, {self.out_channels})"
