"""Wrappers of the forwards of torch_geometric's SAGEConv and GraphConv, where edges reach few of the nodes.

In the batches of neighbour loaders only the nodes of the first hops have in-edges: most rows that the first layer of these modules
multiplies are zeros. Here a row is made and multiplied for each node up to the last one that an edge reaches, and added to the
product of the node's own features.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn import Parameter
from torch_geometric import nn

from .... import ops
from ....common.autograd import apply, snapshot
from ....common.layers import is_plain
from ....common.precision import HALF, computed_type, may_mix, without_autocast
from ....drop_in.checkpoint import is_checkpointed
from ....drop_in.gate import Reason, index_reason, mode_reason
from ....expressions.propagation import Propagation
from ....graphs_by_tensor.edge_index import graph_of
from ....graphs_by_tensor.store import known
from ...modules.base import ONE_PASS, UpstreamModule, options_reason, reduction_of
from .. import thresholds
from ..accounts import routed
from ..call import module_reason
from ..gate import ids_reason, rows_reason
from ..options import ON
from .attention_modules import Original


def sage_conv(original: Original, self: Any, x: Any, edge_index: Any, size: Any = None) -> Any:
    """``torch_geometric.nn.SAGEConv.forward``."""
    if self.project or not _may_save(x, edge_index, self.lin_l):
        return original(self, x, edge_index, size)
    lin_r = self.lin_r if self.root_weight else None
    out = _reached(nn.SAGEConv, self, x, edge_index, None, size, self.lin_l, lin_r)
    if out is None:
        return original(self, x, edge_index, size)
    return F.normalize(out, p=2.0, dim=-1) if self.normalize else out


def graph_conv(
    original: Original, self: Any, x: Any, edge_index: Any, edge_weight: Any = None, size: Any = None
) -> Any:
    """``torch_geometric.nn.GraphConv.forward``."""
    out = None
    if _may_save(x, edge_index, self.lin_rel):
        out = _reached(nn.GraphConv, self, x, edge_index, edge_weight, size, self.lin_rel, self.lin_root)
    return original(self, x, edge_index, edge_weight, size) if out is None else out


def _may_save(x: Any, edge_index: Any, lin: Any) -> bool:
    """Whether there may be products to be saved, before anything is read: it is asked at every call, also of small graphs."""
    x_dst = x[1] if isinstance(x, tuple) and len(x) == 2 else x
    if type(edge_index) is not Tensor or edge_index.dim() != 2 or not isinstance(x_dst, Tensor) or x_dst.dim() != 2:
        return False
    weight = lin._parameters.get("weight")
    if type(weight) is not Parameter or x_dst.shape[0] * weight.numel() < thresholds.PRODUCTS_SAVED:
        return False
    topology = known.get(edge_index)
    bounds = None if topology is None else topology.bounds
    return bounds is None or _saves(bounds[1][1] + 1, x_dst.shape[0], weight)


def _saves(num_reached: int, num_dst: int, weight: Tensor) -> bool:
    saved = (num_dst - num_reached) * weight.numel()
    return saved >= thresholds.PRODUCTS_SAVED and 0 < num_reached <= num_dst // 4 * 3


def _reached(
    kind: type, conv: Any, x: Any, edge_index: Tensor, weight: Any, size: Any, lin: Any, lin_root: Any
) -> Tensor | None:
    """The result before it is normalized; None if it falls back to torch_geometric. kind: torch_geometric's class."""
    x_src, x_dst = x if isinstance(x, tuple) else (x, x)
    num_dst, num_edges = x_dst.shape[0], edge_index.shape[1]
    if isinstance(conv, UpstreamModule) or edge_index.shape[0] != 2 or num_edges == 0:
        return None
    if _call_reason(kind, conv, x_src, x_dst, edge_index, size):
        return None
    layers = [lin] if lin_root is None else [lin, lin_root]
    if not all(is_plain(layer) and _fits(part, layer) for part, layer in zip((x_src, x_dst), layers)):
        return None
    if lin_root is not None and (lin_root.bias is not None or lin_root.weight.shape[0] != lin.weight.shape[0]):
        return None  # a program replaced it
    if weight is not None and not _is_weight(weight, x_src, num_edges):
        return None
    num_reached = _num_reached(edge_index)
    if not _saves(num_reached, num_dst, lin.weight):
        return None
    edges = Propagation(edge_index, [])
    if ids_reason(edges, 0, x_src.shape[0]) or ids_reason(edges, 1, num_reached):
        return None
    reduction = str(reduction_of(conv.aggr_module))
    routed[f"gspmm:{'copy_u' if weight is None else 'u_mul_e'}_{reduction}"] += 1
    routed["products of reached nodes"] += 1
    features = x_src.to(computed_type(x_src)) if ON.half else x_src
    g = graph_of(edge_index, x_src.shape[0], num_reached)
    rows = F.linear(_reduced(g, reduction, features, weight), lin.weight)
    if lin_root is None:
        out = F.pad(rows, (0, 0, 0, num_dst - num_reached))
        return out if lin.bias is None else out + lin.bias.to(out.dtype)
    return apply(_AddRows, F.linear(x_dst, lin_root.weight, lin.bias), rows)


def _call_reason(kind: type, conv: Any, x_src: Any, x_dst: Tensor, edge_index: Tensor, size: Any) -> str | None:
    """Why a call falls back. Under a checkpoint, what is known of an edge_index must not decide."""
    if not isinstance(x_src, Tensor) or x_src.dim() != 2:
        return Reason.NO_MATRIX
    if size is not None and tuple(size) != (x_src.shape[0], x_dst.shape[0]):
        return Reason.SIZE
    if edge_index.is_inference() or is_checkpointed():
        return Reason.INFERENCE_MODE if edge_index.is_inference() else Reason.CHECKPOINT
    reason = mode_reason() or module_reason(conv) or options_reason(conv, kind, ONE_PASS)
    reason = reason or rows_reason(x_src) or rows_reason(x_dst) or index_reason(edge_index, x_src)
    if reason is not None:
        return reason
    return None if x_dst.device == x_src.device and x_dst.dtype is x_src.dtype else Reason.SEVERAL_DEVICES


def _fits(x: Tensor, layer: Any) -> bool:
    """Whether a layer takes x; otherwise PyTorch raises its own error."""
    weight = layer.weight
    is_cast = torch.is_autocast_enabled(x.device.type)
    return weight.device == x.device and weight.shape[1] == x.shape[1] and (weight.dtype is x.dtype or is_cast)


def _is_weight(weight: Any, x: Tensor, num_edges: int) -> bool:
    if not isinstance(weight, Tensor) or rows_reason(weight) is not None or weight.device != x.device:
        return False
    return weight.numel() == num_edges and may_mix(weight.dtype, x.dtype)


def _num_reached(edge_index: Tensor) -> int:
    """One more than the last destination. A GPU is not asked."""
    topology = known.get(edge_index)
    if topology is not None and topology.bounds is not None:
        return topology.bounds[1][1] + 1
    return int(edge_index[1].max()) + 1 if edge_index.is_cpu else 0


def _reduced(g: Any, reduction: str, x: Tensor, weight: Tensor | None) -> Tensor:
    with without_autocast(x.device):
        if weight is None:
            return ops.gspmm(g, "copy_lhs", reduction, x, None)
        rows = weight.view(-1, 1)
        x, rows = snapshot(x) if rows.requires_grad else x, snapshot(rows) if x.requires_grad else rows
        dtype = torch.promote_types(x.dtype, rows.dtype)
        out_dtype = torch.float32 if x.dtype in HALF and dtype == torch.float32 else None
        return ops.gspmm(g, "mul", reduction, x, rows, out_dtype=out_dtype)


class _AddRows(torch.autograd.Function):
    """x (N, *), which nobody else has, with rows (K, *) added to the first K of its own."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, rows: Tensor) -> Tensor:
        ctx.num_rows = rows.shape[0]
        ctx.mark_dirty(x)
        x[: rows.shape[0]] += rows
        return x

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return grad, grad[: ctx.num_rows]
