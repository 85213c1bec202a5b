"""GATConvs of several edge types in one fused attention, on the stack of their relations (halfgnn.heterograph)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ..heterograph import EdgeType, HeteroGraph, Stack
from ..ops._common import apply, autocast, check_rows
from . import _attention
from ._checks import check_columns, width_of
from ._common import is_unhooked, padded, trimmed
from ._linear import node_logits, project_with_logits
from .gatconv import GATConv

Features = Mapping[str, Tensor]


def may_attend_together(convs: Iterable[Any]) -> bool:
    """Whether the modules are GATConvs, called as they are, that differ in their parameters alone."""
    convs = list(convs)
    if not all(type(conv) is GATConv and is_unhooked(conv) and _is_usual(conv) for conv in convs):
        return False
    return len({_options(conv) for conv in convs}) == 1


def _is_usual(conv: Any) -> bool:
    """No exchanged submodule; no dropout that the residual would have to share with the attention."""
    usual = type(conv.attn_drop) is nn.Dropout and type(conv.leaky_relu) is nn.LeakyReLU
    return usual and (conv.res_fc is None or _attention.dropout_p(conv.feat_drop) == 0)


def _options(conv: Any) -> tuple:
    return conv._num_heads, conv._out_feats, conv.leaky_relu.negative_slope, _attention.dropout_p(conv.attn_drop)


def attend_together(convs: Mapping[EdgeType, Any], g: HeteroGraph, src: Features, dst: Features) -> dict[str, Tensor]:
    """The attention of every relation, before residual, bias and activation.

    Args:
        convs: GATConvs for which :func:`may_attend_together`, by edge type.
        src, dst: (num_src, in_feats) and (num_dst, in_feats) by node type, checked.

    Returns:
        (R, num_dst, H, D) for each type in which R > 0 of the relations end, in the order that `stack` has them.
    """
    stack = g.stack(tuple(convs))
    one = convs[stack.etypes[0]]
    heads, dim = one._num_heads, one._out_feats
    sources, destinations = _Cast(src), _Cast(dst)
    feats, els, ers = [], [], []
    for etype, rows, ids in zip(stack.etypes, stack.num_src, stack.src_ids):
        conv = convs[etype]
        fc_src, fc_dst = (conv.fc_src, conv.fc_dst) if hasattr(conv, "fc_src") else (conv.fc, conv.fc)
        x_src = sources.dropped(etype[0], conv.feat_drop, rows, ids)
        x_dst = destinations.dropped(etype[2], conv.feat_drop)
        width = padded(dim, x_src)
        feat, (el,) = project_with_logits(fc_src, x_src, heads, dim, width, conv.attn_l)
        (er,) = node_logits(fc_dst, x_dst, conv.attn_r)
        feats.append(feat)
        els.append(el)
        ers.append(er)
    operands = (stack.graph, _joined(feats), _joined(els), _joined(ers), None)
    rst = _attention.gat(*operands, one.leaky_relu.negative_slope, _attention.dropout_p(one.attn_drop))
    return _by_type(stack, trimmed(rst, dim))


def _joined(parts: list[Tensor]) -> Tensor:
    return torch.cat(parts) if len(parts) > 1 else parts[0]


def _by_type(stack: Stack, rst: Tensor) -> dict[str, Tensor]:
    """Relations that end in one type are neighbours in the stack, with as many rows each: a view holds them."""
    out: dict[str, Tensor] = {}
    begin = 0
    for dsttype in dict.fromkeys(etype[2] for etype in stack.etypes):
        sizes = [rows for etype, rows in zip(stack.etypes, stack.num_dst) if etype[2] == dsttype]
        out[dsttype] = rst[begin : begin + sum(sizes)].unflatten(0, (len(sizes), sizes[0]))
        begin += sum(sizes)
    return out


class _Cast:
    """Features by type, cast by autocast at most once each, where no dropout comes before it."""

    def __init__(self, feats: Features) -> None:
        self._feats = feats
        self._cast: dict[str, Tensor] = {}

    def dropped(self, ntype: str, drop: Any, rows: int | None = None, ids: Tensor | None = None) -> Tensor:
        """The first `rows` rows, or those of ids, after dropout."""
        if _attention.dropout_p(drop) > 0 or type(drop) is not nn.Dropout:
            return autocast(drop(_taken(self._feats[ntype], rows, ids)))
        if ntype not in self._cast:
            self._cast[ntype] = autocast(self._feats[ntype])
        return _taken(self._cast[ntype], rows, ids)


def _taken(x: Tensor, rows: int | None, ids: Tensor | None) -> Tensor:
    return x[:rows] if ids is None else apply(_TakeRows, x, ids)


class _TakeRows(torch.autograd.Function):
    """x[ids] of ids that differ: its gradient is written, not added up, hence the same at every run, on a GPU too."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x, ids):
        return x.index_select(0, ids)

    @staticmethod
    def setup_context(ctx, inputs, output):
        x, ids = inputs
        ctx.save_for_backward(ids)
        ctx.num_rows = x.shape[0]

    @staticmethod
    def backward(ctx, grad):
        (ids,) = ctx.saved_tensors
        return grad.new_zeros(ctx.num_rows, *grad.shape[1:]).index_copy(0, ids.long(), grad), None


def check_inputs(
    g: HeteroGraph, convs: Mapping[EdgeType, Any], src: Features, dst: Features, what: str = "inputs"
) -> None:
    """Raises unless both ends of every relation have features, one row a node, of the width that its GATConv takes.

    what: the features, to the user.
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
            check_columns(feats[ntype], name, width_of(layers.get("fc") or layers[layer]))
