"""What the attention modules share, here and in halfgnn.pyg and halfgnn.dgl: fused attention, and unfused where weights are wanted.

Shapes: features (N, *, H, D), logits (N, *, H), with any number of dimensions between nodes and heads; weights (E, *, H, 1).
"""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from .. import ops
from ..graph import Graph
from ._common import shown


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
    slope: float,
    p: float,
    edge_weight: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """GAT operator by operator. Result: features of destinations, and weights after dropout times edge_weight (E,)."""
    logits = ops.u_add_v(g, attn_src, attn_dst)
    logits = logits if edge_logits is None else logits + edge_logits
    weight = F.dropout(ops.edge_softmax(g, F.leaky_relu(logits, slope)), p, p > 0).unsqueeze(-1).to(feat.dtype)
    if edge_weight is not None:
        weight = weight * edge_weight.view(-1, *[1] * (weight.dim() - 1))
    return ops.u_mul_e_sum(g, feat, weight), weight


def gatv2(g: Graph, feat_src: Tensor, feat_dst: Tensor, attn: Tensor, slope: float, p: float) -> Tensor:
    """Fused GATv2, attn (1, H, D)."""
    return ops.gatv2_attention(g, feat_src, feat_dst, attn.squeeze(0), slope, p)


def gatv2_unfused(
    g: Graph, feat_src: Tensor, feat_dst: Tensor, attn: Tensor, slope: float, p: float, edge_feat: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """GATv2 operator by operator; edge_feat (E, H, D) is added to the features of both ends."""
    hidden = ops.u_add_v(g, feat_src, feat_dst)
    hidden = hidden if edge_feat is None else hidden + edge_feat
    logits = (F.leaky_relu(hidden, slope) * attn).sum(-1, keepdim=True)
    weight = F.dropout(ops.edge_softmax(g, logits), p, p > 0)
    return ops.u_mul_e_sum(g, feat_src, weight), weight


def dot(g: Graph, query: Tensor, key: Tensor, value: Tensor, scale: float, p: float = 0.0) -> Tensor:
    """Fused dot-product attention."""
    return ops.dot_attention(g, query, key, value, scale, p)


def dot_unfused(
    g: Graph, query: Tensor, key: Tensor, value: Tensor, scale: float, p: float = 0.0, edge_feat: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Dot-product attention operator by operator, and weights before dropout; edge_feat (E, H, D) is added to key and value."""
    logits = ops.u_dot_v(g, key, query)
    if edge_feat is not None:
        logits = logits + ops.e_dot_v(g, edge_feat, query)
    weight = ops.edge_softmax(g, logits * scale)
    dropped = F.dropout(weight, p, p > 0)
    out = ops.u_mul_e_sum(g, value, dropped)
    return out if edge_feat is None else out + ops.copy_e_sum(g, edge_feat * dropped), weight


def _merged(feat: Tensor) -> Tensor:
    """(N, *, H, D) as (N, *H, D)."""
    return feat if feat.dim() == 3 else feat.flatten(1, -2)
