"""CFConv of torch_geometric's SchNet."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch import nn as torch_nn
from torch_geometric.nn.models import schnet

from ...common.operands import check_columns, check_operand, check_parameter
from ...drop_in.gate import Reason
from ...nn.edge_network import Reading, is_activation, read
from ...nn.projections import applied, is_just
from ...ops import edge_network
from .base import UpstreamModule, checked_graph, edge_index_if_unsupported


class CFConv(UpstreamModule, schnet.CFConv):
    """Continuous-filter convolution of SchNet (Schuett et al., 2017), torch_geometric.nn.models.schnet.CFConv on
    :func:`halfgnn.ops.edge_network`.

    A filter network that is no Sequential of linear layers with one activation is torch_geometric's.
    """

    def forward(self, x, edge_index, edge_weight, edge_attr):
        """lin2 of the sum of lin1 x[u] nn(edge_attr[e]) cutoff(edge_weight[e]) over in-edges e = (u, v).

        Args:
            x: (N, in_channels).
            edge_index: (2, E), or a Graph or DGLGraph.
            edge_weight: (E,), distances. edge_attr: (E, width), what nn takes.

        Returns:
            (N, out_channels)

        Raises:
            ValueError: wrong shapes, devices or ids. TypeError: wrong dtypes.
        """
        reading = self.reading_of(self)
        reason = Reason.NETWORK if reading is None else _reason(x, edge_weight, edge_attr)
        unsupported = edge_index_if_unsupported(self, schnet.CFConv, edge_index, x, reason=reason)
        if unsupported is not None:
            # propagate_type: (x: Tensor, W: Tensor)
            return super().forward(x, unsupported, edge_weight, edge_attr)
        check_columns(x, "x", self.lin1.in_features)
        check_parameter(x, "x", self.lin1.weight)
        g = checked_graph(edge_index, x, x.shape[0], x.shape[0])
        check_operand(edge_weight, "edge_weight", g, "e")
        check_operand(edge_attr, "edge_attr", g, "e")
        check_columns(edge_attr, "edge_attr", reading.first.in_features)
        check_parameter(edge_attr, "edge_attr", reading.first.weight)
        cutoff = 0.5 * (torch.cos(edge_weight * math.pi / self.cutoff) + 1.0)
        is_shifted = isinstance(reading.activation, schnet.ShiftedSoftplus)
        options = reading.options(reading.activation.shift if is_shifted else 0.0)
        if is_shifted:
            options["activation"] = "softplus"
        bias = reading.first.bias
        dst = None if bias is None else bias.expand(x.shape[0], -1)
        rows = applied(self.lin1, x)
        out = edge_network(
            g, None, dst, edge_feat=edge_attr, edge_weight=reading.first.weight, factor=rows, edge_factor=cutoff.to(rows.dtype),
            **options,
        )  # fmt: skip
        return applied(self.lin2, out)

    @staticmethod
    def reading_of(conv: schnet.CFConv) -> Reading | None:
        """What the filter network of a module computes, if ops.edge_network computes it."""
        reading = read(list(conv.nn), _is_activation)[0] if is_just(conv.nn, torch_nn.Sequential) else None
        outputs = None if reading is None else [reading.first, *reading.others][-1].weight.shape[0]
        return reading if outputs == conv.lin1.out_features else None


def _reason(x, edge_weight, edge_attr) -> str | None:
    """Why torch_geometric's forward takes the call: it raises, or broadcasts."""
    if not all(isinstance(given, Tensor) for given in (x, edge_weight, edge_attr)):
        return Reason.NO_TENSORS
    return None if edge_weight.dim() == 1 and edge_attr.dim() == 2 and x.dim() == 2 else "shapes"


def _is_activation(layer) -> bool:
    return type(layer) is schnet.ShiftedSoftplus or is_activation(layer)
