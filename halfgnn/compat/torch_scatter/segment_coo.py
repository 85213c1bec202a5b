"""Reductions by a sorted index, along the last dimension of the index."""

from __future__ import annotations

from torch import Tensor

from ...common.operands import check_tensor
from ._gather import gathered
from ._index import check_index, copied_to
from ._scripting import in_python
from .scatter import scatter_max, scatter_mean, scatter_min, scatter_sum


def segment_sum_coo(src: Tensor, index: Tensor, out: Tensor | None = None, dim_size: int | None = None) -> Tensor:
    """Sums of src by index. See :func:`segment_coo`."""
    return scatter_sum(src, index, _last_dim(index), out, dim_size)


def segment_add_coo(src: Tensor, index: Tensor, out: Tensor | None = None, dim_size: int | None = None) -> Tensor:
    """:func:`segment_sum_coo`."""
    return scatter_sum(src, index, _last_dim(index), out, dim_size)


def segment_mean_coo(src: Tensor, index: Tensor, out: Tensor | None = None, dim_size: int | None = None) -> Tensor:
    """Means of src by index. See :func:`segment_coo`."""
    return scatter_mean(src, index, _last_dim(index), out, dim_size)


def segment_min_coo(
    src: Tensor, index: Tensor, out: Tensor | None = None, dim_size: int | None = None
) -> tuple[Tensor, Tensor]:
    """Minima of src by index, and their positions. See :func:`segment_coo` and :func:`scatter_max`."""
    return scatter_min(src, index, _last_dim(index), out, dim_size)


def segment_max_coo(
    src: Tensor, index: Tensor, out: Tensor | None = None, dim_size: int | None = None
) -> tuple[Tensor, Tensor]:
    """Maxima of src by index, and their positions. See :func:`segment_coo` and :func:`scatter_max`."""
    return scatter_max(src, index, _last_dim(index), out, dim_size)


def segment_coo(
    src: Tensor, index: Tensor, out: Tensor | None = None, dim_size: int | None = None, reduce: str = "sum"
) -> Tensor:
    """The entries of src that index sends to one group, reduced along the last dimension of index.

    :func:`scatter` with dim = index.dim() - 1: the dimensions of index are those of src or 1, aligned on the left. Ids need not be
    sorted. reduce: sum, add, mean, min or max.
    """
    if reduce == "sum" or reduce == "add":
        return segment_sum_coo(src, index, out, dim_size)
    if reduce == "mean":
        return segment_mean_coo(src, index, out, dim_size)
    if reduce == "min":
        return segment_min_coo(src, index, out, dim_size)[0]
    if reduce == "max":
        return segment_max_coo(src, index, out, dim_size)[0]
    raise ValueError(f"reduce is {reduce}; expected one of sum, add, mean, min, max")


def gather_coo(src: Tensor, index: Tensor, out: Tensor | None = None) -> Tensor:
    """The entry of src per id, along the last dimension of index; the inverse of :func:`segment_coo`.

    Args:
        src: (*, N, *). index: (*, E), whose leading dimensions are those of src or 1. out: takes the result.

    Returns:
        (*, E, *)
    """
    return _gather_coo(src, index, out)


@in_python
def _last_dim(index: Tensor) -> int:
    check_tensor(index, "index")
    return index.dim() - 1


@in_python
def _gather_coo(src: Tensor, index: Tensor, out: Tensor | None) -> Tensor:
    dim = check_index(src, index, _last_dim(index), lengths=tuple(index.shape[-1:]))
    result = gathered(src, index, dim)
    return copied_to(out, result)
