"""EdgeConv of torch_geometric."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn as torch_nn
from torch_geometric import nn

from ...common.operands import check_columns, check_pair, check_parameter, check_tensor
from ...common.precision import computed_type, without_autocast
from ...drop_in.gate import Reason
from ...nn.edge_network import Reading, read
from ...nn.projections import is_just
from ...ops import edge_network
from .base import UpstreamModule, checked_graph, edge_index_if_unsupported, reduction_of


class EdgeConv(UpstreamModule, nn.EdgeConv):
    """Layer of dynamic graph CNNs, torch_geometric.nn.EdgeConv on :func:`halfgnn.ops.edge_network`.

    A network that is no Sequential of linear layers with one activation is torch_geometric's.
    """

    REDUCTIONS = ("sum", "mean", "max")

    def forward(self, x, edge_index):
        """The reduction of nn(x[v], x[u] - x[v]) over in-edges (u, v).

        Args:
            x: (N, in_channels), or the pair of (num_src, in_channels) and (num_dst, in_channels).
            edge_index: (2, E), or a Graph or DGLGraph.

        Returns:
            (num_dst, out_channels)

        Raises:
            ValueError: wrong shapes, devices or ids. TypeError: wrong dtypes.
        """
        reading = self.reading_of(self)
        reason = Reason.NETWORK if reading is None else None
        unsupported = edge_index_if_unsupported(self, nn.EdgeConv, edge_index, x, self.REDUCTIONS, reason)
        if unsupported is not None:
            # propagate_type: (x: PairTensor)
            return super().forward(x, unsupported)
        x_src, x_dst = self._ends(x, reading)
        g = checked_graph(edge_index, x_src, x_src.shape[0], x_dst.shape[0])
        dtype = computed_type(x_src)
        # In fp32: a difference of two projections cancels, where neighbours are near one another, more digits than a half has.
        with without_autocast(x_src.device):
            wide = torch.promote_types(dtype, torch.float32)
            own, difference = (weight.to(wide) for weight in reading.split([x_src.shape[1]] * 2))
            bias = reading.first.bias
            src = F.linear(x_src.to(wide), difference)
            dst = F.linear(x_dst.to(wide), own - difference, None if bias is None else bias.to(wide))
            options = reading.options(dtype=wide)
            return edge_network(g, src, dst, reduce=reduction_of(self.aggr_module), **options).to(dtype)

    @staticmethod
    def reading_of(conv: nn.EdgeConv) -> Reading | None:
        """What the network of a module computes, if ops.edge_network computes it."""
        reading = read(list(conv.nn))[0] if is_just(conv.nn, torch_nn.Sequential) else None
        return None if reading is None or reading.first.in_features % 2 else reading

    @staticmethod
    def _ends(x, reading):
        """x of sources and of destinations, of the width that the network takes twice."""
        pair = x if isinstance(x, (tuple, list)) else (x, x)
        check_pair(pair, "x")
        names = ("x", "x") if pair is not x else ("x[0]", "x[1]")
        for part, name in zip(pair, names):
            check_tensor(part, name)
            check_columns(part, name, reading.first.in_features // 2)
            check_parameter(part, name, reading.first.weight)
        return pair
