"""SparseTensor: a sparse matrix in row-major order."""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import indent
from typing import Any

import torch
from torch import Tensor

from ...common.ids import check_ids
from ...graph import Graph
from . import matmul as products
from ._arithmetic import added, multiplied, plus, reduction, spread, times
from ._conversions import Conversions
from ._diagonal import diagonal_of, length_of_diagonal, with_diagonal, without_diagonal
from ._sampling import Sampling
from ._select import entries_of, masked, narrowed, narrowed_diagonally, selected
from .storage import SparseStorage


class SparseTensor(Conversions, Sampling):
    """A sparse matrix (M, N), whose entries may have values of any shape: then it has more dimensions.

    Its structure is not changed. halfgnn's operators take it for the Graph with rows as destinations and columns as sources, whose
    edge data is in row-major order.
    """

    # ---- entries and values ------------------------------------------------------------------------------------------------------

    def __halfgnn_graph__(self) -> Graph:
        return self.storage.graph()

    def coo(self) -> tuple[Tensor, Tensor, Tensor | None]:
        """Rows (nnz,), columns (nnz,) and values (nnz, *) or None."""
        return self.storage.row(), self.storage.col(), self.storage.value()

    def csr(self) -> tuple[Tensor, Tensor, Tensor | None]:
        """Offsets of rows (M + 1,), columns (nnz,) and values (nnz, *) or None."""
        return self.storage.rowptr(), self.storage.col(), self.storage.value()

    def csc(self) -> tuple[Tensor, Tensor, Tensor | None]:
        """Offsets of columns (N + 1,), rows (nnz,) and values (nnz, *) or None, in column-major order."""
        order, value = self.storage.csr2csc(), self.storage.value()
        return self.storage.colptr(), self.storage.row()[order], None if value is None else value[order]

    def has_value(self) -> bool:
        return self.storage.has_value()

    def set_value_(self, value: Tensor | None, layout: str | None = None) -> SparseTensor:
        """Replaces the values. layout: csc for values in column-major order."""
        self.storage.set_value_(value, layout)
        return self

    def set_value(self, value: Tensor | None, layout: str | None = None) -> SparseTensor:
        """The matrix with other values. layout: csc for values in column-major order."""
        return self.from_storage(self.storage.set_value(value, layout))

    def fill_value_(self, fill_value: float, dtype: torch.dtype | None = None) -> SparseTensor:
        """Replaces the values by one number."""
        return self.set_value_(self._full(fill_value, dtype), "coo")

    def fill_value(self, fill_value: float, dtype: torch.dtype | None = None) -> SparseTensor:
        """The matrix with one number for all values."""
        return self.set_value(self._full(fill_value, dtype), "coo")

    def _full(self, fill_value: float, dtype: torch.dtype | None) -> Tensor:
        dtype = torch.get_default_dtype() if dtype is None else dtype
        return torch.full((self.nnz(),), fill_value, dtype=dtype, device=self.device())

    def coalesce(self, reduce: str = "sum") -> SparseTensor:
        """The matrix with entries of one place as one, whose values are reduced: sum, mean, min or max."""
        return self.from_storage(self.storage.coalesce(reduce))

    def is_coalesced(self) -> bool:
        return self.storage.is_coalesced()

    def fill_cache_(self) -> SparseTensor:
        self.storage.fill_cache_()
        return self

    def clear_cache_(self) -> SparseTensor:
        self.storage.clear_cache_()
        return self

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SparseTensor) and self.sizes() == other.sizes() and _are_equal(self.csr(), other.csr())

    __hash__ = None  # type: ignore[assignment]

    # ---- sizes -------------------------------------------------------------------------------------------------------------------

    def sparse_sizes(self) -> tuple[int, int]:
        return self.storage.sparse_sizes()

    def sparse_size(self, dim: int) -> int:
        return self.storage.sparse_size(dim)

    def sparse_resize(self, sparse_sizes: tuple[int, int]) -> SparseTensor:
        return self.from_storage(self.storage.sparse_resize(sparse_sizes))

    def sparse_reshape(self, num_rows: int, num_cols: int) -> SparseTensor:
        return self.from_storage(self.storage.sparse_reshape(num_rows, num_cols))

    def sizes(self) -> list[int]:
        value = self.storage.value()
        return [*self.sparse_sizes(), *(() if value is None else value.shape[1:])]

    def size(self, dim: int) -> int:
        return self.sizes()[dim]

    def dim(self) -> int:
        return len(self.sizes())

    def nnz(self) -> int:
        return self.storage.col().numel()

    def numel(self) -> int:
        value = self.storage.value()
        return self.nnz() if value is None else value.numel()

    def density(self) -> float:
        M, N = self.sparse_sizes()
        return self.nnz() / (M * N) if M and N else 0.0

    def sparsity(self) -> float:
        return 1 - self.density()

    def avg_row_length(self) -> float:
        return self.nnz() / self.sparse_size(0)

    def avg_col_length(self) -> float:
        return self.nnz() / self.sparse_size(1)

    def bandwidth(self) -> int:
        return int(self._distances().max())

    def avg_bandwidth(self) -> float:
        return float(self._distances().float().mean())

    def bandwidth_proportion(self, bandwidth: int) -> float:
        return int((self._distances() <= bandwidth).sum()) / self.nnz()

    def _distances(self) -> Tensor:
        return (self.storage.row() - self.storage.col()).abs_()

    def is_quadratic(self) -> bool:
        return self.sparse_size(0) == self.sparse_size(1)

    def is_symmetric(self) -> bool:
        return self.is_quadratic() and _are_equal(self.csr(), self.csc())

    # ---- other matrices of the same entries --------------------------------------------------------------------------------------

    def t(self) -> SparseTensor:
        """The transpose."""
        storage, order, value = self.storage, self.storage.csr2csc(), self.storage.value()
        new = SparseStorage(
            row=storage.col()[order],
            rowptr=storage.colptr() if storage.has_colptr() else None,
            col=storage.row()[order],
            value=None if value is None else value[order],
            sparse_sizes=(storage.sparse_size(1), storage.sparse_size(0)),
            rowcount=storage.colcount() if storage.has_colcount() else None,
            colptr=storage.rowptr() if storage.has_rowptr() else None,
            colcount=storage.rowcount() if storage.has_rowcount() else None,
            csr2csc=storage.csc2csr() if storage.has_csc2csr() else None,
            csc2csr=order,
            is_sorted=True,
            trust_data=True,
        )
        return self.from_storage(new)

    def to_symmetric(self, reduce: str = "sum") -> SparseTensor:
        """The quadratic matrix that has each entry at its place and at the transposed one, with values of one place reduced."""
        row, col, value = self.coo()
        both = torch.cat([row, col]), torch.cat([col, row])
        size = max(self.sparse_sizes())
        value = None if value is None else torch.cat([value, value])
        storage = SparseStorage(row=both[0], col=both[1], value=value, sparse_sizes=(size, size), trust_data=True)
        return self.from_storage(storage.coalesce(reduce))

    def permute(self, perm: Tensor) -> SparseTensor:
        """The quadratic matrix with rows and columns in the order of perm."""
        if not self.is_quadratic():
            raise ValueError(f"the sizes are {self.sizes()}; expected as many rows as columns")
        check_ids(perm, "perm")
        size = self.sparse_size(0)
        if perm.numel() != size or not torch.equal(perm.sort()[0], torch.arange(size, device=perm.device)):
            raise ValueError(f"perm, of shape {tuple(perm.shape)}, is no order of the {size} rows; expected each once")
        return self.index_select(0, perm).index_select(1, perm)

    def remove_diag(self, k: int = 0) -> SparseTensor:
        """The matrix without the entries (i, i + k)."""
        return self.from_storage(without_diagonal(self.storage, k))

    def set_diag(self, values: Tensor | None = None, k: int = 0) -> SparseTensor:
        """The matrix with one entry at each place (i, i + k), of the value given (n, *), or 1."""
        return self.from_storage(with_diagonal(self.storage, values, k))

    def fill_diag(self, fill_value: float, k: int = 0) -> SparseTensor:
        """The matrix with one entry of the value at each place (i, i + k)."""
        value = self.storage.value()
        if value is None:
            return self.set_diag(None, k)
        return self.set_diag(value.new_full((length_of_diagonal(self.storage, k), *value.shape[1:]), fill_value), k)

    def get_diag(self) -> Tensor:
        """The values (min(M, N), *) of the diagonal, 0 for places without an entry."""
        return diagonal_of(self.storage)

    # ---- parts -------------------------------------------------------------------------------------------------------------------

    def narrow(self, dim: int, start: int, length: int) -> SparseTensor:
        """Rows, columns or a dimension of values, from start on."""
        dim = self._dim(dim)
        if dim > 1:
            return self.set_value(self._values().narrow(dim - 1, start, length), "coo")
        start = start + self.size(dim) if start < 0 else start
        return self.from_storage(narrowed(self.storage, dim, start, length))

    def __narrow_diag__(self, start: tuple[int, int], length: tuple[int, int]) -> SparseTensor:
        """A block of a block-diagonal matrix."""
        return self.from_storage(narrowed_diagonally(self.storage, start, length))

    def select(self, dim: int, idx: int) -> SparseTensor:
        """One row or column, as a matrix."""
        return self.narrow(dim, idx, 1)

    def index_select(self, dim: int, idx: Tensor) -> SparseTensor:
        """Rows, columns or a dimension of values by id, in the order of idx (n,), which may repeat."""
        dim = self._dim(dim)
        if dim > 1:
            return self.set_value(self._values().index_select(dim - 1, idx), "coo")
        return self.from_storage(selected(self.storage, dim, idx))

    def masked_select(self, dim: int, mask: Tensor) -> SparseTensor:
        """Rows, columns or a dimension of values where the mask is True."""
        dim = self._dim(dim)
        if dim > 1:
            return self.index_select(dim, mask.nonzero().flatten())
        return self.from_storage(masked(self.storage, dim, mask))

    def index_select_nnz(self, idx: Tensor, layout: str | None = None) -> SparseTensor:
        """Entries by position. layout: csc for positions in column-major order."""
        return self.from_storage(entries_of(self.storage, idx, layout))

    def masked_select_nnz(self, mask: Tensor, layout: str | None = None) -> SparseTensor:
        """Entries where the mask (nnz,) is True. layout: csc for a mask in column-major order."""
        return self.from_storage(entries_of(self.storage, mask, layout))

    def _dim(self, dim: int) -> int:
        if not -self.dim() <= dim < self.dim():
            raise IndexError(f"dim is {dim}; expected one of the {self.dim()} dimensions of sizes {self.sizes()}")
        return dim if dim >= 0 else dim + self.dim()

    def _values(self) -> Tensor:
        value = self.storage.value()
        assert value is not None  # it has a dimension more
        return value

    def __getitem__(self, index: Any) -> SparseTensor:
        """Rows and columns by slices, ids, masks, or lists or arrays of them; an integer gives one row, as a matrix."""
        items = list(index) if isinstance(index, tuple) else [index]
        places = [place for place, item in enumerate(items) if item is ...]
        if len(places) > 1:
            raise IndexError("index has several '...'; expected at most one")
        if places:
            missing = self.dim() - len(items) + 1
            items[places[0] : places[0] + 1] = [slice(None)] * missing
        if len(items) > self.dim():
            raise IndexError(f"index has {len(items)} places; expected at most {self.dim()}")
        out = self
        for dim, item in enumerate(items):
            out = out._item(dim, item)
        return out

    def _item(self, dim: int, item: Any) -> SparseTensor:
        if isinstance(item, slice):
            start, stop, step = item.indices(self.size(dim))
            if step == 1:
                return self if (start, stop) == (0, self.size(dim)) else self.narrow(dim, start, max(stop - start, 0))
            return self.index_select(dim, torch.arange(start, stop, step, device=self.device()))
        if isinstance(item, int):
            return self.select(dim, item)
        ids = torch.as_tensor(item, device=self.device())
        return self.masked_select(dim, ids) if ids.dtype is torch.bool else self.index_select(dim, ids)

    # ---- arithmetic --------------------------------------------------------------------------------------------------------------

    def add(self, other: Any) -> SparseTensor:
        """The sum with another SparseTensor; or other (M, 1, *) or (1, N, *) added to the values, which are 1 if there are none."""
        if isinstance(other, SparseTensor):
            return self.from_storage(added(self.storage, other.storage))
        return self.set_value(plus(self.storage.value(), spread(self.storage, other)), "coo")

    def add_(self, other: Tensor) -> SparseTensor:
        return self.set_value_(plus(self.storage.value(), spread(self.storage, other)), "coo")

    def add_nnz(self, other: Tensor, layout: str | None = None) -> SparseTensor:
        """other (nnz, *) added to the values. layout: of the sum."""
        return self.set_value(plus(self.storage.value(), other), layout)

    def add_nnz_(self, other: Tensor, layout: str | None = None) -> SparseTensor:
        return self.set_value_(plus(self.storage.value(), other), layout)

    def mul(self, other: Any) -> SparseTensor:
        """The values times other (M, 1, *) or (1, N, *); or the product, place by place, with another SparseTensor."""
        if isinstance(other, SparseTensor):
            return self.from_storage(multiplied(self.storage, other.storage))
        return self.set_value(times(self.storage.value(), spread(self.storage, other)), "coo")

    def mul_(self, other: Tensor) -> SparseTensor:
        return self.set_value_(times(self.storage.value(), spread(self.storage, other)), "coo")

    def mul_nnz(self, other: Tensor, layout: str | None = None) -> SparseTensor:
        """The values times other (nnz, *). layout: of the product."""
        return self.set_value(times(self.storage.value(), other), layout)

    def mul_nnz_(self, other: Tensor, layout: str | None = None) -> SparseTensor:
        return self.set_value_(times(self.storage.value(), other), layout)

    __add__ = __radd__ = add
    __iadd__ = add_
    __mul__ = __rmul__ = mul
    __imul__ = mul_

    def sum(self, dim: int | None = None) -> Tensor:
        """Of all values; over rows (dim 0, (N, *)), over columns (dim 1, (M, *)), or over a dimension of values."""
        return self._reduction(dim, "sum")

    def mean(self, dim: int | None = None) -> Tensor:
        """Over entries. See :meth:`sum`."""
        return self._reduction(dim, "mean")

    def min(self, dim: int | None = None) -> Tensor:
        """Over entries. See :meth:`sum`."""
        return self._reduction(dim, "min")

    def max(self, dim: int | None = None) -> Tensor:
        """Over entries. See :meth:`sum`."""
        return self._reduction(dim, "max")

    def _reduction(self, dim: int | None, reduce: str) -> Tensor:
        return reduction(self.storage, None if dim is None else self._dim(dim), reduce, self.dtype())

    def matmul(self, other: Any, reduce: str = "sum") -> Any:
        return products.matmul(self, other, reduce)

    def spmm(self, other: Tensor, reduce: str = "sum") -> Tensor:
        return products.spmm(self, other, reduce)

    def spspmm(self, other: SparseTensor, reduce: str = "sum") -> SparseTensor:
        return products.spspmm(self, other, reduce)

    def __matmul__(self, other: Any) -> Any:
        return products.matmul(self, other)

    def __repr__(self) -> str:
        parts = [f"{name}={x!r}" for name, x in zip(("row", "col", "val"), self.coo()) if x is not None]
        parts.append(f"size={tuple(self.sizes())}, nnz={self.nnz()}, density={100 * self.density():.02f}%")
        lines = indent(",\n".join(parts), " " * len("SparseTensor("))
        return f"SparseTensor({lines.lstrip()})"


def _are_equal(a: Sequence[Tensor | None], b: Sequence[Tensor | None]) -> bool:
    return all(x is y or (x is not None and y is not None and torch.equal(x, y)) for x, y in zip(a, b))


# torch.save of a matrix can be loaded with weights_only=True.
torch.serialization.add_safe_globals([SparseTensor, SparseStorage])
