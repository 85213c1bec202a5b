"""Relational graph convolution."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from halfgnn import ops
from halfgnn.common.operands import check_columns, check_operand, check_parameter
from halfgnn.common.precision import autocast
from halfgnn.graph import Graph
from halfgnn.graph_argument import GraphLike, as_graph
from halfgnn.nn.projections import linear
from halfgnn.nn.relation_pairs import pairs_of
from halfgnn.nn.sums import aggregate

from ..linear import TypedLinear
from ._edge_types import check_edge_types


class RelGraphConv(nn.Module):
    """Relational graph convolution (Schlichtkrull et al., 2018), on two sums of :func:`halfgnn.ops.gspmm`.

    Sources are summed into a row for each relation and destination that have an edge. Rows are projected by their relation and
    summed. A message per edge is never materialized.

    Args:
        in_feat, out_feat: widths of input and output.
        num_rels: number of relations.
        regularizer, num_bases: see :class:`TypedLinear`; by default num_bases is num_rels.
        bias: add a bias.
        activation: function applied before dropout, or None.
        self_loop: add the projected features of the destinations.
        dropout: of the result.
        layer_norm: normalise the sum.
    """

    def __init__(
        self,
        in_feat,
        out_feat,
        num_rels,
        regularizer=None,
        num_bases=None,
        bias=True,
        activation=None,
        self_loop=True,
        dropout=0.0,
        layer_norm=False,
    ):
        super().__init__()
        if regularizer is not None and num_bases is None:
            num_bases = num_rels
        self.linear_r = TypedLinear(in_feat, out_feat, num_rels, regularizer, num_bases)
        self.bias = bias
        self.activation = activation
        self.self_loop = self_loop
        self.layer_norm = layer_norm
        if bias:
            self.h_bias = nn.Parameter(torch.zeros(out_feat))
        if layer_norm:
            self.layer_norm_weight = nn.LayerNorm(out_feat, elementwise_affine=True)
        if self_loop:
            self.loop_weight = nn.Parameter(torch.empty(in_feat, out_feat))
            nn.init.xavier_uniform_(self.loop_weight, gain=nn.init.calculate_gain("relu"))
        self.dropout = nn.Dropout(dropout)

    def forward(
        self, g: GraphLike, feat: Tensor, etypes: Tensor, norm: Tensor | None = None, *, presorted: bool = False
    ) -> Tensor:
        """The sum over in-edges e = (u, v) of norm[e] feat[u] W of e's relation, and what the constructor adds.

        Args:
            feat: (num_src, in_feat). In a block the destinations are the first sources.
            etypes: (E,) of integers. What is made of them is cached with the graph.
            norm: (E, 1) or None.
            presorted: not needed: relations are sorted once.

        Returns:
            (num_dst, out_feat)

        Raises:
            ValueError: wrong shapes, devices or types. TypeError: wrong dtypes.
        """
        graph = as_graph(g)
        check_operand(feat, "feat", graph, "u")
        check_columns(feat, "feat", self.linear_r.in_size)
        check_parameter(feat, "feat", self.linear_r.W)
        check_edge_types(graph, etypes, "etypes")
        if norm is not None:
            check_operand(norm, "norm", graph, "e")
        x = autocast(feat)
        h = self._summed(graph, x, etypes, norm)
        if self.layer_norm:
            h = self.layer_norm_weight(h)
        if self.bias:
            h = h + self.h_bias
        if self.self_loop:
            h = h + linear(x[: graph.num_dst], self.loop_weight.t(), None)
        if self.activation:
            h = self.activation(h)
        return self.dropout(h)

    def _summed(self, g: Graph, x: Tensor, etypes: Tensor, norm: Tensor | None) -> Tensor:
        layer = self.linear_r
        if layer.regularizer == "basis" and layer.num_bases * g.num_dst <= g.num_edges:
            return self._by_bases(g, x, etypes, norm)
        pairs = pairs_of(g, etypes, layer.num_types)
        rows = layer.projected(aggregate(pairs.into, "sum", x, norm), pairs.ends)
        return ops.copy_u_sum(pairs.out_of, rows)

    def _by_bases(self, g: Graph, x: Tensor, etypes: Tensor, norm: Tensor | None) -> Tensor:
        """The same with a row for each basis and destination, which are fewer than edges: sources weighted by coefficients."""
        types, coeff = _checked(etypes, self.linear_r.num_types), self.linear_r.coeff
        # A type's gradient is a sum over its edges, which PyTorch computes in the dtype that is indexed.
        weight = coeff.to(torch.promote_types(coeff.dtype, torch.float32))[types].to(x.dtype)
        weight = weight if norm is None else weight * norm.to(x.dtype)
        rows = ops.u_mul_e_sum(g, x.unsqueeze(1), weight.unsqueeze(-1))
        return linear(rows.flatten(1), self.linear_r.W.flatten(0, 1).t(), None)


def _checked(etypes: Tensor, num_types: int) -> Tensor:
    if etypes.numel() and not etypes.is_cuda and (int(etypes.min()) < 0 or int(etypes.max()) >= num_types):
        raise ValueError(f"etypes holds {int(etypes.min())} to {int(etypes.max())}; expected types in [0, {num_types})")
    return etypes.long()
