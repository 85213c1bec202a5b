"""Wrappers of the forwards of torch_geometric's networks on edges, with those of halfgnn.pyg: EdgeConv and SchNet's CFConv.

They save no row per edge for the backward, which runs the network again. Only fuse=True asks for that: they are faster than the
drop-in's own steps only in fp32 and on many edges.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch_geometric import nn
from torch_geometric.nn.models import schnet

from ....drop_in.gate import Reason, mode_reason, tracing_reason
from ....expressions.propagation import Propagation
from ...modules.base import options_reason
from ...modules.cf_conv import CFConv
from ...modules.edge_conv import EdgeConv
from ..accounts import fell_back, routed
from ..call import module_reason, plain
from ..gate import ids_reason, rows_reason
from ..options import ON
from ..size import Size
from .attention_modules import Original, as_module, features_reason, pair_of, topology_reason

_KIND = "edge network"


def edge_conv(original: Original, self: Any, x: Any, edge_index: Any) -> Any:
    """``torch_geometric.nn.EdgeConv.forward``."""
    if not ON.fuse_all or isinstance(self, EdgeConv):
        return original(self, x, edge_index)
    reason = _edge_conv_reason(self, x, edge_index)
    if reason is not None:
        fell_back["fused:EdgeConv", reason] += 1
        return original(self, x, edge_index)
    routed["fused:EdgeConv"] += 1
    return as_module(EdgeConv, self).forward(x, edge_index)


def cf_conv(original: Original, self: Any, x: Any, edge_index: Any, edge_weight: Any, edge_attr: Any) -> Any:
    """``torch_geometric.nn.models.schnet.CFConv.forward``."""
    if not ON.fuse_all or isinstance(self, CFConv):
        return original(self, x, edge_index, edge_weight, edge_attr)
    reason = _cf_conv_reason(self, x, edge_index, edge_weight, edge_attr)
    if reason is not None:
        fell_back["fused:CFConv", reason] += 1
        return original(self, x, edge_index, edge_weight, edge_attr)
    routed["fused:CFConv"] += 1
    return as_module(CFConv, self).forward(x, edge_index, edge_weight, edge_attr)


def _edge_conv_reason(conv: Any, x: Any, edge_index: Any) -> str | None:
    """Why a call falls back to PyG's forward; None if it does not. Calls for which PyG would raise fall back too."""
    reading, pair = EdgeConv.reading_of(conv), pair_of(x)
    if reading is None:
        return Reason.NETWORK
    if len(pair) != 2:
        return Reason.NO_PAIR
    reason = _call_reason(nn.EdgeConv, conv, plain(edge_index), reading, EdgeConv.REDUCTIONS)
    width = reading.first.in_features // 2
    for part in pair:
        reason = reason or features_reason(part, reading.first, width)
    return reason or _pair_reason(plain(edge_index), pair)


def _cf_conv_reason(conv: Any, x: Any, edge_index: Any, edge_weight: Any, edge_attr: Any) -> str | None:
    reading = CFConv.reading_of(conv)
    if reading is None:
        return Reason.NETWORK
    edge_index = plain(edge_index)
    reason = (
        _call_reason(schnet.CFConv, conv, edge_index, reading, ("sum",))
        or features_reason(x, conv.lin1)
        or features_reason(edge_attr, reading.first)
        or rows_reason(edge_weight)
    )
    if reason is not None:
        return reason
    num_edges = edge_index.shape[1]
    if tuple(edge_weight.shape) != (num_edges,) or edge_attr.shape[0] != num_edges:
        return Reason.ROWS_OF_EDGES
    if any(part.device != x.device for part in (edge_weight, edge_attr)):
        return Reason.SEVERAL_DEVICES
    return _pair_reason(edge_index, (x, x))


def _call_reason(kind: type, conv: Any, edge_index: Any, reading: Any, reductions: tuple[str, ...]) -> str | None:
    reason = tracing_reason() or topology_reason(edge_index)
    if reason is not None:
        return reason
    size = Size(edge_index.shape[1] * reading.first.out_features, torch.is_grad_enabled(), _KIND)
    if size.is_below_limit():
        return Reason.FEW_VALUES
    reason = module_reason(conv) or mode_reason(may_be_watched=True) or options_reason(conv, kind, reductions)
    return reason or (None if size.pays_for(edge_index) else Reason.FIRST_USES_OF_EDGE_INDEX)


def _pair_reason(edge_index: Tensor, pair: Any) -> str | None:
    if edge_index.device != pair[0].device or pair[1].device != pair[0].device:
        return Reason.SEVERAL_DEVICES
    edges = Propagation(edge_index, [])
    return ids_reason(edges, 0, pair[0].shape[0]) or ids_reason(edges, 1, pair[1].shape[0])
