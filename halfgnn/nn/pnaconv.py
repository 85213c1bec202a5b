"""Principal neighbourhood aggregation of DGL."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ..common.arguments import check_number, check_probability, checked_size
from ..common.layers import check_layer
from ..common.operands import check_columns, check_operand
from ..common.precision import autocast
from ..graph import Graph
from ..graph_argument import GraphLike, as_graph
from .principal import checked_names, degrees, of_ends, of_messages, scaled, split_linear
from .projections import applied, is_just, linear

AGGREGATORS = ("mean", "sum", "max", "min", "std", "var", "moment3", "moment4", "moment5")
SCALERS = ("identity", "amplification", "attenuation")


class PNAConvTower(nn.Module):
    """A tower of PNAConv, which runs all of its towers together unless a call of one does more than its formula."""

    def __init__(self, in_size, out_size, aggregators, scalers, delta, dropout=0.0, edge_feat_size=0):
        super().__init__()
        self.in_size, self.out_size, self.edge_feat_size = in_size, out_size, edge_feat_size
        self.aggregators, self.scalers, self.delta = aggregators, scalers, delta
        self.M = nn.Linear(2 * in_size + edge_feat_size, in_size)
        self.U = nn.Linear((len(aggregators) * len(scalers) + 1) * in_size, out_size)
        self.dropout = nn.Dropout(dropout)
        self.batchnorm = nn.BatchNorm1d(out_size)

    def forward(self, graph, node_feat, edge_feat=None):
        """The tower on its part of the features, (N, in_size), which PNAConv has checked: (N, out_size)."""
        return _run_towers([self], graph, as_graph(graph, "graph"), node_feat.unsqueeze(1), edge_feat)[0]


class PNAConv(nn.Module):
    """Principal neighbourhood aggregation layer (Corso et al., 2020), as dgl.nn.pytorch.PNAConv.

    Messages are linear in the features of both ends, so they are not materialized: the part of the sources is reduced by
    :func:`halfgnn.ops.copy_u_reduce`, once for all towers. Edge features, moment3 to moment5, and an ``M`` that is not a plain
    nn.Linear form messages (E, in_size).

    Args:
        in_size: features in. out_size: features out. Both are divisible by num_towers.
        aggregators: list of mean, sum, max, min, std, var, moment3, moment4, moment5.
        scalers: list of identity, amplification, attenuation.
        delta: mean of log(degree + 1) over the training set.
        dropout: of each tower's result.
        num_towers: number of towers.
        edge_feat_size: number of edge features, or 0.
        residual: add the features, if in_size is out_size.
    """

    def __init__(
        self,
        in_size,
        out_size,
        aggregators,
        scalers,
        delta,
        dropout=0.0,
        num_towers=1,
        edge_feat_size=0,
        residual=True,
    ):
        super().__init__()
        self.in_size = checked_size(in_size, "in_size", least=1)
        self.out_size = checked_size(out_size, "out_size", least=1)
        num_towers = checked_size(num_towers, "num_towers", least=1)
        for name, size in (("in_size", in_size), ("out_size", out_size)):
            if size % num_towers:
                raise ValueError(f"{name} is {size}; expected a multiple of num_towers, {num_towers}")
        self.aggregators = checked_names(aggregators, "aggregators", AGGREGATORS)
        self.scalers = checked_names(scalers, "scalers", SCALERS)
        self.delta = check_number(delta, "delta")
        self.edge_feat_size = checked_size(edge_feat_size, "edge_feat_size")
        self.tower_in_size, self.tower_out_size = in_size // num_towers, out_size // num_towers
        self.residual = residual and in_size == out_size
        dropout = check_probability(dropout, "dropout")
        reductions = self.aggregators, self.scalers, self.delta
        self.towers = nn.ModuleList(
            PNAConvTower(self.tower_in_size, self.tower_out_size, *reductions, dropout, self.edge_feat_size)
            for _ in range(num_towers)
        )
        self.mixing_layer = nn.Sequential(nn.Linear(out_size, out_size), nn.LeakyReLU())

    def forward(self, graph: GraphLike, node_feat, edge_feat=None):
        """The layer on a homogeneous graph.

        Args:
            graph: Graph or DGLGraph. A batched DGLGraph is scaled by the size of each graph, as in DGL; a Graph is one graph.
            node_feat: (N, in_size).
            edge_feat: (E, edge_feat_size) if edge_feat_size is not 0.

        Returns:
            (N, out_size)

        Raises:
            ValueError: wrong shapes or devices. TypeError: wrong dtypes.
        """
        g = as_graph(graph, "graph")
        if g.num_src != g.num_dst:
            raise ValueError(f"graph has {g.num_src} sources and {g.num_dst} destinations; expected equal numbers")
        check_operand(node_feat, "node_feat", g, "u")
        check_columns(node_feat, "node_feat", self.in_size)
        layer = getattr(self.towers[0], "M", None)
        check_layer(node_feat, "node_feat", layer)
        if self.edge_feat_size > 0:
            check_operand(edge_feat, "edge_feat", g, "e")
            check_columns(edge_feat, "edge_feat", self.edge_feat_size)
            check_layer(edge_feat, "edge_feat", layer)
        node_feat = autocast(node_feat)
        edge_feat = autocast(edge_feat) if self.edge_feat_size > 0 else None
        h = node_feat.view(-1, len(self.towers), self.tower_in_size)
        if all(is_just(tower, PNAConvTower) for tower in self.towers):
            parts = _run_towers(list(self.towers), graph, g, h, edge_feat)
        else:
            parts = [tower(graph, h[:, i], edge_feat) for i, tower in enumerate(self.towers)]
        out = applied(self.mixing_layer, torch.cat(parts, 1))
        return out + node_feat if self.residual else out

    def extra_repr(self) -> str:
        return f"{', '.join(self.aggregators)}; {', '.join(self.scalers)}"


def _run_towers(towers: list[Any], graph: Any, g: Graph, h: Tensor, edge_feat: Tensor | None) -> list[Tensor]:
    """The results of the towers for h (N, towers, in_size), one part per tower. g: the Graph of `graph`."""
    joined = torch.cat([h, _reduce(towers, g, h, edge_feat)], -1)
    norm = _size_norm(graph, g, h)
    return [tower.dropout(tower.batchnorm(applied(tower.U, joined[:, i]) * norm)) for i, tower in enumerate(towers)]


def _reduce(towers: list[Any], g: Graph, h: Tensor, edge_feat: Tensor | None) -> Tensor:
    """(N, towers, aggregators * scalers * in_size)"""
    names, scalers, delta = towers[0].aggregators, towers[0].scalers, towers[0].delta
    split = [split_linear(tower.M, h.shape[-1]) for tower in towers]
    if edge_feat is not None or None in split or not set(names) <= set(AGGREGATORS[:6]):
        reduced = of_messages(g, _messages(towers, g, h, edge_feat), names, 0.0)
    else:
        ends = [
            (linear(h[:, i], of_src, None), linear(h[:, i], of_dst, bias))
            for i, (of_src, of_dst, bias) in enumerate(part for part in split if part is not None)
        ]
        src, dst = (torch.stack(side, 1) for side in zip(*ends))
        reduced = of_ends(g, src, dst, names, 0.0)
    return scaled(reduced, names, scalers, degrees(g, h), delta)


def _messages(towers: list[Any], g: Graph, h: Tensor, edge_feat: Tensor | None) -> Tensor:
    src, dst = (end.long() for end in g.edges())
    parts = [h[src], h[dst]]
    if edge_feat is not None:
        parts.append(edge_feat.unsqueeze(1).expand(-1, len(towers), -1))
    ends = torch.cat(parts, -1)
    return torch.stack([applied(tower.M, ends[:, i]) for i, tower in enumerate(towers)], 1)


def _size_norm(graph: Any, g: Graph, x: Tensor) -> Tensor | float:
    """One over the root of the number of nodes of each node's graph."""
    sizes = graph.batch_num_nodes() if hasattr(graph, "batch_num_nodes") else None
    if sizes is None or sizes.numel() == 1:
        return max(g.num_dst, 1) ** -0.5
    return sizes.to(x).rsqrt().repeat_interleave(sizes.to(x.device)).unsqueeze(1)
