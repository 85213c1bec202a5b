"""Fake kernels of the fused attentions: the shapes and dtypes of their results."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ...common.fake import arguments_of, register_fake
from ._shared import wide_type

raw = torch.ops.halfgnn
_GAT, _GATBackward = arguments_of(raw.gat_attention.default), arguments_of(raw.gat_attention_backward.default)
_GATv2, _GATv2Backward = arguments_of(raw.gatv2_attention.default), arguments_of(raw.gatv2_attention_backward.default)
_Dot, _DotBackward = arguments_of(raw.dot_attention.default), arguments_of(raw.dot_attention_backward.default)


def _results(x: Any, feat: Tensor, is_wide: bool = False) -> tuple[Tensor, Tensor, Tensor]:
    """(out, lse, out_residual) of a forward with the arguments x."""
    shape = (x.indptr.shape[0] - 1, *feat.shape[1:])
    wide = wide_type(feat.dtype)
    has_residual = x.save and x.precise and not is_wide and feat.dtype.itemsize == 2
    return (
        feat.new_empty(shape, dtype=wide if is_wide else feat.dtype),
        feat.new_empty(shape[:2] if x.save else (0,), dtype=wide),
        feat.new_empty(shape if has_residual else (0,)),
    )


def _gradient(operand: Tensor | None, is_needed: bool, feat: Tensor) -> Tensor:
    return _like(operand) if is_needed and operand is not None else feat.new_empty((0,))


def _like(operand: Tensor) -> Tensor:
    return torch.empty_like(operand, memory_format=torch.contiguous_format)


@register_fake("gat_attention")
def _(*args, **kwargs):
    x = _GAT(*args, **kwargs)
    out, lse, residual = _results(x, x.feat)
    return out, lse, residual, torch.empty_like(out) if x.save else x.feat.new_empty((0,))


@register_fake("gat_attention_backward")
def _(*args, **kwargs):
    x = _GATBackward(*args, **kwargs)
    nodes = (_like(operand) for operand in (x.feat, x.attn_src, x.attn_dst))
    return *nodes, _gradient(x.edge_logits, x.need_edge_logits, x.attn_src)


@register_fake("gatv2_attention")
def _(*args, **kwargs):
    x = _GATv2(*args, **kwargs)
    return _results(x, x.feat_src)


@register_fake("gatv2_attention_backward")
def _(*args, **kwargs):
    x = _GATv2Backward(*args, **kwargs)
    return (
        *(_like(operand) for operand in (x.feat_src, x.feat_dst, x.attn)),
        _gradient(x.edge_bias, x.need_edge_bias, x.feat_src),
        _gradient(x.edge_key, x.need_edge_key, x.feat_src),
        _gradient(x.edge_feat, x.need_edge_feat, x.feat_src),
        _gradient(x.edge_weight, x.need_edge_weight, x.feat_src),
    )


@register_fake("dot_attention")
def _(*args, **kwargs):
    x = _Dot(*args, **kwargs)
    out, lse, residual = _results(x, x.key, x.need_edge_out and x.edge_value_weight is None)
    shape = (*out.shape[:2], x.edge_feat.shape[1]) if x.need_edge_out else (0,)
    return out, lse, residual, x.key.new_empty(shape, dtype=lse.dtype)


@register_fake("dot_attention_backward")
def _(*args, **kwargs):
    x = _DotBackward(*args, **kwargs)
    wide = wide_type(x.key.dtype)
    return (
        x.query.new_empty(x.query.shape, dtype=x.query.dtype if x.edge_query is None else wide),
        _like(x.key),
        _like(x.value),
        _gradient(x.edge_bias, x.need_edge_bias, x.key),
        _gradient(x.edge_key, x.need_edge_key, x.key),
        _gradient(x.edge_value, x.need_edge_value, x.key),
        _gradient(x.edge_feat, x.need_edge_feat, x.key),
        _grad_edge_query(x, wide),
    )


def _grad_edge_query(x: Any, wide: torch.dtype) -> Tensor:
    if x.edge_key_weight is not None:
        return x.query.new_empty((*x.query.shape[:2], x.edge_feat.shape[1]), dtype=wide)
    return x.key.new_empty((0,), dtype=wide) if x.edge_query is None else _like(x.edge_query)
