"""Set Transformer (Lee et al., 2019) on the nodes of each graph of a batch."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from halfgnn import ops
from halfgnn.common.arguments import check_probability, checked_size
from halfgnn.compat.dgl.base import dgl_warning
from halfgnn.graph import Graph

from .segments import sizes_of


class MultiHeadAttention(nn.Module):
    """Each row of a set attends to all rows of the memory's set of the same graph; a feed-forward network follows.

    Args:
        d_model: width of rows. num_heads, d_head: number and width of heads. d_ff: width of the network's hidden layer.
        dropouth, dropouta: dropout in the network, and of the attention weights.
    """

    def __init__(self, d_model, num_heads, d_head, d_ff, dropouth=0.0, dropouta=0.0):
        super().__init__()
        self.d_model, self.num_heads, self.d_head, self.d_ff = d_model, num_heads, d_head, d_ff
        self.proj_q = nn.Linear(d_model, num_heads * d_head, bias=False)
        self.proj_k = nn.Linear(d_model, num_heads * d_head, bias=False)
        self.proj_v = nn.Linear(d_model, num_heads * d_head, bias=False)
        self.proj_o = nn.Linear(num_heads * d_head, d_model, bias=False)
        self.ffn = nn.Sequential(
            nn.Linear(d_model, d_ff),
            nn.ReLU(),
            nn.Dropout(check_probability(dropouth, "dropouth")),
            nn.Linear(d_ff, d_model),
        )
        self.droph = nn.Dropout(check_probability(dropouth, "dropouth"))
        self.dropa = nn.Dropout(check_probability(dropouta, "dropouta"))
        self.norm_in = nn.LayerNorm(d_model)
        self.norm_inter = nn.LayerNorm(d_model)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Glorot uniform; PyTorch's defaults for biases."""
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.xavier_uniform_(parameter)

    def forward(self, x: Tensor, mem: Tensor, lengths_x: Tensor, lengths_mem: Tensor) -> Tensor:
        """x (rows, d_model) and mem (memory rows, d_model), whose sets have these lengths: like x."""
        heads = (self.num_heads, self.d_head)
        query, key, value = (
            layer(rows).unflatten(-1, heads)
            for layer, rows in ((self.proj_q, x), (self.proj_k, mem), (self.proj_v, mem))
        )
        p = self.dropa.p if self.dropa.training else 0.0
        out = ops.dot_attention(_all_pairs(lengths_mem, lengths_x), query, key, value, None, p)
        x = self.norm_in(x + self.proj_o(out.flatten(1)))
        return self.norm_inter(x + self.ffn(x))


class SetAttentionBlock(nn.Module):
    """Rows of a set attend to one another. Arguments: see :class:`MultiHeadAttention`."""

    def __init__(self, d_model, num_heads, d_head, d_ff, dropouth=0.0, dropouta=0.0):
        super().__init__()
        self.mha = MultiHeadAttention(d_model, num_heads, d_head, d_ff, dropouth, dropouta)

    def forward(self, feat: Tensor, lengths: Tensor) -> Tensor:
        """feat (rows, d_model): like feat."""
        return self.mha(feat, feat, lengths, lengths)


class InducedSetAttentionBlock(nn.Module):
    """Rows attend to m inducing points, which attend to the rows. Arguments: see :class:`MultiHeadAttention`."""

    def __init__(self, m, d_model, num_heads, d_head, d_ff, dropouth=0.0, dropouta=0.0):
        super().__init__()
        _warn_of_one(m, "m")
        self.m, self.d_model = m, d_model
        self.inducing_points = nn.Parameter(torch.empty(m, d_model))
        self.mha = nn.ModuleList(
            MultiHeadAttention(d_model, num_heads, d_head, d_ff, dropouth, dropouta) for _ in range(2)
        )
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Glorot uniform for the inducing points."""
        nn.init.xavier_uniform_(self.inducing_points)

    def forward(self, feat: Tensor, lengths: Tensor) -> Tensor:
        """feat (rows, d_model): like feat."""
        query = self.inducing_points.repeat(lengths.numel(), 1)
        counts = torch.full_like(lengths, self.m)
        return self.mha[1](feat, self.mha[0](query, feat, counts, lengths), lengths, counts)

    def extra_repr(self) -> str:
        return f"InducedVector: {tuple(self.inducing_points.shape)}"


class PMALayer(nn.Module):
    """k seed vectors attend to the rows of each set. Arguments: see :class:`MultiHeadAttention`."""

    def __init__(self, k, d_model, num_heads, d_head, d_ff, dropouth=0.0, dropouta=0.0):
        super().__init__()
        _warn_of_one(k, "k")
        self.k, self.d_model = k, d_model
        self.seed_vectors = nn.Parameter(torch.empty(k, d_model))
        self.mha = MultiHeadAttention(d_model, num_heads, d_head, d_ff, dropouth, dropouta)
        self.ffn = nn.Sequential(
            nn.Linear(d_model, d_ff),
            nn.ReLU(),
            nn.Dropout(check_probability(dropouth, "dropouth")),
            nn.Linear(d_ff, d_model),
        )
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Glorot uniform for the seed vectors."""
        nn.init.xavier_uniform_(self.seed_vectors)

    def forward(self, feat: Tensor, lengths: Tensor) -> Tensor:
        """feat (rows, d_model): (graphs * k, d_model)"""
        query = self.seed_vectors.repeat(lengths.numel(), 1)
        return self.mha(query, self.ffn(feat), torch.full_like(lengths, self.k), lengths)

    def extra_repr(self) -> str:
        return f"SeedVector: {tuple(self.seed_vectors.shape)}"


class SetTransformerEncoder(nn.Module):
    """Attention blocks on the nodes of each graph.

    Args:
        d_model, n_heads, d_head, d_ff, dropouth, dropouta: see :class:`MultiHeadAttention`.
        n_layers: number of blocks.
        block_type: "sab", all pairs of nodes, or "isab", by m inducing points.
        m: number of inducing points.
    """

    def __init__(
        self, d_model, n_heads, d_head, d_ff, n_layers=1, block_type="sab", m=None, dropouth=0.0, dropouta=0.0
    ):
        super().__init__()
        if block_type not in ("sab", "isab"):
            raise KeyError(f"block_type is {block_type!r}; expected 'sab' or 'isab'")
        if block_type == "isab" and m is None:
            raise KeyError("m is None; expected the number of inducing points of block_type 'isab'")
        self.n_layers, self.block_type, self.m = checked_size(n_layers, "n_layers"), block_type, m
        sizes = (d_model, n_heads, d_head, d_ff, dropouth, dropouta)
        self.layers = nn.ModuleList(
            SetAttentionBlock(*sizes) if block_type == "sab" else InducedSetAttentionBlock(m, *sizes)
            for _ in range(n_layers)
        )

    def forward(self, graph: Any, feat: Tensor) -> Tensor:
        """feat (N, d_model): like feat."""
        lengths = sizes_of(graph, feat)
        for layer in self.layers:
            feat = layer(feat, lengths)
        return feat


class SetTransformerDecoder(nn.Module):
    """k rows for each graph, made by attention to its nodes.

    Args:
        d_model, num_heads, d_head, d_ff, dropouth, dropouta: see :class:`MultiHeadAttention`.
        n_layers: number of attention blocks on the k rows.
        k: number of rows.
    """

    def __init__(self, d_model, num_heads, d_head, d_ff, n_layers, k, dropouth=0.0, dropouta=0.0):
        super().__init__()
        self.n_layers, self.k, self.d_model = checked_size(n_layers, "n_layers"), checked_size(k, "k"), d_model
        sizes = (d_model, num_heads, d_head, d_ff, dropouth, dropouta)
        self.pma = PMALayer(k, *sizes)
        self.layers = nn.ModuleList(SetAttentionBlock(*sizes) for _ in range(n_layers))

    def forward(self, graph: Any, feat: Tensor) -> Tensor:
        """feat (N, d_model): (graphs, k * d_model)"""
        lengths = sizes_of(graph, feat)
        feat = self.pma(feat, lengths)
        for layer in self.layers:
            feat = layer(feat, torch.full_like(lengths, self.k))
        return feat.view(lengths.numel(), self.k * self.d_model)


def _warn_of_one(count: int, name: str) -> None:
    if count == 1:
        dgl_warning(
            f"{name} is 1: the parameters of queries and keys get no gradient, because a softmax of one is constant"
        )


def _all_pairs(src_sizes: Tensor, dst_sizes: Tensor) -> Graph:
    """An edge from every source to every destination of the same set. The rows of a set follow one another."""
    num_dst = int(dst_sizes.sum())
    degrees = src_sizes.repeat_interleave(dst_sizes)
    indptr = F.pad(degrees.cumsum(0), (1, 0))
    first = (src_sizes.cumsum(0) - src_sizes).repeat_interleave(dst_sizes)
    num_edges = int(indptr[-1])
    begins = (first - indptr[:-1]).repeat_interleave(degrees, output_size=num_edges)
    sources = torch.arange(num_edges, device=indptr.device) + begins
    return Graph(int(src_sizes.sum()), num_dst, (indptr, sources, None))
