"""LGConv of torch_geometric."""

from __future__ import annotations

from torch_geometric import nn

from ...common.operands import check_dense, check_tensor
from ...graphs_by_tensor.gcn_norm import normalized
from .base import (
    ONE_PASS,
    UpstreamModule,
    checked_graph,
    checked_weight,
    edge_index_if_unsupported,
    reduced,
    reduction_of,
)


class LGConv(UpstreamModule, nn.LGConv):
    """The layer of LightGCN, torch_geometric.nn.LGConv on :func:`halfgnn.ops.gspmm`.

    Without edge weights the normalisation is computed once and cached with the graph.
    """

    def forward(self, x, edge_index, edge_weight=None):
        """The sum of edge_weight[e] / sqrt(deg(u) deg(v)) x[u] over in-edges e = (u, v).

        Args:
            x: (N, width).
            edge_index: (2, E), or a Graph or DGLGraph.
            edge_weight: (E,), or None for ones.

        Returns:
            (N, width)

        Raises:
            ValueError: wrong shapes, devices or ids. TypeError: wrong dtypes.
        """
        unsupported = edge_index_if_unsupported(self, nn.LGConv, edge_index, x, ONE_PASS)
        if unsupported is not None:
            # propagate_type: (x: Tensor, edge_weight: OptTensor)
            return super().forward(x, unsupported, edge_weight)
        check_tensor(x, "x")
        check_dense(x, "x")
        g = checked_graph(edge_index, x, x.shape[0], x.shape[0])
        weight = checked_weight(g, edge_weight)
        if self.normalize:
            g, weight = normalized(g, weight, x.dtype)
        return reduced(g, str(reduction_of(self.aggr_module)), x, weight)
