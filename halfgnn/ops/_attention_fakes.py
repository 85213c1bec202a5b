"""Fake kernels of the fused attentions: the shapes and dtypes of their results."""

from __future__ import annotations

import torch

from ..common.fake import register_fake


def _fake_results(indptr, feat, save, precise):
    """(out, lse, out_residual) of a forward."""
    num_dst = indptr.shape[0] - 1
    wide = torch.float64 if feat.dtype == torch.float64 else torch.float32
    keep = save and precise and feat.dtype.itemsize == 2
    shape = (num_dst, *feat.shape[1:])
    return (
        feat.new_empty(shape),
        feat.new_empty((num_dst, feat.shape[1]) if save else (0,), dtype=wide),
        feat.new_empty(shape if keep else (0,)),
    )


@register_fake("gat_attention")
def _(
    indptr, indices, edge_ids, feat, attn_src, attn_dst, edge_logits, negative_slope, dropout_p, seed, save, precise,
    short_rows=False,
):  # fmt: skip
    out, lse, residual = _fake_results(indptr, feat, save, precise)
    positive = torch.empty_like(out) if save else feat.new_empty((0,))
    return out, lse, residual, positive


@register_fake("gat_attention_backward")
def _(
    indptr, indices, edge_ids, feat, attn_src, attn_dst, edge_logits, negative_slope, dropout_p, seed, grad, out, lse,
    out_residual, positive, need_edge_logits, short_rows=False,
):  # fmt: skip
    grad_edge_logits = _like(edge_logits) if need_edge_logits else attn_src.new_empty((0,))
    return _like(feat), _like(attn_src), _like(attn_dst), grad_edge_logits


@register_fake("gatv2_attention")
def _(
    indptr, indices, edge_ids, feat_src, feat_dst, attn, negative_slope, dropout_p, seed, save, precise, short_rows=False
):  # fmt: skip
    return _fake_results(indptr, feat_src, save, precise)


@register_fake("gatv2_attention_backward")
def _(
    indptr, indices, edge_ids, out_indptr, out_indices, out_edge_ids, feat_src, feat_dst, attn, negative_slope, dropout_p,
    seed, grad, out, lse, out_residual, short_rows=False, out_short_rows=False,
):  # fmt: skip
    return _like(feat_src), _like(feat_dst), _like(attn)


@register_fake("dot_attention")
def _(indptr, indices, edge_ids, query, key, value, scale, dropout_p, seed, save, precise, short_rows=False):
    return _fake_results(indptr, key, save, precise)


@register_fake("dot_attention_backward")
def _(
    indptr, indices, edge_ids, out_indptr, out_indices, out_edge_ids, query, key, value, scale, dropout_p, seed, grad, out,
    lse, out_residual, short_rows=False, out_short_rows=False,
):  # fmt: skip
    return _like(query), _like(key), _like(value)


def _like(tensor):
    return torch.empty_like(tensor, memory_format=torch.contiguous_format)
