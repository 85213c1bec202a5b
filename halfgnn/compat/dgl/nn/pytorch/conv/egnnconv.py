"""Equivariant graph convolution."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from halfgnn import ops
from halfgnn.common.arguments import checked_size
from halfgnn.common.layers import is_plain
from halfgnn.common.operands import check_columns, check_operand
from halfgnn.common.precision import autocast, without_autocast
from halfgnn.graph import Graph
from halfgnn.graph_argument import GraphLike
from halfgnn.nn.projections import applied, linear

from ._propagation import checked_homograph


class EGNNConv(nn.Module):
    """E(n)-equivariant graph convolution (Satorras et al., 2021): features of nodes, and their coordinates.

    Args:
        in_size, hidden_size, out_size: widths of the input, of the hidden layers and of the output.
        edge_feat_size: number of edge features, or 0.
    """

    def __init__(self, in_size, hidden_size, out_size, edge_feat_size=0):
        super().__init__()
        self.in_size = checked_size(in_size, "in_size")
        self.hidden_size = checked_size(hidden_size, "hidden_size")
        self.out_size = checked_size(out_size, "out_size")
        self.edge_feat_size = checked_size(edge_feat_size, "edge_feat_size")
        act_fn = nn.SiLU()
        self.edge_mlp = nn.Sequential(
            nn.Linear(in_size * 2 + edge_feat_size + 1, hidden_size),
            act_fn,
            nn.Linear(hidden_size, hidden_size),
            act_fn,
        )
        self.node_mlp = nn.Sequential(
            nn.Linear(in_size + hidden_size, hidden_size), act_fn, nn.Linear(hidden_size, out_size)
        )
        self.coord_mlp = nn.Sequential(
            nn.Linear(hidden_size, hidden_size), act_fn, nn.Linear(hidden_size, 1, bias=False)
        )

    def forward(
        self, graph: GraphLike, node_feat: Tensor, coord_feat: Tensor, edge_feat: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """The new features and coordinates of the nodes.

        Args:
            node_feat: (N, in_size). coord_feat: (N, dims); differences and their means are not cast by autocast.
            edge_feat: (E, edge_feat_size) if edge_feat_size is not 0.

        Returns:
            (N, out_size) and (N, dims)

        Raises:
            ValueError: wrong shapes or devices. TypeError: wrong dtypes.
        """
        g = checked_homograph(graph, node_feat, name="node_feat")
        check_columns(node_feat, "node_feat", self.in_size)
        check_operand(coord_feat, "coord_feat", g, "u")
        if self.edge_feat_size > 0:
            check_operand(edge_feat, "edge_feat", g, "e")
            check_columns(edge_feat, "edge_feat", self.edge_feat_size)  # type: ignore[arg-type]
        h = autocast(node_feat)
        with without_autocast(h.device):
            difference = ops.u_sub_v(g, coord_feat, coord_feat)
            radial = difference.square().sum(1, keepdim=True)
            # Nodes in one place have no direction; the root of zero would have no gradient.
            direction = difference / torch.where(radial > 0, radial, 1.0).sqrt()
        parts = [radial.to(h.dtype)]
        if self.edge_feat_size > 0 and edge_feat is not None:
            parts.append(autocast(edge_feat))
        message = applied(self.edge_mlp[1:], self._first_layer(g, h, torch.cat(parts, 1)))
        moves = applied(self.coord_mlp, message) * direction
        with without_autocast(h.device):
            x = coord_feat + ops.copy_e_mean(g, moves.to(direction.dtype))
        summed = ops.copy_e_sum(g, message)
        return applied(self.node_mlp, torch.cat([h, summed.to(h.dtype)], 1)), x

    def _first_layer(self, g: Graph, h: Tensor, edges: Tensor) -> Tensor:
        """The first layer on cat(h[u], h[v], edges[e]): nodes are projected once, not for each of their edges."""
        first: Any = self.edge_mlp[0]
        if not is_plain(first):
            return first(torch.cat([ops.copy_u(g, h), ops.copy_v(g, h), edges], 1))
        of_src, of_dst, of_edges = first.weight.split([self.in_size, self.in_size, self.edge_feat_size + 1], 1)
        src, dst = linear(h, of_src, None), linear(h, of_dst, first.bias)
        return ops.u_add_v(g, src, dst) + linear(edges, of_edges, None)
