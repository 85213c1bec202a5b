"""Rows that are reduced or taken by an index which is no row of a known edge_index: by what torch_geometric scatters and pools."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ... import ops
from ...common.autograd import apply
from ...common.precision import without_autocast
from ...drop_in.checkpoint import is_checkpointed
from ...drop_in.gate import Reason, index_reason
from ...expressions.rows import GatherRows, has_gradient_in_half, rows_at
from ...graph import Graph
from ...graphs_by_tensor.index import bounds_of, graph_of_index, graph_of_offsets, is_sorted
from ...graphs_by_tensor.store import Topology, has_graph, is_known, topology_at
from .accounts import routed
from .call import owner_of, plain
from .gate import Call, FallBack, Owner, eager_reason, require, rows_reason
from .size import Size, has_gradient, seen_by, weighed_rows


def graph_by(call: Call) -> Graph:
    """The Graph of the index of a call. Raises FallBack if it is not made."""
    index, topology = plain(call.index), _topology_of(plain(call.index))
    is_known = bool(topology.graphs) or call.size.is_repeated(topology.num_values)
    topology.num_values += call.size.values
    if not is_known:
        require(_first_use_reason(topology, index, call))
    low, high = bounds_of(topology, index)
    num_rows = high + 1 if call.num_rows is None else call.num_rows
    if low < 0 or high >= num_rows:
        raise FallBack(Reason.IDS_OUT_OF_RANGE)
    return graph_of_index(topology, index, num_rows)


def graph_of_groups(call: Call) -> Graph:
    """The Graph of a batch vector, by which rows are normalized. Raises FallBack if it is not made."""
    require(call.index_reason() or index_reason(call.index, call.src) or _vector_reason(plain(call.index)))
    return graph_by(call)


def graph_between(call: Call) -> Graph:
    """The Graph of segments that follow one another, from offsets (S + 1,). Raises FallBack if it is not made."""
    if call.kind is None:
        raise FallBack(Reason.NO_OPERATOR)
    require(eager_reason(call.src, call.index))
    if not call.is_over(0):
        raise FallBack(Reason.ANOTHER_DIMENSION)
    require(_vector_reason(call.index))
    g = graph_of_offsets(call.index, call.src.shape[0])
    if g is None:
        raise FallBack(Reason.PTR)
    return g


def graph_over(call: Call, owner: Owner | None) -> Graph:
    """The Graph whose edges are the rows of a call and end where its index says. Raises FallBack if rows fall back to PyG."""
    if owner is not None and not _has_own_graph(call.index):
        propagation, row = owner
        require(propagation.refusal)
        if call.num_rows is None and call.index.numel():
            call = call._replace(num_rows=int(call.index.max()) + 1)
        size = call.size
        if call.kind is None or size._replace(kind="message").pays_for(propagation.edge_index):
            require(call.edges_reason(owner) or rows_reason(call.src))
            return propagation.ending_in(row, call.num_rows)
        if not size.pays_for_sorting(call.src.shape[0], False):
            raise FallBack(Reason.FIRST_USES_OF_EDGE_INDEX)
    require(call.index_reason() or _vector_reason(plain(call.index)))
    return graph_by(call)


def reduced(g: Graph, reduction: str, src: Tensor, index: Tensor | None) -> Tensor:
    """Rows of src (E, *) reduced by index, of which g is the Graph; as torch_geometric without rounding under autocast.

    index: None if there is none; then g has its edges in order.
    """
    with without_autocast(src.device):
        if index is None or reduction not in ("sum", "mean") or not (src.requires_grad and torch.is_grad_enabled()):
            return ops.gspmm(g, "copy_rhs", reduction, None, src)
        return apply(_Reduce, src, index, g, reduction)


class _Reduce(torch.autograd.Function):
    """A sum or mean of rows. PyTorch gathers its gradient, which begins 30 us sooner than gspmm's backward (docs/routed.md)."""

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


def gathered(x: Tensor, index: Tensor) -> Tensor:
    """x[index], whose gradient is summed by the index's Graph. Raises FallBack if PyTorch makes it, as the first uses of an index.

    PyTorch adds up gradients of rows one by one, those of half-precision values in half precision, and on CUDA it sorts the index
    in every backward.
    """
    if x.is_inference() or index.is_inference():
        raise FallBack(Reason.INFERENCE_MODE)
    require(_vector_reason(index))
    topology, owner = _topology_of(index), owner_of(index)
    if not (topology.graphs or has_gradient_in_half(x) or (owner is not None and has_graph(owner[0].edge_index))):
        size = Size(weighed_rows(x, index.shape[0]), x.requires_grad)
        seen = topology.num_values
        topology.num_values += size.values
        if not size.pays(seen):
            raise FallBack(Reason.FIRST_USES_OF_INDEX)
    if index.is_cuda and torch.cuda.is_current_stream_capturing() and topology.bounds is None:
        raise FallBack(Reason.CAPTURE)
    low, high = bounds_of(topology, index)
    if low < 0 or high >= x.shape[0]:
        raise FallBack(Reason.IDS_OUT_OF_RANGE)
    if not has_gradient(x):
        return x.index_select(0, index)
    routed["x[index]"] += 1
    return apply(GatherRows, x, index, _graph_of_rows(topology, x.shape[0], index))


def _graph_of_rows(topology: Topology, num_rows: int, index: Tensor) -> Graph:
    owner = owner_of(index)
    if owner is not None and owner[0].refusal is None and is_known(owner[0].edge_index) and not _has_own_graph(index):
        return owner[0].ending_in(owner[1], num_rows)
    return graph_of_index(topology, index, num_rows)


def _has_own_graph(index: Any) -> bool:
    """Whether a checkpoint calls, and an index that is a row of an edge_index has a Graph of its own, from before that was known.

    What is recomputed must find the Graph that its forward found, whose tensors autograd saved.
    """
    return is_checkpointed() and isinstance(index, Tensor) and bool(topology_at(plain(index)).graphs)


# ---- uses of an index --------------------------------------------------------------------------------------------------------


def _vector_reason(index: Any) -> str | None:
    """Why an index has no Graph of its own."""
    reason = index_reason(index)
    if reason is not None:
        return reason
    if index.dim() != 1:
        return Reason.INDEX_DIMENSIONS
    return None if index.shape[0] else Reason.NO_EDGES


def _topology_of(index: Tensor) -> Topology:
    topology = topology_at(index)
    if not topology.num_values and not index.is_inference():
        topology.num_values = seen_by(index if index._base is None else index._base)
    return topology


def _first_use_reason(topology: Topology, index: Tensor, call: Call) -> str | None:
    """Why an index that nobody has seen before falls back to PyG."""
    size, num_rows = call.size, call.src.shape[0]
    if index.is_cuda or not size.pays_for_sorting(num_rows, True):  # on CUDA reading it waits for the device
        return Reason.FIRST_USE_OF_INDEX
    if is_sorted(topology, index) or size.pays_for_sorting(num_rows, False):
        return None
    return Reason.FIRST_USE_OF_UNSORTED_INDEX
