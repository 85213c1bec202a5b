"""SAGEConv of torch_geometric."""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from torch import Tensor
from torch_geometric import nn

from ...nn.projections import applied
from .base import ONE_PASS, Sums, UpstreamModule, checked_graph, checked_pair, edge_index_if_unsupported, node_counts


class SAGEConv(Sums, UpstreamModule, nn.SAGEConv):
    """GraphSAGE layer, torch_geometric.nn.SAGEConv on :func:`halfgnn.ops.gspmm`.

    Aggregations other than sum, mean, max and min are torch_geometric's.
    """

    def forward(self, x, edge_index, size=None):
        """lin_r x[v] + lin_l of the mean (or another aggregate) of x[u] over in-edges (u, v).

        Args:
            x: (N, in_channels), or the pair of (num_src, in_channels) and (num_dst, in_channels) or None.
            edge_index: (2, E), or a Graph or DGLGraph.
            size: (num_src, num_dst), or None for the rows of x.

        Returns:
            (num_dst, out_channels)

        Raises:
            ValueError: wrong shapes, devices or ids. TypeError: wrong dtypes.
        """
        unsupported = edge_index_if_unsupported(self, nn.SAGEConv, edge_index, x, ONE_PASS)
        if unsupported is not None:
            # propagate_type: (x: OptPairTensor)
            return super().forward(x, unsupported, size)
        x_src, x_dst = self._ends(x)
        return self._sum(checked_graph(edge_index, x_src, *node_counts(size, x_src, x_dst)), x_src, x_dst)

    def _ends(self, x: Any) -> Any:
        lin_r = self.lin_r if self.root_weight else None
        return checked_pair(x, self.lin if self.project else self.lin_l, lin_r, optional=True)

    def _projection(self) -> Any:
        return self.lin_l

    def _before(self, x_src: Tensor) -> Tensor:
        return super()._before(applied(self.lin, x_src).relu() if self.project else x_src)

    def _after(self, out: Tensor, x_dst: Tensor | None) -> Tensor:
        out = self._projected(out)
        if self.root_weight and x_dst is not None:
            out = out + applied(self.lin_r, x_dst)
        return F.normalize(out, p=2.0, dim=-1) if self.normalize else out
