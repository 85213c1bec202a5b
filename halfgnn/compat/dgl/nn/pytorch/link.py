"""Scores of edges."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from halfgnn.common.arguments import check_name

__all__ = ["EdgePredictor", "TransE", "TransR"]


class EdgePredictor(nn.Module):
    """A score of the features of both ends.

    Args:
        op: "dot", "cos" (the cosine), "ele" (the products, element by element) or "cat".
        in_feats, out_feats: widths of a linear layer behind it; without them there is none.
        bias: of that layer.
    """

    def __init__(self, op, in_feats=None, out_feats=None, bias=False):
        super().__init__()
        check_name(op, "op", ("dot", "cos", "ele", "cat"))
        self.op = op
        self.linear: nn.Linear | None = None
        if in_feats is not None and out_feats is not None:
            width = {"dot": 1, "cos": 1, "ele": in_feats, "cat": 2 * in_feats}[op]
            self.linear = nn.Linear(width, out_feats, bias=bias)

    def reset_parameters(self) -> None:
        """PyTorch's default for the linear layer."""
        if self.linear is not None:
            self.linear.reset_parameters()

    def forward(self, h_src: Tensor, h_dst: Tensor) -> Tensor:
        """h_src, h_dst (E, in_feats): (E, out_feats); without a layer (E, 1), (E, in_feats) or (E, 2 * in_feats)."""
        if self.op == "dot":
            h = torch.bmm(h_src.unsqueeze(1), h_dst.unsqueeze(2)).squeeze(-1)
        elif self.op == "cos":
            h = F.cosine_similarity(h_src, h_dst).unsqueeze(-1)
        elif self.op == "ele":
            h = h_src * h_dst
        else:
            h = torch.cat([h_src, h_dst], -1)
        return h if self.linear is None else self.linear(h)


class TransE(nn.Module):
    """Scores -|head + relation - tail| (Bordes et al., 2013).

    Args:
        num_rels: number of relations.
        feats: width of nodes and relations.
        p: of the norm.
    """

    def __init__(self, num_rels, feats, p=1):
        super().__init__()
        self.rel_emb = nn.Embedding(num_rels, feats)
        self.p = p

    def reset_parameters(self) -> None:
        """Standard normal."""
        self.rel_emb.reset_parameters()

    def forward(self, h_head: Tensor, h_tail: Tensor, rels: Tensor) -> Tensor:
        """h_head, h_tail (E, feats), rels (E,): (E,)"""
        return -torch.linalg.vector_norm(h_head + self.rel_emb(rels) - h_tail, ord=self.p, dim=-1)


class TransR(nn.Module):
    """TransE in a space of each relation (Lin et al., 2015).

    Args:
        num_rels: number of relations.
        rfeats, nfeats: widths of relations and nodes.
        p: of the norm.
    """

    def __init__(self, num_rels, rfeats, nfeats, p=1):
        super().__init__()
        self.rel_emb = nn.Embedding(num_rels, rfeats)
        self.rel_project = nn.Embedding(num_rels, nfeats * rfeats)
        self.rfeats, self.nfeats, self.p = rfeats, nfeats, p

    def reset_parameters(self) -> None:
        """Standard normal."""
        self.rel_emb.reset_parameters()
        self.rel_project.reset_parameters()

    def forward(self, h_head: Tensor, h_tail: Tensor, rels: Tensor) -> Tensor:
        """h_head, h_tail (E, nfeats), rels (E,): (E,)"""
        project = self.rel_project(rels).view(-1, self.nfeats, self.rfeats)
        moved = torch.bmm((h_head - h_tail).unsqueeze(1), project).squeeze(1)  # the projection is linear
        return -torch.linalg.vector_norm(moved + self.rel_emb(rels), ord=self.p, dim=-1)
