"""Directional graph networks."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from halfgnn import ops
from halfgnn.common.arguments import check_number, check_probability, checked_size
from halfgnn.common.operands import check_columns, check_operand
from halfgnn.common.precision import autocast, without_autocast
from halfgnn.graph import Graph
from halfgnn.graph_argument import GraphLike
from halfgnn.nn import pnaconv
from halfgnn.nn.principal import checked_names, degrees, of_messages, scaled
from halfgnn.nn.projections import applied, linear, widened

from ..segments import per_node, sizes_of
from ._propagation import checked_homograph

DIRECTIONS = tuple(f"dir{i}-{kind}" for i in (1, 2, 3) for kind in ("av", "dx"))
AGGREGATORS = (*pnaconv.AGGREGATORS, *DIRECTIONS)


class DGNConv(nn.Module):
    """Directional graph network layer (Beaini et al., 2021): PNAConv with aggregators along eigenvectors of the Laplacian.

    Args:
        in_size, out_size: widths of input and output, divisible by num_towers.
        aggregators: list of PNAConv's, and dir1-av to dir3-av (smoothing) and dir1-dx to dir3-dx (derivatives), each along an
            eigenvector.
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
        num_towers = checked_size(num_towers, "num_towers", least=1)
        for name, size in (("in_size", in_size), ("out_size", out_size)):
            if checked_size(size, name, least=1) % num_towers:
                raise ValueError(f"{name} is {size}; expected a multiple of num_towers, {num_towers}")
        self.in_size, self.out_size = in_size, out_size
        self.aggregators = checked_names(aggregators, "aggregators", AGGREGATORS)
        self.scalers = checked_names(scalers, "scalers", pnaconv.SCALERS)
        self.delta = check_number(delta, "delta")
        self.edge_feat_size = checked_size(edge_feat_size, "edge_feat_size")
        self.tower_in_size, self.tower_out_size = in_size // num_towers, out_size // num_towers
        self.residual = residual and in_size == out_size
        self.use_eig_vec = not set(self.aggregators).isdisjoint(DIRECTIONS)
        sizes = self.tower_in_size, self.tower_out_size, self.aggregators, self.scalers, self.delta
        self.towers = nn.ModuleList(
            DGNConvTower(*sizes, check_probability(dropout, "dropout"), self.edge_feat_size) for _ in range(num_towers)
        )
        self.mixing_layer = nn.Sequential(nn.Linear(out_size, out_size), nn.LeakyReLU())

    def forward(
        self, graph: GraphLike, node_feat: Tensor, edge_feat: Tensor | None = None, eig_vec: Tensor | None = None
    ) -> Tensor:
        """The layer on a homogeneous graph.

        Args:
            node_feat: (N, in_size). edge_feat: (E, edge_feat_size) if edge_feat_size is not 0.
            eig_vec: (N, eigenvectors), if an aggregator needs it.

        Returns:
            (N, out_size)

        Raises:
            ValueError: wrong shapes or devices. TypeError: wrong dtypes.
        """
        g = checked_homograph(graph, node_feat, name="node_feat")
        check_columns(node_feat, "node_feat", self.in_size)
        if self.edge_feat_size > 0:
            check_operand(edge_feat, "edge_feat", g, "e")
            check_columns(edge_feat, "edge_feat", self.edge_feat_size)  # type: ignore[arg-type]
        weights: dict[str, Tensor] = {}
        if self.use_eig_vec:
            check_operand(eig_vec, "eig_vec", g, "u")
            weights = _directions(g, eig_vec, self.aggregators)  # type: ignore[arg-type]
        h, edges = autocast(node_feat), autocast(edge_feat) if self.edge_feat_size > 0 else None
        sizes = sizes_of(graph, node_feat, "node_feat")
        norm = per_node(sizes, sizes.to(widened(h).dtype).rsqrt().unsqueeze(1), g.num_dst)
        parts = [
            tower(g, part, edges, weights, norm) for tower, part in zip(self.towers, h.split(self.tower_in_size, 1))
        ]
        out = applied(self.mixing_layer, torch.cat(parts, 1))
        return out + h if self.residual else out


class DGNConvTower(nn.Module):
    """A tower of DGNConv."""

    def __init__(self, in_size, out_size, aggregators, scalers, delta, dropout, edge_feat_size):
        super().__init__()
        self.in_size, self.aggregators, self.scalers, self.delta = in_size, aggregators, scalers, delta
        self.M = nn.Linear(2 * in_size + edge_feat_size, in_size)
        self.U = nn.Linear((len(aggregators) * len(scalers) + 1) * in_size, out_size)
        self.dropout = nn.Dropout(dropout)
        self.batchnorm = nn.BatchNorm1d(out_size)

    def forward(self, g: Graph, h: Tensor, edges: Tensor | None, weights: dict[str, Tensor], norm: Tensor) -> Tensor:
        """h (N, in_size), edges (E, *) or None, weights of directions (E, 1), norm (N, 1), which scales: (N, out_size)"""
        message = self._messages(g, h, edges)
        reduced = of_messages(g, message, [name for name in self.aggregators if name not in weights], 0.0)
        for name, weight in weights.items():
            reduced[name] = ops.copy_e_sum(g, message * weight)
            if name.endswith("dx"):
                reduced[name] = (reduced[name] - ops.copy_e_sum(g, weight) * h).abs()
        joined = scaled(reduced, self.aggregators, self.scalers, degrees(g, h), self.delta)
        rst = applied(self.U, torch.cat([h, joined.to(h.dtype)], 1)) * norm
        return self.dropout(self.batchnorm(rst.to(h.dtype)))

    def _messages(self, g: Graph, h: Tensor, edges: Tensor | None) -> Tensor:
        """M on cat(h[u], h[v], edges[e]): nodes are projected once, not for each of their edges."""
        of_src, of_dst, of_edges = self.M.weight.tensor_split([self.in_size, 2 * self.in_size], 1)
        message = ops.u_add_v(g, linear(h, of_src, None), linear(h, of_dst, self.M.bias))
        return message if edges is None else message + linear(edges, of_edges, None)


def _directions(g: Graph, eig_vec: Tensor, names: list[str]) -> dict[str, Tensor]:
    """The weight (E, 1) of every edge for each directional aggregator: its step along an eigenvector, normalised."""
    weights = {}
    for name in names:
        if name not in DIRECTIONS:
            continue
        column = int(name[3]) - 1
        if eig_vec.dim() != 2 or eig_vec.shape[1] <= column:
            raise ValueError(
                f"eig_vec has shape {tuple(eig_vec.shape)}; expected (N, at least {column + 1}) for {name}"
            )
        values: Any = widened(eig_vec[:, column : column + 1])
        with without_autocast(values.device):
            step = ops.u_sub_v(g, values, values)
            total = ops.copy_e_sum(g, step.abs()) + 1e-30
            weight = ops.e_div_v(g, step.abs() if name.endswith("av") else step, total)
        weights[name] = weight.to(eig_vec.dtype)
    return weights
