"""Dot-product attention of a transformer, over the edges of a graph."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from ..common.arguments import check_probability, checked_size, checked_widths
from ..graph import Graph
from ..graph_argument import GraphLike, as_graph
from . import attention
from .checks import check_edge_features, checked_features
from .features import cast_sides
from .projections import applied, padded, project, trimmed


class DotAttention:
    """The forward of TransformerConv, here and in halfgnn.pyg, on its own parameters."""

    lin_key: Any
    lin_query: Any
    lin_value: Any
    lin_skip: Any
    lin_edge: Any
    lin_beta: Any
    heads: int
    out_channels: int
    edge_dim: int | None
    concat: bool
    root_weight: bool
    dropout: float
    training: bool

    def _check_edges(self, g: Graph, edge_feat: Any, name: str) -> None:
        if (edge_feat is None) is not (self.lin_edge is None):
            expected = "no edge features" if self.lin_edge is None else f"edge features of {self.edge_dim} columns"
            raise ValueError(
                f"{name} is {'None' if edge_feat is None else 'given'}; expected {expected}, as edge_dim says"
            )
        if edge_feat is not None:
            check_edge_features(g, edge_feat, name, self.lin_edge)

    def _forward(
        self, g: Graph, h_src: Tensor, h_dst: Tensor, edge_feat: Tensor | None, get_attention: bool
    ) -> Tensor | tuple[Tensor, Tensor | None]:
        """The result of forward, from checked features as autocast casts them."""
        shape = (self.heads, self.out_channels, padded(self.out_channels, h_src))
        query = project(self.lin_query, h_dst, *shape)
        key, value = project(self.lin_key, h_src, *shape), project(self.lin_value, h_src, *shape)
        operands = (query, key, value, 1 / math.sqrt(self.out_channels), self.dropout if self.training else 0.0)
        terms = {} if edge_feat is None else self._edge_terms(edge_feat, *shape)
        out, weight = attention.dot(g, *operands, get_attention=get_attention, **terms)
        out = self._finish(trimmed(out, self.out_channels), h_dst)
        return (out, weight) if get_attention else out

    def _edge_terms(self, edge_feat: Tensor, *shape: int) -> dict[str, Tensor]:
        """What edges add to keys and values, as ops.dot_attention takes it: lin_edge is applied inside, if it is plain."""
        weight = attention.edge_weight(self.lin_edge, *shape)
        if weight is not None:
            return {"edge_feat": edge_feat, "edge_key_weight": weight, "edge_value_weight": weight}
        rows = project(self.lin_edge, edge_feat, *shape)
        return {"edge_key": rows, "edge_value": rows}

    def _finish(self, out: Tensor, h_dst: Tensor) -> Tensor:
        """Joins the heads, and adds the destination's own features."""
        out, is_new = (out.flatten(1), False) if self.concat else (out.mean(1), True)
        if not self.root_weight:
            return attention.safe_to_modify(out, is_new)
        root = applied(self.lin_skip, h_dst)
        if self.lin_beta is None:
            return out + root
        beta = applied(self.lin_beta, torch.cat([out, root, out - root], -1)).sigmoid()
        return beta * root + (1 - beta) * out


class TransformerConv(DotAttention, nn.Module):
    """Graph transformer layer (Shi et al., 2021), with the arguments and state dict of torch_geometric.nn.TransformerConv.

    Args:
        in_channels: width of the input; a pair for sources and destinations with features of their own.
        out_channels: width of the output per head.
        heads: number of heads.
        concat: concatenate the heads; otherwise average them.
        beta: let a gate mix the sum with the destination's own features (needs root_weight).
        dropout: of the attention weights.
        edge_dim: width of edge features, which are projected and added to keys and values, inside the attention.
        bias: of the projections.
        root_weight: add the destination's own features, projected.
    """

    def __init__(
        self,
        in_channels,
        out_channels,
        heads=1,
        concat=True,
        beta=False,
        dropout=0.0,
        edge_dim=None,
        bias=True,
        root_weight=True,
    ):
        super().__init__()
        src, dst = checked_widths(in_channels, "in_channels", (tuple, list))
        check_probability(dropout, "dropout")
        self.in_channels = in_channels
        self.out_channels = checked_size(out_channels, "out_channels", least=1)
        self.heads = checked_size(heads, "heads", least=1)
        self.beta = beta and root_weight
        self.root_weight = root_weight
        self.concat = concat
        self.dropout = dropout
        self.edge_dim = None if edge_dim is None else checked_size(edge_dim, "edge_dim")
        width = heads * out_channels
        self.lin_key = nn.Linear(src, width, bias=bias)
        self.lin_query = nn.Linear(dst, width, bias=bias)
        self.lin_value = nn.Linear(src, width, bias=bias)
        self.register_module("lin_edge", None if edge_dim is None else nn.Linear(edge_dim, width, bias=False))
        width = width if concat else out_channels
        self.lin_skip = nn.Linear(dst, width, bias=bias)
        self.register_module("lin_beta", nn.Linear(3 * width, 1, bias=False) if self.beta else None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """PyTorch's own for linear layers."""
        linears: Any = self.children()
        for linear in linears:
            linear.reset_parameters()

    def forward(self, graph: GraphLike, feat, edge_feat=None, get_attention=False):
        """Attention over the in-edges of every destination.

        Args:
            graph: Graph, DGLGraph or block.
            feat: (num_src, in_channels), or the pair of it and (num_dst, in_channels).
            edge_feat: (E, edge_dim), if edge_dim is given.
            get_attention: also return the weights. This costs memory for all edges.

        The result may be written into. If a gradient is recorded, it is a copy of what the backward keeps, unless heads are
        averaged or root_weight is set.

        Returns:
            (num_dst, heads * out_channels), or (num_dst, out_channels) unless concat; with get_attention the pair of it and
            (E, heads, 1), the weights before dropout. Destinations without in-edges have only what root_weight adds.

        Raises:
            ValueError: edge_feat is missing or not wanted; wrong shapes or devices. TypeError: wrong dtypes.
        """
        g = as_graph(graph, "graph")
        features = checked_features(g, feat, self.lin_key, self.lin_query, dim=2)
        self._check_edges(g, edge_feat, "edge_feat")
        x = cast_sides(graph, g, features)
        return self._forward(g, x.src, x.dst, edge_feat, get_attention)

    def extra_repr(self) -> str:
        return f"{self.in_channels}, {self.out_channels}, heads={self.heads}"
