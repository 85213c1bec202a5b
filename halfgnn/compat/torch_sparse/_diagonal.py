"""The diagonals of a storage. The k-th one has the places (i, i + k)."""

from __future__ import annotations

import torch
from torch import Tensor

from ._sorting import row_major_order
from .storage import SparseStorage


def without_diagonal(storage: SparseStorage, k: int) -> SparseStorage:
    """The entries that are not on the k-th diagonal."""
    row, col, value = storage.row(), storage.col(), storage.value()
    keeps = row != col - k
    rowcount, colcount = None, None
    if storage.has_rowcount():
        rowcount = _added(storage.rowcount(), row[~keeps], -1)
    if storage.has_colcount():
        colcount = _added(storage.colcount(), col[~keeps], -1)
    return SparseStorage(
        row=row[keeps],
        col=col[keeps],
        value=None if value is None else value[keeps],
        sparse_sizes=storage.sparse_sizes(),
        rowcount=rowcount,
        colcount=colcount,
        is_sorted=True,
        trust_data=True,
    )


def with_diagonal(storage: SparseStorage, values: Tensor | None, k: int) -> SparseStorage:
    """The k-th diagonal replaced by one entry per place, with `values` (n, *) or one; without values if the storage has none."""
    storage = without_diagonal(storage, k)
    first, count = max(-k, 0), length_of_diagonal(storage, k)
    diagonal = torch.arange(first, first + count, device=storage.col().device)
    row, col = torch.cat([storage.row(), diagonal]), torch.cat([storage.col(), diagonal + k])
    order = row_major_order(row, col, storage.sparse_sizes())
    value = storage.value()
    if value is not None:
        own = value.new_ones((count, *value.shape[1:]))
        if values is not None:
            values = torch.as_tensor(values, dtype=value.dtype, device=value.device)
            values = values.view(values.shape + (1,) * (value.dim() - values.dim())) if values.dim() else values
            try:
                own = values.expand_as(own)
            except RuntimeError:
                shape, expected = tuple(values.shape), tuple(own.shape)
                raise ValueError(f"values has shape {shape}; expected {expected}, or what expands to it") from None
        value = torch.cat([value, own])[order]
    return SparseStorage(
        row=row[order],
        col=col[order],
        value=value,
        sparse_sizes=storage.sparse_sizes(),
        rowcount=_added(storage.rowcount(), diagonal, 1) if storage.has_rowcount() else None,
        colcount=_added(storage.colcount(), diagonal + k, 1) if storage.has_colcount() else None,
        is_sorted=True,
        trust_data=True,
    )


def length_of_diagonal(storage: SparseStorage, k: int) -> int:
    M, N = storage.sparse_sizes()
    return max(min(M, N - k) if k >= 0 else min(M + k, N), 0)


def diagonal_of(storage: SparseStorage) -> Tensor:
    """The values (min(M, N), *) of the diagonal, 0 for places without an entry; 1 for entries without a value."""
    row, value = storage.row(), storage.value()
    value = torch.ones(row.numel(), device=row.device) if value is None else value
    is_on = row == storage.col()
    out = value.new_zeros((min(storage.sparse_sizes()), *value.shape[1:]))
    return out.index_put((row[is_on],), value[is_on])


def _added(counts: Tensor, ids: Tensor, number: int) -> Tensor:
    return counts.scatter_add(0, ids, torch.full_like(ids, number))
