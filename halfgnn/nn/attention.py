"""What the attention modules share, here and in halfgnn.pyg and halfgnn.dgl.

Attention is fused, or made operator by operator if its weights are wanted or its submodules are not the usual ones.

Shapes: features (N, *, H, D) and logits (N, *, H), with any number of dimensions between nodes and heads; weights (E, *, H, 1).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .. import ops
from ..common.arguments import check_number, check_probability, checked_size, checked_widths
from ..common.layers import is_hooked, is_plain
from ..common.precision import autocast, without_autocast
from ..graph import Graph
from ..ops.attention import gat_weights, gatv2_weights
from .features import shown
from .projections import applied, padded_weight


class Attention(nn.Module):
    """Base of the modules with DGL's constructor."""

    res_fc: Any
    zero_in_degree_error: type[Exception] = ValueError  # what nodes without in-edges raise

    def __init__(self, in_feats: Any, out_feats: int, num_heads: int, allow_zero_in_degree: bool):
        super().__init__()
        self._in_src_feats, self._in_dst_feats = checked_widths(in_feats, "in_feats")
        self._out_feats = checked_size(out_feats, "out_feats", least=1)
        self._num_heads = checked_size(num_heads, "num_heads", least=1)
        self._allow_zero_in_degree = allow_zero_in_degree

    def _add_projections(self, in_feats: Any) -> None:
        """fc_src and fc_dst if in_feats is a pair, otherwise fc for both sides."""
        width = self._out_feats * self._num_heads
        if isinstance(in_feats, tuple):
            self.fc_src = nn.Linear(self._in_src_feats, width, bias=False)
            self.fc_dst = nn.Linear(self._in_dst_feats, width, bias=False)
        else:
            self.fc = nn.Linear(self._in_src_feats, width, bias=False)

    def _add_submodules(self, feat_drop: float, attn_drop: float, negative_slope: float) -> None:
        check_probability(feat_drop, "feat_drop")
        check_probability(attn_drop, "attn_drop")
        check_number(negative_slope, "negative_slope")
        self.feat_drop = nn.Dropout(feat_drop)
        self.attn_drop = nn.Dropout(attn_drop)
        self.leaky_relu = nn.LeakyReLU(negative_slope)

    def _add_residual(self, residual: bool, bias: bool) -> None:
        """res_fc: a projection of the destinations, Identity if their width is already that of the result, or None."""
        width = self._out_feats * self._num_heads
        if residual and self._in_dst_feats != width:
            self.res_fc = nn.Linear(self._in_dst_feats, width, bias=bias)
        elif residual:
            self.res_fc = nn.Identity()
        else:
            self.register_buffer("res_fc", None)

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
    """Why a fused attention cannot replace conv.leaky_relu and conv.attn_drop, which it does not call; None if it can.

    A hook on all modules of the process is no reason, and does not see the two.
    """
    drop, activation = conv.attn_drop, conv.leaky_relu
    if type(drop) is not nn.Dropout or type(activation) is not nn.LeakyReLU:
        return "exchanged submodule"
    return "hooked submodule" if is_hooked(drop) or is_hooked(activation) else None


def called(layer: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """layer(x) in the dtype of x. The layer computes in the dtype of its parameters, if it has any."""
    parameter = next(layer.parameters(), None) if isinstance(layer, nn.Module) else None
    if parameter is not None and parameter.is_floating_point():
        return layer(x.to(parameter.dtype)).to(x.dtype)
    return layer(x).to(x.dtype)


def leaky_relu(slope: float) -> Callable[[Tensor], Tensor]:
    return partial(F.leaky_relu, negative_slope=slope)


def dropout(p: float) -> Callable[[Tensor], Tensor]:
    return partial(F.dropout, p=p, training=p > 0)


# ---- results -----------------------------------------------------------------------------------------------------------------


def finished(conv: Any, rst: Tensor, h_dst: Tensor, is_new: bool, bias: Tensor | None = None) -> Tensor:
    """The result of a module: rst (N, *, H, D) with residual, bias and activation. is_new: rst is kept for no backward."""
    if conv.res_fc is not None:
        rst, is_new = rst + applied(conv.res_fc, h_dst).unflatten(-1, (-1, conv._out_feats)), True
    if bias is not None:
        rst, is_new = rst + bias.view(conv._num_heads, conv._out_feats), True
    rst = safe_to_modify(rst, is_new)
    return conv.activation(rst) if conv.activation else rst


def safe_to_modify(rst: Tensor, is_new: bool = False) -> Tensor:
    """rst, contiguous and the caller's to write into, as an in-place activation does.

    The fused attentions save their result for the backward. So rst is copied if a gradient is recorded, unless it is new: what came
    after the attention (residual, bias, mean of heads) has made another tensor of it.
    """
    if is_new or not (torch.is_grad_enabled() and rst.requires_grad):
        return rst.contiguous()
    return rst.clone(memory_format=torch.contiguous_format)


# ---- attention ---------------------------------------------------------------------------------------------------------------


def gat(g: Graph, feat: Tensor, attn_src: Tensor, attn_dst: Tensor, slope: float, p: float) -> Tensor:
    """Fused GAT of features with any number of dimensions: the features of the destinations."""
    merged = feat if feat.dim() == 3 else feat.flatten(1, -2)
    out = ops.gat_attention(g, merged, attn_src.flatten(1), attn_dst.flatten(1), None, slope, p)
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
    """GAT operator by operator: the features of the destinations, and the weights after dropout times edge_weight (E,).

    activation, drop: called on logits and weights (E, *, H, 1).
    """
    feat = autocast(feat)
    weight = called(drop, gat_weights(g, attn_src, attn_dst, edge_logits, partial(called, activation)))
    if edge_weight is not None:
        weight = weight * edge_weight.view(-1, *[1] * (weight.dim() - 1))
    return _weighted_sum(g, feat, weight), weight.to(feat.dtype)


def gatv2_unfused(
    g: Graph,
    feat_src: Tensor,
    feat_dst: Tensor,
    attn: Tensor,
    activation: Callable[[Tensor], Tensor],
    drop: Callable[[Tensor], Tensor],
    edge_feat: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """GATv2 operator by operator: the features of the destinations, and the weights after dropout.

    activation, drop: called on hidden features (E, H, D) and weights (E, H, 1). edge_feat (E, H, D): added to the features of both
    ends.
    """
    feat_src, feat_dst, attn = autocast(feat_src), autocast(feat_dst), autocast(attn)
    weight = called(drop, gatv2_weights(g, feat_src, feat_dst, attn, partial(called, activation), edge_feat))
    return _weighted_sum(g, feat_src, weight), weight.to(feat_src.dtype)


def dot(g: Graph, *operands: Any, get_attention: bool, **terms: Any) -> tuple[Tensor, Tensor | None]:
    """Fused dot-product attention: the features of the destinations and, if they are wanted, the weights before dropout (E, H, 1).

    operands, terms: those of ops.dot_attention.
    """
    if not get_attention:
        return ops.dot_attention(g, *operands, **terms), None
    out, weight = ops.dot_attention(g, *operands, **terms, return_weights=True)
    return out, weight.unsqueeze(-1)


def edge_weight(layer: Any, heads: int, dim: int, width: int) -> Tensor | None:
    """The weight (heads * width, in) with which a fused attention projects edge features; None if the layer must be called."""
    return padded_weight(layer, heads, dim, width) if is_plain(layer) and layer.bias is None else None


def _weighted_sum(g: Graph, feat: Tensor, weight: Tensor) -> Tensor:
    """The sum of feat (num_src, *, D) with weights (E, *, 1), which may be fp32 beside half features."""
    with without_autocast(feat.device):
        return ops.u_mul_e_sum(g, feat, weight)
