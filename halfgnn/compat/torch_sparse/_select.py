"""Rows, columns and entries of a storage."""

from __future__ import annotations

import torch
from torch import Tensor

from ...common.ids import check_ids, check_range
from ...common.operands import check_tensor
from ._sorting import order_of
from .storage import SparseStorage, get_layout, offsets_of_counts, rows_of


def narrowed(storage: SparseStorage, dim: int, start: int, length: int) -> SparseStorage:
    """Rows (dim 0) or columns (dim 1) start to start + length - 1."""
    if start < 0 or length < 0 or start + length > storage.sparse_size(dim):
        raise IndexError(f"start is {start} and length {length}; expected places in [0, {storage.sparse_size(dim)}]")
    if dim == 1:
        return _narrowed_columns(storage, start, length)
    rowptr = storage.rowptr()[start : start + length + 1]
    first, last = int(rowptr[0]), int(rowptr[-1])
    value = storage.value()
    return SparseStorage(
        row=storage.row()[first:last] - start if storage.has_row() else None,
        rowptr=rowptr - first,
        col=storage.col()[first:last],
        value=None if value is None else value[first:last],
        sparse_sizes=(length, storage.sparse_size(1)),
        rowcount=storage.rowcount()[start : start + length] if storage.has_rowcount() else None,
        is_sorted=True,
        trust_data=True,
    )


def _narrowed_columns(storage: SparseStorage, start: int, length: int) -> SparseStorage:
    col, value = storage.col(), storage.value()
    mask = (col >= start) & (col < start + length)
    return SparseStorage(
        row=storage.row()[mask],
        col=col[mask] - start,
        value=None if value is None else value[mask],
        sparse_sizes=(storage.sparse_size(0), length),
        colcount=storage.colcount()[start : start + length] if storage.has_colcount() else None,
        is_sorted=True,
        trust_data=True,
    )


def narrowed_diagonally(storage: SparseStorage, start: tuple[int, int], length: tuple[int, int]) -> SparseStorage:
    """A block of a block-diagonal matrix."""
    rows = narrowed(storage, 0, start[0], length[0])
    return SparseStorage(
        row=rows.row() if rows.has_row() else None,
        rowptr=rows.rowptr(),
        col=rows.col() - start[1],
        value=rows.value(),
        sparse_sizes=length,
        rowcount=rows.rowcount() if rows.has_rowcount() else None,
        is_sorted=True,
    )


def selected(storage: SparseStorage, dim: int, ids: Tensor, name: str = "idx") -> SparseStorage:
    """Rows (dim 0) or columns (dim 1) by id, in the order of ids, which may repeat. name: the caller's for ids."""
    check_ids(ids, name)
    check_range(ids, name, storage.sparse_size(dim))
    ids = ids.long()
    sizes = storage.sparse_sizes()
    counts, starts = (storage.rowcount(), storage.rowptr()) if dim == 0 else (storage.colcount(), storage.colptr())
    counts = counts[ids]
    ptr = offsets_of_counts(counts)
    places = rows_of(ptr, int(ptr[-1]))  # of the selected rows or columns
    entries = torch.arange(places.numel(), device=places.device) + (starts[ids] - ptr[:-1])[places]
    value = storage.value()
    if dim == 0:
        return SparseStorage(
            row=places,
            rowptr=ptr,
            col=storage.col()[entries],
            value=None if value is None else value[entries],
            sparse_sizes=(ids.numel(), sizes[1]),
            rowcount=counts,
            is_sorted=True,
            trust_data=True,
        )
    entries = storage.csr2csc()[entries]
    row = storage.row()[entries]
    order = order_of(row, sizes[0])
    return SparseStorage(
        row=row[order],
        col=places[order],
        value=None if value is None else value[entries[order]],
        sparse_sizes=(sizes[0], ids.numel()),
        colptr=ptr,
        colcount=counts,
        csc2csr=order,
        is_sorted=True,
        trust_data=True,
    )


def masked(storage: SparseStorage, dim: int, mask: Tensor) -> SparseStorage:
    """Rows (dim 0) or columns (dim 1) where the mask is True."""
    _check_mask(mask, storage.sparse_size(dim))
    row, col, value = storage.row(), storage.col(), storage.value()
    keeps = mask[row if dim == 0 else col]
    places = mask.cumsum(0) - 1
    sizes = list(storage.sparse_sizes())
    sizes[dim] = int(places[-1]) + 1 if places.numel() else 0
    row, col = row[keeps], col[keeps]
    return SparseStorage(
        row=places[row] if dim == 0 else row,
        col=places[col] if dim == 1 else col,
        value=None if value is None else value[keeps],
        sparse_sizes=(sizes[0], sizes[1]),
        is_sorted=True,
        trust_data=True,
    )


def entries_of(storage: SparseStorage, which: Tensor, layout: str | None) -> SparseStorage:
    """Some entries: by position, in the same order, or where a mask (nnz,) is True. layout: csc counts in column-major order."""
    check_tensor(which, "idx or mask")
    if which.dtype is torch.bool:
        _check_mask(which, storage.col().numel())
    else:
        check_ids(which, "idx")
        check_range(which, "idx", storage.col().numel())
        which = which.long()
    if get_layout(layout) == "csc":
        which = which[storage.csc2csr()] if which.dtype is torch.bool else storage.csr2csc()[which]
    value = storage.value()
    return SparseStorage(
        row=storage.row()[which],
        col=storage.col()[which],
        value=None if value is None else value[which],
        sparse_sizes=storage.sparse_sizes(),
        is_sorted=which.dtype is torch.bool,
        trust_data=True,
    )


def _check_mask(mask: Tensor, length: int) -> None:
    check_tensor(mask, "mask")
    if mask.dtype is not torch.bool:
        raise TypeError(f"mask has dtype {mask.dtype}; expected torch.bool: mask.bool()")
    if mask.dim() != 1 or mask.shape[0] != length:
        raise ValueError(f"mask has shape {tuple(mask.shape)}; expected ({length},)")
