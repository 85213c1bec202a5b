"""Entries: the places and values of a sparse matrix, and what can be taken of them."""

from __future__ import annotations

from typing import Any, TypeVar

import torch
from torch import Tensor

from ....ops import gspmm
from ..base import DGLError, check_ids, id_tensor, ranges
from ..topology import Relation

Self = TypeVar("Self", bound="Entries")


class Entries:
    """A sparse matrix (N, M). Entries are in the order of its constructor, and may share a place.

    Attributes:
        val: (nnz,) or (nnz, D) the values of entries.
        shape: (N, M).
    """

    def __init__(self, edges: Relation, val: Tensor, indices: Tensor | None = None):
        if val.dim() not in (1, 2) or val.shape[0] != edges.num_edges:
            raise DGLError(f"val has shape {tuple(val.shape)}; expected ({edges.num_edges},) or ({edges.num_edges}, D)")
        if val.device != edges.device:
            raise DGLError(f"val is on {val.device}; expected the device of the indices, {edges.device}")
        self._edges = edges  # from columns to rows, as A @ x sends x
        self._indices = indices
        self.val = val
        self.shape = edges.num_dst, edges.num_src

    def _at(self: Self, row: Tensor, col: Tensor, val: Tensor, shape: tuple[int, int]) -> Self:
        """Other entries."""
        return type(self)(Relation.from_edges(col, row, shape[1], shape[0], check=False), val)

    # ---- what there is -----------------------------------------------------------------------------------------------------------

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

    def coo(self) -> tuple[Tensor, Tensor]:
        """Rows and columns (nnz,)."""
        return self.row, self.col

    def indices(self) -> Tensor:
        """(2, nnz) rows and columns."""
        if self._indices is None:
            self._indices = torch.stack(self.coo())
        return self._indices

    def csr(self) -> tuple[Tensor, Tensor, Tensor | None]:
        """indptr (N + 1,), columns (nnz,), and the places of these entries in val, None for the same order."""
        indptr, indices, places = self._edges.graph().csc()
        return indptr, indices, places

    def csc(self) -> tuple[Tensor, Tensor, Tensor | None]:
        """indptr (M + 1,), rows (nnz,), and the places of these entries in val, None for the same order."""
        indptr, indices, places = self._edges.graph().csr()
        return indptr, indices, places

    def to_dense(self) -> Tensor:
        """(N, M), or (N, M, D)."""
        dense = self.val.new_zeros(*self.shape, *self.val.shape[1:])
        return dense.index_put((self.row.long(), self.col.long()), self.val, accumulate=True)

    def has_duplicate(self) -> bool:
        """Whether two entries share a place."""
        keys = self._edges.pairs()[0]
        return bool((keys[1:] == keys[:-1]).any())

    def is_diag(self) -> bool:
        """Whether the entries are those of the diagonal, each once and in order."""
        diagonal = torch.arange(min(self.shape), device=self.device)
        return self.nnz == len(diagonal) and all(torch.equal(ends.long(), diagonal) for ends in self.coo())

    def __repr__(self) -> str:
        shown = []
        for name, tensor in (("indices", self.indices()), ("values", self.val)):
            indent = " " * len(f"SparseMatrix({name}=")
            shown.append(f"{name}=" + str(tensor).replace("\n", "\n" + indent))
        size = f", val_size={tuple(self.val.shape[1:])}" if self.val.dim() > 1 else ""
        body = f",\n{' ' * 13}".join([*shown, f"shape={self.shape}, nnz={self.nnz}{size}"])
        return f"SparseMatrix({body})"

    # ---- the same otherwise ------------------------------------------------------------------------------------------------------

    def transpose(self: Self) -> Self:
        """(M, N). Shares all tensors."""
        return type(self)(self._edges.reverse(), self.val)

    def t(self: Self) -> Self:
        """:meth:`transpose`."""
        return self.transpose()

    @property
    def T(self: Self) -> Self:
        """The transposed matrix."""
        return self.transpose()

    def to(self: Self, device: Any = None, dtype: torch.dtype | None = None) -> Self:
        """On a device, with values of a dtype."""
        val = self.val.to(device=device, dtype=dtype)
        return type(self)(self._edges.map(lambda t: t.to(val.device), lambda g: g.to(val.device)), val)

    def cpu(self: Self) -> Self:
        """On the CPU."""
        return self.to("cpu")

    def cuda(self: Self) -> Self:
        """On the current GPU."""
        return self.to("cuda")

    def float(self: Self) -> Self:
        """With values of fp32."""
        return self.to(dtype=torch.float32)

    def double(self: Self) -> Self:
        """With values of fp64."""
        return self.to(dtype=torch.float64)

    def int(self: Self) -> Self:
        """With values of int32."""
        return self.to(dtype=torch.int32)

    def long(self: Self) -> Self:
        """With values of int64."""
        return self.to(dtype=torch.int64)

    def coalesce(self: Self) -> Self:
        """Entries that share a place added up, sorted by row, then by column."""
        keys, group = torch.unique(self.row.long() * self.shape[1] + self.col, return_inverse=True)
        val = summed(self.val, group, keys.numel())
        row, col = keys // max(self.shape[1], 1), keys % max(self.shape[1], 1)
        return self._at(row.to(self.row.dtype), col.to(self.col.dtype), val, self.shape)

    # ---- rows and columns --------------------------------------------------------------------------------------------------------

    def index_select(self: Self, dim: int_, index: Tensor) -> Self:
        """Rows (dim 0) or columns (dim 1) `index` (n,), which may repeat."""
        if dim not in (0, 1):
            raise DGLError(f"dim is {dim}; expected 0 or 1")
        if dim == 1:
            return self.transpose().index_select(0, index).transpose()
        index = id_tensor(index, self.row.dtype, self.device, "index").long()
        check_ids(index, self.shape[0], "index", "a row or column")
        indptr, cols, entries = self.csr()
        places, counts = ranges(indptr[index], indptr[index + 1])
        row = torch.arange(index.numel(), dtype=cols.dtype, device=self.device).repeat_interleave(counts)
        val = self.val[places if entries is None else entries[places].long()]
        return self._at(row, cols[places], val, (index.numel(), self.shape[1]))

    def range_select(self: Self, dim: int_, index: slice) -> Self:
        """Rows (dim 0) or columns (dim 1) of a slice."""
        ids = torch.arange(self.shape[dim], dtype=self.row.dtype, device=self.device)
        return self.index_select(dim, ids[index])

    def compact(self: Self, dim: int_, leading_indices: Tensor | None = None) -> tuple[Self, Tensor]:
        """The rows (dim 0) or columns (dim 1) that are named or have entries, and their ids: those named come first."""
        ids = self.row if dim == 0 else self.col
        present = torch.unique(ids)
        if leading_indices is not None:
            named = torch.tensor(list(dict.fromkeys(leading_indices.tolist())), dtype=ids.dtype, device=self.device)
            present = torch.cat([named, present[~torch.isin(present, named)]])
        return self.index_select(dim, present), present

    def sample(
        self: Self, dim: int_, fanout: int_, ids: Tensor | None = None, replace: bool = False, bias: bool = False
    ) -> Self:
        """At most `fanout` entries of each row (dim 0) or column (dim 1), or of those in `ids`, drawn at random.

        replace: draw `fanout` entries with repetition. bias: with probabilities in proportion to the values, which are positive.
        """
        if dim == 1:
            return self.transpose().sample(0, fanout, ids, replace, bias).transpose()
        chosen = self if ids is None else self.index_select(0, ids)
        weights = chosen.val if bias else torch.ones(chosen.nnz, device=self.device)
        row = chosen.row.long()
        drawn = [_first_per_row(row, weights, 1 if replace else fanout) for _ in range(fanout if replace else 1)]
        entries = torch.cat(drawn)
        return self._at(chosen.row[entries], chosen.col[entries], chosen.val[entries], chosen.shape)


int_ = int  # Entries.int is a method


def _first_per_row(row: Tensor, weights: Tensor, count: int) -> Tensor:
    """`count` entries of each row, or all if there are fewer, drawn without repetition."""
    order = (weights.new_empty(weights.shape).exponential_() / weights).argsort()
    order = order[row[order].argsort(stable=True)]
    sorted_rows = row[order]
    first = torch.searchsorted(sorted_rows, sorted_rows)
    return order[torch.arange(row.numel(), device=row.device) - first < count]


def summed(val: Tensor, group: Tensor, count: int) -> Tensor:
    """(count, *) the sum of the values (nnz, *) of each group."""
    if not val.is_floating_point():
        return val.new_zeros(count, *val.shape[1:]).index_add(0, group, val)
    edges = Relation.from_edges(torch.zeros_like(group), group, 1, count, check=False)
    return gspmm(edges.graph(), "copy_rhs", "sum", None, val)
