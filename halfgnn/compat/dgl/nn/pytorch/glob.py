"""Readouts: the nodes of each graph of a batch in one row."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from halfgnn import ops
from halfgnn.common.arguments import checked_size
from halfgnn.common.compat import able_to_run_lstm
from halfgnn.nn.projections import applied

from .segments import per_node, sizes_of, softmax, summed
from .set_transformer import SetTransformerDecoder, SetTransformerEncoder

__all__ = [
    "AvgPooling",
    "GlobalAttentionPooling",
    "MaxPooling",
    "Set2Set",
    "SetTransformerDecoder",
    "SetTransformerEncoder",
    "SortPooling",
    "SumPooling",
    "WeightAndSum",
]


class _Pooling(nn.Module):
    reducer: str

    def forward(self, graph: Any, feat: Tensor) -> Tensor:
        """feat (N, *): (graphs, *). A graph without nodes gets 0."""
        return ops.segment_reduce(sizes_of(graph, feat), feat, self.reducer)


class SumPooling(_Pooling):
    """The sum over the nodes of each graph."""

    reducer = "sum"


class AvgPooling(_Pooling):
    """The mean over the nodes of each graph."""

    reducer = "mean"


class MaxPooling(_Pooling):
    """The maximum over the nodes of each graph."""

    reducer = "max"


class SortPooling(nn.Module):
    """The k nodes of each graph whose largest feature is largest, with sorted features (Zhang et al., 2018).

    Args:
        k: number of nodes. A graph of fewer is filled up with zeros.
    """

    def __init__(self, k):
        super().__init__()
        self.k = checked_size(k, "k", least=1)

    def forward(self, graph: Any, feat: Tensor) -> Tensor:
        """feat (N, D): (graphs, k * D)"""
        sizes = sizes_of(graph, feat)
        rows = feat.sort(-1)[0]
        graph_of_node = torch.repeat_interleave(sizes)
        # By graph, then by the largest feature, falling: a stable sort by the one after a sort by the other.
        order = rows[:, -1].argsort(descending=True, stable=True)
        order = order[graph_of_node[order].argsort(stable=True)]
        first = (sizes.cumsum(0) - sizes)[graph_of_node]
        rank = torch.arange(feat.shape[0], device=feat.device) - first
        is_kept = rank < self.k
        out = rows.new_zeros(sizes.numel() * self.k, rows.shape[1])
        places = (graph_of_node * self.k + rank)[is_kept]
        return out.index_copy(0, places, rows[order[is_kept]]).view(sizes.numel(), -1)


class GlobalAttentionPooling(nn.Module):
    """The sum over each graph, weighted by a softmax (Li et al., 2016).

    Args:
        gate_nn: module that makes a logit (N, 1) of each node.
        feat_nn: module applied to the features, or None.
    """

    def __init__(self, gate_nn, feat_nn=None):
        super().__init__()
        self.gate_nn = gate_nn
        self.feat_nn = feat_nn

    def forward(self, graph: Any, feat: Tensor, get_attention: bool = False) -> Any:
        """feat (N, D): (graphs, D), with get_attention the pair of it and the weights (N, 1).

        Raises:
            ValueError: gate_nn gives more than a logit per node.
        """
        sizes = sizes_of(graph, feat)
        gate = applied(self.gate_nn, feat)
        if gate.shape[-1] != 1:
            raise ValueError(f"gate_nn gives {tuple(gate.shape)}; expected {(*gate.shape[:-1], 1)}")
        feat = applied(self.feat_nn, feat) if self.feat_nn else feat
        gate = softmax(sizes, gate)
        readout = summed(sizes, feat, gate)
        return (readout, gate) if get_attention else readout


class Set2Set(nn.Module):
    """An LSTM that attends to the nodes of each graph, step after step (Vinyals et al., 2016).

    Args:
        input_dim: width of the features.
        n_iters: number of steps.
        n_layers: of the LSTM.
    """

    def __init__(self, input_dim, n_iters, n_layers):
        super().__init__()
        self.input_dim = checked_size(input_dim, "input_dim")
        self.output_dim = 2 * input_dim
        self.n_iters = checked_size(n_iters, "n_iters")
        self.n_layers = checked_size(n_layers, "n_layers", least=1)
        self.lstm = nn.LSTM(self.output_dim, input_dim, n_layers)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """PyTorch's default."""
        self.lstm.reset_parameters()

    def forward(self, graph: Any, feat: Tensor) -> Tensor:
        """feat (N, input_dim): (graphs, 2 * input_dim)"""
        sizes = sizes_of(graph, feat)
        num_graphs = sizes.numel()
        state = tuple(feat.new_zeros(self.n_layers, num_graphs, self.input_dim) for _ in range(2))
        query_and_readout = feat.new_zeros(num_graphs, self.output_dim)
        for _ in range(self.n_iters):
            with able_to_run_lstm(query_and_readout):
                query, state = self.lstm(query_and_readout.unsqueeze(0), state)
            query = query.view(num_graphs, self.input_dim)
            logits = (feat * per_node(sizes, query, feat.shape[0])).sum(-1, keepdim=True)
            readout = summed(sizes, feat, softmax(sizes, logits))
            query_and_readout = torch.cat([query, readout], -1)
        return query_and_readout

    def extra_repr(self) -> str:
        return f"n_iters={self.n_iters}"


class WeightAndSum(nn.Module):
    """The sum over each graph, weighted by a sigmoid of a linear layer.

    Args:
        in_feats: width of the features.
    """

    def __init__(self, in_feats):
        super().__init__()
        self.in_feats = checked_size(in_feats, "in_feats")
        self.atom_weighting = nn.Sequential(nn.Linear(in_feats, 1), nn.Sigmoid())

    def forward(self, g: Any, feats: Tensor) -> Tensor:
        """feats (N, in_feats): (graphs, in_feats)"""
        sizes = sizes_of(g, feats, "feats")
        return summed(sizes, feats, applied(self.atom_weighting, feats))
