"""Chebyshev spectral convolution."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from halfgnn.common.arguments import checked_size
from halfgnn.common.layers import is_plain
from halfgnn.common.operands import check_columns, check_parameter
from halfgnn.compat.dgl.base import dgl_warning
from halfgnn.graph_argument import GraphLike
from halfgnn.nn.projections import applied, linear

from ..segments import per_node, sizes_of
from ._propagation import Propagation, checked_homograph


class ChebConv(nn.Module):
    """Chebyshev spectral convolution (Defferrard et al., 2016): a linear layer on T_0(L) x, ..., T_{k-1}(L) x.

    L is the normalised Laplacian, scaled so that its eigenvalues are in [-1, 1].

    Args:
        in_feats, out_feats: widths of input and output.
        k: number of polynomials.
        activation: function applied at the end, or None.
        bias: of the layer.
    """

    def __init__(self, in_feats, out_feats, k, activation=F.relu, bias=True):
        super().__init__()
        self._k = checked_size(k, "k", least=1)
        self._in_feats = checked_size(in_feats, "in_feats")
        self._out_feats = checked_size(out_feats, "out_feats")
        self.activation = activation
        self.linear = nn.Linear(k * in_feats, out_feats, bias)

    def forward(self, graph: GraphLike, feat: Tensor, lambda_max: Any = None) -> Tensor:
        """The convolution of feat (N, in_feats).

        Args:
            lambda_max: the largest eigenvalue of the Laplacian of each graph of the batch, a list or a tensor (graphs,) or
                (graphs, 1). By default 2 for all, with a warning.

        Returns:
            (N, out_feats)

        Raises:
            ValueError: wrong shapes or devices. TypeError: wrong dtypes.
        """
        g = checked_homograph(graph, feat)
        check_columns(feat, "feat", self._in_feats)
        check_parameter(feat, "feat", self.linear.weight)
        laplacian = _Laplacian(Propagation(g, None), _scale(graph, feat, lambda_max))
        if self._out_feats < self._in_feats and is_plain(self.linear):
            rst = self._projected_first(laplacian, feat)
        else:
            polynomials = [feat]
            for i in range(1, self._k):
                last = laplacian(polynomials[-1])
                polynomials.append(last if i == 1 else 2 * last - polynomials[-2])
            rst = applied(self.linear, torch.cat(polynomials, 1))
        return self.activation(rst) if self.activation else rst

    def _projected_first(self, laplacian: _Laplacian, feat: Tensor) -> Tensor:
        """By Clenshaw's recurrence b_i = x W_i + 2 L b_{i+1} - b_{i+2}, so that rows of out_feats values propagate."""
        first, *others = (linear(feat, weight, None) for weight in self.linear.weight.split(self._in_feats, 1))
        rst = first
        if others:
            after, b = None, others[-1]
            for projected in reversed(others[:-1]):
                b, after = projected + 2 * laplacian(b) - (0 if after is None else after), b
            rst = first + laplacian(b) - (0 if after is None else after)
        return rst if self.linear.bias is None else rst + self.linear.bias


class _Laplacian:
    """x -> L x with L = (2 / lambda_max) (I - D^-1/2 A D^-1/2) - I. scale: 2 / lambda_max of each node's graph, (N, 1)."""

    def __init__(self, step: Propagation, scale: Tensor):
        self.step, self.scale = step, scale

    def __call__(self, x: Tensor) -> Tensor:
        return (x * (self.scale - 1) - self.scale * self.step(x)).to(x.dtype)


def _scale(graph: Any, feat: Tensor, lambda_max: Any) -> Tensor:
    sizes = sizes_of(graph, feat)
    if lambda_max is None:
        dgl_warning("lambda_max is not given; 2 is used. dgl.laplacian_lambda_max computes it.")
        lambda_max = [2.0] * sizes.numel()
    wide = torch.promote_types(feat.dtype, torch.float32)
    if isinstance(lambda_max, Sequence):
        lambda_max = torch.tensor(lambda_max)
    lambda_max = lambda_max.to(device=feat.device, dtype=wide).view(-1, 1)
    if lambda_max.shape[0] != sizes.numel():
        raise ValueError(f"lambda_max has {lambda_max.shape[0]} values; expected {sizes.numel()}, one per graph")
    return 2.0 / per_node(sizes, lambda_max, feat.shape[0])
