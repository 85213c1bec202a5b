"""PNAConv of torch_geometric."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ..common.arguments import checked_size
from ..common.operands import check_columns, check_operand, check_parameter, check_tensor
from ..common.precision import autocast
from ..graph import Graph
from ..nn.principal import checked_names, degrees, of_ends, of_messages, scaled, split_linear
from ..nn.projections import linear
from ..ops.copy_u_reduce import REDUCTIONS, STD_EPS
from ._conv import check_options, checked_graph

SCALERS = ("identity", "amplification", "attenuation", "linear", "inverse_linear")


class _DegreeScaler(nn.Module):
    """The means over the training set that scale: those of torch_geometric's DegreeScalerAggregation."""

    avg_deg_lin: Tensor
    avg_deg_log: Tensor

    def __init__(self, deg: Tensor, train_norm: bool):
        super().__init__()
        deg = deg.to(torch.float)
        count = int(deg.sum())
        degree = torch.arange(deg.numel(), device=deg.device)
        self._initial = float((degree * deg).sum()) / count, float(((degree + 1).log() * deg).sum()) / count
        for name in ("avg_deg_lin", "avg_deg_log"):
            if train_norm:
                self.register_parameter(name, nn.Parameter(torch.empty(1)))
            else:
                self.register_buffer(name, torch.empty(1))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        self.avg_deg_lin.data.fill_(self._initial[0])
        self.avg_deg_log.data.fill_(self._initial[1])


class PNAConv(nn.Module):
    """Principal neighbourhood aggregation (Corso et al., 2020), as torch_geometric.nn.PNAConv.

    With one layer before the aggregation, messages are linear in the features of both ends, so they are not formed: the part of the
    sources is reduced by :func:`halfgnn.ops.copy_u_reduce`, once for all towers. Edge features, more such layers, and hooks on
    them form messages (E, towers, features).

    Args:
        in_channels: features in. out_channels: features out, divisible by towers.
        aggregators: list of sum, mean, min, max, var, std.
        scalers: list of identity, amplification, attenuation, linear, inverse_linear.
        deg: histogram of in-degrees in the training set: (largest degree + 1,).
        edge_dim: number of edge features, or None.
        towers: number of towers. pre_layers, post_layers: linear layers before and after the aggregation.
        divide_input: give each tower its part of the features, in_channels being divisible by towers.
        act: what is between two layers: a name of torch.nn ("relu", "leaky_relu") or a module.
        act_kwargs: arguments of a named act.
        train_norm: make the mean degrees parameters.
    """

    def __init__(
        self,
        in_channels,
        out_channels,
        aggregators,
        scalers,
        deg,
        edge_dim=None,
        towers=1,
        pre_layers=1,
        post_layers=1,
        divide_input=False,
        act="relu",
        act_kwargs=None,
        train_norm=False,
        **kwargs,
    ):
        check_options(in_channels, {name: value for name, value in kwargs.items() if name != "aggr"})
        if "aggr" in kwargs:
            raise TypeError("unexpected argument 'aggr'; expected aggregators")
        super().__init__()
        self.in_channels = checked_size(in_channels, "in_channels", least=1)
        self.out_channels = checked_size(out_channels, "out_channels", least=1)
        self.towers = checked_size(towers, "towers", least=1)
        self.edge_dim = None if edge_dim is None else checked_size(edge_dim, "edge_dim", least=1)
        for name, size in (("in_channels", in_channels if divide_input else 0), ("out_channels", out_channels)):
            if size % towers:
                raise ValueError(f"{name} is {size}; expected a multiple of towers, {towers}")
        self.aggregators = checked_names(aggregators, "aggregators", REDUCTIONS)
        self.scalers = checked_names(scalers, "scalers", SCALERS)
        self.divide_input = bool(divide_input)
        self.F_in = in_channels // towers if divide_input else in_channels
        self.F_out = out_channels // towers
        pre_layers = checked_size(pre_layers, "pre_layers", least=1)
        post_layers = checked_size(post_layers, "post_layers", least=1)
        check_tensor(deg, "deg")
        if deg.dim() != 1 or not deg.sum() > 0:
            raise ValueError(
                f"deg has shape {tuple(deg.shape)}; expected a histogram of in-degrees with at least one node"
            )

        self.aggr_module = _DegreeScaler(deg, train_norm)
        if self.edge_dim is not None:
            self.edge_encoder = nn.Linear(self.edge_dim, self.F_in)
        self.pre_nns, self.post_nns = nn.ModuleList(), nn.ModuleList()
        num_reduced = len(self.aggregators) * len(self.scalers)
        for _ in range(towers):
            before = 2 if self.edge_dim is None else 3
            self.pre_nns.append(_layers(before * self.F_in, self.F_in, pre_layers, act, act_kwargs))
            self.post_nns.append(_layers((num_reduced + 1) * self.F_in, self.F_out, post_layers, act, act_kwargs))
        self.lin = nn.Linear(out_channels, out_channels)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        self.aggr_module.reset_parameters()
        if self.edge_dim is not None:
            self.edge_encoder.reset_parameters()
        for layers in (*self.pre_nns, *self.post_nns):
            for layer in layers:
                if hasattr(layer, "reset_parameters"):
                    layer.reset_parameters()
        self.lin.reset_parameters()

    def forward(self, x, edge_index, edge_attr=None):
        """The layer over the in-edges of every node.

        Args:
            x: (N, in_channels).
            edge_index: (2, E), or a Graph or DGLGraph.
            edge_attr: (E, edge_dim), if edge_dim is given.

        Returns:
            (N, out_channels)

        Raises:
            ValueError: wrong shapes or devices. TypeError: wrong dtypes.
        """
        check_tensor(x, "x")
        check_columns(x, "x", self.in_channels)
        check_parameter(x, "x", self.lin.weight)
        g = checked_graph(edge_index, x, x.shape[0], x.shape[0])
        if (edge_attr is None) != (self.edge_dim is None):
            wanted = "None, as edge_dim is" if self.edge_dim is None else f"(E, {self.edge_dim})"
            raise ValueError(f"edge_attr is {'None' if edge_attr is None else 'given'}; expected {wanted}")
        if edge_attr is not None:
            check_operand(edge_attr, "edge_attr", g, "e")
            check_columns(edge_attr, "edge_attr", self.edge_dim)
        x = autocast(x)
        parts = self.towers if self.divide_input else 1
        h = x.view(-1, parts, self.F_in).expand(-1, self.towers, -1)
        out = torch.cat([h, self._reduce(g, h, autocast(edge_attr))], -1)
        return self.lin(torch.cat([layers(out[:, i]) for i, layers in enumerate(self.post_nns)], 1))

    def _reduce(self, g: Graph, h: Tensor, edge_attr: Tensor | None) -> Tensor:
        """(N, towers, aggregators * scalers * F_in)"""
        split = [split_linear(layers, self.F_in) for layers in self.pre_nns]  # of the destination, then of the source
        if edge_attr is not None or None in split:
            reduced = of_messages(g, self._messages(g, h, edge_attr), self.aggregators, STD_EPS)
        else:
            ends = [
                (linear(h[:, i], of_src, None), linear(h[:, i], of_dst, bias))
                for i, (of_dst, of_src, bias) in enumerate(part for part in split if part is not None)
            ]
            src, dst = (torch.stack(side, 1) for side in zip(*ends))
            reduced = of_ends(g, src, dst, self.aggregators, STD_EPS)
        scaler = self.aggr_module
        return scaled(reduced, self.aggregators, self.scalers, degrees(g, h), scaler.avg_deg_log, scaler.avg_deg_lin)

    def _messages(self, g: Graph, h: Tensor, edge_attr: Tensor | None) -> Tensor:
        src, dst = (end.long() for end in g.edges())
        parts = [h[dst], h[src]]
        if edge_attr is not None:
            parts.append(self.edge_encoder(edge_attr).unsqueeze(1).expand(-1, self.towers, -1))
        ends = torch.cat(parts, -1)
        return torch.stack([layers(ends[:, i]) for i, layers in enumerate(self.pre_nns)], 1)

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}({self.in_channels}, {self.out_channels}, towers={self.towers}, "
            f"edge_dim={self.edge_dim})"
        )

    @staticmethod
    def get_degree_histogram(loader) -> Tensor:
        """The histogram of in-degrees of the batches of a loader, each with edge_index and num_nodes, for `deg`."""
        histogram = torch.zeros(1, dtype=torch.long)
        for data in loader:
            degree = torch.bincount(data.edge_index[1], minlength=data.num_nodes)
            counts = torch.bincount(degree, minlength=histogram.numel())
            counts[: histogram.numel()] += histogram.to(counts.device)
            histogram = counts
        return histogram


def _layers(width: int, out_width: int, count: int, act: Any, act_kwargs: dict[str, Any] | None) -> nn.Sequential:
    modules: list[nn.Module] = [nn.Linear(width, out_width)]
    for _ in range(count - 1):
        modules += [_activation(act, act_kwargs or {}), nn.Linear(out_width, out_width)]
    return nn.Sequential(*modules)


def _activation(act: Any, options: dict[str, Any]) -> nn.Module:
    """A module of torch.nn by its name in any spelling of case and underscores, or act itself."""
    if isinstance(act, nn.Module):
        return act
    if isinstance(act, str):
        for name, kind in vars(nn.modules.activation).items():
            if name.lower() == act.replace("_", "").lower() and isinstance(kind, type) and issubclass(kind, nn.Module):
                return kind(**options)
    raise ValueError(f"act is {act!r}; expected the name of an activation of torch.nn, or a module")
