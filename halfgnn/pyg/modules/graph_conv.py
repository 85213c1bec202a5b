"""GraphConv of torch_geometric."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch_geometric import nn

from ...nn.projections import applied
from .base import (
    ONE_PASS,
    Sums,
    UpstreamModule,
    checked_graph,
    checked_pair,
    checked_weight,
    edge_index_if_unsupported,
    node_counts,
)


class GraphConv(Sums, UpstreamModule, nn.GraphConv):
    """The operator of "Weisfeiler and Leman go neural", torch_geometric.nn.GraphConv on :func:`halfgnn.ops.gspmm`.

    Aggregations other than sum, mean, max and min are torch_geometric's.
    """

    def forward(self, x, edge_index, edge_weight=None, size=None):
        """lin_root x[v] + lin_rel of the sum (or another aggregate) of edge_weight[e] x[u] over in-edges e = (u, v).

        Args:
            x: (N, in_channels), or the pair of (num_src, in_channels) and (num_dst, in_channels) or None.
            edge_index: (2, E), or a Graph or DGLGraph.
            edge_weight: (E,), or None.
            size: (num_src, num_dst), or None for the rows of x.

        Returns:
            (num_dst, out_channels)

        Raises:
            ValueError: wrong shapes, devices or ids. TypeError: wrong dtypes.
        """
        unsupported = edge_index_if_unsupported(self, nn.GraphConv, edge_index, x, ONE_PASS)
        if unsupported is not None:
            # propagate_type: (x: OptPairTensor, edge_weight: OptTensor)
            return super().forward(x, unsupported, edge_weight, size)
        x_src, x_dst = self._ends(x)
        g = checked_graph(edge_index, x_src, *node_counts(size, x_src, x_dst))
        return self._sum(g, x_src, x_dst, checked_weight(g, edge_weight))

    def _ends(self, x: Any) -> Any:
        return checked_pair(x, self.lin_rel, self.lin_root, optional=True)

    def _projection(self) -> Any:
        return self.lin_rel

    def _after(self, out: Tensor, x_dst: Tensor | None) -> Tensor:
        out = self._projected(out)
        return out if x_dst is None else out + applied(self.lin_root, x_dst)
