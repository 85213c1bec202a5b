"""Gaussian mixture convolution."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from halfgnn import ops
from halfgnn.common.arguments import checked_size, checked_widths
from halfgnn.common.layers import is_plain
from halfgnn.common.operands import check_columns, check_operand
from halfgnn.common.precision import without_autocast
from halfgnn.compat.dgl.base import DGLError
from halfgnn.graph_argument import GraphLike
from halfgnn.nn.checks import checked_features
from halfgnn.nn.features import cast_sides, checked_graph
from halfgnn.nn.projections import applied, linear, widened

from ._aggregators import add_bias, add_residual, check_aggregator, finished


class GMMConv(nn.Module):
    """Gaussian mixture convolution, MoNet (Monti et al., 2017).

    Args:
        in_feats: width of the input; a pair for sources and destinations with features of their own.
        out_feats: width of the output.
        dim: width of the pseudo-coordinates.
        n_kernels: number of kernels.
        aggregator_type: "sum", "mean" or "max".
        residual: add the features of the destinations, projected if their width is another.
        bias: add a bias.
        allow_zero_in_degree: accept nodes without in-edges. Their sum over edges is zero.
    """

    bias: nn.Parameter | None

    def __init__(
        self,
        in_feats,
        out_feats,
        dim,
        n_kernels,
        aggregator_type="sum",
        residual=False,
        bias=True,
        allow_zero_in_degree=False,
    ):
        super().__init__()
        check_aggregator(aggregator_type)
        self._in_src_feats, self._in_dst_feats = checked_widths(in_feats, "in_feats")
        self._out_feats = checked_size(out_feats, "out_feats")
        self._dim, self._n_kernels = checked_size(dim, "dim"), checked_size(n_kernels, "n_kernels", least=1)
        self._aggregator_type = aggregator_type
        self._allow_zero_in_degree = allow_zero_in_degree
        self.mu = nn.Parameter(torch.empty(n_kernels, dim))
        self.inv_sigma = nn.Parameter(torch.empty(n_kernels, dim))
        self.fc = nn.Linear(self._in_src_feats, n_kernels * out_feats, bias=False)
        add_residual(self, residual, self._in_dst_feats, out_feats)
        add_bias(self, bias, out_feats)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Glorot normal; means normal with deviation 0.1, inverse widths one, bias zero."""
        gain = nn.init.calculate_gain("relu")
        nn.init.xavier_normal_(self.fc.weight, gain=gain)
        if isinstance(self.res_fc, nn.Linear):
            nn.init.xavier_normal_(self.res_fc.weight, gain=gain)
        nn.init.normal_(self.mu, 0, 0.1)
        nn.init.ones_(self.inv_sigma)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def set_allow_zero_in_degree(self, set_value: bool) -> None:
        """Whether nodes without in-edges are accepted."""
        self._allow_zero_in_degree = set_value

    def forward(self, graph: GraphLike, feat: Any, pseudo: Tensor) -> Tensor:
        """Projected sources, weighted by Gaussians of the pseudo-coordinates, aggregated for each kernel and summed over them.

        Args:
            feat: (num_src, in_feats), or the pair of it and (num_dst, in_feats).
            pseudo: (E, dim).

        Returns:
            (num_dst, out_feats)

        Raises:
            DGLError: the graph has nodes without in-edges. ValueError, TypeError: wrong shapes, devices or dtypes.
        """
        g = checked_graph(graph, self._allow_zero_in_degree, DGLError)
        features = checked_features(
            g, feat, self.fc, self.res_fc if isinstance(self.res_fc, nn.Linear) else None, dim=2
        )
        check_operand(pseudo, "pseudo", g, "e")
        check_columns(pseudo, "pseudo", self._dim)
        x = cast_sides(graph, g, features)
        return finished(self, self._aggregated(g, x.src, self._gaussians(pseudo)), x.dst)

    def _gaussians(self, pseudo: Tensor) -> Tensor:
        """(E, kernels, 1), in fp32 for half coordinates."""
        with without_autocast(pseudo.device):
            distance = widened(pseudo).unsqueeze(1) - self.mu
            return torch.exp(-0.5 * (distance * self.inv_sigma).square().sum(-1, keepdim=True))

    def _aggregated(self, g: Any, h: Tensor, weight: Tensor) -> Tensor:
        # Rows of in_feats values are gathered if they are shorter than those of all kernels; a maximum is one of projected rows.
        if self._aggregator_type != "max" and self._in_src_feats <= self._out_feats and is_plain(self.fc):
            rows = self._reduced(g, h.unsqueeze(1), weight)
            by_kernel = self.fc.weight.view(self._n_kernels, self._out_feats, -1)
            return linear(rows.flatten(1), by_kernel.transpose(0, 1).flatten(1), None)
        projected = applied(self.fc, h).view(-1, self._n_kernels, self._out_feats)
        return self._reduced(g, projected, weight).sum(1)

    def _reduced(self, g: Any, rows: Tensor, weight: Tensor) -> Tensor:
        with without_autocast(rows.device):
            return ops.gspmm(g, "mul", self._aggregator_type, rows, weight.to(widened(rows).dtype))
