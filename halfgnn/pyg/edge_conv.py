"""EdgeConv of torch_geometric."""

from __future__ import annotations

from torch import nn as torch_nn
from torch_geometric import nn

from ..nn.edge_network import read
from ..nn.projections import linear
from ..ops import edge_network
from ._conv import Hosted, checked_graph, checked_pair, edge_index_if_unsupported, reduction_of

_TAKEN = ("sum", "mean", "max")


class EdgeConv(Hosted, nn.EdgeConv):
    """Layer of dynamic graph CNNs, torch_geometric.nn.EdgeConv on :func:`halfgnn.ops.edge_network`.

    A network that is no Sequential of linear layers with one activation is torch_geometric's.
    """

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
        reading = read(list(self.nn))[0] if type(self.nn) is torch_nn.Sequential else None
        reason = "network" if reading is None else None
        unsupported = edge_index_if_unsupported(self, nn.EdgeConv, edge_index, x, _TAKEN, reason)
        if unsupported is not None:
            # propagate_type: (x: PairTensor)
            return super().forward(x, unsupported)
        x_src, x_dst = checked_pair(x, None, None)
        g = checked_graph(edge_index, x_src, x_src.shape[0], x_dst.shape[0])
        own, difference = reading.split([reading.first.in_features // 2] * 2)
        src, dst = linear(x_src, difference, None), linear(x_dst, own - difference, reading.first.bias)
        return edge_network(g, src, dst, reduce=reduction_of(self.aggr_module), **reading.options())
