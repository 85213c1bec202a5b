"""Wrapper of the forward of torch_geometric's RGCNConv: its relations are reduced at once, and multiplied at once.

torch_geometric selects the edges of one relation after another, reduces each into a row per node, and multiplies it. Here one
reduction makes the rows of all relations of a node, side by side (N, relations * in), and one product reads them. If there are more
pairs of a relation and a node than edges, only those that have an edge are reduced and multiplied, as halfgnn.pyg.RGCNConv does.
The edges of small graphs that are new are not sorted: coo_sum reduces them as they are.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric import backend, typing
from torch_geometric.nn import RGCNConv as UpstreamRGCNConv

from .... import ops
from ....common.precision import HALF, autocasts, computed_type, without_autocast
from ....drop_in.gate import Reason, index_reason, mode_reason, tracing_reason
from ....expressions.propagation import Propagation
from ....expressions.rows import are_plain_rows
from ....graph import Graph
from ....graphs_by_tensor.edge_index import graph_of
from ....graphs_by_tensor.index import bounds_of
from ....graphs_by_tensor.made_once import made_once
from ....graphs_by_tensor.pairs import with_pairs
from ....graphs_by_tensor.store import topology_at, topology_of
from ....nn.relation_pairs import pairs_of
from ....nn.typed_linear import typed_linear
from ....ops.coo_sum import coo_sum
from ...modules.base import ONE_PASS, options_reason, reduction_of
from ...modules.rgcn_conv import RGCNConv
from .. import thresholds
from ..accounts import fell_back, routed
from ..call import module_reason, plain
from ..gate import ids_reason, rows_reason
from ..options import ON
from ..size import Size, weighed
from .attention_modules import Original, as_module, pair_of, topology_reason

_FEW = Reason.FEW_VALUES, Reason.FIRST_USES_OF_EDGE_INDEX


def rgcn_conv(original: Original, self: Any, x: Any, edge_index: Any, edge_type: Any = None) -> Any:
    """``torch_geometric.nn.RGCNConv.forward``."""
    if isinstance(self, RGCNConv):
        return original(self, x, edge_index, edge_type)
    edges = plain(edge_index)
    reason = _reason(self, x, edges, edge_type)
    out = _of_unsorted_edges(self, x, edges, edge_type) if reason in _FEW else None
    if out is not None:
        routed["coo_sum:RGCNConv"] += 1
        return out
    if reason is not None:
        fell_back["fused:RGCNConv", reason] += 1
        return original(self, x, edge_index, edge_type)
    routed["fused:RGCNConv"] += 1
    x_src, x_dst = pair_of(x)
    return _forward(self, x_src, x_dst, edges, edge_type)


def _reason(conv: Any, x: Any, edge_index: Any, edge_type: Any) -> str | None:
    """Why a call falls back to PyG's forward; None if it does not. Calls for which PyG would raise fall back too."""
    x_src, x_dst = x if type(x) is tuple and len(x) == 2 else (x, x)
    if not isinstance(x_src, Tensor) or x_src.dim() != 2:
        return Reason.NO_MATRIX
    # The size is asked before anything is read or kept of the edges.
    reason = tracing_reason() or topology_reason(edge_index)
    if reason is not None:
        return reason
    size = Size(weighed(edge_index.shape[1] * x_src.shape[1], x_src), torch.is_grad_enabled())
    if size.is_below_limit():
        return Reason.FEW_VALUES
    reason = mode_reason(may_be_watched=True)
    if reason is not None:
        return reason
    if not size.pays_for(edge_index):
        return Reason.FIRST_USES_OF_EDGE_INDEX
    reason = _conv_reason(conv) or _features_reason(conv, (x_src, x_dst))
    if reason is not None:
        return reason
    reason = index_reason(edge_index, x_src) or index_reason(edge_type, x_src)
    if reason is not None:
        return reason
    if edge_type.shape != edge_index.shape[1:] or edge_type.is_inference() or edge_index.is_inference():
        return Reason.ROWS_OF_EDGES if edge_type.shape != edge_index.shape[1:] else Reason.INFERENCE_MODE
    edges = Propagation(edge_index, [])
    reason = ids_reason(edges, 0, x_src.shape[0]) or ids_reason(edges, 1, x_dst.shape[0])
    if reason is not None:
        return reason
    low, high = bounds_of(topology_at(edge_type), edge_type)
    return Reason.IDS_OUT_OF_RANGE if low < 0 or high >= conv.num_relations else None


def _conv_reason(conv: Any) -> str | None:
    """Why a module does not do what its class does."""
    reason = module_reason(conv) or options_reason(conv, UpstreamRGCNConv, ONE_PASS)
    if reason is None and "parametrizations" in conv._modules:
        return Reason.PARAMETRIZED
    has_weights = len(conv.weight if conv.comp is None else conv.comp) == conv.num_relations
    return reason if reason or (has_weights and not _may_multiply_segments(conv)) else Reason.OPTIONS


def _may_multiply_segments(conv: Any) -> bool:
    """Whether PyG may multiply each edge's source by pyg_lib and reduce once: the mean is then one of all relations together."""
    if conv.num_bases is not None or conv.num_blocks is not None or reduction_of(conv.aggr_module) == "sum":
        return False
    return typing.WITH_SEGMM and backend.use_segment_matmul is not False


def _features_reason(conv: Any, pair: tuple[Any, Any]) -> str | None:
    widths = conv.in_channels_l, None if conv.root is None else conv.root.shape[0]
    for part, width in zip(pair, widths):
        if not isinstance(part, Tensor) or part.dim() != 2:
            return Reason.NO_MATRIX
        reason = rows_reason(part)
        if reason is not None:
            return reason
        if width not in (None, part.shape[1]):
            return Reason.ANOTHER_WIDTH
        if part.device != conv.weight.device or type(conv.weight) is not nn.Parameter:
            return Reason.NO_WEIGHT
        if part.dtype is not conv.weight.dtype and not autocasts(part.device):
            return f"{part.dtype} with {conv.weight.dtype}"
    return None


def _forward(conv: Any, x_src: Tensor, x_dst: Tensor, edge_index: Tensor, edge_type: Tensor) -> Tensor:
    features = x_src.to(computed_type(x_src)) if ON.half else x_src
    is_dense = conv.num_relations * x_dst.shape[0] <= edge_index.shape[1]
    out = (_of_all_pairs if is_dense else _of_edges)(conv, features, x_dst.shape[0], edge_index, edge_type)
    return _finished(conv, out, x_dst)


def _finished(conv: Any, out: Tensor, x_dst: Tensor) -> Tensor:
    # PyG adds relations up in a tensor of this type.
    out = (
        out if ON.half and autocasts(out.device) else out.to(torch.promote_types(out.dtype, torch.get_default_dtype()))
    )
    if conv.root is not None:
        out = out + x_dst @ conv.root
    return out if conv.bias is None else out + conv.bias


def _of_all_pairs(conv: Any, x: Tensor, num_dst: int, edge_index: Tensor, edge_type: Tensor) -> Tensor:
    """The sum over relations, of a row for each pair of a destination and a relation."""
    num_relations = conv.num_relations

    def make() -> tuple[Tensor]:
        return (with_pairs(edge_index, 1, edge_index[1], edge_type, num_relations),)

    (pairs,) = made_once(topology_of(edge_index), ("pairs", topology_at(edge_type), num_relations), make)
    return _multiplied(conv, _reduced(conv, graph_of(pairs, x.shape[0], num_dst * num_relations), x), num_dst)


def _multiplied(conv: Any, rows: Tensor, num_dst: int) -> Tensor:
    """rows: (num_dst * relations, in), of all pairs."""
    num_relations, weight = conv.num_relations, conv.weight
    if conv.num_blocks is not None:
        blocks = rows.view(num_dst, num_relations, *weight.shape[1:3]).permute(2, 0, 1, 3).flatten(2)
        return torch.bmm(blocks, weight.transpose(0, 1).flatten(1, 2)).transpose(0, 1).flatten(1)
    if conv.num_bases is not None:
        weight = conv.comp @ weight.view(conv.num_bases, -1)
    return rows.view(num_dst, -1) @ weight.reshape(-1, conv.out_channels)


def _of_unsorted_edges(conv: Any, x: Any, edge_index: Tensor, edge_type: Any) -> Tensor | None:
    """The result for few or new edges, of which nothing is cached. None if it falls back."""
    x_src, x_dst = pair_of(x)
    if not isinstance(x_dst, Tensor):
        return None
    num_dst, num_relations, reduction = x_dst.shape[0], conv.num_relations, reduction_of(conv.aggr_module)
    if (
        reduction not in ("sum", "mean")
        or not are_plain_rows(x_src, edge_type, 0, 2)
        or edge_index.dtype is not torch.int64
        or edge_type.shape != edge_index.shape[1:]
        or num_dst * num_relations * x_src.shape[1] * conv.out_channels == 0
        or num_dst * num_relations * x_src.shape[1] > thresholds.MOST_PAIRS
        or mode_reason(may_be_watched=True) is not None
        or _conv_reason(conv) is not None
        or _features_reason(conv, (x_src, x_dst)) is not None
    ):
        return None
    if edge_type.numel() and not 0 <= int((ends := edge_type.aminmax())[0]) <= int(ends[1]) < num_relations:
        return None
    src, dst = edge_index.unbind()
    if dst.numel() and int(dst.max()) >= num_dst:  # PyG raises its own, and a product of ids may overflow
        return None
    try:  # as a copy: PyG keeps selected edges, so that edge_index may be modified in place, or made in inference mode
        rows = coo_sum(dst * num_relations + edge_type, src.clone(), x_src, None, reduction, num_dst * num_relations)
    except IndexError:  # PyG raises its own
        return None
    return _finished(conv, _multiplied(conv, rows, num_dst), x_dst)


def _of_edges(conv: Any, x: Tensor, num_dst: int, edge_index: Tensor, edge_type: Tensor) -> Tensor:
    """The same, of a row for each pair that has an edge."""
    pairs = pairs_of(graph_of(edge_index, x.shape[0], num_dst), edge_type, conv.num_relations)
    blocks = as_module(RGCNConv, conv)._blocks(_reduced(conv, pairs.into, x))
    parts = [typed_linear(part, pairs.ends, weight) for part, weight in blocks]
    rows = torch.cat(parts, 1) if len(parts) > 1 else parts[0]
    with without_autocast(x.device):
        out_dtype = torch.float32 if rows.dtype in HALF and not ON.half else None
        return ops.gspmm(pairs.out_of, "copy_lhs", "sum", rows, None, out_dtype=out_dtype)


def _reduced(conv: Any, g: Graph, x: Tensor) -> Tensor:
    with without_autocast(x.device):
        return ops.gspmm(g, "copy_lhs", str(reduction_of(conv.aggr_module)), x, None)
