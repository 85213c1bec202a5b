"""GINConv of torch_geometric."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch_geometric import nn

from ...nn.projections import applied
from .base import ONE_PASS, Hosted, Sums, checked_features, checked_graph, edge_index_if_unsupported, node_counts


class GINConv(Sums, Hosted, nn.GINConv):
    """Graph isomorphism layer, torch_geometric.nn.GINConv on :func:`halfgnn.ops.gspmm`.

    Aggregations other than sum, mean, max and min are torch_geometric's.
    """

    def forward(self, x, edge_index, size=None):
        """nn((1 + eps) x[v] + sum of x[u] over in-edges (u, v)).

        Args:
            x: (N, width), or the pair of (num_src, width) and (num_dst, width) or None.
            edge_index: (2, E), or a Graph or DGLGraph.
            size: (num_src, num_dst), or None for the rows of x.

        Returns:
            The result of nn for (num_dst, width).

        Raises:
            ValueError: wrong shapes, devices or ids. TypeError: wrong dtypes.
        """
        unsupported = edge_index_if_unsupported(self, nn.GINConv, edge_index, x, ONE_PASS)
        if unsupported is not None:
            # propagate_type: (x: OptPairTensor)
            return super().forward(x, unsupported, size)
        x_src, x_dst = self._ends(x)
        return self._sum(checked_graph(edge_index, x_src, *node_counts(size, x_src, x_dst)), x_src, x_dst)

    def _ends(self, x: Any) -> Any:
        return checked_features(x, self.eps)

    def _projection(self) -> Any:
        return None

    def _after(self, out: Tensor, x_dst: Tensor | None) -> Tensor:
        return applied(self.nn, out if x_dst is None else out + (1 + self.eps) * x_dst)
