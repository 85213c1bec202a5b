"""Stand-ins for the forwards of torch_geometric's networks on edges, with those of halfgnn.pyg: EdgeConv and SchNet's CFConv.

They keep no row per edge for the backward, which runs the network again. Only fuse=True asks for that: they are faster than the
drop-in's own steps only in fp32 and on many edges.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch_geometric import nn
from torch_geometric.nn.models import schnet

from ....drop_in.refusals import refuse_mode, refuse_tracing
from ...modules.base import refuse_module, refuse_options
from ...modules.cf_conv import CFConv
from ...modules.edge_conv import EdgeConv
from .. import thresholds as _worth
from ..accounts import fell_back, routed
from ..call import Propagation, plain
from ..options import ON
from ..uses import is_worth_a_graph
from . import scatter as _operators
from .attention_modules import Original, as_module, pair_of, refuse_features, refuse_topology
from .scatter import refuse_ids

_KIND = "edge network"


def edge_conv(original: Original, self: Any, x: Any, edge_index: Any) -> Any:
    """``torch_geometric.nn.EdgeConv.forward``."""
    if not ON.fuse_all or isinstance(self, EdgeConv):
        return original(self, x, edge_index)
    reason = _refuse_edge_conv(self, x, edge_index)
    if reason is not None:
        fell_back["fused:EdgeConv", reason] += 1
        return original(self, x, edge_index)
    routed["fused:EdgeConv"] += 1
    return as_module(EdgeConv, self).forward(x, edge_index)


def cf_conv(original: Original, self: Any, x: Any, edge_index: Any, edge_weight: Any, edge_attr: Any) -> Any:
    """``torch_geometric.nn.models.schnet.CFConv.forward``."""
    if not ON.fuse_all or isinstance(self, CFConv):
        return original(self, x, edge_index, edge_weight, edge_attr)
    reason = _refuse_cf_conv(self, x, edge_index, edge_weight, edge_attr)
    if reason is not None:
        fell_back["fused:CFConv", reason] += 1
        return original(self, x, edge_index, edge_weight, edge_attr)
    routed["fused:CFConv"] += 1
    return as_module(CFConv, self).forward(x, edge_index, edge_weight, edge_attr)


def _refuse_edge_conv(conv: Any, x: Any, edge_index: Any) -> str | None:
    """Why a call is left to PyG's forward; None if it is not. Calls for which PyG would raise are left to it too."""
    reading, pair = EdgeConv.reading_of(conv), pair_of(x)
    if reading is None:
        return "network"
    if len(pair) != 2:
        return "tuple that is no pair"
    reason = _refuse_call(nn.EdgeConv, conv, plain(edge_index), reading, EdgeConv.REDUCTIONS)
    width = reading.first.in_features // 2
    for part in pair:
        reason = reason or refuse_features(part, reading.first, width)
    return reason or _refuse_ids(plain(edge_index), pair)


def _refuse_cf_conv(conv: Any, x: Any, edge_index: Any, edge_weight: Any, edge_attr: Any) -> str | None:
    reading = CFConv.reading_of(conv)
    if reading is None:
        return "network"
    edge_index = plain(edge_index)
    reason = (
        _refuse_call(schnet.CFConv, conv, edge_index, reading, ("sum",))
        or refuse_features(x, conv.lin1)
        or refuse_features(edge_attr, reading.first)
        or _operators.refuse_rows(edge_weight)
    )
    if reason is not None:
        return reason
    num_edges = edge_index.shape[1]
    if tuple(edge_weight.shape) != (num_edges,) or edge_attr.shape[0] != num_edges:
        return "rows of edges"
    if any(part.device != x.device for part in (edge_weight, edge_attr)):
        return "several devices"
    return _refuse_ids(edge_index, (x, x))


def _refuse_call(kind: type, conv: Any, edge_index: Any, reading: Any, reductions: tuple[str, ...]) -> str | None:
    reason = refuse_tracing() or refuse_topology(edge_index)
    if reason is not None:
        return reason
    num_values, has_gradient = edge_index.shape[1] * reading.first.out_features, torch.is_grad_enabled()
    if _worth.are_few(num_values, has_gradient, False, _KIND):
        return "few values"
    reason = refuse_module(conv) or refuse_mode(may_be_watched=True) or refuse_options(conv, kind, reductions)
    if reason is None and not is_worth_a_graph(edge_index, num_values, has_gradient, kind=_KIND):
        return "first uses of an edge_index"
    return reason


def _refuse_ids(edge_index: Tensor, pair: Any) -> str | None:
    if edge_index.device != pair[0].device or pair[1].device != pair[0].device:
        return "several devices"
    edges = Propagation(edge_index, [])
    return refuse_ids(edges, 0, pair[0].shape[0]) or refuse_ids(edges, 1, pair[1].shape[0])
