"""Concatenation of SparseTensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from .storage import SparseStorage


def cat(tensors: Sequence[Any], dim: int | Sequence[int]) -> Any:
    """SparseTensors one after another along dim: 0, 1, a dimension of the values, or (0, 1) for blocks on the diagonal.

    Values are lost unless all have them.
    """
    if len(tensors) == 0:
        raise ValueError("tensors is empty; expected one SparseTensor at least")
    first, storages = tensors[0], [tensor.storage for tensor in tensors]
    if not isinstance(dim, int):
        if sorted(dim) != [0, 1]:
            raise ValueError(f"dim is {dim}; expected a number or (0, 1)")
        return first.from_storage(_by_blocks(storages))
    if not -first.dim() <= dim < first.dim():
        raise IndexError(f"dim is {dim}; expected one of {first.dim()} dimensions")
    dim = dim if dim >= 0 else dim + first.dim()
    if dim > 1:
        return first.set_value(torch.cat([storage.value() for storage in storages], dim=dim - 1), "coo")
    return first.from_storage(_by_rows(storages) if dim == 0 else _by_columns(storages))


def _by_rows(storages: list[SparseStorage]) -> SparseStorage:
    """A tensor of the result is made if all storages have it."""
    heights = [storage.sparse_size(0) for storage in storages]
    return SparseStorage(
        row=_shifted([storage._row for storage in storages], heights),
        rowptr=_chained([storage._rowptr for storage in storages], storages),
        col=torch.cat([storage.col() for storage in storages]),
        value=_joined([storage.value() for storage in storages]),
        sparse_sizes=(sum(heights), max(storage.sparse_size(1) for storage in storages)),
        rowcount=_joined([storage._rowcount for storage in storages]),
        is_sorted=True,
        trust_data=True,
    )


def _by_columns(storages: list[SparseStorage]) -> SparseStorage:
    widths = [storage.sparse_size(1) for storage in storages]
    return SparseStorage(
        row=torch.cat([storage.row() for storage in storages]),
        col=_shifted([storage.col() for storage in storages], widths),
        value=_joined([storage.value() for storage in storages]),
        sparse_sizes=(max(storage.sparse_size(0) for storage in storages), sum(widths)),
        colptr=_chained([storage._colptr for storage in storages], storages),
        colcount=_joined([storage._colcount for storage in storages]),
        trust_data=True,
    )


def _by_blocks(storages: list[SparseStorage]) -> SparseStorage:
    heights, widths = ([storage.sparse_size(dim) for storage in storages] for dim in (0, 1))
    counts = [storage.col().numel() for storage in storages]
    return SparseStorage(
        row=_shifted([storage._row for storage in storages], heights),
        rowptr=_chained([storage._rowptr for storage in storages], storages),
        col=_shifted([storage.col() for storage in storages], widths),
        value=_joined([storage.value() for storage in storages]),
        sparse_sizes=(sum(heights), sum(widths)),
        rowcount=_joined([storage._rowcount for storage in storages]),
        colptr=_chained([storage._colptr for storage in storages], storages),
        colcount=_joined([storage._colcount for storage in storages]),
        csr2csc=_shifted([storage._csr2csc for storage in storages], counts),
        csc2csr=_shifted([storage._csc2csr for storage in storages], counts),
        is_sorted=True,
        trust_data=True,
    )


def _joined(parts: list[Tensor | None]) -> Tensor | None:
    known = [part for part in parts if part is not None]
    return torch.cat(known) if len(known) == len(parts) else None


def _shifted(parts: list[Tensor | None], sizes: list[int]) -> Tensor | None:
    """Ids, each storage's behind those of the storages before."""
    starts = [sum(sizes[:place]) for place in range(len(sizes))]
    return _joined([None if part is None else part + start for part, start in zip(parts, starts)])


def _chained(offsets: list[Tensor | None], storages: list[SparseStorage]) -> Tensor | None:
    """Offsets, each storage's behind the entries of the storages before."""
    shifted = [None if part is None else part if place == 0 else part[1:] for place, part in enumerate(offsets)]
    return _shifted(shifted, [storage.col().numel() for storage in storages])
