"""Reductions by an index: halfgnn's operators over its Graph, or PyTorch's scatters.

The choice is a function of src alone, so that a checkpoint that is recomputed makes it again:

    messages of halfgnn.pyg's drop-in       gspmm along their edges, without being materialized
    integers, and code that is compiled     PyTorch
    floating point on CUDA                  the Graph, also of an index of one id per element: PyTorch's sums are not deterministic
    one id per position, on the CPU         the Graph where it is faster
    one id per element, on the CPU          PyTorch

Sums of half-precision values are fp32 on both ways, and rounded once.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ... import ops
from ...common.autograd import LAZY, apply, is_recorded
from ...common.caching import ordinary
from ...common.memory import empty
from ...common.precision import HALF, without_autocast
from ...graph import Graph
from ...ops.segment_reduce import over_offsets as segments_reduced
from ._index import graph_of_elements, graph_of_vector, num_groups_of, vector_of, with_named_ids
from .utils import aligned, broadcast

_segment_reduce = torch.ops.halfgnn.segment_reduce.default

LEAST_SUMMED = 16_384  # values on the CPU whose sums are faster by the Graph, even if it is made for them
_LEAST_WIDTH = 4  # values per position; PyTorch adds narrower ones while it reads the index
_GRAPH_TYPES = (torch.float32, *HALF, torch.float64)


def total(src: Tensor, index: Tensor, dim: int, dim_size: int | None, reduce: str, is_wide: bool = False) -> Tensor:
    """The sum or mean of src by index along dim, which is not negative; 0 for groups without entries. Integers are floored.

    is_wide: leave sums of half-precision values in fp32.
    """
    vector = vector_of(index, dim, src.shape[dim])
    dtype = wide(src.dtype) if is_wide else src.dtype
    if type(src) in LAZY and vector is not None and dtype is src.dtype and dtype in _GRAPH_TYPES:
        from ...pyg.drop_in.calls import reduced_if_unread  # which has made src: torch_geometric is there

        rows = reduced_if_unread(src, vector, dim, num_groups_of(vector, dim_size), reduce)
        if rows is not None:
            return rows
    if not _is_routed(src, vector, dim):
        ids = index if vector is None else vector
        return with_named_ids(_plain_total, ids, dim_size, src, ids, dim, dim_size, reduce, dtype)
    with without_autocast(src.device):
        if vector is not None:
            return over_rows(graph_of_vector(vector, dim_size), src, dim, reduce, dtype)
        size = _size_of(src, dim, num_groups_of(index, dim_size))
        g = graph_of_elements(index, src.shape, dim, size[dim])
        return over_rows(g, src.reshape(-1), 0, reduce, dtype).view(size)


def counts(index: Tensor, src: Tensor, dim: int, num_groups: int) -> Tensor:
    """How many entries each group has, at least 1, of a shape that broadcasts against the result's. dim is not negative."""
    vector = vector_of(index, dim, src.shape[dim])
    ids = aligned(index if vector is None else vector, src.dim(), dim).long()
    return ids.new_zeros(_size_of(ids, dim, num_groups)).scatter_add_(dim, ids, torch.ones_like(ids)).clamp_(min=1)


def product(src: Tensor, index: Tensor, dim: int, dim_size: int | None, is_wide: bool = False) -> Tensor:
    """The product of src by index along dim, 1 for groups without entries. dim is not negative; is_wide: as in total()."""
    dtype = wide(src.dtype) if is_wide else src.dtype
    size = _size_of(src, dim, num_groups_of(index, dim_size))
    if src.is_cuda and src.is_floating_point() and not torch.compiler.is_compiling():
        g = graph_of_elements(index, src.shape, dim, size[dim])
        return _by_segments(g, src.reshape(-1), "prod", dtype).view(size)
    ids, x = broadcast(index, src, dim).long(), src.to(wide(src.dtype))
    return with_named_ids(x.new_ones(size).scatter_reduce, index, size[dim], dim, ids, x, "prod").to(dtype)


def extreme(src: Tensor, index: Tensor, dim: int, dim_size: int | None, reduce: str) -> tuple[Tensor, Tensor]:
    """The min or max of src by index along dim, which is not negative, and its position along dim (int64).

    The first of equal entries wins, and NaN wins over all. A group without entries has 0 at position src.shape[dim].
    """
    vector = vector_of(index, dim, src.shape[dim])
    with torch.no_grad():
        if vector is None or not has_operator(src) or 0 in src.shape:
            out, arg = with_named_ids(_plain_extreme, index, dim_size, src, index, dim, dim_size, reduce)
        else:
            out, arg = winners_over_rows(graph_of_vector(vector, dim_size), src, dim, reduce)
    return with_gradient(src, out, arg, dim), arg


# ---- over halfgnn's Graph ----------------------------------------------------------------------------------------------------


def _is_routed(src: Tensor, vector: Tensor | None, dim: int) -> bool:
    num_values = src.numel()
    if num_values == 0 or src.dtype not in _GRAPH_TYPES or torch.compiler.is_compiling():
        return False
    if src.is_cuda:
        return True
    return vector is not None and num_values >= LEAST_SUMMED and num_values >= _LEAST_WIDTH * src.shape[dim]


def has_operator(src: Tensor) -> bool:
    """Whether halfgnn's operators take src: not integers, and fp64 on the CPU only."""
    if src.dtype not in _GRAPH_TYPES or torch.compiler.is_compiling():
        return False
    return src.dtype is not torch.float64 or not src.is_cuda


def over_rows(g: Graph, src: Tensor, dim: int, reduce: str, dtype: torch.dtype) -> Tensor:
    """A sum or mean over the groups of g, of which src has one entry per position along dim."""
    x = src if dim == 0 else src.movedim(dim, 0)
    if not has_operator(src):
        return from_front(_by_segments(g, x, reduce, dtype), dim)
    out = ops.gspmm(g, "copy_rhs", reduce, None, x, out_dtype=dtype if dtype is torch.float32 else None)
    return from_front(out, dim)


def over_offsets(offsets: Tensor, src: Tensor, dim: int, reduce: str) -> Tensor:
    """A sum or mean over segments that cover src along dim."""
    x = src if dim == 0 else src.movedim(dim, 0)
    return from_front(segments_reduced(ordinary(offsets), x, reduce), dim)


def winners_over_rows(groups: Graph | Tensor, src: Tensor, dim: int, reduce: str) -> tuple[Tensor, Tensor]:
    """The min or max over groups, given by their Graph or by offsets, and its position along dim."""
    x = src.detach() if dim == 0 else src.detach().movedim(dim, 0)
    if isinstance(groups, Tensor):
        out, arg = _segment_reduce(groups, x, reduce)
    else:
        out, arg = torch.ops.halfgnn.gspmm.default(*groups.csc(), "copy_rhs", reduce, None, x, None, groups.short_csc)
    arg = arg.to(torch.int64, copy=True)
    arg.masked_fill_(arg < 0, src.shape[dim])
    return from_front(out, dim), from_front(arg, dim)


def from_front(out: Tensor, dim: int) -> Tensor:
    """out with its first dimension at dim, contiguous."""
    return out if dim == 0 else out.movedim(0, dim).contiguous()


def _by_segments(g: Graph, x: Tensor, reduce: str, dtype: torch.dtype) -> Tensor:
    """A sum, mean or product of the rows of x in a fixed order, for types that halfgnn's operators do not take."""
    indptr, _, edge_ids = g.csc()
    rows = (x if edge_ids is None else x.index_select(0, edge_ids)).to(wide(x.dtype))
    if reduce == "prod":
        return torch.segment_reduce(rows, "prod", offsets=indptr.long(), initial=1, unsafe=True).to(dtype)
    return apply(_Segments, rows, indptr.long(), reduce).to(dtype)


class _Segments(torch.autograd.Function):
    """PyTorch's sum or mean of segments, whose gradient PyTorch cannot differentiate."""

    @staticmethod
    def forward(rows: Tensor, indptr: Tensor, reduce: str) -> Tensor:
        return torch.segment_reduce(rows, reduce, offsets=indptr, initial=0, unsafe=True)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        rows, indptr, ctx.reduce = inputs
        ctx.length = rows.shape[0]
        ctx.save_for_backward(indptr)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return _spread(grad, ctx.saved_tensors[0], ctx.reduce, ctx.length), None, None


def _spread(grad: Tensor, indptr: Tensor, reduce: str, length: int) -> Tensor:
    """The gradient of rows of which segments were reduced, by PyTorch's operators, which can be differentiated."""
    sizes = indptr.diff()
    if reduce == "mean":
        grad = grad / sizes.clamp(min=1).to(grad.dtype).view(-1, *[1] * (grad.dim() - 1))
    return grad.repeat_interleave(sizes, 0, output_size=length)


# ---- by PyTorch --------------------------------------------------------------------------------------------------------------


def _plain_total(src: Tensor, index: Tensor, dim: int, dim_size: int | None, reduce: str, dtype: torch.dtype) -> Tensor:
    size = _size_of(src, dim, num_groups_of(index, dim_size))
    x = src if src.dtype not in HALF else src.float()
    out = x.new_zeros(size).scatter_add_(dim, broadcast(index.long(), src, dim), x)
    if reduce == "mean":
        out = divided(out, counts(index, src, dim, size[dim]))
    return out if out.dtype is dtype else out.to(dtype)


def divided(sums: Tensor, count: Tensor) -> Tensor:
    """Means of sums; of integers they are floored."""
    if sums.is_floating_point():
        return sums / count.to(sums.dtype)
    return torch.div(sums, count.to(sums.dtype), rounding_mode="floor")


def _plain_extreme(src: Tensor, index: Tensor, dim: int, dim_size: int | None, reduce: str) -> tuple[Tensor, Tensor]:
    size, length = _size_of(src, dim, num_groups_of(index, dim_size)), src.shape[dim]
    ids = broadcast(index, src, dim).long()
    out = src.new_zeros(size).scatter_reduce_(dim, ids, src, f"a{reduce}", include_self=False)
    arg = ids.new_full(size, length)
    if src.numel():
        wins = (src == out.gather(dim, ids)) | (src != src)
        place = aligned(torch.arange(length, device=src.device), src.dim(), dim)
        arg.scatter_reduce_(dim, ids, torch.where(wins, place, length), "amin")
    return out, arg


# ---- the gradient of min and max ---------------------------------------------------------------------------------------------


def with_gradient(src: Tensor, out: Tensor, arg: Tensor, dim: int) -> Tensor:
    """out, the elements of src at the positions arg along dim, with their gradient."""
    if not (src.requires_grad and torch.is_grad_enabled()):
        return out
    out = out.clone() if out._is_view() else out  # a view of no_grad mode cannot be modified in place
    return apply(_Winners, src, out, arg, dim)


class _Winners(torch.autograd.Function):
    """Elements of src. Each one has at most one winner, so that its gradient is copied and not summed."""

    @staticmethod
    def forward(src: Tensor, out: Tensor, arg: Tensor, dim: int) -> Tensor:
        return out

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        src, out, arg, ctx.dim = inputs
        ctx.mark_dirty(out)  # so that the result is no view, which callers could not write to
        ctx.save_for_backward(arg)
        ctx.length = src.shape[ctx.dim]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        (arg,) = ctx.saved_tensors
        size = _size_of(grad, ctx.dim, ctx.length + 1)  # the last place is for groups without entries
        if is_recorded() or not grad.is_cpu or torch.compiler.is_compiling():
            placed = grad.new_zeros(size).scatter(ctx.dim, arg, grad)
        else:
            placed = empty(grad, size).zero_()
            _bits(placed).scatter_(ctx.dim, arg, _bits(grad))
        return placed.narrow(ctx.dim, 0, ctx.length), None, None, None


def _bits(x: Tensor) -> Tensor:
    """Half-precision values as integers, which PyTorch scatters 20 times as fast on the CPU."""
    return x.view(torch.int16) if x.dtype in HALF else x


def _size_of(src: Tensor, dim: int, length: int) -> list[int]:
    size = list(src.shape)
    size[dim] = length
    return size


def wide(dtype: torch.dtype) -> torch.dtype:
    return torch.float32 if dtype in HALF else dtype
