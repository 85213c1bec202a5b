"""torch.ops.torch_sparse, as far as programs call it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ...common.ids import check_ids, check_range
from ..torch_scatter import scatter_max, scatter_min
from ._sampling import random_walk, sample_adj
from .matmul import matmul, weighted
from .storage import SparseStorage, offsets_of, rows_of
from .tensor import SparseTensor

_SCHEMAS = (
    "ind2ptr(Tensor ind, int M) -> Tensor",
    "ptr2ind(Tensor ptr, int E) -> Tensor",
    "random_walk(Tensor rowptr, Tensor col, Tensor start, int walk_length) -> Tensor",
    "sample_adj(Tensor rowptr, Tensor col, Tensor idx, int num_neighbors, bool replace) -> (Tensor, Tensor, Tensor, Tensor)",
    "saint_subgraph(Tensor idx, Tensor rowptr, Tensor row, Tensor col) -> (Tensor, Tensor, Tensor)",
    "spmm_sum(Tensor? row, Tensor rowptr, Tensor col, Tensor? value, Tensor? colptr, Tensor? csr2csc, Tensor mat) -> Tensor",
    "spmm_mean(Tensor? row, Tensor rowptr, Tensor col, Tensor? value, Tensor? rowcount, Tensor? colptr, Tensor? csr2csc,"
    " Tensor mat) -> Tensor",
    "spmm_min(Tensor rowptr, Tensor col, Tensor? value, Tensor mat) -> (Tensor, Tensor)",
    "spmm_max(Tensor rowptr, Tensor col, Tensor? value, Tensor mat) -> (Tensor, Tensor)",
)
_OF_PYG_LIB = {
    "neighbor_sample": "neighbor_sample",
    "hetero_neighbor_sample": "hetero_neighbor_sample",
    "hgt_sample": "hgt_sample",
    "partition": "metis",
    "ego_k_hop_sample_adj": "neighbor_sample, in NeighborLoader",
}


def _spmm_sum(row: Any, rowptr: Tensor, col: Tensor, value: Any, colptr: Any, csr2csc: Any, mat: Tensor) -> Tensor:
    return matmul(_matrix(rowptr, col, value, mat), mat, "sum")


def _spmm_mean(
    row: Any, rowptr: Tensor, col: Tensor, value: Any, rowcount: Any, colptr: Any, csr2csc: Any, mat: Tensor
) -> Tensor:
    return matmul(_matrix(rowptr, col, value, mat), mat, "mean")


def _extreme(reduce: Callable[..., tuple[Tensor, Tensor]]) -> Callable[..., tuple[Tensor, Tensor]]:
    def spmm_extreme(rowptr: Tensor, col: Tensor, value: Any, mat: Tensor) -> tuple[Tensor, Tensor]:
        _matrix(rowptr, col, value, mat)  # checks them
        messages = weighted(mat.movedim(-2, 0).index_select(0, col), value)
        out, arg = reduce(messages, rows_of(rowptr, col.numel()), 0, dim_size=rowptr.numel() - 1)
        return out.movedim(0, -2).contiguous(), arg.movedim(0, -2).contiguous()

    return spmm_extreme


def _matrix(rowptr: Tensor, col: Tensor, value: Any, mat: Tensor) -> SparseTensor:
    sizes = rowptr.numel() - 1, mat.shape[-2]
    return SparseTensor.from_storage(
        SparseStorage(rowptr=rowptr.long(), col=col.long(), value=value, sparse_sizes=sizes, is_sorted=True)
    )


def _ind2ptr(ind: Tensor, M: int) -> Tensor:
    """The offsets of sorted rows. Ids that fall or are out of range would be written beyond the result."""
    check_ids(ind, "ind")
    check_range(ind, "ind", M)
    if bool((ind[1:] < ind[:-1]).any()):
        raise ValueError("ind falls; expected the rows of entries in order")
    return offsets_of(ind, M)


def _ptr2ind(ptr: Tensor, E: int) -> Tensor:
    check_ids(ptr, "ptr")
    if ptr.numel() == 0 or not bool((ptr[0] == 0) & (ptr[-1] == E) & (ptr[1:] >= ptr[:-1]).all()):
        raise ValueError(f"ptr, of shape {tuple(ptr.shape)}, falls or does not run from 0 to E, which is {E}")
    return rows_of(ptr, E)


def _saint_subgraph(idx: Tensor, rowptr: Tensor, row: Tensor, col: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    size = rowptr.numel() - 1
    part, edge_index = SparseTensor(row, rowptr, col, None, (size, size), True, True).saint_subgraph(idx)
    return part.storage.row(), part.storage.col(), edge_index


def _refuse(name: str, other: str) -> Callable[..., Any]:
    def refused(*args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError(f"torch.ops.torch_sparse.{name} is not here; torch_geometric uses pyg_lib's {other}")

    return refused


_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "ind2ptr": _ind2ptr,
    "ptr2ind": _ptr2ind,
    "random_walk": random_walk,
    "sample_adj": sample_adj,
    "saint_subgraph": _saint_subgraph,
    "spmm_sum": _spmm_sum,
    "spmm_mean": _spmm_mean,
    "spmm_min": _extreme(scatter_min),
    "spmm_max": _extreme(scatter_max),
}


def register() -> torch.library.Library | None:
    """Defines the operators, unless the library torch_sparse has done so; what is returned keeps them.

    The others are attributes that say where to find what they do.
    """
    namespace = torch.ops.torch_sparse
    if hasattr(namespace, "spmm_sum"):
        return None
    library = torch.library.Library("torch_sparse", "FRAGMENT")
    for schema in _SCHEMAS:
        name = library.define(schema)
        library.impl(name, _FUNCTIONS[name], "CompositeImplicitAutograd")
    for name, other in _OF_PYG_LIB.items():
        setattr(namespace, name, _refuse(name, other))
    return library
