"""Stand-ins for the forwards of torch_geometric's attention modules, with those of halfgnn.pyg.

They run on the module's own parameters. Calls that they do not take run PyG's forward, whose messages are then routed one by one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from ..common.refusals import cuda_has_attention, refuse
from ._accounts import fell_back, routed
from ._operators import refuse_ids, refuse_mode, refuse_module, refuse_rows
from ._propagation import Propagation, plain
from .gat_conv import GATConv
from .gatv2_conv import GATv2Conv
from .transformer_conv import TransformerConv

Original = Callable[..., Any]
_STEPS = ("message", "edge_update", "aggregate", "update", "message_and_aggregate")


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
    if torch.compiler.is_compiling():
        return original(self, x, edge_index, edge_attr, size, return_attention_weights)
    lin_src, lin_dst = (self.lin_src, self.lin_dst) if self.lin is None else (self.lin, self.lin)
    reason = _refuse(original, self, x, edge_index, edge_attr, return_attention_weights, lin_src, lin_dst)
    if reason is None and size is not None and tuple(size) != tuple(feat.shape[0] for feat in _pair(x)):
        reason = "size"
    if reason is not None:
        fell_back["fused:GATConv", reason] += 1
        return original(self, x, edge_index, edge_attr, size, return_attention_weights)
    routed["fused:GATConv"] += 1
    return _as(GATConv, self).forward(x, edge_index, edge_attr, size)


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
    ours: type[nn.Module],
    projections: tuple[str, str],
    original: Original,
    conv: Any,
    x: Any,
    edge_index: Any,
    edge_attr: Any,
    return_attention_weights: Any,
) -> Any:
    if torch.compiler.is_compiling():
        return original(conv, x, edge_index, edge_attr, return_attention_weights)
    layers = [getattr(conv, layer) for layer in projections]
    reason = _refuse(original, conv, x, edge_index, edge_attr, return_attention_weights, *layers)
    if reason is not None:
        fell_back[f"fused:{name}", reason] += 1
        return original(conv, x, edge_index, edge_attr, return_attention_weights)
    routed[f"fused:{name}"] += 1
    return _as(ours, conv).forward(x, edge_index, edge_attr)


def _pair(x: Any) -> Any:
    return x if isinstance(x, (tuple, list)) else (x, x)


def _refuse(
    original: Original,
    conv: Any,
    x: Any,
    edge_index: Any,
    edge_attr: Any,
    return_attention_weights: Any,
    lin_src: Any,
    lin_dst: Any,
) -> str | None:
    """Why a call is left to PyG's forward; None if it is not. Calls for which PyG would raise are left to it too."""
    if return_attention_weights is not None:
        return "return_attention_weights"
    reason = refuse_module(conv) or refuse_mode() or _refuse_options(original, conv)
    if reason is not None:
        return reason
    if lin_src is None or lin_dst is None or (conv.lin_edge is None and edge_attr is not None):
        return "missing layer"
    pair = _pair(x)
    if len(pair) != 2:
        return "tuple that is no pair"
    for feat, layer in zip(pair, (lin_src, lin_dst)):
        reason = _refuse_features(feat, layer)
        if reason is not None:
            return reason
    if pair[0].is_cuda and not cuda_has_attention():
        return "no CUDA kernels"
    return _refuse_edges(plain(edge_index), edge_attr, pair, conv.lin_edge)


def _refuse_options(original: Original, conv: Any) -> str | None:
    if (
        conv.aggr not in ("add", "sum")
        or conv.flow != "source_to_target"
        or conv.node_dim != 0
        or conv.decomposed_layers != 1
    ):
        return "options of MessagePassing"
    owner = next(
        cls for cls in type(conv).__mro__ if getattr(cls.__dict__.get("forward"), "__wrapped__", None) is original
    )
    if any(getattr(type(conv), step) is not getattr(owner, step) or step in conv.__dict__ for step in _STEPS):
        return "subclass"
    return None


def _refuse_features(x: Any, layer: Any) -> str | None:
    if not isinstance(x, Tensor) or x.dim() != 2:
        return "no matrix of features"
    reason = refuse_rows(x)
    if reason is not None:
        return reason
    weight = getattr(layer, "weight", None)
    if not isinstance(weight, Tensor) or isinstance(weight, nn.UninitializedParameter) or weight.device != x.device:
        return "no weight"
    if weight.dim() != 2 or weight.shape[1] != x.shape[1]:
        return "another width"
    if weight.dtype is x.dtype:
        return None
    return refuse((x, weight)) or (
        None if torch.is_autocast_enabled(x.device.type) else f"{x.dtype} with {weight.dtype}"
    )


def _refuse_edges(edge_index: Any, edge_attr: Any, pair: Any, lin_edge: Any) -> str | None:
    if type(edge_index) is not Tensor or edge_index.layout != torch.strided:
        return "sparse edge_index"
    if edge_index.dim() != 2 or edge_index.shape[0] != 2 or edge_index.device != pair[0].device:
        return "no edge_index (2, E)"
    edges = Propagation(edge_index, [])
    for row, x in enumerate(pair):
        reason = refuse_ids(edges, row, x.shape[0])
        if reason is not None:
            return reason
    if edge_attr is None:
        return None
    if not isinstance(edge_attr, Tensor) or edge_attr.dim() != 2 or edge_attr.shape[0] != edge_index.shape[1]:
        return "edge_attr"
    return _refuse_features(edge_attr, lin_edge)


def _as(ours: type[nn.Module], conv: Any) -> Any:
    """A module of halfgnn.pyg with the attributes and parameters of PyG's, whose names are the same."""
    module = object.__new__(ours)
    linears = {id(layer): _as_linear(layer) for layer in conv._modules.values()}
    module.__dict__.update(conv.__dict__)
    module.__dict__["_modules"] = {name: linears[id(layer)] for name, layer in conv._modules.items()}
    return module


def _as_linear(layer: Any) -> Any:
    """PyG's Linear as PyTorch's, with the same parameters. Other layers, and those with hooks, are called as they are."""
    kind = type(layer)
    if (kind.__module__, kind.__name__) != ("torch_geometric.nn.dense.linear", "Linear") or "forward" in layer.__dict__:
        return layer
    if layer._forward_hooks or layer._forward_pre_hooks or layer._backward_hooks or layer._backward_pre_hooks:
        return layer
    linear = object.__new__(nn.Linear)
    linear.__dict__.update(layer.__dict__, in_features=layer.in_channels, out_features=layer.out_channels)
    return linear
