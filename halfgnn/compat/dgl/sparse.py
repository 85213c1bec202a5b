"""A part of ``dgl.sparse``: sparse matrices, their products with dense ones, and softmax over rows."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ... import ops
from .base import DGLError
from .edge_data import edge_data
from .topology import Relation

__all__ = ["SparseMatrix", "from_coo", "from_csc", "from_csr", "matmul", "softmax", "spmatrix", "spmm", "val_like"]


class SparseMatrix:
    """A sparse matrix (N, M). Entries are in the order of its constructor; those at one place add up in products.

    Attributes:
        val: (nnz,) or (nnz, D) the values of entries.
        shape: (N, M).
    """

    def __init__(self, edges: Relation, val: Tensor):
        if val.dim() not in (1, 2) or val.shape[0] != edges.num_edges:
            raise DGLError(f"val has shape {tuple(val.shape)}; expected ({edges.num_edges},) or ({edges.num_edges}, D)")
        if val.device != edges.device:
            raise DGLError(f"val is on {val.device}; expected the device of the indices, {edges.device}")
        self._edges = edges  # from columns to rows
        self.val = val
        self.shape = edges.num_dst, edges.num_src

    @property
    def row(self) -> Tensor:
        """(nnz,) the row of each entry."""
        return self._edges.edges()[1]

    @property
    def col(self) -> Tensor:
        """(nnz,) the column of each entry."""
        return self._edges.edges()[0]

    @property
    def nnz(self) -> int:
        """Number of entries."""
        return self._edges.num_edges

    @property
    def dtype(self) -> torch.dtype:
        return self.val.dtype

    @property
    def device(self) -> torch.device:
        return self.val.device

    def indices(self) -> Tensor:
        """(2, nnz) rows and columns."""
        return torch.stack([self.row, self.col])

    def coo(self) -> tuple[Tensor, Tensor]:
        """Rows and columns (nnz,)."""
        return self.row, self.col

    def csr(self) -> tuple[Tensor, Tensor, Tensor | None]:
        """(indptr, columns, places in val, which are None for this order)."""
        return tuple(self._edges.graph().csc())  # type: ignore[return-value]

    def csc(self) -> tuple[Tensor, Tensor, Tensor | None]:
        """(indptr, rows, places in val, which are None for this order)."""
        return tuple(self._edges.graph().csr())  # type: ignore[return-value]

    def to_dense(self) -> Tensor:
        """(N, M), or (N, M, D)."""
        dense = self.val.new_zeros(*self.shape, *self.val.shape[1:])
        return dense.index_put((self.row.long(), self.col.long()), self.val, accumulate=True)

    def transpose(self) -> SparseMatrix:
        """(M, N). Shares all tensors."""
        return SparseMatrix(self._edges.reverse(), self.val)

    t = transpose

    @property
    def T(self) -> SparseMatrix:
        """The transposed matrix."""
        return self.transpose()

    def to(self, device: Any = None, dtype: torch.dtype | None = None) -> SparseMatrix:
        """On a device, with values of a dtype."""
        val = self.val.to(device=device, dtype=dtype)
        edges = self._edges
        return SparseMatrix(edges.map(lambda t: t.to(val.device), lambda g: g.to(val.device)), val)

    def sum(self, dim: int | None = None) -> Tensor:
        """The sum of all values, or of each column (dim 0) or row (dim 1)."""
        if dim is None:
            return self.val.sum(0)
        if dim not in (0, 1):
            raise DGLError(f"dim is {dim}; expected 0 or 1")
        return ops.copy_e_sum((self._edges if dim == 1 else self._edges.reverse()).graph(), self.val)

    def __mul__(self, factor: float | Tensor) -> SparseMatrix:
        return val_like(self, self.val * factor)

    __rmul__ = __mul__

    def __truediv__(self, divisor: float | Tensor) -> SparseMatrix:
        return val_like(self, self.val / divisor)

    def __neg__(self) -> SparseMatrix:
        return val_like(self, -self.val)

    def __matmul__(self, X: Tensor) -> Tensor:
        return spmm(self, X)

    def __repr__(self) -> str:
        return f"SparseMatrix(indices={self.indices()},\n             values={self.val},\n             shape={self.shape}, nnz={self.nnz})"


def spmatrix(indices: Any, val: Tensor | None = None, shape: tuple[int, int] | None = None) -> SparseMatrix:
    """Of entries at indices (2, nnz) or (rows, columns), by default ones, and by default as small as these allow."""
    row, col = indices
    data = edge_data((col, row))
    num_rows, num_cols = data.least[::-1] if shape is None else shape
    relation = data.relation(num_cols, num_rows, "indices")
    return SparseMatrix(relation, torch.ones(relation.num_edges, device=relation.device) if val is None else val)


def from_coo(row: Tensor, col: Tensor, val: Tensor | None = None, shape: tuple[int, int] | None = None) -> SparseMatrix:
    """Of entries at rows and columns (nnz,)."""
    return spmatrix((row, col), val, shape)


def from_csr(
    indptr: Tensor, indices: Tensor, val: Tensor | None = None, shape: tuple[int, int] | None = None
) -> SparseMatrix:
    """Of rows: indptr (N + 1,) delimits the columns of each in indices (nnz,)."""
    data = edge_data(("csc", (indptr, indices, indices.new_empty(0))))
    num_rows, num_cols = data.least[::-1] if shape is None else shape
    relation = data.relation(num_cols, num_rows, "indices")
    return SparseMatrix(relation, torch.ones(relation.num_edges, device=relation.device) if val is None else val)


def from_csc(
    indptr: Tensor, indices: Tensor, val: Tensor | None = None, shape: tuple[int, int] | None = None
) -> SparseMatrix:
    """Of columns: indptr (M + 1,) delimits the rows of each in indices (nnz,)."""
    return from_csr(indptr, indices, val, None if shape is None else shape[::-1]).transpose()


def val_like(mat: SparseMatrix, val: Tensor) -> SparseMatrix:
    """With other values at the same places."""
    return SparseMatrix(mat._edges, val)


def spmm(A: SparseMatrix, X: Tensor) -> Tensor:
    """A (N, M) with values (nnz,) times the dense X (M,) or (M, D)."""
    if A.val.dim() != 1:
        raise DGLError(f"A has values of shape {tuple(A.val.shape)}; expected (nnz,)")
    return ops.gspmm(A._edges.graph(), "mul", "sum", X, A.val.reshape(-1, *[1] * (X.dim() - 1)))


def matmul(A: SparseMatrix, B: Tensor) -> Tensor:
    """:func:`spmm`. Products of two sparse matrices are not available."""
    if not isinstance(B, Tensor):
        raise DGLError(
            f"B is a {type(B).__name__}; expected a dense tensor: dgl.adj_product_graph multiplies sparse ones"
        )
    return spmm(A, B)


def softmax(input: SparseMatrix, dim: int = 1) -> SparseMatrix:
    """With the softmax of each row (dim 1) or column (dim 0) as values."""
    if dim not in (0, 1):
        raise DGLError(f"dim is {dim}; expected 0 or 1")
    edges = input._edges if dim == 1 else input._edges.reverse()
    return val_like(input, ops.edge_softmax(edges.graph(), input.val))


def __getattr__(name: str) -> Any:
    raise AttributeError(f"dgl.sparse.{name} is not available in halfgnn.compat.dgl, which has {__all__}")
