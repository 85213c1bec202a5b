"""Products of sparse matrices with dense and sparse ones, and dense products at the places of a sparse one."""

from __future__ import annotations

from typing import Any, TypeVar

import torch
from torch import Tensor

from ....ops import gsddmm, gspmm
from ..base import DGLError, ranges
from .elementwise import val_like
from .entries import Entries, summed

M = TypeVar("M", bound=Entries)


def spmm(A: Entries, X: Tensor) -> Tensor:
    """A (N, K) with values (nnz,) times the dense X (K,) or (K, D): (N,) or (N, D)."""
    if A.val.dim() != 1 or X.dim() not in (1, 2):
        raise DGLError(
            f"A has values of shape {tuple(A.val.shape)} and X {tuple(X.shape)}; expected (nnz,), and (K,) or (K, D)"
        )
    return gspmm(A._edges.graph(), "mul", "sum", X, A.val.reshape(-1, *[1] * (X.dim() - 1)))


def bspmm(A: Entries, X: Tensor) -> Tensor:
    """Each of B matrices, the columns of A's values (nnz, B), times its part of X (K, D, B): (N, D, B)."""
    if A.val.dim() != 2 or X.dim() != 3:
        raise DGLError(
            f"A has values of shape {tuple(A.val.shape)} and X {tuple(X.shape)}; expected (nnz, B) and (K, D, B)"
        )
    return gspmm(A._edges.graph(), "mul", "sum", X, A.val.unsqueeze(1))


def spspmm(A: M, B: Entries) -> M:
    """A (N, K) times B (K, M), both with values (nnz,): a matrix (N, M), whose entries are sorted by row, then by column.

    It takes time and memory for each pair of entries that multiply.
    """
    if A.shape[1] != B.shape[0] or A.val.dim() != 1 or B.val.dim() != 1:
        raise DGLError(
            f"A has shape {A.shape} and values {tuple(A.val.shape)}, B {B.shape} and {tuple(B.val.shape)}; expected (N, K),"
            " (K, M), and one value per entry"
        )
    if A.has_duplicate() or B.has_duplicate():
        raise DGLError("A or B has several entries at one place; expected one: coalesce() adds them up")
    indptr, cols, entries = B.csr()
    shared = A.col.long()
    places, counts = ranges(indptr[shared], indptr[shared + 1])
    left = torch.arange(A.nnz, device=A.device).repeat_interleave(counts)
    right = places if entries is None else entries[places].long()
    keys, group = torch.unique(A.row[left].long() * B.shape[1] + cols[places], return_inverse=True)
    val = summed(A.val[left] * B.val[right], group, keys.numel())
    row, col = keys // max(B.shape[1], 1), keys % max(B.shape[1], 1)
    return A._at(row.to(A.row.dtype), col.to(A.row.dtype), val, (A.shape[0], B.shape[1]))


def matmul(A: Any, B: Any) -> Any:
    """A @ B of two sparse matrices, of a sparse and a dense one, or of two dense ones."""
    if isinstance(A, Tensor) and isinstance(B, Tensor):
        return torch.matmul(A, B)
    if not isinstance(A, Entries):
        raise DGLError("A is dense and B is sparse; expected A to be sparse: (B.T @ A.T).T is the product")
    if isinstance(B, Tensor):
        return spmm(A, B) if B.dim() < 3 else bspmm(A, B)
    return spspmm(A, B)


def sddmm(A: M, X1: Tensor, X2: Tensor) -> M:
    """A's entries times the entries of X1 @ X2 at their places. X1 (N, D) and X2 (D, M), or (N,) and (M,)."""
    rows, cols = (x.unsqueeze(1) for x in (X1, X2)) if X1.dim() == X2.dim() == 1 else (X1, X2.t())
    products = gsddmm(A._edges.graph(), "dot", cols, rows, "u", "v").squeeze(-1)
    return val_like(A, products.reshape(-1, *[1] * (A.val.dim() - 1)) * A.val)


def bsddmm(A: M, X1: Tensor, X2: Tensor) -> M:
    """:func:`sddmm` of B matrices: X1 (N, D, B), X2 (D, M, B), and A with values (nnz, B) or (nnz,)."""
    rows, cols = X1.transpose(1, 2), X2.permute(1, 2, 0)
    products = gsddmm(A._edges.graph(), "dot", cols.contiguous(), rows.contiguous(), "u", "v").squeeze(-1)
    return val_like(A, products * (A.val if A.val.dim() == 2 else A.val.unsqueeze(1)))
