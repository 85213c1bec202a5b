"""Rows that are reduced or taken by an index which is no row of a known edge_index: by what torch_geometric scatters and pools."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ... import ops
from ...common.autograd import apply
from ...common.precision import without_autocast
from ...drop_in.refusals import refuse_index
from ...graph import Graph
from ...graphs_by_tensor.index import bounds_of, graph_of_index, graph_of_offsets, is_sorted
from ...graphs_by_tensor.store import Topology, has_graph, is_known, topology_at
from . import thresholds as _worth
from .accounts import routed
from .call import owner_of
from .rows import has_gradient_in_half, rows_at
from .uses import seen_by


def graph_by(index: Tensor, num_rows: int | None, src: Tensor, reduction: str) -> Graph | str:
    """The Graph of an index, or why it is not made.

    num_rows: None for one more than the largest id. src, reduction: what it is made for.
    """
    reason = _refuse(index)
    if reason is not None:
        return reason
    topology = _topology_of(index)
    is_known = bool(topology.graphs) or _worth.is_used_again(topology.num_values, src, reduction)
    topology.num_values += _worth.weighed(src.numel(), src)
    if not is_known and (reason := _refuse_first(topology, index, src, reduction)) is not None:
        return reason
    low, high = bounds_of(topology, index)
    num_rows = high + 1 if num_rows is None else num_rows
    if low < 0 or high >= num_rows:
        return "ids out of range"
    return graph_of_index(topology, index, num_rows)


def graph_between(ptr: Tensor, num_edges: int) -> Graph | str:
    """The Graph of segments that follow one another, from offsets (S + 1,), or why it is not made."""
    reason = _refuse(ptr)
    if reason is not None:
        return reason
    return graph_of_offsets(ptr, num_edges) or "ptr that does not delimit the rows"


def reduced(g: Graph, reduction: str, src: Tensor, index: Tensor | None) -> Tensor:
    """Rows of src (E, *) reduced by index, of which g is the Graph; as torch_geometric without rounding under autocast.

    index: None if there is none; then g has its edges in order.
    """
    with without_autocast(src.device):
        if index is None or reduction not in ("sum", "mean") or not (src.requires_grad and torch.is_grad_enabled()):
            return ops.gspmm(g, "copy_rhs", reduction, None, src)
        return apply(_Reduce, src, index, g, reduction)


class _Reduce(torch.autograd.Function):
    """A sum or mean of rows. PyTorch gathers its gradient, which begins 30 us sooner than gspmm's backward (see _worth.py)."""

    @staticmethod
    def forward(ctx: Any, src: Tensor, index: Tensor, g: Graph, reduction: str) -> Tensor:
        ctx.save_for_backward(index)
        ctx.g, ctx.indptr = g, g.csc().indptr if reduction == "mean" else None
        return ops.gspmm(g, "copy_rhs", reduction, None, src)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        (index,) = ctx.saved_tensors
        if ctx.indptr is not None:  # divided in fp32 and rounded once
            dtype = torch.promote_types(grad.dtype, torch.float32)
            degrees = ctx.indptr.diff().clamp_(min=1).to(dtype).view(-1, *[1] * (grad.dim() - 1))
            grad = (grad / degrees).to(grad.dtype)
        return rows_at(grad, index, lambda: ctx.g), None, None, None


# ---- rows by an index --------------------------------------------------------------------------------------------------------


def gathered(x: Tensor, index: Tensor) -> Tensor | str:
    """x[index], whose gradient is summed by the index's Graph, or why it is left to PyTorch, as the first uses of an index are.

    PyTorch adds up gradients of rows one by one, those of halves in half, and on CUDA it sorts the index in every backward.
    """
    if x.is_inference() or index.is_inference():
        return "inference mode"
    reason = _refuse(index)
    if reason is not None:
        return reason
    num_values, with_gradient = _worth.weighed_rows(x, index.shape[0]), x.requires_grad
    topology, owner = _topology_of(index), owner_of(index)
    if topology.graphs or has_gradient_in_half(x) or (owner is not None and has_graph(owner[0].edge_index)):
        is_worth = True
    else:
        is_worth = _worth.is_worth_a_graph(num_values, topology.num_values, with_gradient, False)
        topology.num_values += num_values
    if not is_worth:
        return "first uses of an index"
    if index.is_cuda and torch.cuda.is_current_stream_capturing() and topology.bounds is None:
        return "capture of a CUDA graph"
    low, high = bounds_of(topology, index)
    if low < 0 or high >= x.shape[0]:
        return "ids out of range"
    if not (x.requires_grad and torch.is_grad_enabled()):
        return x.index_select(0, index)
    routed["x[index]"] += 1
    return apply(_Gather, x, index, _graph_of_rows(topology, x.shape[0], index))


def gathered_rows(x: Tensor, index: Tensor, graph: Callable[[], Graph], dim: int = 0) -> Tensor:
    """x.index_select(dim, index), whose gradient is summed by a Graph with an edge per entry, into the nodes that it names."""
    if not (x.requires_grad and torch.is_grad_enabled()):
        return rows_at(x, index, graph) if dim == 0 else x.index_select(dim, index)
    rows = apply(_Gather, x if dim == 0 else x.movedim(dim, 0).contiguous(), index, graph())
    return rows if dim == 0 else rows.movedim(0, dim).contiguous()


def _graph_of_rows(topology: Topology, num_rows: int, index: Tensor) -> Graph:
    owner = owner_of(index)
    if owner is not None and owner[0].refusal is None and is_known(owner[0].edge_index):
        return owner[0].ending_in(owner[1], num_rows)
    return graph_of_index(topology, index, num_rows)


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, index: Tensor, g: Graph) -> Tensor:
        ctx.g = g
        return rows_at(x, index, lambda: g)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        with without_autocast(grad.device):
            return ops.gspmm(ctx.g, "copy_rhs", "sum", None, grad), None, None


# ---- uses of an index --------------------------------------------------------------------------------------------------------


def _refuse(index: Tensor) -> str | None:
    reason = refuse_index(index)
    if reason is not None:
        return reason
    if index.dim() != 1:
        return "index of several dimensions"
    return None if index.shape[0] else "no edges"


def _topology_of(index: Tensor) -> Topology:
    topology = topology_at(index)
    if not topology.num_values and not index.is_inference():
        topology.num_values = seen_by(index if index._base is None else index._base)
    return topology


def _refuse_first(topology: Topology, index: Tensor, src: Tensor, reduction: str) -> str | None:
    """Why an index that nobody has seen before is left to PyG."""
    if index.is_cuda or not _worth.is_worth(src, reduction, True):  # on CUDA reading it waits for the device
        return "first use of an index"
    is_worth = is_sorted(topology, index) or _worth.is_worth(src, reduction, False)
    return None if is_worth else "first use of an unsorted index"
