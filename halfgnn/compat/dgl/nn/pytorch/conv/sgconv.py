"""Simplified graph convolution."""

from __future__ import annotations

from torch import Tensor, nn

from halfgnn.common.arguments import checked_size
from halfgnn.common.layers import is_plain
from halfgnn.graph_argument import GraphLike
from halfgnn.nn.checks import checked_features
from halfgnn.nn.projections import applied, linear

from ._propagation import Propagation, checked_homograph


class SGConv(nn.Module):
    """Simplified graph convolution (Wu et al., 2019): fc of k steps of normalised propagation.

    Args:
        in_feats, out_feats: widths of input and output.
        k: number of steps.
        cached: keep the propagated features of the first call, and use them at every other one.
        bias: of fc.
        norm: function applied to the propagated features, or None.
        allow_zero_in_degree: accept nodes without in-edges.
    """

    def __init__(self, in_feats, out_feats, k=1, cached=False, bias=True, norm=None, allow_zero_in_degree=False):
        super().__init__()
        self.fc = nn.Linear(checked_size(in_feats, "in_feats"), checked_size(out_feats, "out_feats"), bias=bias)
        self._cached = cached
        self._cached_h: Tensor | None = None
        self._k = checked_size(k, "k")
        self.norm = norm
        self._allow_zero_in_degree = allow_zero_in_degree
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Glorot uniform, bias zero."""
        nn.init.xavier_uniform_(self.fc.weight)
        if self.fc.bias is not None:
            nn.init.zeros_(self.fc.bias)

    def set_allow_zero_in_degree(self, set_value: bool) -> None:
        """Whether nodes without in-edges are accepted."""
        self._allow_zero_in_degree = set_value

    def forward(self, graph: GraphLike, feat: Tensor, edge_weight: Tensor | None = None) -> Tensor:
        """feat (N, in_feats), edge_weight (E,) positive or None: (N, out_feats).

        Raises:
            DGLError: the graph has nodes without in-edges. ValueError, TypeError: wrong shapes, devices or dtypes.
        """
        g = checked_homograph(graph, feat, self._allow_zero_in_degree)
        checked_features(g, feat, self.fc, self.fc)
        if self._cached_h is not None:
            return applied(self.fc, self._cached_h)
        step = Propagation(g, edge_weight)
        # Projected first, the features propagate in shorter rows.
        is_first = self.norm is None and not self._cached and is_plain(self.fc)
        if is_first and self.fc.out_features < self.fc.in_features:
            feat = linear(feat, self.fc.weight, None)
            for _ in range(self._k):
                feat = step(feat)
            return feat if self.fc.bias is None else feat + self.fc.bias
        for _ in range(self._k):
            feat = step(feat)
        if self.norm is not None:
            feat = self.norm(feat)
        if self._cached:
            self._cached_h = feat
        return applied(self.fc, feat)
