"""Sums and products of a storage, entry by entry, and reductions of its values."""

from __future__ import annotations

import torch
from torch import Tensor

from ..torch_scatter import scatter, segment_csr
from .storage import SparseStorage


def spread(storage: SparseStorage, other: Tensor) -> Tensor:
    """The element of other (M, 1, *) or (1, N, *) per entry (nnz, *)."""
    M, N = storage.sparse_sizes()
    if other.dim() >= 2 and other.shape[0] == M and other.shape[1] == 1:
        return other.squeeze(1).index_select(0, storage.row())
    if other.dim() >= 2 and other.shape[0] == 1 and other.shape[1] == N:
        return other.squeeze(0).index_select(0, storage.col())
    raise ValueError(f"other has shape {tuple(other.shape)}; expected ({M}, 1, *) or (1, {N}, *)")


def plus(value: Tensor | None, other: Tensor) -> Tensor:
    """other added to values (nnz, *), which are 1 if there are none."""
    return other + 1 if value is None else value + _like(other, value)


def times(value: Tensor | None, other: Tensor) -> Tensor:
    """other multiplied with values (nnz, *), which are 1 if there are none."""
    return other if value is None else value * _like(other, value)


def _like(other: Tensor, value: Tensor) -> Tensor:
    other = other.to(value.dtype)
    return other.view(other.shape + (1,) * (value.dim() - other.dim())) if other.dim() else other


def added(a: SparseStorage, b: SparseStorage) -> SparseStorage:
    """The sum, of which entries of one place are one. Both have values, or neither has."""
    if a.has_value() != b.has_value():
        raise ValueError(
            "one of the two matrices has values and the other none; expected both or neither: see fill_value"
        )
    M, N = (max(sizes) for sizes in zip(a.sparse_sizes(), b.sparse_sizes()))
    of_a, of_b = a.value(), b.value()
    value = None if of_a is None or of_b is None else torch.cat([of_a, of_b])
    row, col = torch.cat([a.row(), b.row()]), torch.cat([a.col(), b.col()])
    return SparseStorage(row=row, col=col, value=value, sparse_sizes=(M, N)).coalesce("sum")


def multiplied(a: SparseStorage, b: SparseStorage) -> SparseStorage:
    """The product of the places at which both have an entry. Neither has two entries at one place."""
    for storage, name in ((a, "src"), (b, "other")):
        if not storage.is_coalesced():
            raise ValueError(f"{name} has two entries at one place; expected a coalesced matrix: see coalesce()")
        if not storage.has_value():
            raise ValueError(f"{name} has no values; expected both matrices to have them: see fill_value")
    M, N = (max(sizes) for sizes in zip(a.sparse_sizes(), b.sparse_sizes()))
    places, others = (storage.row() * N + storage.col() for storage in (a, b))
    at = torch.searchsorted(others, places)
    is_shared = at < others.numel()
    is_shared &= others[at.clamp(max=max(others.numel() - 1, 0))] == places if others.numel() else is_shared
    value = a.value()[is_shared] * b.value()[at[is_shared]]  # type: ignore[index]
    return SparseStorage(
        row=a.row()[is_shared],
        col=a.col()[is_shared],
        value=value,
        sparse_sizes=(M, N),
        is_sorted=True,
        trust_data=True,
    )


def reduction(storage: SparseStorage, dim: int | None, reduce: str, dtype: torch.dtype) -> Tensor:
    """Values reduced over all entries, over rows (dim 0, (N, *)), over columns (dim 1, (M, *)), or over a dimension of values.

    Places without an entry do not count. Without values, entries are 1 of the dtype.
    """
    value = storage.value()
    if value is None:
        return _reduction_of_ones(storage, dim, reduce, dtype)
    if dim is None:
        return getattr(value, reduce)()
    if dim == 0:
        return scatter(value, storage.col(), 0, dim_size=storage.sparse_size(1), reduce=reduce)
    if dim == 1:
        return segment_csr(value, storage.rowptr(), reduce=reduce)
    result = getattr(value, reduce)(dim=dim - 1)
    return result[0] if reduce in ("min", "max") else result


def _reduction_of_ones(storage: SparseStorage, dim: int | None, reduce: str, dtype: torch.dtype) -> Tensor:
    device = storage.col().device
    if dim is None:
        return torch.tensor(storage.col().numel() if reduce == "sum" else 1, dtype=dtype, device=device)
    if dim > 1:
        raise ValueError(f"dim is {dim}; expected None, 0 or 1 for a matrix without values")
    counts = storage.colcount() if dim == 0 else storage.rowcount()
    return (counts if reduce == "sum" else torch.ones_like(counts)).to(dtype)
