"""Gated graph convolution."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from halfgnn import ops
from halfgnn.common.arguments import checked_size
from halfgnn.common.operands import check_columns, check_parameter
from halfgnn.graph import Graph
from halfgnn.graph_argument import GraphLike
from halfgnn.nn.projections import applied
from halfgnn.nn.relation_pairs import pairs_of
from halfgnn.nn.typed_linear import typed_linear

from ._edge_types import check_edge_types, counts_of
from ._propagation import checked_homograph


class GatedGraphConv(nn.Module):
    """Gated graph convolution (Li et al., 2016): a GRU reads the sum of projected sources, step after step.

    Args:
        in_feats, out_feats: widths of input and output; the input is filled up with zeros.
        n_steps: number of steps.
        n_etypes: number of edge types, each with a linear layer.
        bias: of the GRU.
    """

    def __init__(self, in_feats, out_feats, n_steps, n_etypes, bias=True):
        super().__init__()
        self._in_feats = checked_size(in_feats, "in_feats")
        self._out_feats = checked_size(out_feats, "out_feats")
        if in_feats > out_feats:
            raise ValueError(f"out_feats is {out_feats}; expected at least in_feats, {in_feats}")
        self._n_steps = checked_size(n_steps, "n_steps")
        self._n_etypes = checked_size(n_etypes, "n_etypes", least=1)
        self.linears = nn.ModuleList(nn.Linear(out_feats, out_feats) for _ in range(n_etypes))
        self.gru = nn.GRUCell(out_feats, out_feats, bias=bias)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Glorot normal with biases zero; PyTorch's default for the GRU."""
        self.gru.reset_parameters()
        for layer in self.linears:
            nn.init.xavier_normal_(layer.weight, gain=nn.init.calculate_gain("relu"))
            nn.init.zeros_(layer.bias)

    def set_allow_zero_in_degree(self, set_value: bool) -> None:
        """Without effect: nodes without in-edges are always accepted."""

    def forward(self, graph: GraphLike, feat: Tensor, etypes: Tensor | None = None) -> Tensor:
        """feat (N, in_feats), etypes (E,) of integers, None if there is one type: (N, out_feats).

        Raises:
            ValueError: wrong shapes, devices or types. TypeError: wrong dtypes.
        """
        g = checked_homograph(graph, feat)
        check_columns(feat, "feat", self._in_feats)
        check_parameter(feat, "feat", self.gru.weight_ih)
        if self._n_etypes > 1:
            check_edge_types(g, etypes, "etypes")
        feat = F.pad(feat, (0, self._out_feats - self._in_feats))
        for _ in range(self._n_steps):
            feat = self.gru(self._summed(g, feat, etypes), feat)
        return feat

    def _summed(self, g: Graph, feat: Tensor, etypes: Tensor | None) -> Tensor:
        """The sum of the sources, each projected by the layer of its edge's type."""
        if self._n_etypes == 1 or etypes is None:
            return ops.copy_u_sum(g, applied(self.linears[0], feat))
        # One row per pair of a type and a source that has an edge of it, projected once for all of these edges.
        pairs = pairs_of(g, etypes, self._n_etypes, of_sources=True)
        rows = ops.copy_v(pairs.out_of, feat)
        bias = torch.stack([layer.bias for layer in self.linears])
        projected = typed_linear(rows, pairs.ends, torch.stack([layer.weight.t() for layer in self.linears]))
        projected = projected + bias.repeat_interleave(counts_of(pairs.ends, feat.device), 0)
        return ops.copy_u_sum(pairs.into.reverse(), projected.to(rows.dtype))
