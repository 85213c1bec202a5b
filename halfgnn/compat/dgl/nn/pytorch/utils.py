"""Modules and functions beside convolutions."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from halfgnn import ops
from halfgnn.common.arguments import check_name, check_number, checked_size
from halfgnn.common.compat import able_to_run_lstm
from halfgnn.compat.dgl.base import dgl_warning
from halfgnn.graph_argument import GraphLike, as_graph
from halfgnn.nn.sums import scaled


def matmul_maybe_select(A: Tensor, B: Tensor) -> Tensor:
    """A @ B, or the rows B[A] if A has ids (N,), which stand for rows of an identity matrix."""
    return B.index_select(0, A) if _are_ids(A) else A @ B


def bmm_maybe_select(A: Tensor, B: Tensor, index: Tensor) -> Tensor:
    """Row i of A (N, in) times B[index[i]], of B (types, in, out), or row A[i] of that matrix if A has ids (N,): (N, out)."""
    if _are_ids(A):
        return B.flatten(0, 1).index_select(0, index * B.shape[1] + A)
    return torch.bmm(A.unsqueeze(1), B.index_select(0, index)).squeeze(1)


def _are_ids(A: Tensor) -> bool:
    return A.dtype == torch.int64 and A.dim() == 1


class Identity(nn.Module):
    """Returns what it gets."""

    def forward(self, x: Any) -> Any:
        """x"""
        return x


class Sequential(nn.Sequential):
    """Modules that are called with a graph and the results of the one before."""

    def forward(self, graph: Any, *feats: Any) -> Any:  # type: ignore[override]
        """The result of the last module.

        Args:
            graph: the graph of all modules, or a list with a graph for each.
            feats: arguments of the first module. A module that returns a tuple gives the next one several.

        Raises:
            TypeError: graph is neither.
        """
        graphs = graph if isinstance(graph, list) else [graph] * len(self)
        if not isinstance(graph, list):
            _check_graph(graph)
        for each, module in zip(graphs, self):
            feats = module(each, *(feats if isinstance(feats, tuple) else (feats,)))
        return feats


def _check_graph(graph: Any) -> None:
    if isinstance(graph, (Tensor, tuple)) or not (hasattr(graph, "num_edges") or hasattr(graph, "__halfgnn_graph__")):
        raise TypeError(f"graph is a {type(graph).__name__}; expected a graph or a list of graphs")


class WeightBasis(nn.Module):
    """Weights that are combinations of bases (Schlichtkrull et al., 2018).

    Args:
        shape: of a weight.
        num_bases, num_outputs: numbers of bases and of weights.
    """

    def __init__(self, shape, num_bases, num_outputs):
        super().__init__()
        self.shape, self.num_bases, self.num_outputs = shape, num_bases, num_outputs
        if num_outputs <= num_bases:
            dgl_warning(f"num_outputs is {num_outputs}; expected more than num_bases, {num_bases}")
        gain = nn.init.calculate_gain("relu")
        self.weight = nn.Parameter(torch.empty(num_bases, *shape))
        nn.init.xavier_uniform_(self.weight, gain=gain)
        self.w_comp = nn.Parameter(torch.empty(num_outputs, num_bases))
        nn.init.xavier_uniform_(self.w_comp, gain=gain)

    def forward(self) -> Tensor:
        """(num_outputs, *shape)"""
        return (self.w_comp @ self.weight.flatten(1)).view(self.num_outputs, *self.shape)


class JumpingKnowledge(nn.Module):
    """Joins the results of several layers (Xu et al., 2018).

    Args:
        mode: "cat", "max", or "lstm", which weights layers by an attention over a bidirectional LSTM.
        in_feats, num_layers: width and number of the results, which "lstm" needs.
    """

    def __init__(self, mode="cat", in_feats=None, num_layers=None):
        super().__init__()
        check_name(mode, "mode", ("cat", "max", "lstm"))
        self.mode = mode
        if mode == "lstm":
            in_feats, num_layers = checked_size(in_feats, "in_feats"), checked_size(num_layers, "num_layers")
            hidden_size = num_layers * in_feats // 2
            self.lstm = nn.LSTM(in_feats, hidden_size, bidirectional=True, batch_first=True)
            self.att = nn.Linear(2 * hidden_size, 1)

    def reset_parameters(self) -> None:
        """PyTorch's defaults for the parameters of "lstm"."""
        if self.mode == "lstm":
            self.lstm.reset_parameters()
            self.att.reset_parameters()

    def forward(self, feat_list: list[Tensor]) -> Tensor:
        """feat_list: tensors (N, in_feats): (N, in_feats), with "cat" (N, sum of the widths)."""
        if self.mode == "cat":
            return torch.cat(feat_list, -1)
        if self.mode == "max":
            return torch.stack(feat_list, -1).max(-1)[0]
        stacked = torch.stack(feat_list, 1)
        with able_to_run_lstm(stacked):
            states, _ = self.lstm(stacked)
        alpha = torch.softmax(self.att(states).squeeze(-1), -1)
        return (stacked * alpha.unsqueeze(-1)).sum(1)


class LabelPropagation(nn.Module):
    """Label propagation (Zhu and Ghahramani, 2002): k times y = (1 - alpha) y_0 + alpha A y, in fp32.

    Args:
        k: number of steps.
        alpha: share of what propagates.
        norm_type: "sym" scales by the roots of both degrees, "row" by in-degrees.
        clamp: limit labels to [0, 1].
        normalize: make each row sum to one.
        reset: put the given labels back after every step.
    """

    def __init__(self, k, alpha, norm_type="sym", clamp=True, normalize=False, reset=False):
        super().__init__()
        check_name(norm_type, "norm_type", ("sym", "row"))
        self.k, self.alpha, self.norm_type = checked_size(k, "k"), check_number(alpha, "alpha"), norm_type
        self.clamp, self.normalize, self.reset = clamp, normalize, reset

    def forward(self, g: GraphLike, labels: Tensor, mask: Tensor | None = None) -> Tensor:
        """The labels of all nodes.

        Args:
            labels: (N,) or (N, 1) of classes, or (N, classes).
            mask: (N,) booleans or ids, the nodes whose labels are given; None for all.

        Returns:
            (N, classes), fp32.
        """
        graph = as_graph(g)
        is_one_column = labels.dim() == 1 or labels.shape[1] == 1
        labels = (F.one_hot(labels.view(-1)) if is_one_column else labels).float()
        y = labels
        if mask is not None:
            y = torch.zeros_like(labels)
            y[mask] = labels[mask]
        initial = (1 - self.alpha) * y
        in_degrees, out_degrees = graph.in_degrees(), graph.out_degrees()
        is_symmetric = self.norm_type == "sym"
        for _ in range(self.k):
            sent = scaled(y, out_degrees, -0.5) if is_symmetric else y
            y = initial + self.alpha * scaled(ops.copy_u_sum(graph, sent), in_degrees, -0.5 if is_symmetric else -1.0)
            if self.clamp:
                y = y.clamp(0.0, 1.0)
            if self.normalize:
                y = F.normalize(y, p=1)
            if self.reset:
                y[mask] = labels[mask]
        return y
