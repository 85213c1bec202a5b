"""Topology adaptive graph convolution."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from halfgnn.common.arguments import checked_size
from halfgnn.common.layers import is_plain
from halfgnn.common.operands import check_columns, check_parameter
from halfgnn.graph_argument import GraphLike
from halfgnn.nn.projections import applied, linear

from ._propagation import Propagation, checked_homograph


class TAGConv(nn.Module):
    """Topology adaptive graph convolution (Du et al., 2017): a linear layer on the features after 0 to k steps of propagation.

    Args:
        in_feats, out_feats: widths of input and output.
        k: number of steps.
        bias: of the layer.
        activation: function applied at the end, or None.
    """

    def __init__(self, in_feats, out_feats, k=2, bias=True, activation=None):
        super().__init__()
        self._in_feats = checked_size(in_feats, "in_feats")
        self._out_feats = checked_size(out_feats, "out_feats")
        self._k = checked_size(k, "k")
        self._activation = activation
        self.lin = nn.Linear(in_feats * (k + 1), out_feats, bias=bias)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Glorot normal; PyTorch's default for the bias."""
        nn.init.xavier_normal_(self.lin.weight, gain=nn.init.calculate_gain("relu"))

    def forward(self, graph: GraphLike, feat: Tensor, edge_weight: Tensor | None = None) -> Tensor:
        """feat (N, in_feats), edge_weight (E,) positive or None: (N, out_feats).

        Raises:
            ValueError: wrong shapes or devices. TypeError: wrong dtypes.
        """
        g = checked_homograph(graph, feat)
        check_columns(feat, "feat", self._in_feats, None)
        check_parameter(feat, "feat", self.lin.weight)
        step = Propagation(g, edge_weight)
        if self._out_feats < self._in_feats and is_plain(self.lin):
            rst = self._projected_first(step, feat)
        else:
            hops = [feat]
            for _ in range(self._k):
                hops.append(step(hops[-1]))
            rst = applied(self.lin, torch.cat(hops, -1))
        return rst if self._activation is None else self._activation(rst)

    def _projected_first(self, step: Propagation, feat: Tensor) -> Tensor:
        """By Horner's rule x W_0 + A (x W_1 + A (x W_2 + ...)), so that rows of out_feats values propagate."""
        *weights, last = self.lin.weight.split(self._in_feats, 1)
        rst = linear(feat, last, None)
        for weight in reversed(weights):
            rst = linear(feat, weight, None) + step(rst)
        return rst if self.lin.bias is None else rst + self.lin.bias
