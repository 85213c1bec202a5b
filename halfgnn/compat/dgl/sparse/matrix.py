"""SparseMatrix, and how it is made."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ....common.arguments import checked_size
from ....common.ids import check_edge_index
from ..base import DGLError
from ..edge_data import EdgeData, edge_data
from . import elementwise, reduction
from .entries import Entries
from .matmul import matmul


class SparseMatrix(Entries):
    """A sparse matrix with arithmetic, products and reductions: see the functions of these names."""

    reduce, sum, smax, smin = reduction.reduce, reduction.sum, reduction.smax, reduction.smin
    smean, sprod, softmax = reduction.smean, reduction.sprod, reduction.softmax
    neg, inv = elementwise.neg, elementwise.inv

    def __add__(self, other: Any) -> Any:
        return elementwise.add(self, other) if isinstance(other, Entries) else NotImplemented

    def __sub__(self, other: Any) -> Any:
        return elementwise.sub(self, other) if isinstance(other, Entries) else NotImplemented

    def __mul__(self, other: Any) -> Any:
        return elementwise.mul(self, other) if _fits(other) else NotImplemented

    __rmul__ = __mul__

    def __truediv__(self, other: Any) -> Any:
        return elementwise.div(self, other) if _fits(other) else NotImplemented

    def __pow__(self, scalar: Any) -> Any:
        return elementwise.power(self, scalar) if elementwise.is_scalar(scalar) else NotImplemented

    def __neg__(self) -> Any:
        return elementwise.neg(self)

    def __matmul__(self, other: Any) -> Any:
        return matmul(self, other) if isinstance(other, (Entries, Tensor)) else NotImplemented


def _fits(other: Any) -> bool:
    return isinstance(other, Entries) or elementwise.is_scalar(other)


def _matrix(
    data: EdgeData, val: Tensor | None, shape: tuple[int, int] | None, indices: Tensor | None = None
) -> SparseMatrix:
    num_rows, num_cols = data.least[::-1] if shape is None else shape
    edges = data.relation(num_cols, num_rows, "indices")
    return SparseMatrix(edges, torch.ones(edges.num_edges, device=edges.device) if val is None else val, indices)


def spmatrix(indices: Any, val: Tensor | None = None, shape: tuple[int, int] | None = None) -> SparseMatrix:
    """Of entries at indices (2, nnz) or (rows, columns), by default ones, and by default as small as these allow."""
    if isinstance(indices, Tensor):
        check_edge_index(indices, "indices")
    row, col = indices
    return _matrix(edge_data((col, row)), val, shape, indices if isinstance(indices, Tensor) else None)


def from_coo(row: Tensor, col: Tensor, val: Tensor | None = None, shape: tuple[int, int] | None = None) -> SparseMatrix:
    """Of entries at rows and columns (nnz,)."""
    return spmatrix((row, col), val, shape)


def from_csr(
    indptr: Tensor, indices: Tensor, val: Tensor | None = None, shape: tuple[int, int] | None = None
) -> SparseMatrix:
    """Of rows: indptr (N + 1,) delimits the columns of each in indices (nnz,)."""
    return _matrix(edge_data(("csc", (indptr, indices, indices.new_empty(0)))), val, shape)


def from_csc(
    indptr: Tensor, indices: Tensor, val: Tensor | None = None, shape: tuple[int, int] | None = None
) -> SparseMatrix:
    """Of columns: indptr (M + 1,) delimits the rows of each in indices (nnz,)."""
    return from_csr(indptr, indices, val, None if shape is None else shape[::-1]).transpose()


def diag(val: Tensor, shape: tuple[int, int] | None = None) -> SparseMatrix:
    """Of a diagonal (n,) or (n, D), by default square."""
    shape = (val.shape[0], val.shape[0]) if shape is None else (shape[0], shape[1])
    if val.shape[0] != min(shape):
        raise DGLError(
            f"val has shape {tuple(val.shape)}; expected {min(shape)} rows, the length of the diagonal of {shape}"
        )
    places = torch.arange(val.shape[0], device=val.device)
    return spmatrix((places, places), val, shape)


def identity(
    shape: tuple[int, int], d: int | None = None, dtype: torch.dtype | None = None, device: Any = None
) -> SparseMatrix:
    """With ones on the diagonal: (n,), or (n, d)."""
    shape = checked_size(shape[0], "shape[0]"), checked_size(shape[1], "shape[1]")
    size = (min(shape),) if d is None else (min(shape), d)
    return diag(torch.ones(size, dtype=dtype, device=device), shape)


def from_torch_sparse(torch_sparse_tensor: Tensor) -> SparseMatrix:
    """Of a torch sparse matrix: COO, CSR or CSC."""
    matrix = torch_sparse_tensor
    shape = matrix.shape[0], matrix.shape[1]
    if matrix.layout == torch.sparse_coo:
        return spmatrix(matrix._indices(), matrix._values(), shape)
    if matrix.layout == torch.sparse_csr:
        return from_csr(matrix.crow_indices(), matrix.col_indices(), matrix.values(), shape)
    if matrix.layout == torch.sparse_csc:
        return from_csc(matrix.ccol_indices(), matrix.row_indices(), matrix.values(), shape)
    raise DGLError(f"the tensor has layout {matrix.layout}; expected sparse_coo, sparse_csr or sparse_csc")


def to_torch_sparse_coo(spmat: SparseMatrix) -> Tensor:
    """As a torch sparse matrix."""
    return torch.sparse_coo_tensor(spmat.indices(), spmat.val, (*spmat.shape, *spmat.val.shape[1:]))


def to_torch_sparse_csr(spmat: SparseMatrix) -> Tensor:
    """As a torch sparse matrix."""
    indptr, indices, places = spmat.csr()
    val = spmat.val if places is None else spmat.val[places.long()]
    return torch.sparse_csr_tensor(indptr, indices, val, (*spmat.shape, *spmat.val.shape[1:]))


def to_torch_sparse_csc(spmat: SparseMatrix) -> Tensor:
    """As a torch sparse matrix."""
    indptr, indices, places = spmat.csc()
    val = spmat.val if places is None else spmat.val[places.long()]
    return torch.sparse_csc_tensor(indptr, indices, val, (*spmat.shape, *spmat.val.shape[1:]))
