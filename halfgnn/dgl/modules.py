"""Wrappers of the forwards of dgl.nn's attention modules, with halfgnn's fused attentions.

They run on the module's own parameters, in memory proportional to nodes. Calls that they do not take run DGL's forward, whose
operators are then routed one by one.
"""

from __future__ import annotations

import math
from typing import Any

from ..common.degrees import check_in_degrees
from ..drop_in.gate import Reason, cuda_has_attention, operands_reason
from ..graph import Graph
from ..nn import dotgatconv, gatconv, gatv2conv
from ..nn.attention import why_unfused
from ..nn.features import features_of
from .accounts import fell_back, routed
from .operators import ORIGINALS
from .topology import topology_of


def gat_conv(self: Any, graph: Any, feat: Any, edge_weight: Any = None, get_attention: bool = False) -> Any:
    """``dgl.nn.GATConv.forward``."""
    reason = Reason.EDGE_WEIGHT if edge_weight is not None else _refuse(self, graph, feat, get_attention, math.inf)
    if reason is not None:
        return _fall_back("GATConv", reason, self, graph, feat, edge_weight, get_attention)
    return gatconv.forward(self, graph, _routed("GATConv", self, graph, feat), features_of(feat))


def gatv2_conv(self: Any, graph: Any, feat: Any, get_attention: bool = False) -> Any:
    """``dgl.nn.GATv2Conv.forward``."""
    reason = _refuse(self, graph, feat, get_attention)
    if reason is not None:
        return _fall_back("GATv2Conv", reason, self, graph, feat, get_attention)
    return gatv2conv.forward(self, graph, _routed("GATv2Conv", self, graph, feat), features_of(feat))


def dot_gat_conv(self: Any, graph: Any, feat: Any, get_attention: bool = False) -> Any:
    """``dgl.nn.DotGatConv.forward``."""
    reason = _refuse(self, graph, feat, get_attention)
    if reason is not None:
        return _fall_back("DotGatConv", reason, self, graph, feat, get_attention)
    return dotgatconv.forward(self, graph, _routed("DotGatConv", self, graph, feat), features_of(feat))


def _fall_back(name: str, reason: str, *args: Any) -> Any:
    fell_back[(f"fused:{name}", reason)] += 1
    return ORIGINALS[f"nn.{name}"](*args)


def _refuse(conv: Any, graph: Any, feat: Any, get_attention: bool, max_dim: float = 2) -> str | None:
    """Why a call falls back to DGL's forward; None if it does not. Calls for which DGL would raise fall back too.

    max_dim: the number of dimensions that features may have.
    """
    if get_attention:
        return Reason.GET_ATTENTION
    feats = feat if isinstance(feat, tuple) else (feat,)
    if isinstance(feat, tuple) and len(feat) != 2:
        return Reason.NO_PAIR
    reason = operands_reason(feats)
    if reason is not None:
        return reason
    if feats[0].is_cuda and not cuda_has_attention():
        return Reason.NO_CUDA_KERNELS
    topology = topology_of(graph._graph)
    if topology is None:
        return Reason.SEVERAL_EDGE_TYPES
    g = topology.graph
    if len(feats) == 1 and g.num_dst != g.num_src and not graph.is_block:
        return Reason.ONE_TENSOR
    if any(x.shape[:1] != (rows,) for x, rows in zip(feats, (g.num_src, g.num_dst))):
        return Reason.WRONG_ROWS
    if any(x.dim() < 2 or x.dim() > max_dim for x in feats):
        return Reason.DIMENSIONS.format(feats[0].dim())
    return why_unfused(conv) if hasattr(conv, "attn_drop") else None  # DotGatConv has no submodule there


def _routed(name: str, conv: Any, graph: Any, feat: Any) -> Graph:
    """The Graph of a call that is fused, on the device of the features. The call is counted."""
    routed[f"fused:{name}"] += 1
    topology = topology_of(graph._graph)
    assert topology is not None
    if not conv._allow_zero_in_degree:
        from dgl import DGLError

        check_in_degrees(topology.graph, DGLError)
    return topology.on((feat[0] if isinstance(feat, tuple) else feat).device)
