"""Readout: features of batched graphs from those of their nodes or edges, and back."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ...common.arguments import checked_size
from .base import DGLError, dgl_warning
from .heterograph import DGLGraph
from .ops import segment_reduce, segment_softmax

__all__ = [
    "broadcast_edges",
    "broadcast_nodes",
    "max_edges",
    "max_nodes",
    "mean_edges",
    "mean_nodes",
    "readout_edges",
    "readout_nodes",
    "softmax_edges",
    "softmax_nodes",
    "sum_edges",
    "sum_nodes",
    "topk_edges",
    "topk_nodes",
]


def readout_nodes(
    graph: DGLGraph, feat: str, weight: str | None = None, *, op: str = "sum", ntype: str | None = None
) -> Tensor:
    """Reduce a feature over the nodes of each batched graph.

    Args:
        feat, weight: names of the feature (N, *), and of one that it is multiplied by, (N, 1) or of its shape.
        op: sum, mean, max or min. Sums are fp32 and rounded once; a graph without nodes gets 0.
        ntype: the type of nodes; needed if there are several.

    Returns:
        (batch_size, *)
    """
    return _reduced(graph.nodes[ntype].data, graph.batch_num_nodes(ntype), feat, weight, op)


def readout_edges(
    graph: DGLGraph, feat: str, weight: str | None = None, *, op: str = "sum", etype: Any = None
) -> Tensor:
    """Reduce a feature over the edges of each batched graph. See :func:`readout_nodes`."""
    return _reduced(graph.edges[etype].data, graph.batch_num_edges(etype), feat, weight, op)


def _reduced(data: Any, counts: Tensor, feat: str, weight: str | None, op: str) -> Tensor:
    values = data[feat] if weight is None else data[feat] * data[weight]
    return segment_reduce(counts, values, op)


def sum_nodes(graph: DGLGraph, feat: str, weight: str | None = None, *, ntype: str | None = None) -> Tensor:
    """:func:`readout_nodes` with the sum."""
    return readout_nodes(graph, feat, weight, ntype=ntype, op="sum")


def sum_edges(graph: DGLGraph, feat: str, weight: str | None = None, *, etype: Any = None) -> Tensor:
    """:func:`readout_edges` with the sum."""
    return readout_edges(graph, feat, weight, etype=etype, op="sum")


def mean_nodes(graph: DGLGraph, feat: str, weight: str | None = None, *, ntype: str | None = None) -> Tensor:
    """:func:`readout_nodes` with the mean: the sum divided by the number of nodes, whatever the weights are."""
    return readout_nodes(graph, feat, weight, ntype=ntype, op="mean")


def mean_edges(graph: DGLGraph, feat: str, weight: str | None = None, *, etype: Any = None) -> Tensor:
    """:func:`readout_edges` with the mean: the sum divided by the number of edges, whatever the weights are."""
    return readout_edges(graph, feat, weight, etype=etype, op="mean")


def max_nodes(graph: DGLGraph, feat: str, weight: str | None = None, *, ntype: str | None = None) -> Tensor:
    """:func:`readout_nodes` with the maximum."""
    return readout_nodes(graph, feat, weight, ntype=ntype, op="max")


def max_edges(graph: DGLGraph, feat: str, weight: str | None = None, *, etype: Any = None) -> Tensor:
    """:func:`readout_edges` with the maximum."""
    return readout_edges(graph, feat, weight, etype=etype, op="max")


# ---- softmax ---------------------------------------------------------------------------------------------------------------------


def softmax_nodes(graph: DGLGraph, feat: str, *, ntype: str | None = None) -> Tensor:
    """Softmax of a feature (N, *) over the nodes of each batched graph, of the same shape. It is computed in fp32."""
    return segment_softmax(graph.batch_num_nodes(ntype), graph.nodes[ntype].data[feat])


def softmax_edges(graph: DGLGraph, feat: str, *, etype: Any = None) -> Tensor:
    """Softmax of a feature (E, *) over the edges of each batched graph, of the same shape. It is computed in fp32."""
    return segment_softmax(graph.batch_num_edges(etype), graph.edges[etype].data[feat])


# ---- broadcast -------------------------------------------------------------------------------------------------------------------


def broadcast_nodes(graph: DGLGraph, graph_feat: Tensor, *, ntype: str | None = None) -> Tensor:
    """Rows (batch_size, *) repeated for the nodes of each batched graph: (N, *)."""
    return _repeated(graph_feat, graph.batch_num_nodes(ntype), graph.num_nodes(ntype))


def broadcast_edges(graph: DGLGraph, graph_feat: Tensor, *, etype: Any = None) -> Tensor:
    """Rows (batch_size, *) repeated for the edges of each batched graph: (E, *)."""
    return _repeated(graph_feat, graph.batch_num_edges(etype), graph.num_edges(etype))


def _repeated(rows: Tensor, counts: Tensor, total: int) -> Tensor:
    if counts.numel() == 1 and (rows.dim() == 0 or rows.shape[0] != 1):
        dgl_warning(f"graph_feat has shape {tuple(rows.shape)}; expected (1, *) for one graph", stacklevel=3)
        rows = rows.unsqueeze(0)
    if rows.dim() == 0 or rows.shape[0] != counts.numel():
        raise DGLError(
            f"graph_feat has shape {tuple(rows.shape)}; expected {counts.numel()} rows, one per batched graph"
        )
    return rows.repeat_interleave(counts, 0, output_size=total)


# ---- top k -----------------------------------------------------------------------------------------------------------------------


def topk_nodes(
    graph: DGLGraph,
    feat: str,
    k: int,
    *,
    descending: bool = True,
    sortby: int | None = None,
    ntype: str | None = None,
) -> tuple[Tensor, Tensor]:
    """The k largest values of a feature (N, D) among the nodes of each batched graph.

    Args:
        descending: False for the smallest.
        sortby: the column by which whole rows are ordered; by default every column is ordered by itself.

    Returns:
        Values (batch_size, k, D), 0 beyond the number of nodes, and the places of the nodes within their graph: (batch_size, k, D),
        or (batch_size, k) with sortby.
    """
    return _topk(graph.nodes[ntype].data[feat], graph.batch_num_nodes(ntype), k, descending, sortby, feat)


def topk_edges(
    graph: DGLGraph,
    feat: str,
    k: int,
    *,
    descending: bool = True,
    sortby: int | None = None,
    etype: Any = None,
) -> tuple[Tensor, Tensor]:
    """The k largest values of a feature (E, D) among the edges of each batched graph. See :func:`topk_nodes`."""
    return _topk(graph.edges[etype].data[feat], graph.batch_num_edges(etype), k, descending, sortby, feat)


def _topk(
    values: Tensor, counts: Tensor, k: int, descending: bool, sortby: int | None, name: str
) -> tuple[Tensor, Tensor]:
    if values.dim() > 2:
        raise DGLError(f"the feature {name!r} has shape {tuple(values.shape)}; expected at most two dimensions")
    values, k = values.reshape(len(values), -1), checked_size(k, "k")
    if sortby is not None and not -values.shape[1] <= sortby < values.shape[1]:
        raise DGLError(
            f"sortby is {sortby}; expected a column of the feature {name!r}, of which there are {values.shape[1]}"
        )
    padded = _padded(values, counts, k, -torch.inf if descending else torch.nan)  # each is sorted to the end
    if sortby is None:
        order = padded.argsort(dim=1, descending=descending, stable=True)[:, :k]
        chosen = padded.gather(1, order)
    else:
        order = padded[:, :, sortby].argsort(dim=1, descending=descending, stable=True)[:, :k]
        chosen = padded.gather(1, order.unsqueeze(2).expand(-1, -1, padded.shape[2]))
    is_padding = order >= counts.view(-1, *[1] * (order.dim() - 1))
    return chosen.masked_fill(is_padding if sortby is None else is_padding.unsqueeze(2), 0), order


def _padded(values: Tensor, counts: Tensor, least: int, fill: float) -> Tensor:
    """Rows of each segment side by side, (S, L, D), with L at least `least`."""
    length = max(int(counts.max()) if counts.numel() else 0, least)
    starts = counts.long().cumsum(0) - counts
    graphs = torch.arange(counts.numel(), device=values.device).repeat_interleave(counts, output_size=len(values))
    places = torch.arange(len(values), device=values.device) - starts[graphs]
    padded = values.new_full((counts.numel(), length, values.shape[1]), fill)
    return padded.index_put((graphs, places), values)
