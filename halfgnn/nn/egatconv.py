"""Graph attention that makes new features of edges."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .. import ops
from ..common.arguments import checked_size, checked_widths
from ..common.precision import autocast, without_autocast
from ..graph_argument import GraphLike
from .checks import check_edge_features, check_edge_numbers, checked_features
from .features import cast_sides, checked_graph, unrounded
from .projections import project


class EGATConv(nn.Module):
    """Graph attention layer that handles edge features (Kaminski et al., 2022), as dgl.nn.pytorch.EGATConv.

    New features of an edge are f' = LeakyReLU(A [h_src | f | h_dst] + bias). Its logit is their product with attn. Nodes get the
    sum of projected sources, weighted by the softmax.

    Args:
        in_node_feats: width of the features of nodes; a pair for sources and destinations with features of their own.
        in_edge_feats: width of the features of edges.
        out_node_feats, out_edge_feats: widths of the results per head.
        num_heads: number of heads.
        bias: add a bias to the new features of edges.
    """

    zero_in_degree_error: type[Exception] = ValueError

    def __init__(self, in_node_feats, in_edge_feats, out_node_feats, out_edge_feats, num_heads, bias=True):
        super().__init__()
        src, dst = checked_widths(in_node_feats, "in_node_feats")
        self._in_src_node_feats, self._in_dst_node_feats = src, dst
        self._num_heads = checked_size(num_heads, "num_heads", least=1)
        self._out_node_feats = checked_size(out_node_feats, "out_node_feats", least=1)
        self._out_edge_feats = checked_size(out_edge_feats, "out_edge_feats", least=1)
        edge_width = out_edge_feats * num_heads
        self.fc_node_src = nn.Linear(src, out_node_feats * num_heads, bias=False)
        self.fc_ni = nn.Linear(src, edge_width, bias=False)
        self.fc_nj = nn.Linear(dst, edge_width, bias=False)
        self.fc_fij = nn.Linear(checked_size(in_edge_feats, "in_edge_feats"), edge_width, bias=False)
        self.attn = nn.Parameter(torch.empty(1, num_heads, out_edge_feats))
        if bias:
            self.bias = nn.Parameter(torch.empty(edge_width))
        else:
            self.register_buffer("bias", None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Glorot normal, bias zero."""
        gain = nn.init.calculate_gain("relu")
        for weight in (self.fc_node_src.weight, self.fc_ni.weight, self.fc_fij.weight, self.fc_nj.weight, self.attn):
            nn.init.xavier_normal_(weight, gain=gain)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def forward(self, graph: GraphLike, nfeats, efeats, edge_weight=None, get_attention=False):
        """New features of nodes and of edges.

        Args:
            graph: Graph, DGLGraph or block, without nodes that have no in-edges.
            nfeats: (num_src, in_node_feats), or the pair of it and (num_dst, in_node_feats).
            efeats: (E, in_edge_feats).
            edge_weight: (E,), multiplies the weights after softmax.
            get_attention: also return the weights.

        Logits, softmax and weights are fp32, and so are the features of edges until they are rounded once.

        Returns:
            (num_dst, num_heads, out_node_feats) and (E, num_heads, out_edge_feats); with get_attention also the weights
            (E, num_heads, 1).

        Raises:
            ValueError: the graph has nodes without in-edges; wrong shapes or devices. TypeError: wrong dtypes.
        """
        g = checked_graph(graph, None, self.zero_in_degree_error)
        features = checked_features(g, nfeats, self.fc_ni, self.fc_nj, dim=2, name="nfeats")
        check_edge_features(g, efeats, "efeats", self.fc_fij)
        if edge_weight is not None:
            check_edge_numbers(g, edge_weight, features.src.dtype)
        x = cast_sides(graph, g, features, name="nfeats")
        hidden = self._edges(g, x.src, x.dst, autocast(efeats))
        nodes = project(self.fc_node_src, x.src, *self._shape(self._out_node_feats))
        with without_autocast(nodes.device):
            weight = ops.edge_softmax(g, (hidden * self.attn.to(hidden.dtype)).sum(-1, keepdim=True))
            if edge_weight is not None:
                weight = weight * edge_weight.view(-1, 1, 1)
            out = ops.u_mul_e_sum(g, nodes, weight)
        results = out, hidden.to(nodes.dtype)
        return (*results, weight.to(nodes.dtype)) if get_attention else results

    def _edges(self, g, x_src: Tensor, x_dst: Tensor, efeats: Tensor) -> Tensor:
        """The new features of edges, in fp32 for half x."""
        shape = self._shape(self._out_edge_feats)
        src, dst = project(self.fc_ni, x_src, *shape), project(self.fc_nj, x_dst, *shape)
        rows = project(self.fc_fij, efeats, *shape)
        with without_autocast(src.device):
            hidden = ops.gsddmm(g, "add", src, dst, "u", "v", out_dtype=unrounded(src)) + rows
            if self.bias is not None:
                hidden = hidden + self.bias.view(shape[:2]).to(hidden.dtype)
            return F.leaky_relu(hidden)

    def _shape(self, dim: int) -> tuple[int, int, int]:
        return self._num_heads, dim, dim

    def extra_repr(self) -> str:
        return f"in_node_feats={(self._in_src_node_feats, self._in_dst_node_feats)}, num_heads={self._num_heads}"
