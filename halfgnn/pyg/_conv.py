"""What the modules share: checks of their arguments, and the base of the attentions."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from ..common.arguments import check_number, check_probability, checked_size, checked_widths
from ..common.operands import (
    check_columns,
    check_dense,
    check_one_width,
    check_operand,
    check_pair,
    check_parameter,
    check_tensor,
    width_of,
    widths_of,
)
from ..common.precision import autocast
from ..graph import Graph
from ..nn.attention import handed_out
from ..nn.projections import applied, trimmed
from . import _graph


def check_options(in_channels: Any, options: dict[str, Any]) -> None:
    """Refuses what only torch_geometric's modules can do: other options of MessagePassing, and widths of the first call's input."""
    for width in in_channels if isinstance(in_channels, (tuple, list)) else (in_channels,):
        if isinstance(width, int) and width <= 0:
            raise ValueError(f"in_channels is {width}; expected the width of the input, which is not inferred")
    known: dict[str, tuple[Any, ...]] = {
        "aggr": ("add", "sum"),
        "flow": ("source_to_target",),
        "node_dim": (0,),
        "decomposed_layers": (1,),
    }
    for name, value in options.items():
        if name not in known:
            raise TypeError(f"unexpected argument {name!r}")
        if value not in known[name]:
            raise ValueError(f"{name} is {value!r}; expected {known[name][0]!r}")


def checked_fill_value(value: Any) -> Any:
    if isinstance(value, str):
        if value not in _graph.FILLS:
            raise ValueError(
                f"fill_value is {value!r}; expected a number, a tensor or one of {', '.join(_graph.FILLS)}"
            )
    elif value is not None and not isinstance(value, Tensor):
        check_number(value, "fill_value")
    return value


def glorot(weight: Tensor | None) -> None:
    """torch_geometric's initialisation: uniform, by the last two dimensions."""
    if weight is not None:
        bound = math.sqrt(6.0 / (weight.shape[-2] + weight.shape[-1]))
        nn.init.uniform_(weight, -bound, bound)


def checked_pair(x: Any, lin_src: Any, lin_dst: Any, optional: bool = False) -> Any:
    """x of sources and of destinations, cast once as autocast would cast them for each projection.

    optional: x of destinations may be None.
    """
    width, dst_width = widths_of(lin_src, lin_dst)
    if not isinstance(x, (tuple, list)):
        _check_features(x, "x", width)
        check_one_width("x", width, dst_width)
        _check_layer(x, "x", lin_src)
        x = autocast(x)
        return x, x
    check_pair(x, "x")
    src, dst = x
    _check_features(src, "x[0]", width)
    if dst is not None or not optional:
        _check_features(dst, "x[1]", dst_width)
        if dst.device != src.device:
            raise ValueError(f"x[1] is on {dst.device}; expected the device of x[0], {src.device}")
    _check_layer(src, "x[0]", lin_src)
    if dst is not None:
        _check_layer(dst, "x[1]", lin_src if lin_dst is None else lin_dst)
    return autocast(src), autocast(dst)


def _check_layer(x: Tensor, name: str, layer: Any) -> None:
    """check_parameter of a projection, if it is a plain one."""
    if width_of(layer) is not None:
        check_parameter(x, name, layer.weight)


def _check_features(x: Any, name: str, width: int | None) -> None:
    check_tensor(x, name)
    check_dense(x, name)
    if x.dim() != 2:
        wanted = "columns" if width is None else width
        raise ValueError(f"{name} has shape {tuple(x.shape)}; expected (nodes, {wanted})")
    check_columns(x, name, width)


def checked_graph(edge_index: Any, x: Tensor, num_src: int, num_dst: int) -> Graph:
    """The Graph of edge_index, which must be on the device of x."""
    topology = edge_index if isinstance(edge_index, Tensor) else _graph.graph_of(edge_index, num_src, num_dst)
    if topology.device != x.device:
        raise ValueError(f"edge_index is on {topology.device}; expected the device of x, {x.device}")
    return _graph.graph_of(topology, num_src, num_dst) if isinstance(topology, Tensor) else topology


def node_counts(size: Any, x_src: Tensor, x_dst: Tensor | None) -> tuple[int, int]:
    """The numbers of source and destination nodes: the rows of x, or `size` if x of the destinations is None."""
    rows = x_src.shape[0], x_src.shape[0] if x_dst is None else x_dst.shape[0]
    if size is None:
        return rows
    if not isinstance(size, (tuple, list)) or len(size) != 2 or not all(isinstance(n, int) for n in size):
        raise TypeError(f"size is {size!r}; expected two integers, (num_src, num_dst)")
    if size[0] != rows[0] or size[1] < 0 or (x_dst is not None and size[1] != rows[1]):
        raise ValueError(
            f"size is {tuple(size)}; expected the rows of x, {rows if x_dst is not None else f'({rows[0]}, num_dst)'}"
        )
    return size[0], size[1]


def _checked_edge_attr(g: Graph, edge_attr: Any, lin: Any) -> Tensor:
    """edge_attr as (E, edge_dim)."""
    check_operand(edge_attr, "edge_attr", g, "e")
    width = width_of(lin)
    if edge_attr.dim() == 1 and width in (1, None):
        edge_attr = edge_attr.view(-1, 1)
    check_columns(edge_attr, "edge_attr", width)
    return edge_attr


class Linear(nn.Linear):
    """torch_geometric's Linear(weight_initializer="glorot")."""

    def reset_parameters(self) -> None:
        glorot(self.weight)
        if self.bias is not None:
            bound = 1 / math.sqrt(self.in_features)
            nn.init.uniform_(self.bias, -bound, bound)


def optional_linear(in_channels: int | None, out_channels: int) -> Linear | None:
    return None if in_channels is None else Linear(in_channels, out_channels, bias=False)


class Attention(nn.Module):
    """Base of GATConv and GATv2Conv."""

    lin_edge: Linear | None
    res: Linear | None
    bias: nn.Parameter | None

    def __init__(
        self,
        in_channels: Any,
        out_channels: int,
        heads: int,
        concat: bool,
        negative_slope: float,
        dropout: float,
        add_self_loops: bool,
        edge_dim: int | None,
        fill_value: Any,
        options: dict[str, Any],
    ):
        check_options(in_channels, options)
        super().__init__()
        self._widths = checked_widths(in_channels, "in_channels", (tuple, list))
        self.in_channels = in_channels
        self.out_channels = checked_size(out_channels, "out_channels", least=1)
        self.heads = checked_size(heads, "heads", least=1)
        self.concat = concat
        self.negative_slope = check_number(negative_slope, "negative_slope")
        self.dropout = check_probability(dropout, "dropout")
        self.add_self_loops = add_self_loops
        self.edge_dim = None if edge_dim is None else checked_size(edge_dim, "edge_dim")
        self.fill_value = checked_fill_value(fill_value)

    def _add_ends(self, residual: bool, bias: bool) -> None:
        """Residual and bias, which are registered last."""
        width = self.out_channels * (self.heads if self.concat else 1)
        self.residual = residual
        self.register_module("res", Linear(self._widths[1], width, bias=False) if residual else None)
        self.register_parameter("bias", nn.Parameter(torch.empty(width)) if bias else None)

    def _graph(self, edge_index: Any, x: Tensor, size: tuple[int, int], edge_attr: Any) -> tuple[Graph, Tensor | None]:
        """The Graph, with self-loops if they are wanted, and its edge features (E, edge_dim)."""
        g = checked_graph(edge_index, x, *size)
        edge_attr = None if self.lin_edge is None else edge_attr
        if edge_attr is not None:
            edge_attr = _checked_edge_attr(g, edge_attr, self.lin_edge)
        if not self.add_self_loops:
            return g, edge_attr
        looped = _graph.with_self_loops(g, min(size))
        if edge_attr is not None:
            edge_attr = looped.edge_data(edge_attr, self.fill_value)
        return looped.graph, edge_attr

    def _finish(self, out: Tensor, x_dst: Tensor | None, is_new: bool = False) -> Tensor:
        """Takes padding off, joins the heads, and adds residual and bias. is_new: out is kept for no backward."""
        out = trimmed(out, self.out_channels)
        out, is_new = (out.flatten(1), is_new) if self.concat else (out.mean(1), True)
        if self.res is not None and x_dst is not None:
            out, is_new = out + applied(self.res, x_dst), True
        return handed_out(out, is_new) if self.bias is None else out + self.bias

    def _dropout_p(self) -> float:
        return self.dropout if self.training else 0.0

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.in_channels}, {self.out_channels}, heads={self.heads})"
