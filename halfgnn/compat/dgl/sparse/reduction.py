"""Reductions of the entries of a sparse matrix, and softmax over them."""

from __future__ import annotations

from typing import TypeVar

import torch
from torch import Tensor

from ....ops import edge_softmax, gspmm
from ..base import DGLError
from .elementwise import val_like
from .entries import Entries, summed

M = TypeVar("M", bound=Entries)
_REDUCES = {"sum": "sum", "smax": "max", "smin": "min", "smean": "mean"}  # of gspmm


def reduce(input: Entries, dim: int | None = None, rtype: str = "sum") -> Tensor:
    """The sum, smax, smin, smean or sprod of all entries, or of those of each column (dim 0) or row (dim 1), 0 of no entries."""
    if rtype not in (*_REDUCES, "sprod") or dim not in (None, 0, 1):
        raise DGLError(f"rtype is {rtype!r} and dim {dim}; expected one of {[*_REDUCES, 'sprod']}, and 0, 1 or None")
    if dim is None:
        val = input.val
        if rtype == "sprod":
            return val.prod(0)
        return getattr(val, {"smax": "amax", "smin": "amin", "smean": "mean", "sum": "sum"}[rtype])(0)
    if rtype == "sprod":
        return _products(input, dim)
    if not input.val.is_floating_point() and rtype == "sum":
        return summed(input.val, (input.row if dim == 1 else input.col).long(), input.shape[1 - dim])
    edges = input._edges if dim == 1 else input._edges.reverse()
    return gspmm(edges.graph(), "copy_rhs", _REDUCES[rtype], None, input.val)


def _products(input: Entries, dim: int) -> Tensor:
    group = (input.row if dim == 1 else input.col).long()
    count = input.shape[1 - dim]
    ones = input.val.new_ones(count, *input.val.shape[1:])
    index = group.reshape(-1, *[1] * (input.val.dim() - 1)).expand_as(input.val)
    is_empty = torch.bincount(group, minlength=count) == 0
    products = ones.scatter_reduce(0, index, input.val, "prod")
    return products.masked_fill(is_empty.reshape(-1, *[1] * (input.val.dim() - 1)), 0)


def sum(input: Entries, dim: int | None = None) -> Tensor:
    """:func:`reduce` by sum."""
    return reduce(input, dim, "sum")


def smax(input: Entries, dim: int | None = None) -> Tensor:
    """:func:`reduce` by max."""
    return reduce(input, dim, "smax")


def smin(input: Entries, dim: int | None = None) -> Tensor:
    """:func:`reduce` by min."""
    return reduce(input, dim, "smin")


def smean(input: Entries, dim: int | None = None) -> Tensor:
    """:func:`reduce` by mean."""
    return reduce(input, dim, "smean")


def sprod(input: Entries, dim: int | None = None) -> Tensor:
    """:func:`reduce` by product."""
    return reduce(input, dim, "sprod")


def softmax(input: M, dim: int = 1) -> M:
    """With the softmax over each row (dim 1) or column (dim 0) as values."""
    if dim not in (0, 1):
        raise DGLError(f"dim is {dim}; expected 0 or 1")
    edges = input._edges if dim == 1 else input._edges.reverse()
    return val_like(input, edge_softmax(edges.graph(), input.val))
