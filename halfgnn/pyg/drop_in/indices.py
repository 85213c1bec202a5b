"""Graphs of index vectors: by what torch_geometric scatters and pools, and which is no row of a known edge_index.

The Graph of an index (E,) has an edge per entry, from the node that the entry names to itself. Operators read its in-edges only. It
is kept as the graph of an edge_index is. An index that is a view is known by its base and its place in it, because a program may
make the view at every call.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ... import ops
from ...common.autograd import apply
from ...common.ids import INT32_MAX
from ...common.kept import ordinary, ordinary_tensors
from ...common.precision import without_autocast
from ...drop_in.refusals import refuse_index
from ...graph import Graph
from ..graphs import Topology, has_graph, is_known, seen_by, topology_of
from . import thresholds as _worth
from .accounts import routed
from .call import owner_of
from .rows import has_gradient_in_half, rows_at

_MOST_VIEWS = 16  # views of one tensor whose graphs are kept
_HEAD = 4096  # entries of an index that are looked at first: most unsorted ones fall there
_PTR = "ptr"  # what is derived of a tensor of offsets


def graph_by(index: Tensor, num_rows: int | None, src: Tensor, reduction: str) -> Graph | str:
    """The Graph of an index, or why it is not made.

    num_rows: None for one more than the largest id. src, reduction: what it is made for.
    """
    reason = _refuse(index)
    if reason is not None:
        return reason
    topology = _topology_of_view(index)
    is_known = bool(topology.graphs) or _worth.is_used_again(topology.num_values, src, reduction)
    topology.num_values += _worth.weighed(src.numel(), src)
    if not is_known and (reason := _refuse_first(topology, index, src, reduction)) is not None:
        return reason
    low, high = _bounds_of(topology, index)
    num_rows = high + 1 if num_rows is None else num_rows
    if low < 0 or high >= num_rows:
        return "ids out of range"
    return _kept_graph(topology, num_rows, lambda: _make(index, num_rows, _is_sorted(topology, index)))


def graph_between(ptr: Tensor, num_edges: int) -> Graph | str:
    """The Graph of segments that follow one another, from offsets (S + 1,), or why it is not made."""
    reason = _refuse(ptr)
    if reason is not None:
        return reason
    of_tensor = _topology_of_view(ptr)
    topology = of_tensor.derived.setdefault(_PTR, Topology())
    if topology.bounds is None:
        with ordinary_tensors():
            topology.bounds = [(int(ptr[0]), int(ptr[-1]) if _is_sorted(of_tensor, ptr) else -1)]
    if topology.bounds != [(0, num_edges)]:
        return "ptr that does not delimit the rows"
    return _kept_graph(topology, ptr.numel() - 1, lambda: _make_between(ptr, num_edges))


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
    topology, owner = _topology_of_view(index), owner_of(index)
    if topology.graphs or has_gradient_in_half(x) or (owner is not None and has_graph(owner[0].edge_index)):
        is_worth = True
    else:
        is_worth = _worth.is_worth_a_graph(num_values, topology.num_values, with_gradient, False)
        topology.num_values += num_values
    if not is_worth:
        return "first uses of an index"
    if index.is_cuda and torch.cuda.is_current_stream_capturing() and topology.bounds is None:
        return "capture of a CUDA graph"
    low, high = _bounds_of(topology, index)
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
    return _kept_graph(topology, num_rows, lambda: _make(index, num_rows, _is_sorted(topology, index)))


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, index: Tensor, g: Graph) -> Tensor:
        ctx.g = g
        return rows_at(x, index, lambda: g)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        with without_autocast(grad.device):
            return ops.gspmm(ctx.g, "copy_rhs", "sum", None, grad), None, None


# ---- what is kept ------------------------------------------------------------------------------------------------------------


def _refuse(index: Tensor) -> str | None:
    reason = refuse_index(index)
    if reason is not None:
        return reason
    if index.dim() != 1:
        return "index of several dimensions"
    return None if index.shape[0] else "no edges"


def _topology_of_view(index: Tensor) -> Topology:
    """The topology of an index's content; one that is not kept if writes to the index are not counted."""
    if index.is_inference():
        return Topology()
    base = index._base
    if base is not None and _is_same(index, base):
        index, base = base, None
    if base is None:
        topology = topology_of(index)
        topology.num_values = topology.num_values or seen_by(index)
        return topology
    views = topology_of(base).views
    place = index.data_ptr() - base.data_ptr(), index.shape[0], index.stride(0), index.dtype
    if place not in views:
        if len(views) >= _MOST_VIEWS:
            views.pop(next(iter(views)))
        views[place] = Topology()
        views[place].num_values = seen_by(base)
    return views[place]


def _is_same(index: Tensor, base: Tensor) -> bool:
    """Whether a view has all of its base, as it is."""
    return (
        index.shape == base.shape
        and index.stride() == base.stride()
        and index.data_ptr() == base.data_ptr()
        and index.dtype is base.dtype
    )


def _refuse_first(topology: Topology, index: Tensor, src: Tensor, reduction: str) -> str | None:
    """Why an index that nobody has seen before is left to PyG."""
    if index.is_cuda or not _worth.is_worth(src, reduction, True):  # on CUDA reading it waits for the device
        return "first use of an index"
    is_worth = _is_sorted(topology, index) or _worth.is_worth(src, reduction, False)
    return None if is_worth else "first use of an unsorted index"


def _is_sorted(topology: Topology, index: Tensor) -> bool:
    if topology.is_sorted is None:
        with ordinary_tensors():
            topology.is_sorted = _rises(index[:_HEAD]) and (index.shape[0] <= _HEAD or _rises(index))
    return topology.is_sorted


def _rises(index: Tensor) -> bool:
    return bool((index[1:] >= index[:-1]).all())


def _bounds_of(topology: Topology, index: Tensor) -> tuple[int, int]:
    """The smallest and the largest id."""
    if topology.bounds is None:
        with ordinary_tensors():
            ends = (index[0], index[-1]) if topology.is_sorted else torch.aminmax(index)
            topology.bounds = [(int(ends[0]), int(ends[1]))]
    return topology.bounds[0]


def _kept_graph(topology: Topology, num_rows: int, make: Any) -> Graph:
    g = topology.graphs.get((num_rows, num_rows))
    if g is None:
        with ordinary_tensors():
            g = topology.graphs[num_rows, num_rows] = make()._for_all_streams()
    return g


def _make(index: Tensor, num_rows: int, is_sorted: bool) -> Graph:
    is_short = max(num_rows, index.shape[0]) <= INT32_MAX
    ids = index.to(torch.int32 if is_short else torch.int64).contiguous()
    if not is_sorted:
        return Graph.from_edges(ids, ids, num_src=num_rows, num_dst=num_rows, check=False)
    ids = ids.clone() if ids.data_ptr() == index.data_ptr() else ids  # the index may be written to
    indptr = torch._convert_indices_from_coo_to_csr(ids, num_rows, out_int32=is_short)
    return Graph(num_rows, num_rows, (indptr, ids, None))


def _make_between(ptr: Tensor, num_edges: int) -> Graph:
    num_rows = ptr.shape[0] - 1
    with ordinary_tensors():
        indptr = ordinary(ptr).to(torch.int32 if max(num_rows, num_edges) <= INT32_MAX else torch.int64, copy=True)
        rows = torch.arange(num_rows, dtype=indptr.dtype, device=ptr.device)
        return Graph(num_rows, num_rows, (indptr, rows.repeat_interleave(indptr.diff(), output_size=num_edges), None))
