"""Methods of SparseTensor as functions."""

from __future__ import annotations

import builtins
from typing import Any

import torch
from torch import Tensor

from .tensor import SparseTensor


def t(src: SparseTensor) -> SparseTensor:
    return src.t()


def narrow(src: SparseTensor, dim: int, start: int, length: int) -> SparseTensor:
    return src.narrow(dim, start, length)


def narrow_diag(src: SparseTensor, start: tuple[int, int], length: tuple[int, int]) -> SparseTensor:
    return src.__narrow_diag__(start, length)


def select(src: SparseTensor, dim: int, idx: int) -> SparseTensor:
    return src.select(dim, idx)


def index_select(src: SparseTensor, dim: int, idx: Tensor) -> SparseTensor:
    return src.index_select(dim, idx)


def index_select_nnz(src: SparseTensor, idx: Tensor, layout: str | None = None) -> SparseTensor:
    return src.index_select_nnz(idx, layout)


def masked_select(src: SparseTensor, dim: int, mask: Tensor) -> SparseTensor:
    return src.masked_select(dim, mask)


def masked_select_nnz(src: SparseTensor, mask: Tensor, layout: str | None = None) -> SparseTensor:
    return src.masked_select_nnz(mask, layout)


def permute(src: SparseTensor, perm: Tensor) -> SparseTensor:
    return src.permute(perm)


def remove_diag(src: SparseTensor, k: int = 0) -> SparseTensor:
    return src.remove_diag(k)


def set_diag(src: SparseTensor, values: Tensor | None = None, k: int = 0) -> SparseTensor:
    return src.set_diag(values, k)


def fill_diag(src: SparseTensor, fill_value: float, k: int = 0) -> SparseTensor:
    return src.fill_diag(fill_value, k)


def get_diag(src: SparseTensor) -> Tensor:
    return src.get_diag()


def add(src: SparseTensor, other: Any) -> SparseTensor:
    return src.add(other)


def add_(src: SparseTensor, other: Tensor) -> SparseTensor:
    return src.add_(other)


def add_nnz(src: SparseTensor, other: Tensor, layout: str | None = None) -> SparseTensor:
    return src.add_nnz(other, layout)


def add_nnz_(src: SparseTensor, other: Tensor, layout: str | None = None) -> SparseTensor:
    return src.add_nnz_(other, layout)


def mul(src: SparseTensor, other: Any) -> SparseTensor:
    return src.mul(other)


def mul_(src: SparseTensor, other: Tensor) -> SparseTensor:
    return src.mul_(other)


def mul_nnz(src: SparseTensor, other: Tensor, layout: str | None = None) -> SparseTensor:
    return src.mul_nnz(other, layout)


def mul_nnz_(src: SparseTensor, other: Tensor, layout: str | None = None) -> SparseTensor:
    return src.mul_nnz_(other, layout)


def sum(src: SparseTensor, dim: int | None = None) -> Tensor:
    return src.sum(dim)


def mean(src: SparseTensor, dim: int | None = None) -> Tensor:
    return src.mean(dim)


def min(src: SparseTensor, dim: int | None = None) -> Tensor:
    return src.min(dim)


def max(src: SparseTensor, dim: int | None = None) -> Tensor:
    return src.max(dim)


def random_walk(src: SparseTensor, start: Tensor, walk_length: int) -> Tensor:
    return src.random_walk(start, walk_length)


def saint_subgraph(src: SparseTensor, node_idx: Tensor) -> tuple[SparseTensor, Tensor]:
    return src.saint_subgraph(node_idx)


def sample(src: SparseTensor, num_neighbors: int, subset: Tensor | None = None) -> Tensor:
    return src.sample(num_neighbors, subset)


def sample_adj(
    src: SparseTensor, subset: Tensor, num_neighbors: int, replace: bool = False
) -> tuple[SparseTensor, Tensor]:
    return src.sample_adj(subset, num_neighbors, replace)


def partition(src: SparseTensor, num_parts: int, *args: Any, **kwargs: Any) -> Any:
    raise NotImplementedError(
        "partition needs METIS, which is not here: torch_geometric.loader.ClusterData uses pyg_lib's"
    )


def reverse_cuthill_mckee(src: SparseTensor, is_symmetric: builtins.bool | None = None) -> tuple[SparseTensor, Tensor]:
    """The quadratic matrix in an order of small bandwidth, and that order (n,)."""
    from scipy.sparse.csgraph import reverse_cuthill_mckee as order_of

    is_symmetric = src.is_symmetric() if is_symmetric is None else is_symmetric
    src = src if is_symmetric else src.to_symmetric()
    perm = torch.from_numpy(order_of(src.to_scipy("csr"), symmetric_mode=True).copy()).long().to(src.device())
    return src.permute(perm), perm
