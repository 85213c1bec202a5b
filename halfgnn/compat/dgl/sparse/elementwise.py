"""Arithmetic of the entries of one or two sparse matrices, and of a vector with each row or column."""

from __future__ import annotations

import operator
from collections.abc import Callable
from numbers import Number
from typing import Any, TypeVar

import torch
from torch import Tensor

from ..base import DGLError
from .entries import Entries

M = TypeVar("M", bound=Entries)


def is_scalar(x: Any) -> bool:
    """Whether x is a number or a tensor of one."""
    return isinstance(x, Number) or (isinstance(x, Tensor) and x.dim() == 0)


def val_like(mat: M, val: Tensor) -> M:
    """With other values at the same places."""
    return type(mat)(mat._edges, val)


def add(A: M, B: Entries) -> M:
    """A + B of one shape."""
    _check_shapes(A, B)
    row, col = torch.cat([A.row, B.row]), torch.cat([A.col, B.col])
    return A._at(row, col, torch.cat([A.val, B.val]), A.shape).coalesce()


def sub(A: M, B: Entries) -> M:
    """A - B of one shape."""
    return add(A, neg(B))


def mul(A: Any, B: Any) -> Any:
    """A * B, entry by entry, where both matrices have one; or a matrix times a number."""
    if is_scalar(A):
        return val_like(B, A * B.val)
    if is_scalar(B):
        return val_like(A, A.val * B)
    _check_shapes(A, B)
    place, is_shared = _places_in(A, B)
    at = is_shared.nonzero().squeeze(1)
    return A._at(A.row[at], A.col[at], A.val[at] * B.val[place[at]], A.shape)


def div(A: M, B: Any) -> M:
    """A / B, entry by entry, of matrices with entries at the same places; or a matrix by a number."""
    if is_scalar(B):
        return val_like(A, A.val / B)
    _check_shapes(A, B)
    place, is_shared = _places_in(A, B)
    if A.nnz != B.nnz or not bool(is_shared.all()):
        raise DGLError("A and B have entries at different places; expected the same places")
    return val_like(A, A.val / B.val[place])


def power(A: M, scalar: Any) -> M:
    """A with its values raised to a power."""
    return val_like(A, A.val**scalar)


def neg(A: M) -> M:
    """-A."""
    return val_like(A, -A.val)


def inv(A: M) -> M:
    """The inverse of a square diagonal matrix."""
    if A.shape[0] != A.shape[1] or not A.is_diag():
        raise DGLError(f"A has shape {A.shape} and {A.nnz} entries; expected a square diagonal matrix")
    return val_like(A, 1 / A.val)


def _check_shapes(A: Entries, B: Entries) -> None:
    if A.shape != B.shape:
        raise DGLError(f"A has shape {A.shape} and B {B.shape}; expected one shape")


def _places_in(A: Entries, B: Entries) -> tuple[Tensor, Tensor]:
    """For each entry of A the entry of B at its place, and whether there is one."""
    for name, matrix in (("A", A), ("B", B)):
        if matrix.has_duplicate():
            raise DGLError(f"{name} has several entries at one place; expected one: coalesce() adds them up")
    keys, entries = B._edges.pairs()
    wanted = A._edges.key(A.col, A.row)
    if not B.nnz:
        return torch.zeros_like(wanted), torch.zeros_like(wanted, dtype=torch.bool)
    at = torch.searchsorted(keys, wanted).clamp(max=B.nnz - 1)
    return entries[at], keys[at] == wanted


_OPERATORS: dict[str, Callable] = {name: getattr(operator, name) for name in ("add", "sub", "mul", "truediv")}


def sp_broadcast_v(A: M, v: Tensor, op: str) -> M:
    """op (add, sub, mul, truediv) of each entry and the vector's element of its column, v (M,) or (1, M), or row, v (N, 1)."""
    if op not in _OPERATORS:
        raise DGLError(f"op is {op!r}; expected one of {list(_OPERATORS)}")
    if v.dim() == 1:
        v = v.unsqueeze(0)
    if tuple(v.shape) not in ((1, A.shape[1]), (A.shape[0], 1)):
        raise DGLError(
            f"v has shape {tuple(v.shape)}; expected ({A.shape[1]},), (1, {A.shape[1]}) or ({A.shape[0]}, 1)"
        )
    element = v.reshape(-1)[(A.col if tuple(v.shape) == (1, A.shape[1]) else A.row).long()]
    return val_like(A, _OPERATORS[op](A.val, element.reshape(-1, *[1] * (A.val.dim() - 1))))


def sp_add_v(A: M, v: Tensor) -> M:
    """:func:`sp_broadcast_v` of add."""
    return sp_broadcast_v(A, v, "add")


def sp_sub_v(A: M, v: Tensor) -> M:
    """:func:`sp_broadcast_v` of sub."""
    return sp_broadcast_v(A, v, "sub")


def sp_mul_v(A: M, v: Tensor) -> M:
    """:func:`sp_broadcast_v` of mul."""
    return sp_broadcast_v(A, v, "mul")


def sp_div_v(A: M, v: Tensor) -> M:
    """:func:`sp_broadcast_v` of truediv."""
    return sp_broadcast_v(A, v, "truediv")
