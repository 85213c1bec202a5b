"""Heterogeneous graph transformer."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from halfgnn import ops
from halfgnn.common.arguments import check_probability, checked_size
from halfgnn.common.operands import check_columns, check_operand
from halfgnn.common.precision import autocast
from halfgnn.graph_argument import GraphLike, as_graph
from halfgnn.nn.features import Features, both_sides
from halfgnn.nn.projections import linear
from halfgnn.nn.relation_pairs import Pairs, pairs_of

from ..linear import TypedLinear
from ._edge_types import check_edge_types, check_types, counts_of


class HGTConv(nn.Module):
    """Heterogeneous graph transformer layer (Hu et al., 2020), on one fused :func:`halfgnn.ops.dot_attention`.

    Keys and values are projected by their edge's type once for each source and type that have an edge.

    Args:
        in_size: width of the input.
        head_size: width of the output per head.
        num_heads: number of heads.
        num_ntypes, num_etypes: numbers of types of nodes and edges.
        dropout: of the result before the skip connection.
        use_norm: normalise the result.
    """

    def __init__(self, in_size, head_size, num_heads, num_ntypes, num_etypes, dropout=0.2, use_norm=False):
        super().__init__()
        self.in_size = checked_size(in_size, "in_size")
        self.head_size = checked_size(head_size, "head_size", least=1)
        self.num_heads = checked_size(num_heads, "num_heads", least=1)
        self.sqrt_d = math.sqrt(head_size)
        self.use_norm = use_norm
        width = head_size * num_heads
        self.linear_k = TypedLinear(in_size, width, num_ntypes)
        self.linear_q = TypedLinear(in_size, width, num_ntypes)
        self.linear_v = TypedLinear(in_size, width, num_ntypes)
        self.linear_a = TypedLinear(width, width, num_ntypes)
        self.relation_pri = nn.ParameterList(nn.Parameter(torch.ones(num_etypes)) for _ in range(num_heads))
        self.relation_att = nn.ModuleList(TypedLinear(head_size, head_size, num_etypes) for _ in range(num_heads))
        self.relation_msg = nn.ModuleList(TypedLinear(head_size, head_size, num_etypes) for _ in range(num_heads))
        self.skip = nn.Parameter(torch.ones(num_ntypes))
        self.drop = nn.Dropout(check_probability(dropout, "dropout"))
        if use_norm:
            self.norm = nn.LayerNorm(width)
        if in_size != width:
            self.residual_w = nn.Parameter(torch.empty(in_size, width))
            nn.init.xavier_uniform_(self.residual_w)

    def forward(self, g: GraphLike, x: Tensor, ntype: Tensor, etype: Tensor, *, presorted: bool = False) -> Tensor:
        """The layer on a homogeneous graph with types.

        Args:
            x: (num_src, in_size). In a block the destinations are the first sources.
            ntype: (num_src,), etype: (E,), integers.
            presorted: whether ntype rises.

        Returns:
            (num_dst, head_size * num_heads)

        Raises:
            ValueError: wrong shapes, devices or types. TypeError: wrong dtypes.
        """
        graph = as_graph(g)
        check_operand(x, "x", graph, "u")
        check_columns(x, "x", self.in_size)
        check_operand(ntype, "ntype", graph, "u")
        check_types(ntype, "ntype", graph.num_src)
        check_edge_types(graph, etype, "etype")
        x_src, x_dst = both_sides(g, graph, Features(autocast(x)), name="x")
        dst_type = ntype[: graph.num_dst]
        heads = (self.num_heads, self.head_size)
        query = self.linear_q(x_dst, dst_type, presorted).unflatten(1, heads)
        pairs = pairs_of(graph, etype, self.relation_pri[0].numel(), of_sources=True)
        key = self._of_relations(pairs, self.linear_k(x_src, ntype, presorted), self.relation_att)
        value = self._of_relations(pairs, self.linear_v(x_src, ntype, presorted), self.relation_msg)
        priority = torch.stack(list(self.relation_pri), 1).repeat_interleave(counts_of(pairs.ends, x.device), 0)
        key = (key * (priority / self.sqrt_d).unsqueeze(-1)).to(value.dtype)
        h = ops.dot_attention(pairs.into.reverse(), query, key, value, 1.0).flatten(1)
        return self._finished(self.drop(self.linear_a(h, dst_type, presorted)), x_dst, dst_type)

    def _of_relations(self, pairs: Pairs, x: Tensor, layers: nn.ModuleList) -> Tensor:
        """x (num_src, width), projected head by head by the relation of each pair: (pairs, H, D)."""
        rows = ops.copy_v(pairs.out_of, x).unflatten(1, (self.num_heads, self.head_size))
        heads = [layer.projected(rows[:, i].contiguous(), pairs.ends) for i, layer in enumerate(layers)]  # type: ignore[operator]
        return torch.stack(heads, 1)

    def _finished(self, h: Tensor, x_dst: Tensor, dst_type: Tensor) -> Tensor:
        """The skip connection and the norm."""
        alpha = torch.sigmoid(self.skip[dst_type.long()]).unsqueeze(-1)
        own = linear(x_dst, self.residual_w.t(), None) if x_dst.shape[1] != h.shape[1] else x_dst
        h = (h * alpha + own * (1 - alpha)).to(h.dtype)
        return self.norm(h) if self.use_norm else h
