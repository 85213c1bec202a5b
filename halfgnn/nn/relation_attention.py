"""GATConvs of several edge types as one attention, on the stack of their relations (halfgnn.heterograph)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .. import ops
from ..common.layers import check_layer, is_hooked, is_plain, is_unhooked
from ..common.operands import check_columns, check_rows, width_of
from ..common.precision import autocast, without_autocast
from ..heterograph import EdgeType, HeteroGraph, Stack
from . import attention
from .gatconv import GATConv
from .projections import linear, node_logits, padded, project, trimmed
from .relation_rows import joined, taken

Features = Mapping[str, Tensor]
Ends = list[tuple[Tensor, Tensor]]  # features of each relation's sources and destinations


def may_attend_together(convs: Iterable[Any]) -> bool:
    """Whether the modules are GATConvs without hooks that differ only in their parameters."""
    convs = list(convs)
    if not all(_is_gat(conv) and is_unhooked(conv) and _is_usual(conv) for conv in convs):
        return False
    return len({_options(conv) for conv in convs}) == 1


def _is_gat(conv: Any) -> bool:
    """Whether a call is GATConv's forward, of the class itself or of one that changes nothing but names and errors."""
    return isinstance(conv, GATConv) and type(conv).forward is GATConv.forward


def _is_usual(conv: Any) -> bool:
    """Whether no submodule's call would be skipped, and no dropout shared by the attention and the residual."""
    drop = conv.feat_drop
    if attention.why_unfused(conv) is not None or type(drop) is not nn.Dropout or is_hooked(drop):
        return False
    return conv.res_fc is None or attention.dropout_p(drop) == 0


def _options(conv: Any) -> tuple:
    return conv._num_heads, conv._out_feats, conv.leaky_relu.negative_slope, attention.dropout_p(conv.attn_drop)


def attend_together(convs: Mapping[EdgeType, Any], g: HeteroGraph, src: Features, dst: Features) -> dict[str, Tensor]:
    """The attention of every relation, before residual, bias and activation.

    Args:
        convs: GATConvs for which :func:`may_attend_together`, by edge type.
        src, dst: (num_src, in_feats) and (num_dst, in_feats) by node type, checked.

    Returns:
        (R, num_dst, H, D) for each type in which R > 0 relations end, in the order of g.stack.
    """
    stack = g.stack(tuple(convs))
    sources, destinations = _Cast(src), _Cast(dst)
    ends = []
    for etype, rows, ids in zip(stack.etypes, stack.num_src, stack.src_ids):
        drop = convs[etype].feat_drop
        ends.append((sources.dropped(etype[0], drop, rows, ids), destinations.dropped(etype[2], drop)))
    stacked_convs = [convs[etype] for etype in stack.etypes]
    attend = _project_last if _saves_to_project_last(stack, stacked_convs, ends) else _project_first
    return attend(stack, stacked_convs, ends)


def _project_first(stack: Stack, convs: list[Any], ends: Ends) -> dict[str, Tensor]:
    """Like GATConv: sources are projected, then one fused attention gathers and weights them."""
    heads, dim = convs[0]._num_heads, convs[0]._out_feats
    feats, els, ers = [], [], []
    for conv, (x_src, x_dst) in zip(convs, ends):
        fc_src, fc_dst = _layers(conv)
        (el,), (er,) = node_logits(fc_src, x_src, conv.attn_l), node_logits(fc_dst, x_dst, conv.attn_r)
        feats.append(project(fc_src, x_src, heads, dim, padded(dim, x_src)))
        els.append(el)
        ers.append(er)
    operands = (stack.graph, joined(feats), joined(els), joined(ers))
    rst = attention.gat(*operands, convs[0].leaky_relu.negative_slope, attention.dropout_p(convs[0].attn_drop))
    return _by_type(stack, trimmed(rst, dim))


def _project_last(stack: Stack, convs: list[Any], ends: Ends) -> dict[str, Tensor]:
    """The same, but the sums are projected: inputs are gathered and weighted head by head. Sum and projection are both linear.

    A sampled block has many more sources than destinations, so this projects fewer rows.
    """
    heads, dim = convs[0]._num_heads, convs[0]._out_feats
    logits = [
        (*node_logits(_layers(conv)[0], x_src, conv.attn_l), *node_logits(_layers(conv)[1], x_dst, conv.attn_r))
        for conv, (x_src, x_dst) in zip(convs, ends)
    ]
    el, er = joined([el for el, _ in logits]), joined([er for _, er in logits])
    x = joined([x_src for x_src, _ in ends])
    slope, p = convs[0].leaky_relu.negative_slope, attention.dropout_p(convs[0].attn_drop)
    with without_autocast(x.device):  # logits and weights stay fp32
        scores = F.leaky_relu(ops.u_add_v(stack.graph, el, er), slope)
        weights = F.dropout(ops.edge_softmax(stack.graph, scores), p, p > 0).t().contiguous()
        sums = [
            ops.u_mul_e_sum(stack.graph, x, weights[head].unsqueeze(1)).split(stack.num_dst) for head in range(heads)
        ]
    parts: dict[str, list[Tensor]] = {}
    for i, (etype, conv) in enumerate(zip(stack.etypes, convs)):
        matrices = _layers(conv)[0].weight.split(dim)
        projected = [linear(sums[head][i], matrices[head], None) for head in range(heads)]
        parts.setdefault(etype[2], []).append(torch.stack(projected, 1))
    return {ntype: torch.stack(rsts) for ntype, rsts in parts.items()}


# How many multiplications of a matrix product take as long as gathering and weighting one value of a sum. On a CPU with AVX2 and
# two threads about ten were measured; for a GPU with tensor cores the number is predicted.
_GATHER = {"cpu": 16, "cuda": 80}


def _saves_to_project_last(stack: Stack, convs: list[Any], ends: Ends) -> bool:
    layers = [_layers(conv)[0] for conv in convs]
    widths = {x_src.shape[-1] for x_src, _ in ends}
    is_usual = all(is_plain(layer) and layer.bias is None for layer in layers) and all(x.dim() == 2 for x, _ in ends)
    if len(widths) > 1 or not is_usual or torch.compiler.is_compiling():
        return False
    (width,) = widths
    heads, dim = convs[0]._num_heads, convs[0]._out_feats
    gathered = _GATHER.get(ends[0][0].device.type, 80) * stack.graph.num_edges * heads
    first = stack.graph.num_src * heads * dim + gathered * dim / max(width, 1)
    return stack.graph.num_dst * heads * dim + gathered < first


def _layers(conv: Any) -> tuple[Any, Any]:
    """Projections of sources and of destinations."""
    return (conv.fc_src, conv.fc_dst) if hasattr(conv, "fc_src") else (conv.fc, conv.fc)


def _by_type(stack: Stack, rst: Tensor) -> dict[str, Tensor]:
    """Views of the rows by destination type: its relations are neighbours in the stack and have equally many rows."""
    out: dict[str, Tensor] = {}
    begin = 0
    for dsttype in dict.fromkeys(etype[2] for etype in stack.etypes):
        sizes = [rows for etype, rows in zip(stack.etypes, stack.num_dst) if etype[2] == dsttype]
        out[dsttype] = rst[begin : begin + sum(sizes)].unflatten(0, (len(sizes), sizes[0]))
        begin += sum(sizes)
    return out


class _Cast:
    """Features by type. Those without dropout are cast by autocast at most once."""

    def __init__(self, feats: Features) -> None:
        self._feats = feats
        self._cast: dict[str, Tensor] = {}

    def dropped(self, ntype: str, drop: Any, rows: int | None = None, ids: Tensor | None = None) -> Tensor:
        """The first `rows` rows, or the rows `ids`, after dropout."""
        if attention.dropout_p(drop) > 0:
            return autocast(drop(taken(self._feats[ntype], rows, ids)))
        if ntype not in self._cast:
            self._cast[ntype] = autocast(self._feats[ntype])
        return taken(self._cast[ntype], rows, ids)


def check_module_name(etype: Any) -> None:
    """Raises unless the edge type can name a module."""
    if "." in str(etype):
        raise ValueError(
            f"the edge type {etype} has a dot, which PyTorch does not allow in a module's name; expected another name"
        )


def check_inputs(
    g: HeteroGraph, convs: Mapping[EdgeType, Any], src: Features, dst: Features, what: str = "inputs"
) -> None:
    """Raises unless both ends of every relation have features, one row per node, of the width that its GATConv takes.

    what: the user's name of the features.
    """
    for etype in convs:
        layers = convs[etype]._modules
        ends = (
            (src, etype[0], "u", "fc_src", g.num_src),
            (dst, etype[2], "v", "fc_dst", g.num_dst),
        )
        for feats, ntype, target, layer, counts in ends:
            name = f"{what}[{ntype!r}]"
            check_rows(feats[ntype], name, counts[ntype], target, g.device)
            projection = layers.get("fc") or layers[layer]
            check_columns(feats[ntype], name, width_of(projection))
            check_layer(feats[ntype], name, projection)
