"""What the attention modules share, here and in halfgnn.pyg and halfgnn.dgl: fused attention, and unfused where weights are wanted.

Shapes: features (N, *, H, D), logits (N, *, H), with any number of dimensions between nodes and heads; weights (E, *, H, 1).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .. import ops
from ..common.precision import autocast, without_autocast
from ..graph import Graph
from ..ops.attention import dot_weights, gat_weights, gatv2_weights
from ._features import shown, unrounded
from ._hooks import is_hooked


class Attention(nn.Module):
    """Base of the modules with DGL's constructor: what all of them have."""

    _in_src_feats: int
    _in_dst_feats: int
    _out_feats: int
    _num_heads: int
    _allow_zero_in_degree: bool

    def set_allow_zero_in_degree(self, set_value: bool) -> None:
        """Whether nodes without in-edges are accepted."""
        self._allow_zero_in_degree = set_value

    def extra_repr(self) -> str:
        in_feats = shown(self._in_src_feats, self._in_dst_feats)
        return f"{in_feats}, out_feats={self._out_feats}, num_heads={self._num_heads}"


def dropout_p(drop: Any) -> float:
    """The probability that nn.Dropout applies now."""
    return drop.p if drop.training else 0.0


# ---- submodules --------------------------------------------------------------------------------------------------------------


def why_unfused(conv: Any) -> str | None:
    """Why a fused attention cannot stand for conv.leaky_relu and conv.attn_drop, which it does not call; None if it can.

    A hook on every module of the process is no reason: it does not see the two.
    """
    drop, activation = conv.attn_drop, conv.leaky_relu
    if type(drop) is not nn.Dropout or type(activation) is not nn.LeakyReLU:
        return "exchanged submodule"
    return "hooked submodule" if is_hooked(drop) or is_hooked(activation) else None


def called(layer: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """layer(x), fp32 for fp32 x: in the dtype of the layer's parameters, if it has any."""
    parameter = next(layer.parameters(), None) if isinstance(layer, nn.Module) else None
    if parameter is not None and parameter.is_floating_point():
        return layer(x.to(parameter.dtype)).to(x.dtype)
    return layer(x).to(x.dtype)


def leaky_relu(slope: float) -> Callable[[Tensor], Tensor]:
    return partial(F.leaky_relu, negative_slope=slope)


def dropout(p: float) -> Callable[[Tensor], Tensor]:
    return partial(F.dropout, p=p, training=p > 0)


# ---- results -----------------------------------------------------------------------------------------------------------------


def handed_out(rst: Tensor, is_new: bool = False) -> Tensor:
    """The result rst of a module, contiguous and the caller's to write into, as an in-place activation does.

    The fused attentions keep their result for the backward. So it is copied where a gradient is recorded, unless rst is new: what
    came after the attention (residual, bias, mean of heads) has made another tensor of it.
    """
    if is_new or not (torch.is_grad_enabled() and rst.requires_grad):
        return rst.contiguous()
    return rst.clone(memory_format=torch.contiguous_format)


# ---- attention ---------------------------------------------------------------------------------------------------------------


def gat(g: Graph, feat: Tensor, attn_src: Tensor, attn_dst: Tensor, edge_logits: Tensor | None, slope: float, p: float):
    """Fused GAT. Result: features of destinations."""
    out = ops.gat_attention(g, _merged(feat), attn_src.flatten(1), attn_dst.flatten(1), edge_logits, slope, p)
    return out.view(out.shape[0], *feat.shape[1:])


def gat_unfused(
    g: Graph,
    feat: Tensor,
    attn_src: Tensor,
    attn_dst: Tensor,
    edge_logits: Tensor | None,
    activation: Callable[[Tensor], Tensor],
    drop: Callable[[Tensor], Tensor],
    edge_weight: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """GAT operator by operator. Result: features of destinations, and weights after dropout times edge_weight (E,).

    activation, drop: called on logits and weights (E, *, H, 1).
    """
    feat = autocast(feat)
    weight = called(drop, gat_weights(g, attn_src, attn_dst, edge_logits, partial(called, activation)))
    if edge_weight is not None:
        weight = weight * edge_weight.view(-1, *[1] * (weight.dim() - 1))
    return _weighted_sum(g, feat, weight), weight.to(feat.dtype)


def gatv2(g: Graph, feat_src: Tensor, feat_dst: Tensor, attn: Tensor, slope: float, p: float) -> Tensor:
    """Fused GATv2, attn (1, H, D)."""
    return ops.gatv2_attention(g, feat_src, feat_dst, attn.squeeze(0), slope, p)


def gatv2_unfused(
    g: Graph,
    feat_src: Tensor,
    feat_dst: Tensor,
    attn: Tensor,
    activation: Callable[[Tensor], Tensor],
    drop: Callable[[Tensor], Tensor],
    edge_feat: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """GATv2 operator by operator; edge_feat (E, H, D) is added to the features of both ends. Weights are those after dropout.

    activation, drop: called on hidden features (E, H, D) and weights (E, H, 1).
    """
    feat_src, feat_dst, attn = autocast(feat_src), autocast(feat_dst), autocast(attn)
    weight = gatv2_weights(g, feat_src, feat_dst, attn, partial(called, activation), edge_feat)
    weight = called(drop, weight)
    return _weighted_sum(g, feat_src, weight), weight.to(feat_src.dtype)


def dot(g: Graph, query: Tensor, key: Tensor, value: Tensor, scale: float, p: float = 0.0) -> Tensor:
    """Fused dot-product attention."""
    return ops.dot_attention(g, query, key, value, scale, p)


def dot_unfused(
    g: Graph, query: Tensor, key: Tensor, value: Tensor, scale: float, p: float = 0.0, edge_feat: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Dot-product attention operator by operator, and weights before dropout; edge_feat (E, H, D) is added to key and value."""
    query, key, value, edge_feat = autocast(query), autocast(key), autocast(value), autocast(edge_feat)
    weight = dot_weights(g, query, key, scale, edge_feat)
    dropped = F.dropout(weight, p, p > 0)
    if edge_feat is None:
        return _weighted_sum(g, value, dropped), weight.to(value.dtype)
    with without_autocast(value.device):
        out = ops.u_mul_e_sum(g, value, dropped, out_dtype=unrounded(value))
        out = out + ops.copy_e_sum(g, edge_feat * dropped)
    return out.to(value.dtype), weight.to(value.dtype)


def _weighted_sum(g: Graph, feat: Tensor, weight: Tensor) -> Tensor:
    """feat (num_src, *, D) summed with weights (E, *, 1), fp32 beside half features."""
    with without_autocast(feat.device):
        return ops.u_mul_e_sum(g, feat, weight)


def _merged(feat: Tensor) -> Tensor:
    """(N, *, H, D) as (N, *H, D)."""
    return feat if feat.dim() == 3 else feat.flatten(1, -2)
