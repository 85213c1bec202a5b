"""Wrappers of the forwards of torch_geometric's attention modules, with those of halfgnn.pyg.

They run on the module's own parameters. Calls that they do not take run PyG's forward, whose messages are then routed one by one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import UninitializedParameter
from torch_geometric import nn

from ....common.operands import width_of
from ....common.precision import HALF, autocasts
from ....drop_in.gate import Reason, cuda_has_attention, mode_reason, operands_reason, tracing_reason
from ....expressions.propagation import Propagation
from ...modules.base import options_reason
from ...modules.gat_conv import GATConv
from ...modules.gatv2_conv import GATv2Conv
from ...modules.transformer_conv import TransformerConv
from .. import thresholds
from ..accounts import fell_back, routed
from ..call import module_reason, plain
from ..gate import ids_reason, rows_reason
from ..options import ON
from ..size import Size, weighed

Original = Callable[..., Any]


def gat_conv(
    original: Original,
    self: Any,
    x: Any,
    edge_index: Any,
    edge_attr: Any = None,
    size: Any = None,
    return_attention_weights: Any = None,
) -> Any:
    """``torch_geometric.nn.GATConv.forward``."""
    if isinstance(self, GATConv):
        return original(self, x, edge_index, edge_attr, size, return_attention_weights)
    lin_src, lin_dst = (self.lin_src, self.lin_dst) if self.lin is None else (self.lin, self.lin)
    reason = _reason(nn.GATConv, self, x, edge_index, edge_attr, return_attention_weights, lin_src, lin_dst)
    if reason is None and size is not None and tuple(size) != tuple(feat.shape[0] for feat in pair_of(x)):
        reason = Reason.SIZE
    if reason is not None:
        fell_back["fused:GATConv", reason] += 1
        return original(self, x, edge_index, edge_attr, size, return_attention_weights)
    routed["fused:GATConv"] += 1
    return _in_upstream_dtype(as_module(GATConv, self).forward(x, edge_index, edge_attr, size), self.att_src)


def gatv2_conv(
    original: Original, self: Any, x: Any, edge_index: Any, edge_attr: Any = None, return_attention_weights: Any = None
) -> Any:
    """``torch_geometric.nn.GATv2Conv.forward``."""
    return _without_size(
        "GATv2Conv", GATv2Conv, ("lin_l", "lin_r"), original, self, x, edge_index, edge_attr, return_attention_weights
    )


def transformer_conv(
    original: Original, self: Any, x: Any, edge_index: Any, edge_attr: Any = None, return_attention_weights: Any = None
) -> Any:
    """``torch_geometric.nn.TransformerConv.forward``."""
    return _without_size(
        "TransformerConv",
        TransformerConv,
        ("lin_key", "lin_query"),
        original,
        self,
        x,
        edge_index,
        edge_attr,
        return_attention_weights,
    )


def _without_size(
    name: str,
    ours: type,
    projections: tuple[str, str],
    original: Original,
    conv: Any,
    x: Any,
    edge_index: Any,
    edge_attr: Any,
    return_attention_weights: Any,
) -> Any:
    if isinstance(conv, ours):
        return original(conv, x, edge_index, edge_attr, return_attention_weights)
    layers = [getattr(conv, layer) for layer in projections]
    reason = _reason(getattr(nn, name), conv, x, edge_index, edge_attr, return_attention_weights, *layers)
    if reason is not None:
        fell_back[f"fused:{name}", reason] += 1
        return original(conv, x, edge_index, edge_attr, return_attention_weights)
    routed[f"fused:{name}"] += 1
    return _in_upstream_dtype(as_module(ours, conv).forward(x, edge_index, edge_attr), getattr(conv, "att", None))


def _in_upstream_dtype(out: Tensor, att: Tensor | None) -> Tensor:
    """The result of a fused forward in the dtype that torch_geometric's would have. att: what its logits are weighted with.

    Under autocast weights of edges are fp32 where logits are multiplied with fp32 parameters, or where autocast takes their exp in
    fp32, and so is what is weighted with them.
    """
    if ON.half or not autocasts(out.device) or out.dtype not in HALF:
        return out
    if att is None:
        return out.float() if out.is_cuda else out
    return out.to(torch.promote_types(out.dtype, att.dtype))


def pair_of(x: Any) -> Any:
    return x if isinstance(x, (tuple, list)) else (x, x)


def _reason(
    kind: type,
    conv: Any,
    x: Any,
    edge_index: Any,
    edge_attr: Any,
    return_attention_weights: Any,
    lin_src: Any,
    lin_dst: Any,
) -> str | None:
    """Why a call falls back to PyG's forward; None if it does not. Calls for which PyG would raise fall back too."""
    if return_attention_weights is not None:
        return Reason.RETURN_ATTENTION_WEIGHTS
    if conv.dropout and conv.training and not ON.fuse_all:
        return Reason.DROPOUT
    edge_index = plain(edge_index)
    # The size is asked before anything is read or kept of the edges.
    reason = tracing_reason() or topology_reason(edge_index) or _size_reason(conv, edge_index, edge_attr)
    if reason is not None:
        return reason
    reason = module_reason(conv) or mode_reason(may_be_watched=True) or options_reason(conv, kind)
    if reason is not None:
        return reason
    if "parametrizations" in conv._modules:
        return Reason.PARAMETRIZED
    if lin_src is None or lin_dst is None or (conv.lin_edge is None and edge_attr is not None):
        return Reason.MISSING_LAYER
    pair = pair_of(x)
    if len(pair) != 2:
        return Reason.NO_PAIR
    for feat, layer in zip(pair, (lin_src, lin_dst)):
        reason = features_reason(feat, layer)
        if reason is not None:
            return reason
    if pair[0].is_cuda and not cuda_has_attention():
        return Reason.NO_CUDA_KERNELS
    if edge_attr is not None and _reduces_beyond_loops(conv, pair):
        return Reason.FILL_VALUE
    return _edges_reason(edge_index, edge_attr, pair, conv)


def topology_reason(edge_index: Any) -> str | None:
    """Why an edge_index, made plain, has no Graph."""
    if type(edge_index) is not Tensor or edge_index.layout != torch.strided:
        return Reason.SPARSE_EDGE_INDEX
    return Reason.NO_EDGE_INDEX if edge_index.dim() != 2 or edge_index.shape[0] != 2 else None


def _size_reason(conv: Any, edge_index: Tensor, edge_attr: Tensor | None) -> str | None:
    """Why PyG's forward is faster, by the values of all edges, heads and channels. edge_index: (2, E)."""
    num_values = edge_index.shape[1] * conv.heads * conv.out_channels
    num_values = weighed(num_values, edge_index, thresholds.GPU_ATTENTION_SPEED)
    has_steps = isinstance(conv, nn.TransformerConv) and edge_attr is None and not ON.fuse_all
    if has_steps and num_values >= thresholds.DOT_STEPS:
        return Reason.DOT_WITHOUT_EDGES
    kind = "dot attention with edges" if isinstance(conv, nn.TransformerConv) else "attention with edges"
    if edge_attr is None:
        # PyG takes as long as halfgnn to add self-loops and to form the sums of GATv2.
        makes_edges = isinstance(conv, nn.GATv2Conv) or conv.__dict__.get("add_self_loops")
        kind = "attention" if makes_edges else "attention without loops"
    size = Size(num_values, torch.is_grad_enabled(), kind)
    if size.is_below_limit():
        return Reason.FEW_VALUES
    return None if size.pays_for(edge_index) else Reason.FIRST_USES_OF_EDGE_INDEX


def _reduces_beyond_loops(conv: Any, pair: Any) -> bool:
    """Whether self-loops get reduced edge features, and some destinations have no self-loop: PyG's scatter may raise."""
    if not getattr(conv, "add_self_loops", False) or not isinstance(conv.fill_value, str):
        return False
    return pair[0].shape[0] < pair[1].shape[0]


def features_reason(x: Any, layer: Any, columns: int | None = None) -> str | None:
    """Why a layer's features are not routed. columns: how many x has, if the layer takes others beside them."""
    if not isinstance(x, Tensor) or x.dim() != 2:
        return Reason.NO_MATRIX
    reason = rows_reason(x)
    if reason is not None:
        return reason
    is_parametrized = "parametrizations" in getattr(layer, "_modules", ())
    # Only the layer's own call may read a parametrized weight: parametrizations may count that.
    weight = next(layer.parameters(), None) if is_parametrized else getattr(layer, "weight", None)
    if not isinstance(weight, Tensor) or isinstance(weight, UninitializedParameter) or weight.device != x.device:
        return Reason.NO_WEIGHT
    width = width_of(layer) if is_parametrized else weight.shape[1] if weight.dim() == 2 else None
    if (width if columns is None else columns) != x.shape[1]:
        return Reason.ANOTHER_WIDTH
    if weight.dtype is x.dtype:
        return None
    return operands_reason((x, weight)) or (
        None if torch.is_autocast_enabled(x.device.type) else f"{x.dtype} with {weight.dtype}"
    )


def _edges_reason(edge_index: Tensor, edge_attr: Any, pair: Any, conv: Any) -> str | None:
    if edge_index.device != pair[0].device:
        return Reason.EDGE_INDEX_DEVICE
    edges = Propagation(edge_index, [])
    for row, x in enumerate(pair):
        reason = ids_reason(edges, row, x.shape[0])
        if reason is not None:
            return reason
    if edge_attr is None:
        return None
    if not isinstance(edge_attr, Tensor) or edge_attr.dim() != 2 or edge_attr.shape[0] != edge_index.shape[1]:
        return Reason.EDGE_ATTR
    return features_reason(edge_attr, conv.lin_edge)


def as_module(ours: type, conv: Any) -> Any:
    """PyG's module as one of halfgnn.pyg, which is a subclass: both have the same attributes."""
    module: Any = object.__new__(ours)
    module.__dict__ = conv.__dict__
    return module
