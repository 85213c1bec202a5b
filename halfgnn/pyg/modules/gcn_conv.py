"""GCNConv of torch_geometric."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch_geometric import nn
from torch_geometric.nn import Linear

from ...graph import Graph
from ...graphs_by_tensor.gcn_norm import normalized
from ...nn.projections import applied, is_just
from .base import ONE_PASS, Sums, UpstreamModule, checked_graph, checked_pair, checked_weight, edge_index_if_unsupported


class GCNConv(Sums, UpstreamModule, nn.GCNConv):
    """Graph convolution, torch_geometric.nn.GCNConv on :func:`halfgnn.ops.gspmm`.

    Without edge weights the normalisation is computed once and cached with the graph, whether `cached` is set or not.
    """

    def forward(self, x, edge_index, edge_weight=None):
        """The sum of edge_weight[e] / sqrt(deg(u) deg(v)) lin x[u] over in-edges e = (u, v) and a self-loop, and the bias.

        Args:
            x: (N, in_channels).
            edge_index: (2, E), or a Graph or DGLGraph.
            edge_weight: (E,), or None for ones.

        Returns:
            (N, out_channels)

        Raises:
            ValueError: wrong shapes, devices or ids. TypeError: wrong dtypes.
        """
        unsupported = edge_index_if_unsupported(self, nn.GCNConv, edge_index, x, ONE_PASS)
        if unsupported is not None or isinstance(x, (tuple, list)):
            # propagate_type: (x: Tensor, edge_weight: OptTensor)
            return super().forward(x, unsupported, edge_weight)
        x, _ = self._ends(x)
        g = checked_graph(edge_index, x, x.shape[0], x.shape[0])
        g, weight = self._weighted(g, checked_weight(g, edge_weight), x.dtype)
        return self._sum(g, x, None, weight)

    def _ends(self, x: Any) -> Any:
        return checked_pair(x, self.lin, self.lin)

    def _weighted(self, g: Graph, weight: Tensor | None, dtype: torch.dtype) -> tuple[Graph, Tensor | None]:
        if not self.normalize:
            return g, weight
        fill_value = 2.0 if self.improved else 1.0
        return normalized(g, weight, dtype, fill_value if self.add_self_loops else None)

    def _projection(self) -> Any:
        return self.lin

    def _may_project_last(self) -> bool:
        """Whether sums may be projected in place of their terms: neither max nor bias, nor what a changed layer does, allow it."""
        return self._reduction in ("sum", "mean") and is_just(self.lin, Linear) and self.lin.bias is None

    def _before(self, x_src: Tensor) -> Tensor:
        return super()._before(x_src) if self._may_project_last() else applied(self.lin, x_src)

    def _after(self, out: Tensor, x_dst: Tensor | None) -> Tensor:
        out = self._projected(out) if self._may_project_last() else out
        return out if self.bias is None else out + self.bias
