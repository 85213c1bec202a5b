"""Stand-ins for the forwards of torch_geometric's attention modules, with those of halfgnn.pyg.

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
from ....drop_in.refusals import cuda_has_attention, refuse, refuse_mode, refuse_tracing
from ...modules.base import refuse_module, refuse_options
from ...modules.gat_conv import GATConv
from ...modules.gatv2_conv import GATv2Conv
from ...modules.transformer_conv import TransformerConv
from .. import thresholds as _worth
from ..accounts import fell_back, routed
from ..call import Propagation, plain
from ..options import ON
from ..uses import is_worth_a_graph
from .scatter import refuse_ids, refuse_rows

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
    reason = _refuse(nn.GATConv, self, x, edge_index, edge_attr, return_attention_weights, lin_src, lin_dst)
    if reason is None and size is not None and tuple(size) != tuple(feat.shape[0] for feat in pair_of(x)):
        reason = "size"
    if reason is not None:
        fell_back["fused:GATConv", reason] += 1
        return original(self, x, edge_index, edge_attr, size, return_attention_weights)
    routed["fused:GATConv"] += 1
    return _in_hosts_type(as_module(GATConv, self).forward(x, edge_index, edge_attr, size), self.att_src)


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
    reason = _refuse(getattr(nn, name), conv, x, edge_index, edge_attr, return_attention_weights, *layers)
    if reason is not None:
        fell_back[f"fused:{name}", reason] += 1
        return original(conv, x, edge_index, edge_attr, return_attention_weights)
    routed[f"fused:{name}"] += 1
    return _in_hosts_type(as_module(ours, conv).forward(x, edge_index, edge_attr), getattr(conv, "att", None))


def _in_hosts_type(out: Tensor, att: Tensor | None) -> Tensor:
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


def _refuse(
    kind: type,
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
    if conv.dropout and conv.training and not ON.fuse_all:
        return "dropout"
    if kind is nn.TransformerConv and edge_attr is None and not ON.fuse_all:
        return "dot without edges"  # its steps are faster
    edge_index = plain(edge_index)
    # The size is asked before anything is read or kept of the edges.
    reason = refuse_tracing() or refuse_topology(edge_index) or _refuse_size(conv, edge_index, edge_attr)
    if reason is not None:
        return reason
    reason = refuse_module(conv) or refuse_mode(may_be_watched=True) or refuse_options(conv, kind)
    if reason is not None:
        return reason
    if "parametrizations" in conv._modules:
        return "parametrized module"
    if lin_src is None or lin_dst is None or (conv.lin_edge is None and edge_attr is not None):
        return "missing layer"
    pair = pair_of(x)
    if len(pair) != 2:
        return "tuple that is no pair"
    for feat, layer in zip(pair, (lin_src, lin_dst)):
        reason = refuse_features(feat, layer)
        if reason is not None:
            return reason
    if pair[0].is_cuda and not cuda_has_attention():
        return "no CUDA kernels"
    if edge_attr is not None and _reduces_beyond_loops(conv, pair):
        return "fill_value of a bipartite graph"
    return _refuse_edges(edge_index, edge_attr, pair, conv)


def refuse_topology(edge_index: Any) -> str | None:
    """Why an edge_index, made plain, has no Graph."""
    if type(edge_index) is not Tensor or edge_index.layout != torch.strided:
        return "sparse edge_index"
    return "no edge_index (2, E)" if edge_index.dim() != 2 or edge_index.shape[0] != 2 else None


def _refuse_size(conv: Any, edge_index: Tensor, edge_attr: Tensor | None) -> str | None:
    """Why PyG's forward is faster, by the values of all edges, heads and channels. edge_index: (2, E)."""
    num_values = edge_index.shape[1] * conv.heads * conv.out_channels
    num_values = _worth.weighed(num_values, edge_index, _worth.GPU_ATTENTION_SPEED)
    kind = "attention with edges"
    if edge_attr is None:
        # PyG takes as long as halfgnn to add self-loops and to form the sums of GATv2.
        makes_edges = isinstance(conv, nn.GATv2Conv) or conv.__dict__.get("add_self_loops")
        kind = "attention" if makes_edges else "attention without loops"
    if _worth.are_few(num_values, torch.is_grad_enabled(), False, kind):
        return "few values"
    if not is_worth_a_graph(edge_index, num_values, torch.is_grad_enabled(), kind=kind):
        return "first uses of an edge_index"
    return None


def _reduces_beyond_loops(conv: Any, pair: Any) -> bool:
    """Whether self-loops get reduced edge features, and some destinations have no self-loop: PyG's scatter may raise."""
    if not getattr(conv, "add_self_loops", False) or not isinstance(conv.fill_value, str):
        return False
    return pair[0].shape[0] < pair[1].shape[0]


def refuse_features(x: Any, layer: Any, columns: int | None = None) -> str | None:
    """Why a layer's features are not routed. columns: how many x has, if the layer takes others beside them."""
    if not isinstance(x, Tensor) or x.dim() != 2:
        return "no matrix of features"
    reason = refuse_rows(x)
    if reason is not None:
        return reason
    is_parametrized = "parametrizations" in getattr(layer, "_modules", ())
    # Only the layer's own call may read a parametrized weight: parametrizations may count that.
    weight = next(layer.parameters(), None) if is_parametrized else getattr(layer, "weight", None)
    if not isinstance(weight, Tensor) or isinstance(weight, UninitializedParameter) or weight.device != x.device:
        return "no weight"
    width = width_of(layer) if is_parametrized else weight.shape[1] if weight.dim() == 2 else None
    if (width if columns is None else columns) != x.shape[1]:
        return "another width"
    if weight.dtype is x.dtype:
        return None
    return refuse((x, weight)) or (
        None if torch.is_autocast_enabled(x.device.type) else f"{x.dtype} with {weight.dtype}"
    )


def _refuse_edges(edge_index: Tensor, edge_attr: Any, pair: Any, conv: Any) -> str | None:
    if edge_index.device != pair[0].device:
        return "edge_index of another device"
    edges = Propagation(edge_index, [])
    for row, x in enumerate(pair):
        reason = refuse_ids(edges, row, x.shape[0])
        if reason is not None:
            return reason
    if edge_attr is None:
        return None
    if not isinstance(edge_attr, Tensor) or edge_attr.dim() != 2 or edge_attr.shape[0] != edge_index.shape[1]:
        return "edge_attr"
    return refuse_features(edge_attr, conv.lin_edge)


def as_module(ours: type, conv: Any) -> Any:
    """PyG's module as one of halfgnn.pyg, which is a subclass: both have the same attributes."""
    module: Any = object.__new__(ours)
    module.__dict__ = conv.__dict__
    return module
