"""SparseStorage: the tensors of a sparse matrix in row-major order."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ...common.arguments import check_name
from ...common.ids import check_count, check_range
from ...common.operands import check_tensor
from ...graph import Graph
from ..torch_scatter import segment_csr
from ._sorting import order_of, row_major_order

_CACHE = ("rowcount", "colptr", "colcount", "csr2csc", "csc2csr")
_TENSORS = ("row", "rowptr", "col", "value", *_CACHE)


def get_layout(layout: str | None = None) -> str:
    """The layout, coo if it is None. Raises ValueError unless it is coo, csr or csc."""
    if layout is None:
        warnings.warn("layout is None, which means 'coo': values in row-major order", stacklevel=3)
        return "coo"
    if layout not in ("coo", "csr", "csc"):
        raise ValueError(f"layout is {layout!r}; expected one of coo, csr, csc")
    return layout


class Structure:
    """What is cached with the structure of a matrix, whatever its values are. Storages of one structure share it."""

    def __init__(self) -> None:
        self.graph: Graph | None = None


class SparseStorage:
    """Entries of a matrix (M, N) in row-major order: rows and columns (nnz,) int64, and values (nnz, *) or None.

    Rows or their offsets `rowptr` (M + 1,) are made from the other at their first use, and kept. So are the numbers of entries
    `rowcount` (M,) and `colcount` (N,), the offsets `colptr` (N + 1,), the row-major position of each entry in column-major order
    `csr2csc` (nnz,), and its inverse `csc2csr` (nnz,). Do not write to these tensors. Entries may occur twice.
    """

    _row: Tensor | None
    _rowptr: Tensor | None
    _col: Tensor
    _value: Tensor | None
    _rowcount: Tensor | None
    _colptr: Tensor | None
    _colcount: Tensor | None
    _csr2csc: Tensor | None
    _csc2csr: Tensor | None
    _sparse_sizes: tuple[int, int]
    _trusted = False
    _structure: Structure | None = None

    def __init__(
        self,
        row: Tensor | None = None,
        rowptr: Tensor | None = None,
        col: Tensor | None = None,
        value: Tensor | None = None,
        sparse_sizes: tuple[int | None, int | None] | None = None,
        rowcount: Tensor | None = None,
        colptr: Tensor | None = None,
        colcount: Tensor | None = None,
        csr2csc: Tensor | None = None,
        csc2csr: Tensor | None = None,
        is_sorted: bool = False,
        trust_data: bool = False,
    ) -> None:
        """From entries in any order, which are sorted unless is_sorted says that they are. trust_data: ids are not checked.

        Raises TypeError or ValueError for tensors of other dtypes, shapes or devices, for ids out of range, and if is_sorted is
        said of rows that fall.
        """
        if col is None or (row is None and rowptr is None):
            raise ValueError("row and rowptr, or col, are None; expected col (nnz,), and row (nnz,) or rowptr (M + 1,)")
        given = (row, rowptr, col, value, rowcount, colptr, colcount, csr2csc, csc2csr)
        for name, tensor in zip(_TENSORS, given):
            if tensor is not None:
                check_tensor(tensor, name)
            setattr(self, f"_{name}", None if tensor is None else tensor.contiguous())
        self._sparse_sizes = self._checked_sizes(sparse_sizes, trust_data)
        self._check_tensors()
        if not trust_data:
            self._check_places()
        self._trusted, self._structure = trust_data, Structure()
        if not is_sorted:
            self._sort()
        elif not trust_data and self._row is not None and bool((self._row[1:] < self._row[:-1]).any()):
            raise ValueError("is_sorted is True, but row falls; expected rows in order, or is_sorted=False")

    # ---- what the constructor does -----------------------------------------------------------------------------------------------

    def _checked_sizes(self, sizes: tuple[int | None, int | None] | None, trust_data: bool) -> tuple[int, int]:
        M, N = sizes or (None, None)
        if self._rowptr is not None and self._rowptr.numel() == 0:
            raise ValueError("rowptr has shape (0,); expected (M + 1,)")
        if M is None:
            M = self._rowptr.numel() - 1 if self._rowptr is not None else _num_ids(self._row)
        if N is None:
            N = _num_ids(self._col)
        M, N = check_count(M, "sparse_sizes[0]"), check_count(N, "sparse_sizes[1]")
        if not trust_data:
            if self._rowptr is None:
                _check_ids(self._row, "row", M)
            _check_ids(self._col, "col", N)
        return int(M), int(N)

    def _check_tensors(self) -> None:
        M, N = self._sparse_sizes
        nnz = self._col.numel()
        lengths = dict(row=nnz, rowptr=M + 1, col=nnz, rowcount=M, colptr=N + 1, colcount=N, csr2csc=nnz, csc2csr=nnz)
        for name, length in lengths.items():
            tensor = getattr(self, f"_{name}")
            if tensor is None:
                continue
            if tensor.dtype is not torch.int64:
                raise TypeError(f"{name} has dtype {tensor.dtype}; expected torch.int64")
            if tensor.dim() != 1 or tensor.shape[0] != length:
                raise ValueError(f"{name} has shape {tuple(tensor.shape)}; expected ({length},)")
            if tensor.device != self._col.device:
                raise ValueError(f"{name} is on {tensor.device}; expected the device of col, {self._col.device}")
        self._check_value(self._value)

    def _check_places(self) -> None:
        """Of tensors that lead to places in others."""
        nnz = self._col.numel()
        for name, offsets in (("rowptr", self._rowptr), ("colptr", self._colptr)):
            if offsets is not None:
                is_whole = (offsets[0] == 0) & (offsets[-1] == nnz) & (offsets[1:] >= offsets[:-1]).all()
                if not bool(is_whole):
                    raise ValueError(f"{name} falls, or does not run from 0 to {nnz}, the number of entries")
        _check_ids(self._csr2csc, "csr2csc", nnz)
        _check_ids(self._csc2csr, "csc2csr", nnz)
        if self._rowptr is not None:
            _check_ids(self._row, "row", self._sparse_sizes[0])

    def _check_value(self, value: Tensor | None) -> None:
        if value is None:
            return
        if value.dim() == 0 or value.shape[0] != self._col.numel():
            raise ValueError(f"value has shape {tuple(value.shape)}; expected ({self._col.numel()}, *), one per entry")
        if value.device != self._col.device:
            raise ValueError(f"value is on {value.device}; expected the device of col, {self._col.device}")

    def _sort(self) -> None:
        key = self.row() * self._sparse_sizes[1] + self._col
        if bool((key[1:] >= key[:-1]).all()):
            return
        order = row_major_order(self.row(), self._col, self._sparse_sizes)
        self._row, self._col = self.row()[order], self._col[order]
        self._value = None if self._value is None else self._value[order]
        self._csr2csc = self._csc2csr = None

    @classmethod
    def empty(cls) -> SparseStorage:
        """A matrix (0, 0)."""
        ids = torch.empty(0, dtype=torch.int64)
        return cls(row=ids, col=ids, sparse_sizes=(0, 0), is_sorted=True, trust_data=True)

    def with_changes(self, **changes: Any) -> SparseStorage:
        """A storage of the same structure with some tensors in place of its own. Nothing is checked."""
        new = SparseStorage.__new__(type(self))
        new.__dict__.update(self.__dict__, **{f"_{name}": tensor for name, tensor in changes.items()})
        return new

    def mapped(self, function: Callable[[Tensor], Tensor]) -> SparseStorage:
        """A storage of the function's results for all tensors."""
        tensors = {name: getattr(self, f"_{name}") for name in _TENSORS}
        changes = {name: None if tensor is None else function(tensor) for name, tensor in tensors.items()}
        return self.with_changes(**changes, structure=Structure())

    def all_of(self, predicate: Callable[[Tensor], bool]) -> bool:
        """Whether it holds for all tensors."""
        tensors = (getattr(self, f"_{name}") for name in _TENSORS)
        return all(predicate(tensor) for tensor in tensors if tensor is not None)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_structure"}

    # ---- the tensors -------------------------------------------------------------------------------------------------------------

    def has_row(self) -> bool:
        return self._row is not None

    def row(self) -> Tensor:
        if self._row is None:
            assert self._rowptr is not None
            self._row = rows_of(self._rowptr, self._col.numel())
        return self._row

    def has_rowptr(self) -> bool:
        return self._rowptr is not None

    def rowptr(self) -> Tensor:
        if self._rowptr is None:
            assert self._row is not None
            self._rowptr = offsets_of(self._row, self._sparse_sizes[0])
        return self._rowptr

    def col(self) -> Tensor:
        return self._col

    def has_value(self) -> bool:
        return self._value is not None

    def value(self) -> Tensor | None:
        return self._value

    def set_value_(self, value: Tensor | None, layout: str | None = None) -> SparseStorage:
        """Replaces the values. layout: csc for values in column-major order."""
        self._value = self._ordered(value, layout)
        return self

    def set_value(self, value: Tensor | None, layout: str | None = None) -> SparseStorage:
        """A storage with other values. layout: csc for values in column-major order."""
        return self.with_changes(value=self._ordered(value, layout))

    def _ordered(self, value: Tensor | None, layout: str | None) -> Tensor | None:
        if value is None:
            return None
        self._check_value(value)
        return (value[self.csc2csr()] if get_layout(layout) == "csc" else value).contiguous()

    def has_rowcount(self) -> bool:
        return self._rowcount is not None

    def rowcount(self) -> Tensor:
        if self._rowcount is None:
            self._rowcount = self.rowptr().diff()
        return self._rowcount

    def has_colptr(self) -> bool:
        return self._colptr is not None

    def colptr(self) -> Tensor:
        if self._colptr is None:
            if self._csr2csc is not None:
                self._colptr = offsets_of(self._col[self._csr2csc], self._sparse_sizes[1])
            else:
                self._colptr = offsets_of_counts(self.colcount())
        return self._colptr

    def has_colcount(self) -> bool:
        return self._colcount is not None

    def colcount(self) -> Tensor:
        if self._colcount is None:
            if self._colptr is not None:
                self._colcount = self._colptr.diff()
            else:
                zeros = self._col.new_zeros(self._sparse_sizes[1])
                self._colcount = zeros.scatter_add_(0, self._col, torch.ones_like(self._col))
        return self._colcount

    def has_csr2csc(self) -> bool:
        return self._csr2csc is not None

    def csr2csc(self) -> Tensor:
        if self._csr2csc is None:
            self._csr2csc = order_of(self._col, self._sparse_sizes[1])
        return self._csr2csc

    def has_csc2csr(self) -> bool:
        return self._csc2csr is not None

    def csc2csr(self) -> Tensor:
        if self._csc2csr is None:
            order = self.csr2csc()
            places = torch.arange(order.numel(), device=order.device)
            self._csc2csr = torch.empty_like(order).scatter_(0, order, places)
        return self._csc2csr

    def graph(self) -> Graph:
        """halfgnn's Graph: rows are destinations, columns sources, and edge data is in row-major order. It is kept."""
        if self._structure is None:  # it was loaded
            self._structure = Structure()
        if self._structure.graph is None:
            ids = self.rowptr(), self._col
            if max(*self._sparse_sizes, self._col.numel()) < 2**31:
                ids = ids[0].int(), ids[1].int()
            g = Graph.from_csc(*ids, num_src=self._sparse_sizes[1], check=not self._trusted)
            self._structure.graph = g._for_all_streams()
        return self._structure.graph

    # ---- sizes -------------------------------------------------------------------------------------------------------------------

    def sparse_sizes(self) -> tuple[int, int]:
        return self._sparse_sizes

    def sparse_size(self, dim: int) -> int:
        return self._sparse_sizes[dim]

    def sparse_resize(self, sparse_sizes: tuple[int, int]) -> SparseStorage:
        """A storage of a larger or smaller matrix with the same entries, which must lie in it.

        Raises ValueError if they do not.
        """
        M, N = (check_count(size, f"sparse_sizes[{i}]") for i, size in enumerate(sparse_sizes))
        for ids, name, size, old in ((self.row(), "row", M, 0), (self._col, "col", N, 1)):
            if size < self._sparse_sizes[old]:
                _check_ids(ids, name, size)
        nnz = self._col.numel()
        return self.with_changes(
            sparse_sizes=(M, N),
            structure=Structure(),
            rowptr=_resized(self._rowptr, M + 1, nnz),
            rowcount=_resized(self._rowcount, M, 0),
            colptr=_resized(self._colptr, N + 1, nnz),
            colcount=_resized(self._colcount, N, 0),
        )

    def sparse_reshape(self, num_rows: int, num_cols: int) -> SparseStorage:
        """A storage of the entries in a matrix of another shape and as many places, read row by row. One size may be -1."""
        total = self._sparse_sizes[0] * self._sparse_sizes[1]
        num_rows = total // num_cols if num_rows == -1 else num_rows
        num_cols = total // num_rows if num_cols == -1 else num_cols
        if num_rows * num_cols != total or num_rows < 0 or num_cols < 0:
            raise ValueError(
                f"the sizes are {(num_rows, num_cols)}; expected as many places as {self._sparse_sizes} has"
            )
        place = self.row() * self._sparse_sizes[1] + self._col
        row, col = place.div(num_cols, rounding_mode="floor"), place % num_cols
        return SparseStorage(
            row=row, col=col, value=self._value, sparse_sizes=(num_rows, num_cols), is_sorted=True, trust_data=True
        )

    # ---- duplicate entries -------------------------------------------------------------------------------------------------------

    def _is_first(self) -> Tensor:
        """(nnz,): whether an entry is the first one of its place."""
        key = self.row() * self._sparse_sizes[1] + self._col
        return torch.cat([key.new_ones(min(1, key.numel()), dtype=torch.bool), key[1:] > key[:-1]])

    def is_coalesced(self) -> bool:
        """Whether no entry occurs twice."""
        return bool(self._is_first().all())

    def coalesce(self, reduce: str = "add") -> SparseStorage:
        """A storage in which entries of one place are one, with their values reduced: add, sum, mean, min or max."""
        check_name(reduce, "reduce", ("add", "sum", "mean", "min", "max"))
        is_first = self._is_first()
        if bool(is_first.all()):
            return self
        value = self._value
        if value is not None:
            starts = is_first.nonzero().flatten()
            value = segment_csr(value, torch.cat([starts, starts.new_tensor([value.shape[0]])]), reduce=reduce)
        return SparseStorage(
            row=self.row()[is_first],
            col=self._col[is_first],
            value=value,
            sparse_sizes=self._sparse_sizes,
            is_sorted=True,
            trust_data=True,
        )

    # ---- what is kept ------------------------------------------------------------------------------------------------------------

    def fill_cache_(self) -> SparseStorage:
        """Makes all tensors."""
        self.row()
        self.rowptr()
        for name in _CACHE:
            getattr(self, name)()
        return self

    def clear_cache_(self) -> SparseStorage:
        """Forgets all tensors but rows, rowptr, columns and values."""
        for name in _CACHE:
            setattr(self, f"_{name}", None)
        return self

    def cached_keys(self) -> list[str]:
        return [name for name in _CACHE if getattr(self, f"_{name}") is not None]

    def num_cached_keys(self) -> int:
        return len(self.cached_keys())

    # ---- copies ------------------------------------------------------------------------------------------------------------------

    def copy(self) -> SparseStorage:
        return self.with_changes()

    def clone(self) -> SparseStorage:
        return self.mapped(torch.clone)

    def type(self, dtype: torch.dtype, non_blocking: bool = False) -> SparseStorage:
        """With values of the dtype."""
        if self._value is None or self._value.dtype == dtype:
            return self
        return self.with_changes(value=self._value.to(dtype, non_blocking=non_blocking))

    def type_as(self, tensor: Tensor, non_blocking: bool = False) -> SparseStorage:
        return self.type(tensor.dtype, non_blocking)

    def to_device(self, device: torch.device | str, non_blocking: bool = False) -> SparseStorage:
        if torch.device(device) == self._col.device:
            return self
        return self.mapped(lambda tensor: tensor.to(device, non_blocking=non_blocking))

    def device_as(self, tensor: Tensor, non_blocking: bool = False) -> SparseStorage:
        return self.to_device(tensor.device, non_blocking)

    def cuda(self) -> SparseStorage:
        return self.to_device("cuda")

    def pin_memory(self) -> SparseStorage:
        return self.mapped(Tensor.pin_memory)

    def is_pinned(self) -> bool:
        return self.all_of(Tensor.is_pinned)

    def share_memory_(self) -> SparseStorage:
        self.all_of(lambda tensor: tensor.share_memory_() is tensor)
        return self

    def is_shared(self) -> bool:
        return self.all_of(Tensor.is_shared)


def rows_of(rowptr: Tensor, nnz: int) -> Tensor:
    """The row per entry (nnz,) of offsets (M + 1,)."""
    rows = torch.arange(rowptr.numel() - 1, device=rowptr.device)
    return rows.repeat_interleave(rowptr.diff(), output_size=nnz)


def offsets_of(row: Tensor, num_rows: int) -> Tensor:
    """The offsets (M + 1,) of sorted rows (nnz,)."""
    return torch._convert_indices_from_coo_to_csr(row, num_rows)


def offsets_of_counts(counts: Tensor) -> Tensor:
    """The offsets (M + 1,) of numbers of entries (M,)."""
    return torch.cat([counts.new_zeros(1), counts.cumsum(0)])


def _num_ids(ids: Tensor | None) -> int:
    return int(ids.max()) + 1 if ids is not None and ids.numel() else 0


def _check_ids(ids: Tensor | None, name: str, size: int) -> None:
    if ids is not None:
        check_range(ids, name, size)


def _resized(tensor: Tensor | None, length: int, fill: int) -> Tensor | None:
    if tensor is None or tensor.numel() >= length:
        return tensor if tensor is None else tensor[:length]
    return torch.cat([tensor, tensor.new_full((length - tensor.numel(),), fill)])
