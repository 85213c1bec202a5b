"""Functions of groups that are made of reductions. Half precision is computed in fp32 and rounded once."""

from __future__ import annotations

import torch
from torch import Tensor

from ... import ops
from ...common.arguments import check_number
from ...common.operands import check_tensor
from ...common.precision import without_autocast
from ._gather import gathered
from ._index import check_index, checked_out, graph_of_vector, vector_of
from ._reductions import counts, extreme, from_front, has_operator, total, wide
from ._scripting import in_python


def scatter_softmax(src: Tensor, index: Tensor, dim: int = -1, dim_size: int | None = None) -> Tensor:
    """The softmax of src over the entries of each group along dim. index, dim, dim_size: see :func:`scatter`.

    Raises ValueError if src is not floating point.
    """
    return _softmax(src, index, dim, dim_size)


def scatter_log_softmax(
    src: Tensor, index: Tensor, dim: int = -1, eps: float = 1e-12, dim_size: int | None = None
) -> Tensor:
    """The logarithm of :func:`scatter_softmax`. eps is added to sums of exponentials."""
    return _log_softmax(src, index, dim, eps, dim_size)


def scatter_logsumexp(
    src: Tensor,
    index: Tensor,
    dim: int = -1,
    out: Tensor | None = None,
    dim_size: int | None = None,
    eps: float = 1e-12,
) -> Tensor:
    """log(sum(exp(src))) over the entries of each group along dim, 0 for groups without entries.

    Infinities and nan give what torch.logsumexp gives. eps is added to the sums of exponentials, which are at least 1: they are
    those of the distances from the largest entry.
    out: each element is one entry more of its group, in place; elements of groups without entries stay.
    """
    return _logsumexp(src, index, dim, out, dim_size, eps)


def scatter_std(
    src: Tensor,
    index: Tensor,
    dim: int = -1,
    out: Tensor | None = None,
    dim_size: int | None = None,
    unbiased: bool = True,
) -> Tensor:
    """The standard deviation of the entries of each group along dim; 1e-6 is added to the divisor of squares.

    out: is added to the sums of squares. unbiased: divide by one less than the number of entries, but at least by 1: of one entry
    the deviation is 0. The gradient of equal entries is 0, as torch.std's is.
    """
    return _std(src, index, dim, out, dim_size, unbiased)


# ---- what compiled scripts call ----------------------------------------------------------------------------------------------


@in_python
def _softmax(src: Tensor, index: Tensor, dim: int, dim_size: int | None) -> Tensor:
    dim = _check(src, index, dim, "scatter_softmax")
    vector = vector_of(index, dim, src.shape[dim])
    if vector is not None and src.numel() and has_operator(src):
        with without_autocast(src.device):
            out = ops.edge_softmax(graph_of_vector(vector, dim_size), src.movedim(dim, 0))
        return from_front(out, dim)
    exponentials = (src.to(wide(src.dtype)) - _largest_of_groups(src, index, dim, dim_size)).exp()
    sums = total(exponentials, index, dim, dim_size, "sum")
    return (exponentials / gathered(sums, index, dim)).to(src.dtype)


@in_python
def _log_softmax(src: Tensor, index: Tensor, dim: int, eps: float, dim_size: int | None) -> Tensor:
    dim = _check(src, index, dim, "scatter_log_softmax", eps)
    centred = src.to(wide(src.dtype)) - _largest_of_groups(src, index, dim, dim_size)
    sums = total(centred.exp(), index, dim, dim_size, "sum")
    return (centred - gathered((sums + eps).log(), index, dim)).to(src.dtype)


@in_python
def _logsumexp(src: Tensor, index: Tensor, dim: int, out: Tensor | None, dim_size: int | None, eps: float) -> Tensor:
    dim = _check(src, index, dim, "scatter_logsumexp", eps)
    dim_size = dim_size if out is None else checked_out(out, src, dim, dim_size)
    x, length = src.to(wide(src.dtype)), src.shape[dim]
    largest, arg = extreme(x.detach(), index, dim, dim_size, "max")
    is_empty = arg == length
    largest = largest.masked_fill(is_empty, -torch.inf)
    before = None if out is None else out.to(x.dtype)
    if before is not None:
        largest = torch.maximum(largest, before.detach())  # nan wins
    shift = largest.masked_fill(~largest.isfinite(), 0.0)  # inf - inf would be nan
    sums = total((x - gathered(shift, index, dim)).exp(), index, dim, largest.shape[dim], "sum")
    if before is not None:
        sums = sums + (before - shift).exp()
    result = (sums + eps).log() + largest
    if out is None or before is None:
        return result.masked_fill(is_empty, 0.0).to(src.dtype)
    return out.copy_(torch.where(is_empty, before, result))


@in_python
def _std(src: Tensor, index: Tensor, dim: int, out: Tensor | None, dim_size: int | None, unbiased: bool) -> Tensor:
    dim = check_index(src, index, dim)
    dim_size = dim_size if out is None else checked_out(out, src, dim, dim_size)
    x = src.to(wide(src.dtype))
    mean = total(x, index, dim, dim_size, "mean")
    squares = total((x - gathered(mean, index, dim)).square(), index, dim, mean.shape[dim], "sum")
    if out is not None:
        squares = squares + out
        out.copy_(squares)
    count = counts(index, src, dim, mean.shape[dim])
    count = (count - 1).clamp_(min=1) if unbiased else count
    return _root(squares / (count.to(squares.dtype) + 1e-6)).to(src.dtype)


def _root(x: Tensor) -> Tensor:
    """The root, whose gradient at 0 is 0: PyTorch's is infinite, and would be nan times the gradient of squares of 0."""
    is_zero = x == 0
    return x.masked_fill(is_zero, 1.0).sqrt().masked_fill(is_zero, 0.0)


def _check(src: Tensor, index: Tensor, dim: int, name: str, eps: float = 0.0) -> int:
    check_tensor(src, "src")
    if check_number(eps, "eps") < 0:
        raise ValueError(f"eps is {eps}; expected a number of at least 0")
    if not src.is_floating_point():
        raise ValueError(f"src has dtype {src.dtype}; {name} takes floating point only: src.float()")
    return check_index(src, index, dim)


def _largest_of_groups(src: Tensor, index: Tensor, dim: int, dim_size: int | None) -> Tensor:
    """The maximum of each entry's group, through which no gradient goes: it cancels."""
    return gathered(extreme(src.detach(), index, dim, dim_size, "max")[0], index, dim)
