"""GINEConv of torch_geometric."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from .. import ops
from ..common.arguments import check_number, checked_size
from ..common.operands import check_dense, check_operand, check_parameter_device, check_tensor
from ..nn.projections import applied
from ._conv import check_options, checked_graph, node_counts


class GINEConv(nn.Module):
    """Graph isomorphism layer with edge features, as torch_geometric.nn.GINEConv.

    Args:
        nn: module applied to the sum. Its parameters are reset, as there.
        eps: is added to the weight 1 of a destination's own features.
        train_eps: make eps a parameter.
        edge_dim: width of edge features, which are projected to the features that nn takes. None: they have that width.
    """

    def __init__(self, nn, eps=0.0, train_eps=False, edge_dim=None, **kwargs):
        check_options((), kwargs)
        super().__init__()
        if not callable(nn):
            raise TypeError(f"nn is {nn!r}; expected a module")
        self.nn = nn
        self.initial_eps = check_number(eps, "eps")
        if train_eps:
            self.eps = torch.nn.Parameter(torch.empty(1))
        else:
            self.register_buffer("eps", torch.empty(1))
        self.lin = None if edge_dim is None else torch.nn.Linear(checked_size(edge_dim, "edge_dim"), _input_width(nn))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Those of nn and of the projection; eps to its first value."""
        _reset(self.nn)
        with torch.no_grad():
            self.eps.fill_(self.initial_eps)
        if self.lin is not None:
            self.lin.reset_parameters()

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
        x_src, x_dst = x if isinstance(x, (tuple, list)) and len(x) == 2 else (x, x)
        for part, name in ((x_src, "x"), (x_dst, "x[1]")):
            if part is not None or name == "x":
                check_tensor(part, name)
                check_dense(part, name)
        check_parameter_device(x_src, "x", self.eps)
        g = checked_graph(edge_index, x_src, *node_counts(size, x_src, x_dst))
        check_operand(edge_attr, "edge_attr", g, "e")
        if self.lin is not None:
            edge_attr = applied(self.lin, edge_attr)
        elif edge_attr.shape[1:] != x_src.shape[1:]:
            raise ValueError(
                f"edge_attr has shape {tuple(edge_attr.shape)}; expected {(g.num_edges, *x_src.shape[1:])}, or a module made with "
                "edge_dim"
            )
        out = ops.u_relu_add_e_sum(g, x_src, edge_attr)
        if x_dst is not None:
            out = out + (1 + self.eps) * x_dst
        return self.nn(out)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(nn={self.nn})"


def _input_width(module: Any) -> int:
    first = module[0] if isinstance(module, nn.Sequential) else module
    for name in ("in_features", "in_channels"):
        if hasattr(first, name):
            return getattr(first, name)
    raise ValueError(f"nn is {module!r}; expected a first layer with in_features or in_channels, which edge_dim needs")


def _reset(module: Any) -> None:
    """Resets what has parameters, from the outside in."""
    if hasattr(module, "reset_parameters"):
        module.reset_parameters()
    else:
        for child in module.children() if isinstance(module, nn.Module) else []:
            _reset(child)
