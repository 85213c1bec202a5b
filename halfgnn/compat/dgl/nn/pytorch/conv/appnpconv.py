"""Approximate personalised propagation of neural predictions."""

from __future__ import annotations

from torch import Tensor, nn

from halfgnn.common.arguments import check_number, check_probability, checked_size
from halfgnn.graph_argument import GraphLike

from ._propagation import Propagation, checked_homograph


class APPNPConv(nn.Module):
    """Propagation with restarts (Klicpera et al., 2019): k times h = (1 - alpha) A h + alpha h_0, with a normalised A.

    Args:
        k: number of steps.
        alpha: probability of a restart.
        edge_drop: dropout of edges, drawn at every step.
    """

    def __init__(self, k, alpha, edge_drop=0.0):
        super().__init__()
        self._k = checked_size(k, "k")
        self._alpha = check_number(alpha, "alpha")
        self.edge_drop = nn.Dropout(check_probability(edge_drop, "edge_drop"))

    def forward(self, graph: GraphLike, feat: Tensor, edge_weight: Tensor | None = None) -> Tensor:
        """feat (N, *), edge_weight (E,) positive or None: (N, *).

        Raises:
            ValueError: wrong shapes or devices. TypeError: wrong dtypes.
        """
        g = checked_homograph(graph, feat)
        step = Propagation(g, edge_weight, by_out_degrees=True)
        drop = self.edge_drop if self.training and self.edge_drop.p > 0 else None
        h = feat
        for _ in range(self._k):
            h = (1 - self._alpha) * step(h, drop) + self._alpha * feat
        return h
