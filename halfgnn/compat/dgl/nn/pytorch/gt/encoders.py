"""Encodings of degrees, distances, paths and eigenvectors for graph transformers."""

from __future__ import annotations

import math
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from halfgnn.common.arguments import check_name, checked_size


class DegreeEncoder(nn.Module):
    """Embeddings of degrees, from Graphormer (Ying et al., 2021).

    Args:
        max_degree: larger degrees count as this one.
        embedding_dim: width of the output.
        direction: "in", "out" or "both", the sum of two tables.
    """

    def __init__(self, max_degree, embedding_dim, direction="both"):
        super().__init__()
        check_name(direction, "direction", ("in", "out", "both"))
        self.direction, self.max_degree = direction, checked_size(max_degree, "max_degree")
        if direction == "both":
            self.encoder1 = nn.Embedding(max_degree + 1, embedding_dim, padding_idx=0)
            self.encoder2 = nn.Embedding(max_degree + 1, embedding_dim, padding_idx=0)
        else:
            self.encoder = nn.Embedding(max_degree + 1, embedding_dim, padding_idx=0)

    def forward(self, degrees: Tensor) -> Tensor:
        """degrees (B, N), for "both" the stacked in- and out-degrees (2, B, N): (B, N, embedding_dim)

        Raises:
            ValueError: another shape.
        """
        dims = 3 if self.direction == "both" else 2
        if degrees.dim() != dims or (dims == 3 and degrees.shape[0] != 2):
            expected = "(2, B, N)" if dims == 3 else "(B, N)"
            raise ValueError(f"degrees has shape {tuple(degrees.shape)}; expected {expected}")
        degrees = degrees.clamp(0, self.max_degree)
        if dims == 2:
            return self.encoder(degrees)
        return self.encoder1(degrees[0]) + self.encoder2(degrees[1])


class PathEncoder(nn.Module):
    """Encodings of the edges on shortest paths, from Graphormer (Ying et al., 2021).

    Args:
        max_len: number of edges of a path that count.
        feat_dim: width of the features of edges.
        num_heads: number of heads.
    """

    def __init__(self, max_len, feat_dim, num_heads=1):
        super().__init__()
        self.max_len, self.feat_dim, self.num_heads = max_len, feat_dim, num_heads
        self.embedding_table = nn.Embedding(max_len * num_heads, feat_dim)

    def forward(self, dist: Tensor, path_data: Tensor) -> Tensor:
        """dist (B, N, N), path_data (B, N, N, max_len, feat_dim): (B, N, N, num_heads)"""
        table = self.embedding_table.weight.view(self.max_len, self.num_heads, -1)
        lengths = dist.clamp(1, self.max_len).unsqueeze(-1)
        return torch.einsum("bxyld,lhd->bxyh", path_data, table) / lengths


class SpatialEncoder(nn.Module):
    """Embeddings of distances in hops, from Graphormer (Ying et al., 2021).

    Args:
        max_dist: larger distances count as this one; -1 stands for unconnected nodes.
        num_heads: number of heads.
    """

    def __init__(self, max_dist, num_heads=1):
        super().__init__()
        self.max_dist, self.num_heads = max_dist, num_heads
        self.embedding_table = nn.Embedding(max_dist + 2, num_heads, padding_idx=0)

    def forward(self, dist: Tensor) -> Tensor:
        """dist (B, N, N): (B, N, N, num_heads)"""
        return self.embedding_table(dist.clamp(-1, self.max_dist) + 1)


class SpatialEncoder3d(nn.Module):
    """Gaussians of Euclidean distances, from Graphormer in three dimensions (Shi et al., 2022).

    Args:
        num_kernels: number of Gaussians.
        num_heads: number of heads.
        max_node_type: number of node types, of which each pair shifts and scales distances.
    """

    def __init__(self, num_kernels, num_heads=1, max_node_type=100):
        super().__init__()
        self.num_kernels = num_kernels = checked_size(num_kernels, "num_kernels", least=1)
        self.num_heads = num_heads = checked_size(num_heads, "num_heads", least=1)
        self.max_node_type = max_node_type = checked_size(max_node_type, "max_node_type")
        self.means = nn.Parameter(torch.empty(num_kernels))
        self.stds = nn.Parameter(torch.empty(num_kernels))
        self.linear_layer_1 = nn.Linear(num_kernels, num_kernels)
        self.linear_layer_2 = nn.Linear(num_kernels, num_heads)
        self.gamma = nn.Embedding(2 * max_node_type + 3, 1, padding_idx=0)
        self.beta = nn.Embedding(2 * max_node_type + 3, 1, padding_idx=0)
        nn.init.uniform_(self.means, 0, 3)
        nn.init.uniform_(self.stds, 0, 3)
        nn.init.constant_(self.gamma.weight, 1)
        nn.init.constant_(self.beta.weight, 0)

    def forward(self, coord: Tensor, node_type: Tensor | None = None) -> Tensor:
        """coord (B, N, 3), node_type (B, N) or None: (B, N, N, num_heads)"""
        distance = torch.cdist(coord, coord).unsqueeze(-1)
        if node_type is None:
            pairs = torch.zeros(*distance.shape[:3], 2, dtype=torch.long, device=coord.device)
        else:
            first = (node_type + 2).unsqueeze(2).expand(distance.shape[:3])
            second = (node_type + self.max_node_type + 3).unsqueeze(1).expand(distance.shape[:3])
            pairs = torch.stack([first, second], -1)
        distance = self.gamma(pairs).sum(-2) * distance + self.beta(pairs).sum(-2)
        deviation = self.stds.abs() + 0.01
        root = math.sqrt(2 * 3.14159)  # pi with five digits, as checkpoints were trained with it
        bumps = torch.exp(-0.5 * ((distance - self.means) / deviation).square()) / (root * deviation)
        return self.linear_layer_2(F.gelu(self.linear_layer_1(bumps)))


class LapPosEncoder(nn.Module):
    """Encodings of eigenvectors of the Laplacian by a Transformer or a DeepSet (Kreuzer et al., 2021; Rampasek et al., 2022).

    Args:
        model_type: "Transformer" or "DeepSet".
        num_layer: number of its layers.
        k: number of eigenvectors.
        dim: width of the output.
        n_head: heads of the Transformer.
        batch_norm: normalise the input.
        num_post_layer: number of layers behind the sum over eigenvectors.
    """

    def __init__(self, model_type, num_layer, k, dim, n_head=1, batch_norm=False, num_post_layer=0):
        super().__init__()
        check_name(model_type, "model_type", ("Transformer", "DeepSet"))
        num_layer, dim = checked_size(num_layer, "num_layer", least=1), checked_size(dim, "dim", least=1)
        k, n_head = checked_size(k, "k", least=1), checked_size(n_head, "n_head", least=1)
        num_post_layer = checked_size(num_post_layer, "num_post_layer")
        self.model_type = model_type
        self.linear = nn.Linear(2, dim)
        self.pe_encoder: nn.Module
        if model_type == "Transformer":
            layer = nn.TransformerEncoderLayer(d_model=dim, nhead=n_head, batch_first=True)
            self.pe_encoder = nn.TransformerEncoder(layer, num_layers=num_layer)
        elif num_layer == 1:
            self.pe_encoder = nn.Sequential(nn.ReLU())
        else:
            self.linear = nn.Linear(2, 2 * dim)
            self.pe_encoder = nn.Sequential(nn.ReLU(), *_layers([2 * dim] * (num_layer - 1) + [dim]))
        self.raw_norm = nn.BatchNorm1d(k) if batch_norm else None
        self.post_mlp = None
        if num_post_layer > 0:
            self.post_mlp = nn.Sequential(*_layers([dim] + [2 * dim] * (num_post_layer - 1) + [dim]))

    def forward(self, eigvals: Tensor, eigvecs: Tensor) -> Tensor:
        """eigvals (N, k), eigvecs (N, k), both padded with nan: (N, dim)"""
        x = torch.stack([eigvecs, eigvals], 2).float()
        is_empty = x.isnan()
        x = x.masked_fill(is_empty, 0.0)
        if self.raw_norm is not None:
            x = self.raw_norm(x)
        x = self.linear(x)
        is_row_empty = is_empty[:, :, 1]
        options = {"src_key_padding_mask": is_row_empty} if self.model_type == "Transformer" else {}
        x = self.pe_encoder(x, **options)
        x = x.masked_fill(is_row_empty.unsqueeze(-1), 0.0).sum(1)
        return x if self.post_mlp is None else self.post_mlp(x)


def _layers(widths: list[int]) -> list[nn.Module]:
    """Linear layers from each width to the next, each with a ReLU behind."""
    return [layer for width, following in pairwise(widths) for layer in (nn.Linear(width, following), nn.ReLU())]
