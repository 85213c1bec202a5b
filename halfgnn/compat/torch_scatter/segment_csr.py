"""Reductions of consecutive segments, which indptr delimits along its last dimension."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ...common.caching import unwrapped
from ...common.operands import check_tensor
from ...graph import Graph
from ...graphs_by_tensor.index import graph_of_offsets
from ._gather import gathered
from ._index import check_index, copied_to, vector_of
from ._reductions import (
    LEAST_SUMMED,
    extreme,
    has_operator,
    over_offsets,
    over_rows,
    total,
    winners_over_rows,
    with_gradient,
)
from ._scripting import in_python


def segment_sum_csr(src: Tensor, indptr: Tensor, out: Tensor | None = None) -> Tensor:
    """Sums of segments. See :func:`segment_csr`."""
    return _segment(src, indptr, out, "sum")


def segment_add_csr(src: Tensor, indptr: Tensor, out: Tensor | None = None) -> Tensor:
    """:func:`segment_sum_csr`."""
    return _segment(src, indptr, out, "sum")


def segment_mean_csr(src: Tensor, indptr: Tensor, out: Tensor | None = None) -> Tensor:
    """Means of segments, floored for integers. See :func:`segment_csr`."""
    return _segment(src, indptr, out, "mean")


def segment_min_csr(src: Tensor, indptr: Tensor, out: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Minima of segments, and their positions in src. See :func:`segment_csr` and :func:`scatter_max`."""
    return _segment_extreme(src, indptr, out, "min")


def segment_max_csr(src: Tensor, indptr: Tensor, out: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Maxima of segments, and their positions in src. See :func:`segment_csr` and :func:`scatter_max`."""
    return _segment_extreme(src, indptr, out, "max")


def segment_csr(src: Tensor, indptr: Tensor, out: Tensor | None = None, reduce: str = "sum") -> Tensor:
    """Segments of src, each reduced: the s-th one has the positions indptr[s] to indptr[s + 1] - 1.

    Args:
        src: (*, E, *), integers or floating point.
        indptr: (*, S + 1), int64 or int32, rising, from 0 to E. Its leading dimensions are those of src or 1.
        out: takes the result, and is returned. What it held is not read.
        reduce: sum, add, mean, min or max.

    Sums of fp16 and bf16 are fp32 and rounded once. Results are deterministic. Empty segments are 0.

    Returns:
        (*, S, *)

    Raises:
        ValueError: wrong shapes or devices, offsets that fall or leave src, an unknown reduce. TypeError: wrong dtypes.
    """
    if reduce == "sum" or reduce == "add":
        return _segment(src, indptr, out, "sum")
    if reduce == "mean":
        return _segment(src, indptr, out, "mean")
    if reduce == "min":
        return _segment_extreme(src, indptr, out, "min")[0]
    if reduce == "max":
        return _segment_extreme(src, indptr, out, "max")[0]
    raise ValueError(f"reduce is {reduce}; expected one of sum, add, mean, min, max")


def gather_csr(src: Tensor, indptr: Tensor, out: Tensor | None = None) -> Tensor:
    """The entry of each segment, once per position of the segment; the inverse of :func:`segment_csr`.

    Args:
        src: (*, S, *). indptr: (*, S + 1), rising from 0 to one E. out: takes the result.

    Returns:
        (*, E, *)
    """
    return _gather_csr(src, indptr, out)


# ---- what compiled scripts call ----------------------------------------------------------------------------------------------


@in_python
def _segment(src: Tensor, indptr: Tensor, out: Tensor | None, reduce: str) -> Tensor:
    segments = _Segments(src, indptr)
    result = None
    if segments.graph is not None:
        result = over_rows(segments.graph, src, segments.dim, reduce, src.dtype)
    elif segments.offsets is not None:
        result = segments.if_covered(over_offsets, segments.offsets, src, segments.dim, reduce)
    if result is None:
        result = segments.without_rest(total(src, segments.ids(), segments.dim, segments.count + 1, reduce))
    return result if out is None else copied_to(out, result)


@in_python
def _segment_extreme(src: Tensor, indptr: Tensor, out: Tensor | None, reduce: str) -> tuple[Tensor, Tensor]:
    segments = _Segments(src, indptr)
    pair = None
    if segments.graph is not None:
        pair = winners_over_rows(segments.graph, src, segments.dim, reduce)
    elif segments.offsets is not None:
        pair = segments.if_covered(winners_over_rows, segments.offsets, src, segments.dim, reduce)
    if pair is not None:
        value, arg = pair
        value = with_gradient(src, value, arg, segments.dim)
    else:
        pair = extreme(src, segments.ids(), segments.dim, segments.count + 1, reduce)
        value, arg = segments.without_rest(pair[0]), segments.without_rest(pair[1])
    return copied_to(out, value), arg


@in_python
def _gather_csr(src: Tensor, indptr: Tensor, out: Tensor | None) -> Tensor:
    check_tensor(indptr, "indptr")
    dim = check_index(src, indptr, indptr.dim() - 1, "indptr", tuple(indptr.shape[-1:]))
    count = max(indptr.shape[-1] - 1, 0)
    if src.shape[dim] != count:
        raise ValueError(f"src has shape {tuple(src.shape)}; expected {count} at dim {dim}, one per segment of indptr")
    result = src.narrow(dim, 0, 0) if src.numel() == 0 else gathered(src, _groups_of_positions(indptr, dim), dim)
    return copied_to(out, result)


def _groups_of_positions(indptr: Tensor, dim: int) -> Tensor:
    """The segment per position (*, E) of segments from 0 to E."""
    vector = vector_of(indptr, dim, indptr.shape[-1])
    is_traced = torch.compiler.is_compiling()
    g = None if vector is None or is_traced else graph_of_offsets(unwrapped(vector, "indptr"), name="indptr")
    if g is not None:
        return g.csc().indices
    length = int(indptr.flatten()[-1])
    _check_offsets(indptr, length)
    if bool((indptr[..., 0] != 0).any() | (indptr[..., -1] != length).any()):
        raise ValueError(f"indptr, of shape {tuple(indptr.shape)}, does not run from 0 to {length} in every row")
    return _segments_of_positions(indptr, length)


def _segments_of_positions(indptr: Tensor, length: int) -> Tensor:
    positions = torch.arange(length, dtype=indptr.dtype, device=indptr.device)
    positions = positions.expand(*indptr.shape[:-1], length).contiguous()
    return torch.searchsorted(indptr.contiguous(), positions, right=True) - 1


def _check_offsets(indptr: Tensor, length: int) -> None:
    if indptr.numel() == 0 or torch.compiler.is_compiling():  # compiled code is not to wait for the device
        return
    if bool((indptr[..., 1:] < indptr[..., :-1]).any()) or int(indptr.min()) < 0 or int(indptr.max()) > length:
        raise ValueError(
            f"indptr, of shape {tuple(indptr.shape)}, falls or leaves src; expected it to rise in [0, {length}]"
        )


class _Segments:
    """Segments of src along the last dimension of indptr.

    If they are alike in all leading dimensions and halfgnn's operators take src, they are `offsets` (S + 1,) or, if they cover
    src and it has more values, a `graph`, which is kept. Otherwise, and for offsets that do not cover src, they are groups by
    ids(), and one more has the positions outside of all.
    """

    offsets: Tensor | None = None
    graph: Graph | None = None

    def __init__(self, src: Tensor, indptr: Tensor) -> None:
        check_tensor(indptr, "indptr")
        self.dim = check_index(src, indptr, indptr.dim() - 1, "indptr", tuple(indptr.shape[-1:]))
        self.count = max(indptr.shape[-1] - 1, 0)
        self.indptr, self.length = indptr, src.shape[self.dim]
        vector = vector_of(indptr, self.dim, indptr.shape[-1])
        if vector is None or not src.numel() or not self.count or not has_operator(src):
            return
        if src.is_cuda or src.numel() >= LEAST_SUMMED:
            self.graph = graph_of_offsets(unwrapped(vector, "indptr"), self.length, "indptr")
        else:
            self.offsets = vector.contiguous()

    def if_covered(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """function(*arguments) of offsets, which kernels check; None if they do not cover src.

        Of a few rows, the kernel takes less time than two offsets that Python reads first. Under functorch's transforms they are
        read: there the kernel is given lengths of segments, which do not say where the first one begins.
        """
        if torch._C._are_functorch_transforms_active() and not self._are_covering():
            return None
        try:
            return function(*arguments)
        except (ValueError, NotImplementedError):  # the latter of forward-mode AD, which PyTorch's operators have
            if self._are_covering():
                raise
            return None

    def _are_covering(self) -> bool:
        """Whether segments cover src. Raises ValueError for offsets that fall or leave it."""
        _check_offsets(self.indptr, self.length)
        ends = self.indptr.flatten()
        return int(ends[0]) == 0 and int(ends[-1]) == self.length

    def ids(self) -> Tensor:
        _check_offsets(self.indptr, self.length)
        if self.count == 0:
            return self.indptr.new_zeros((1,) * self.dim + (self.length,))
        ids = _segments_of_positions(self.indptr, self.length)
        return torch.where(ids < 0, self.count, ids)

    def without_rest(self, result: Tensor) -> Tensor:
        return result.narrow(self.dim, 0, self.count)
