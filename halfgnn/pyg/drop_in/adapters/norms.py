"""Wrappers of torch_geometric's norms of each graph of a batch, and of pools that weigh nodes: by the Graph of the batch vector."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch_geometric.nn.aggr import Aggregation

from .... import ops
from ....common.precision import HALF, without_autocast
from ....drop_in.compiled import is_compiled, is_traced_by_dynamo
from ....drop_in.wrappers import Route as Original
from ....drop_in.wrappers import inline
from ....expressions.reduce import incidence
from ....graph import Graph
from ..accounts import fell_back, routed
from ..gate import Call, FallBack
from ..norms_by_index import Norm, normalized
from ..rows_by_index import graph_of_groups
from ..size import is_small
from .sizes import sized

_EXACT = (torch.float32, torch.float64)  # PyG computes half-precision rows step by step in half precision
_Parameters = tuple[Norm, Any, Any, Any]  # with weight, bias and mean_scale


@inline
def norm(original: Original) -> Original:
    """``forward`` of GraphNorm, InstanceNorm and LayerNorm."""
    is_graph, of_groups, left_alone, route = is_traced_by_dynamo, sized, is_compiled, _normalized

    def forward(self: Any, x: Any, batch: Any = None, batch_size: Any = None) -> Any:
        if is_graph():
            return original(self, x, batch, of_groups(batch, batch_size))
        out = None if batch is None or left_alone() else route(original, self, x, batch, batch_size)
        return original(self, x, batch, batch_size) if out is None else out

    return forward


def pair_norm(original: Original, self: Any, x: Any, batch: Any = None, batch_size: Any = None) -> Any:
    """``PairNorm.forward``."""
    out = None if batch is None else _normalized(original, self, x, batch, batch_size)
    return original(self, x, batch, batch_size) if out is None else out


def _normalized(original: Original, self: Any, x: Any, batch: Any, batch_size: Any) -> Tensor | None:
    """The norm of the rows of each graph; None if it falls back to torch_geometric."""
    if not _are_rows(x, (*_EXACT, *HALF)):
        return None
    kind = original.__qualname__.partition(".")[0]
    found = _NORMS[kind](self)
    dtype = torch.float32 if x.dtype in HALF else x.dtype
    if found is None or not all(y is None or _fits(y, x, dtype) for y in found[1:]):
        return None
    g = _graph(kind, x, batch, batch_size)
    if g is None:
        return None
    routed[f"norm:{kind}"] += 1
    return normalized(x, g, *found)


def _are_rows(x: Any, dtypes: tuple[torch.dtype, ...] = _EXACT) -> bool:
    """Whether x has enough rows, of one of dtypes. Of exact ones results differ by the order of sums only."""
    return (
        type(x) is Tensor
        and x.dim() == 2
        and x.is_cpu
        and x.dtype in dtypes
        and x.numel() > 0
        and not is_small(x, "norm")
    )


def _fits(parameter: Any, x: Tensor, dtype: torch.dtype) -> bool:
    return isinstance(parameter, Tensor) and parameter.dtype is dtype and parameter.shape == x.shape[1:]


def _graph(kind: str, x: Tensor, index: Any, num_groups: Any) -> Graph | None:
    if not isinstance(index, Tensor):
        return None
    try:
        return graph_of_groups(Call.of(x, index, 0, num_groups, "norm"))
    except FallBack as left:
        fell_back[f"norm:{kind}", left.reason] += 1
        return None


def _graph_norm(self: Any) -> _Parameters | None:
    return Norm(self.eps), self.weight, self.bias, self.mean_scale


def _instance_norm(self: Any) -> _Parameters | None:
    if self.running_mean is not None or self.running_var is not None or self.track_running_stats:
        return None
    return Norm(self.eps), *_affine(self), None


def _layer_norm(self: Any) -> _Parameters | None:
    if self.mode != "graph":
        return None
    return Norm(self.eps, mean_of_all=True, variance_of_all=True), *_affine(self), None


def _pair_norm(self: Any) -> _Parameters | None:
    if self.scale_individually or not isinstance(self.scale, (int, float)):
        return None
    return Norm(self.eps, variance_of_all=True, divides_by_rows=True, scale=self.scale), None, None, None


def _affine(self: Any) -> tuple[Any, Any]:
    return (None, None) if self.weight is None or self.bias is None else (self.weight, self.bias)


_NORMS = {"GraphNorm": _graph_norm, "InstanceNorm": _instance_norm, "LayerNorm": _layer_norm, "PairNorm": _pair_norm}


# ---- pools that weigh nodes ------------------------------------------------------------------------------------------------------


def set2set(
    original: Original, self: Any, x: Any, index: Any = None, ptr: Any = None, dim_size: Any = None, dim: int = -2
) -> Any:
    """``Set2Set.forward``: neither the query of each row nor its weighted features are materialized."""
    g = None if ptr is not None or dim not in (0, -2) or not _are_rows(x) else _graph("Set2Set", x, index, dim_size)
    if g is None or not _sums_rows(self, dim_size):
        return original(self, x, index, ptr, dim_size, dim)
    routed["pool:Set2Set"] += 1
    h = tuple(x.new_zeros((self.lstm.num_layers, dim_size, x.shape[1])) for _ in range(2))
    q_star = x.new_zeros(dim_size, self.out_channels)
    for _ in range(self.processing_steps):
        q, h = self.lstm(q_star.unsqueeze(0), h)
        q = q.view(dim_size, self.in_channels)
        with without_autocast(x.device):
            logits = ops.gsddmm(g, "dot", x, q.to(x.dtype), "e", "v")
            r = weighted_sum(g, x, ops.edge_softmax(g, logits))
        q_star = torch.cat([q, r], dim=-1)
    return q_star


def _sums_rows(aggregation: Any, dim_size: Any) -> bool:
    """Whether torch_geometric's own step adds up the weighted rows."""
    return isinstance(dim_size, int) and type(aggregation).reduce is Aggregation.reduce


def weighted_sum(g: Graph, x: Tensor, weight: Tensor) -> Tensor:
    """The sums of rows x (N, F) times a weight (N, 1), by the Graph of their index."""
    return ops.gspmm(incidence(g), "mul", "sum", x, weight)


def attentional(
    original: Original, self: Any, x: Any, index: Any = None, ptr: Any = None, dim_size: Any = None, dim: int = -2
) -> Any:
    """``AttentionalAggregation.forward``: the weighted features are not materialized."""
    has_layers = self.gate_mlp is None and self.mlp is None
    g = None
    if ptr is None and dim in (0, -2) and has_layers and _are_rows(x):
        g = _graph("AttentionalAggregation", x, index, dim_size)
    if g is None or not _sums_rows(self, dim_size):
        return original(self, x, index, ptr, dim_size, dim)
    from torch_geometric.utils import softmax  # which the drop-in replaces

    gate = self.gate_nn(x)
    x = x if self.nn is None else self.nn(x)
    if not _is_gate(gate, x):
        gate = softmax(gate, index, None, dim_size, dim)
        return self.reduce(gate * x, index, None, dim_size, dim)
    routed["pool:AttentionalAggregation"] += 1
    with without_autocast(x.device):
        return weighted_sum(g, x, ops.edge_softmax(g, gate))


def _is_gate(gate: Any, x: Any) -> bool:
    """Whether there is one number for each row, of the same exact dtype."""
    if type(x) is not Tensor or type(gate) is not Tensor or x.dim() != 2 or x.dtype not in _EXACT:
        return False
    return gate.dtype is x.dtype and gate.shape == (x.shape[0], 1)
