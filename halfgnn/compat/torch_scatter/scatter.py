"""Reductions by an index in any order."""

from __future__ import annotations

import torch
from torch import Tensor

from ._index import check_index, checked_out
from ._reductions import counts, divided, extreme, product, total
from ._scripting import in_python


def scatter_sum(
    src: Tensor, index: Tensor, dim: int = -1, out: Tensor | None = None, dim_size: int | None = None
) -> Tensor:
    """Sums of src by index along dim. See :func:`scatter`."""
    return _sum(src, index, dim, out, dim_size)


def scatter_add(
    src: Tensor, index: Tensor, dim: int = -1, out: Tensor | None = None, dim_size: int | None = None
) -> Tensor:
    """:func:`scatter_sum`."""
    return _sum(src, index, dim, out, dim_size)


def scatter_mul(
    src: Tensor, index: Tensor, dim: int = -1, out: Tensor | None = None, dim_size: int | None = None
) -> Tensor:
    """Products of src by index along dim, 1 for groups without entries. See :func:`scatter`."""
    return _mul(src, index, dim, out, dim_size)


def scatter_mean(
    src: Tensor, index: Tensor, dim: int = -1, out: Tensor | None = None, dim_size: int | None = None
) -> Tensor:
    """Means of src by index along dim, floored for integers. See :func:`scatter`.

    out: is added to the sums before they are divided by the numbers of entries of src.
    """
    return _mean(src, index, dim, out, dim_size)


def scatter_min(
    src: Tensor, index: Tensor, dim: int = -1, out: Tensor | None = None, dim_size: int | None = None
) -> tuple[Tensor, Tensor]:
    """Minima of src by index along dim, and their positions along dim. See :func:`scatter_max`."""
    return _min(src, index, dim, out, dim_size)


def scatter_max(
    src: Tensor, index: Tensor, dim: int = -1, out: Tensor | None = None, dim_size: int | None = None
) -> tuple[Tensor, Tensor]:
    """Maxima of src by index along dim, and their positions along dim (int64). See :func:`scatter`.

    The first of equal entries wins, and NaN wins over all. The position is src.size(dim) for a group without entries, whose
    maximum is 0, and for an element of `out` that is not smaller.
    """
    return _max(src, index, dim, out, dim_size)


def scatter(
    src: Tensor,
    index: Tensor,
    dim: int = -1,
    out: Tensor | None = None,
    dim_size: int | None = None,
    reduce: str = "sum",
) -> Tensor:
    """The entries of src that index sends to one group, reduced.

    Args:
        src: integers or floating point, of any shape.
        index: int64 or int32: one id per position along `dim`, or a shape that broadcasts to that of src.
        dim: the dimension of src that the groups take the place of.
        out: is reduced with the entries, in place, and returned.
        dim_size: the number of groups; by default that of out, or one more than the largest id.
        reduce: sum, add, mul, mean, min or max.

    Sums of fp16 and bf16 are fp32 and rounded once. Results are deterministic. Groups without entries are 0. Gradients of every
    order exist.

    Returns:
        The shape of src with dim_size at `dim`.

    Raises:
        ValueError: wrong shapes or devices, an unknown reduce. TypeError: wrong dtypes. IndexError: an id or dim out of range.
    """
    if reduce == "sum" or reduce == "add":
        return _sum(src, index, dim, out, dim_size)
    if reduce == "mul":
        return _mul(src, index, dim, out, dim_size)
    if reduce == "mean":
        return _mean(src, index, dim, out, dim_size)
    if reduce == "min":
        return _min(src, index, dim, out, dim_size)[0]
    if reduce == "max":
        return _max(src, index, dim, out, dim_size)[0]
    raise ValueError(f"reduce is {reduce}; expected one of sum, add, mul, mean, min, max")


# ---- what compiled scripts call ----------------------------------------------------------------------------------------------


@in_python
def _sum(src: Tensor, index: Tensor, dim: int, out: Tensor | None, dim_size: int | None) -> Tensor:
    dim = check_index(src, index, dim)
    if out is None:
        return total(src, index, dim, dim_size, "sum")
    num_groups = checked_out(out, src, dim, dim_size)
    return out.add_(total(src, index, dim, num_groups, "sum", is_wide=True))


@in_python
def _mean(src: Tensor, index: Tensor, dim: int, out: Tensor | None, dim_size: int | None) -> Tensor:
    dim = check_index(src, index, dim)
    if out is None:
        return total(src, index, dim, dim_size, "mean")
    num_groups = checked_out(out, src, dim, dim_size)
    sums = total(src, index, dim, num_groups, "sum", is_wide=True) + out
    return out.copy_(divided(sums, counts(index, src, dim, num_groups)))


@in_python
def _mul(src: Tensor, index: Tensor, dim: int, out: Tensor | None, dim_size: int | None) -> Tensor:
    dim = check_index(src, index, dim)
    if out is None:
        return product(src, index, dim, dim_size)
    num_groups = checked_out(out, src, dim, dim_size)
    return out.mul_(product(src, index, dim, num_groups, is_wide=True))


@in_python
def _min(src: Tensor, index: Tensor, dim: int, out: Tensor | None, dim_size: int | None) -> tuple[Tensor, Tensor]:
    return _extreme(src, index, dim, out, dim_size, "min")


@in_python
def _max(src: Tensor, index: Tensor, dim: int, out: Tensor | None, dim_size: int | None) -> tuple[Tensor, Tensor]:
    return _extreme(src, index, dim, out, dim_size, "max")


def _extreme(
    src: Tensor, index: Tensor, dim: int, out: Tensor | None, dim_size: int | None, reduce: str
) -> tuple[Tensor, Tensor]:
    dim = check_index(src, index, dim)
    if out is None:
        return extreme(src, index, dim, dim_size, reduce)
    value, arg = extreme(src, index, dim, checked_out(out, src, dim, dim_size), reduce)
    is_better = (value < out) if reduce == "min" else (value > out)
    is_better = (is_better | (value != value)) & (arg < src.shape[dim])
    return out.copy_(torch.where(is_better, value, out)), torch.where(is_better, arg, src.shape[dim])
