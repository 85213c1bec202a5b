"""Layers of graph transformers on dense batches of graphs, padded to N nodes."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from halfgnn.common.arguments import check_name, check_probability, checked_size


def _checked_head_size(feat_size: Any, num_heads: Any) -> int:
    checked_size(feat_size, "feat_size")
    checked_size(num_heads, "num_heads", least=1)
    if feat_size % num_heads:
        raise ValueError(f"feat_size is {feat_size}; expected a multiple of num_heads, {num_heads}")
    return feat_size // num_heads


class BiasedMHA(nn.Module):
    """Multi-head attention whose logits are biased, as in Graphormer (Ying et al., 2021).

    Args:
        feat_size: width of input and output.
        num_heads: number of heads, which divides feat_size.
        bias: of the projections.
        attn_bias_type: "add" or "mul", how a bias meets the logits.
        attn_drop: dropout of the attention weights.
    """

    def __init__(self, feat_size, num_heads, bias=True, attn_bias_type="add", attn_drop=0.1):
        super().__init__()
        self.head_dim = _checked_head_size(feat_size, num_heads)
        check_name(attn_bias_type, "attn_bias_type", ("add", "mul"))
        self.feat_size, self.num_heads = feat_size, num_heads
        self.scaling = self.head_dim**-0.5
        self.attn_bias_type = attn_bias_type
        self.q_proj = nn.Linear(feat_size, feat_size, bias=bias)
        self.k_proj = nn.Linear(feat_size, feat_size, bias=bias)
        self.v_proj = nn.Linear(feat_size, feat_size, bias=bias)
        self.out_proj = nn.Linear(feat_size, feat_size, bias=bias)
        self.dropout = nn.Dropout(check_probability(attn_drop, "attn_drop"))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Glorot uniform, with gain 1 / sqrt(2) for queries, keys and values; the last bias zero."""
        for layer in (self.q_proj, self.k_proj, self.v_proj):
            nn.init.xavier_uniform_(layer.weight, gain=2**-0.5)
        nn.init.xavier_uniform_(self.out_proj.weight)
        if self.out_proj.bias is not None:
            nn.init.zeros_(self.out_proj.bias)

    def forward(self, ndata: Tensor, attn_bias: Tensor | None = None, attn_mask: Tensor | None = None) -> Tensor:
        """ndata (B, N, feat_size), attn_bias (B, N, N, num_heads), attn_mask (B, N, N), true where to look away: like ndata."""
        query, key, value = (
            layer(ndata).unflatten(-1, (self.num_heads, self.head_dim)).transpose(1, 2)
            for layer in (self.q_proj, self.k_proj, self.v_proj)
        )
        bias = None if attn_bias is None else attn_bias.permute(0, 3, 1, 2).to(query.dtype)
        hidden = None if attn_mask is None else attn_mask.to(torch.bool).unsqueeze(1)
        if bias is not None and self.attn_bias_type == "mul":
            logits = (query * self.scaling) @ key.transpose(-1, -2) * bias
            logits = logits if hidden is None else logits.masked_fill(hidden, float("-inf"))
            out = self.dropout(torch.softmax(logits, -1)) @ value
        else:
            if hidden is not None:
                bias = torch.zeros_like(hidden, dtype=query.dtype) if bias is None else bias
                bias = bias.masked_fill(hidden, float("-inf"))
            p = self.dropout.p if self.dropout.training else 0.0
            out = F.scaled_dot_product_attention(query, key, value, bias, p)
        return self.out_proj(out.transpose(1, 2).flatten(2))


class GraphormerLayer(nn.Module):
    """Transformer layer of Graphormer (Ying et al., 2021).

    Args:
        feat_size, hidden_size: widths of the input and of the network's hidden layer.
        num_heads, attn_bias_type, attn_dropout: see :class:`BiasedMHA`.
        norm_first: normalise before attention and network, not after them.
        dropout: behind attention and layers.
        activation: module of the network.
    """

    def __init__(
        self,
        feat_size,
        hidden_size,
        num_heads,
        attn_bias_type="add",
        norm_first=False,
        dropout=0.1,
        attn_dropout=0.1,
        activation=None,
    ):
        super().__init__()
        self.norm_first = norm_first
        self.attn = BiasedMHA(feat_size, num_heads, attn_bias_type=attn_bias_type, attn_drop=attn_dropout)
        self.ffn = nn.Sequential(
            nn.Linear(feat_size, hidden_size),
            nn.ReLU() if activation is None else activation,
            nn.Dropout(check_probability(dropout, "dropout")),
            nn.Linear(hidden_size, feat_size),
            nn.Dropout(check_probability(dropout, "dropout")),
        )
        self.dropout = nn.Dropout(check_probability(dropout, "dropout"))
        self.attn_layer_norm = nn.LayerNorm(feat_size)
        self.ffn_layer_norm = nn.LayerNorm(feat_size)

    def forward(self, nfeat: Tensor, attn_bias: Tensor | None = None, attn_mask: Tensor | None = None) -> Tensor:
        """Like nfeat (B, N, feat_size). For the others see :class:`BiasedMHA`."""
        if self.norm_first:
            nfeat = nfeat + self.dropout(self.attn(self.attn_layer_norm(nfeat), attn_bias, attn_mask))
            return nfeat + self.ffn(self.ffn_layer_norm(nfeat))
        nfeat = self.attn_layer_norm(nfeat + self.dropout(self.attn(nfeat, attn_bias, attn_mask)))
        return self.ffn_layer_norm(nfeat + self.ffn(nfeat))


class EGTLayer(nn.Module):
    """Layer of the edge-augmented graph transformer (Hussain et al., 2022): attention with gates and features of edges.

    Args:
        feat_size, edge_feat_size: widths of nodes and edges.
        num_heads: number of heads, which divides feat_size.
        num_virtual_nodes: number of first nodes that are not scaled by degrees.
        dropout, attn_dropout: behind layers, and of the attention weights.
        activation: module of the networks.
        edge_update: also return features of edges.
    """

    def __init__(
        self,
        feat_size,
        edge_feat_size,
        num_heads,
        num_virtual_nodes,
        dropout=0,
        attn_dropout=0,
        activation=None,
        edge_update=True,
    ):
        super().__init__()
        self.dot_dim = _checked_head_size(feat_size, num_heads)
        activation = nn.ELU() if activation is None else activation
        self.num_heads, self.num_virtual_nodes, self.edge_update = num_heads, num_virtual_nodes, edge_update
        self.mha_ln_h = nn.LayerNorm(feat_size)
        self.mha_ln_e = nn.LayerNorm(edge_feat_size)
        self.edge_input = nn.Linear(edge_feat_size, num_heads)
        self.qkv_proj = nn.Linear(feat_size, feat_size * 3)
        self.gate = nn.Linear(edge_feat_size, num_heads)
        self.attn_dropout = nn.Dropout(check_probability(attn_dropout, "attn_dropout"))
        self.node_output = nn.Linear(feat_size, feat_size)
        self.mha_dropout_h = nn.Dropout(check_probability(dropout, "dropout"))
        self.node_ffn = _network(feat_size, activation, dropout)
        if edge_update:
            self.edge_output = nn.Linear(num_heads, edge_feat_size)
            self.mha_dropout_e = nn.Dropout(check_probability(dropout, "dropout"))
            self.edge_ffn = _network(edge_feat_size, activation, dropout)

    def forward(self, nfeat: Tensor, efeat: Tensor, mask: Tensor | None = None) -> Any:
        """nfeat (B, N, feat_size), efeat (B, N, N, edge_feat_size), mask (B, N, N), 0 or -inf: like nfeat, or like both."""
        edges = self.mha_ln_e(efeat)
        qkv = self.qkv_proj(self.mha_ln_h(nfeat)).unflatten(-1, (3 * self.dot_dim, self.num_heads))
        query, key, value = qkv.split(self.dot_dim, 2)
        logits = torch.einsum("bldh,bmdh->blmh", query, key).clamp(-5, 5) + self.edge_input(edges)
        shift = 0 if mask is None else mask.unsqueeze(-1)
        gates = torch.sigmoid(self.gate(edges) + shift)
        weights = self.attn_dropout(torch.softmax(logits + shift, 2) * gates)
        rows = torch.einsum("blmh,bmkh->blkh", weights, value)
        scale = torch.log(1 + gates.sum(2, keepdim=True))
        is_virtual = torch.arange(scale.shape[1], device=scale.device).view(-1, 1, 1) < self.num_virtual_nodes
        rows = (rows * torch.where(is_virtual, 1.0, scale)).flatten(2)
        nfeat = nfeat + self.mha_dropout_h(self.node_output(rows))
        nfeat = nfeat + self.node_ffn(nfeat)
        if not self.edge_update:
            return nfeat
        efeat = efeat + self.mha_dropout_e(self.edge_output(logits))
        return nfeat, efeat + self.edge_ffn(efeat)


def _network(width: int, activation: nn.Module, dropout: float) -> nn.Sequential:
    return nn.Sequential(
        nn.LayerNorm(width),
        nn.Linear(width, width),
        activation,
        nn.Linear(width, width),
        nn.Dropout(check_probability(dropout, "dropout")),
    )
