"""Functions of a matrix that is given by index (2, nnz) int64, of which row 0 has the rows, and values (nnz, *)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ...common.caching import unwrapped
from ...common.ids import check_edge_index
from ...common.operands import check_tensor
from ...graphs_by_tensor.matrix import graph_of_coo
from ..torch_scatter import scatter_sum
from .matmul import has_operator, product, weighted
from .matmul import matmul as _matmul
from .storage import SparseStorage
from .tensor import SparseTensor


def coalesce(index: Tensor, value: Tensor | None, m: int, n: int, op: str = "add") -> tuple[Tensor, Tensor | None]:
    """Entries of (m, n) in row-major order, with those of one place as one, whose values are reduced by op."""
    index = (
        torch.stack(index) if isinstance(index, tuple) else index
    )  # of rows and columns, which torch_sparse takes too
    check_edge_index(index, "index")
    storage = SparseStorage(row=index[0], col=index[1], value=value, sparse_sizes=(m, n)).coalesce(op)
    return torch.stack([storage.row(), storage.col()]), storage.value()


def transpose(
    index: Tensor, value: Tensor | None, m: int, n: int, coalesced: bool = True
) -> tuple[Tensor, Tensor | None]:
    """The transpose of (m, n); coalesced: in row-major order, with entries of one place added."""
    index = index.flip(0)
    return coalesce(index, value, n, m) if coalesced else (index, value)


def eye(m: int, dtype: torch.dtype | None = None, device: torch.device | str | None = None) -> tuple[Tensor, Tensor]:
    """Ones on the diagonal of (m, m)."""
    ids = torch.arange(m, device=device)
    return torch.stack([ids, ids]), torch.ones(m, dtype=dtype, device=device)


def spmm(index: Tensor, value: Tensor, m: int, n: int, matrix: Tensor) -> Tensor:
    """The product (*, m, K) of a matrix (m, n), in any order and with values (nnz,), and a dense one (*, n, K) or (n,).

    Sums of fp16 and bf16 are fp32 and rounded once. index is sorted once, and what is made of it is cached with it.
    """
    check_edge_index(index, "index")
    check_tensor(matrix, "matrix")
    if value is not None and value.shape != index.shape[1:]:
        raise ValueError(f"value has shape {tuple(value.shape)}; expected ({index.shape[1]},), one number per entry")
    matrix = matrix.unsqueeze(-1) if matrix.dim() == 1 else matrix
    if matrix.shape[-2] != n:
        raise ValueError(f"matrix has shape {tuple(matrix.shape)}; expected (*, {n}, K)")
    x = matrix.movedim(-2, 0)
    if has_operator(x):
        out = product(graph_of_coo(unwrapped(index, "index"), m, n), x, value, "sum")
    else:
        out = scatter_sum(weighted(x.index_select(0, index[1]), value), index[0], 0, dim_size=m)
    return out.movedim(0, -2).contiguous()


def spspmm(
    indexA: Tensor, valueA: Tensor, indexB: Tensor, valueB: Tensor, m: int, k: int, n: int, coalesced: bool = False
) -> tuple[Tensor, Tensor | None]:
    """The product of sparse matrices (m, k) and (k, n). Entries may be in any order; coalesced is not needed."""
    a = SparseTensor.from_edge_index(indexA, valueA, (m, k))
    b = SparseTensor.from_edge_index(indexB, valueB, (k, n))
    row, col, value = _matmul(a, b).coo()
    return torch.stack([row, col]), value


def spadd(
    indexA: Tensor, valueA: Tensor, indexB: Tensor, valueB: Tensor, m: int, n: int
) -> tuple[Tensor, Tensor | None]:
    """The sum of two sparse matrices (m, n)."""
    return coalesce(torch.cat([indexA, indexB], dim=1), torch.cat([valueA, valueB]), m, n)


def to_torch_sparse(index: Tensor, value: Tensor, m: int, n: int) -> Tensor:
    return torch.sparse_coo_tensor(index.detach(), value, (m, n))


def from_torch_sparse(A: Tensor) -> tuple[Tensor, Tensor]:
    return A.indices().detach(), A.values()


def to_scipy(index: Tensor, value: Tensor, m: int, n: int) -> Any:
    """A scipy.sparse.coo_matrix."""
    import scipy.sparse

    row, col = index.detach().numpy()
    return scipy.sparse.coo_matrix((value.detach().numpy(), (row, col)), (m, n))


def from_scipy(A: Any) -> tuple[Tensor, Tensor]:
    A = A.tocoo()
    row, col, value = (torch.from_numpy(array.copy()) for array in (A.row, A.col, A.data))
    return torch.stack([row, col]).long(), value
