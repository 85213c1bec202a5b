"""What the modules share."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from ..graph import Graph
from ..ops._common import autocast
from . import _graph


def check_options(in_channels: int | tuple[int, int], options: dict[str, Any]) -> None:
    """Refuses what torch_geometric's modules can do besides: other options of MessagePassing, and widths seen at the first call."""
    if -1 in (in_channels if isinstance(in_channels, tuple) else (in_channels,)):
        raise ValueError("in_channels is -1; expected the width of the input, which is not inferred")
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


def glorot(weight: Tensor | None) -> None:
    """torch_geometric's initialisation: uniform, by the last two dimensions."""
    if weight is not None:
        bound = math.sqrt(6.0 / (weight.shape[-2] + weight.shape[-1]))
        nn.init.uniform_(weight, -bound, bound)


def cast_pair(x: Any) -> tuple[Tensor, Tensor]:
    """Features of sources and destinations (or None), as autocast would cast them for each of several projections."""
    if isinstance(x, (tuple, list)):
        return autocast(x[0]), autocast(x[1])
    x = autocast(x)
    return x, x


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

    in_channels: int | tuple[int, int]
    out_channels: int
    heads: int
    concat: bool
    dropout: float
    add_self_loops: bool
    fill_value: float | Tensor | str
    edge_dim: int | None
    lin_edge: Linear | None
    res: Linear | None
    bias: nn.Parameter | None

    def _add_ends(self, residual: bool, bias: bool) -> None:
        """Residual and bias, which both implementations register last."""
        width = self.out_channels * (self.heads if self.concat else 1)
        dst = self.in_channels if isinstance(self.in_channels, int) else self.in_channels[1]
        self.residual = residual
        self.register_module("res", Linear(dst, width, bias=False) if residual else None)
        self.register_parameter("bias", nn.Parameter(torch.empty(width)) if bias else None)

    def _graph(
        self, edge_index: Any, num_src: int, num_dst: int, num_loops: int, edge_attr: Tensor | None
    ) -> tuple[Graph, Tensor | None]:
        """The Graph, with self-loops if they are wanted, and the edge features that go with it, (E, edge_dim)."""
        g = _graph.graph_of(edge_index, num_src, num_dst)
        if edge_attr is not None and edge_attr.dim() == 1:
            edge_attr = edge_attr.view(-1, 1)
        if not self.add_self_loops:
            return g, edge_attr
        looped = _graph.with_self_loops(g, num_loops)
        if edge_attr is not None:
            edge_attr = looped.edge_data(edge_attr, self.fill_value)
        return looped.graph, edge_attr

    def _finished(self, out: Tensor, x_dst: Tensor | None) -> Tensor:
        """Heads joined, residual and bias added."""
        out = out.flatten(1) if self.concat else out.mean(1)
        if self.res is not None and x_dst is not None:
            out = out + self.res(x_dst)
        return out if self.bias is None else out + self.bias

    def _dropout_p(self) -> float:
        return self.dropout if self.training else 0.0

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.in_channels}, {self.out_channels}, heads={self.heads})"
