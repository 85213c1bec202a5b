"""Attention-based graph neural network."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from halfgnn import ops
from halfgnn.common.arguments import check_number
from halfgnn.common.precision import autocast, without_autocast
from halfgnn.compat.dgl.base import DGLError
from halfgnn.graph_argument import GraphLike
from halfgnn.nn.attention import safe_to_modify
from halfgnn.nn.checks import checked_features
from halfgnn.nn.features import both_sides, checked_graph
from halfgnn.nn.projections import widened


class AGNNConv(nn.Module):
    """Attention by cosine similarity (Thekumparampil et al., 2018), on one fused :func:`halfgnn.ops.dot_attention`.

    Args:
        init_beta: beta, which multiplies the cosines.
        learn_beta: make beta a parameter.
        allow_zero_in_degree: accept nodes without in-edges. They get zero.
    """

    def __init__(self, init_beta=1.0, learn_beta=True, allow_zero_in_degree=False):
        super().__init__()
        self._allow_zero_in_degree = allow_zero_in_degree
        beta = torch.tensor([check_number(init_beta, "init_beta")])
        if learn_beta:
            self.beta = nn.Parameter(beta)
        else:
            self.register_buffer("beta", beta)

    def set_allow_zero_in_degree(self, set_value: bool) -> None:
        """Whether nodes without in-edges are accepted."""
        self._allow_zero_in_degree = set_value

    def forward(self, graph: GraphLike, feat: Any) -> Tensor:
        """Sums of the features of sources, weighted by the softmax of beta cos(feat[u], feat[v]).

        Args:
            feat: (num_src, *), or the pair of it and (num_dst, *).

        Returns:
            (num_dst, *)

        Raises:
            DGLError: the graph has nodes without in-edges. ValueError, TypeError: wrong shapes, devices or dtypes.
        """
        g = checked_graph(graph, self._allow_zero_in_degree, DGLError)
        features = checked_features(g, feat)
        h_src, h_dst = (autocast(h) for h in both_sides(graph, g, features))
        with without_autocast(h_src.device):
            query = (self.beta * F.normalize(widened(h_dst), dim=-1)).to(h_src.dtype)
            key = F.normalize(widened(h_src), dim=-1).to(h_src.dtype)
            # The dimensions between nodes and features are heads.
            query, key, value = (h.view(h.shape[0], -1, h.shape[-1]) for h in (query, key, h_src))
            out = ops.dot_attention(g, query, key, value, 1.0)
        return safe_to_modify(out.view(g.num_dst, *h_src.shape[1:]))
