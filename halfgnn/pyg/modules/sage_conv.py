"""SAGEConv of torch_geometric."""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from torch import Tensor
from torch_geometric import nn

from ...common.layers import check_layer
from ...common.operands import check_columns, check_operand, check_pair, width_of
from ...nn.codes import are_codes, check_columns_of_codes, check_reads_codes, for_layer
from ...nn.projections import applied
from ...nn.sums import aggregate
from .base import (
    ONE_PASS,
    Sums,
    UpstreamModule,
    call_reason,
    checked_graph,
    checked_pair,
    edge_index_if_unsupported,
    node_counts,
)


class SAGEConv(Sums, UpstreamModule, nn.SAGEConv):
    """GraphSAGE layer, torch_geometric.nn.SAGEConv on :func:`halfgnn.ops.gspmm`.

    Aggregations other than sum, mean, max and min are torch_geometric's.
    """

    def forward(self, x, edge_index, size=None):
        """lin_r x[v] + lin_l of the mean (or another aggregate) of x[u] over in-edges (u, v).

        Args:
            x: (N, in_channels), or the pair of (num_src, in_channels) and (num_dst, in_channels) or None. Of a pair, the first may
                be :class:`halfgnn.dataloading.Codes` for the aggregations sum and mean: they are summed as they are read, without a
                gradient.
            edge_index: (2, E), or a Graph or DGLGraph.
            size: (num_src, num_dst), or None for the rows of x.

        Returns:
            (num_dst, out_channels)

        Raises:
            ValueError: wrong shapes, devices or ids. TypeError: wrong dtypes.
        """
        if are_codes(x):
            return self._of_codes(x, edge_index, size)
        unsupported = edge_index_if_unsupported(self, nn.SAGEConv, edge_index, x, ONE_PASS)
        if unsupported is not None:
            # propagate_type: (x: OptPairTensor)
            return super().forward(x, unsupported, size)
        x_src, x_dst = self._ends(x)
        return self._sum(checked_graph(edge_index, x_src, *node_counts(size, x_src, x_dst)), x_src, x_dst)

    def _of_codes(self, x: Any, edge_index: Any, size: Any) -> Tensor:
        """forward() where x of the sources is codes: the sum is made before it is projected."""
        if not isinstance(x, (tuple, list)):
            raise TypeError(
                "x is codes of 8 bits; expected a pair, (codes of the sources, values of the destinations or None)"
            )
        reads = not self.project and call_reason(self, nn.SAGEConv, edge_index, x, ("sum", "mean")) is None
        check_reads_codes("x[0]", reads, "by the aggregations sum and mean without project")
        check_pair(x, "x")
        codes, x_dst = x
        g = checked_graph(edge_index, codes, *node_counts(size, codes, x_dst))
        check_columns_of_codes(g, codes, "x[0]", self.lin_l)
        codes = for_layer(codes, self.lin_l)
        if x_dst is not None:
            check_operand(x_dst, "x[1]", g, "v")
            check_columns(x_dst, "x[1]", width_of(self.lin_r) if self.root_weight else None)
            check_layer(x_dst, "x[1]", self.lin_l)
        total = aggregate(g, self._reduction, codes, None)
        if x_dst is not None:
            total = total.to(x_dst.dtype)
        return self._with_root(applied(self.lin_l, total), x_dst)

    def _ends(self, x: Any) -> Any:
        lin_r = self.lin_r if self.root_weight else None
        return checked_pair(x, self.lin if self.project else self.lin_l, lin_r, optional=True)

    def _projection(self) -> Any:
        return self.lin_l

    def _before(self, x_src: Tensor) -> Tensor:
        return super()._before(applied(self.lin, x_src).relu() if self.project else x_src)

    def _after(self, out: Tensor, x_dst: Tensor | None) -> Tensor:
        return self._with_root(self._projected(out), x_dst)

    def _with_root(self, out: Tensor, x_dst: Tensor | None) -> Tensor:
        if self.root_weight and x_dst is not None:
            out = out + applied(self.lin_r, x_dst)
        return F.normalize(out, p=2.0, dim=-1) if self.normalize else out
