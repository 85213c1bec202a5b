"""Edges in tiles: consecutive edges in the order of their destinations, on which a network runs at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

_gspmm = torch.ops.halfgnn.gspmm.default


def reads_back(x: Tensor) -> bool:
    """Whether sizes may be read from x: on CUDA that would be a synchronisation."""
    return x.is_cpu


class Tile(NamedTuple):
    """begin, end: of its positions in the adjacency by destination.
    first, last: of the destinations. On CUDA all of them, because nothing is read back from there.
    indptr: offsets of these destinations in the tile. sources: (T,).
    ids: the edges' rows in edge data; None if these have the order of positions.
    """

    begin: int
    end: int
    first: int
    last: int
    indptr: Tensor
    sources: Tensor
    ids: Tensor | None

    @property
    def side(self) -> tuple[Tensor, Tensor, None]:
        """The tile's adjacency. Its edge data is in the order of positions."""
        return self.indptr, self.sources, None

    def take(self, rows: Tensor) -> Tensor:
        """The tile's rows of data of all edges."""
        return rows[self.begin : self.end] if self.ids is None else rows.index_select(0, self.ids)

    def put(self, rows: Tensor, values: Tensor) -> None:
        """Writes the tile's rows of data of all edges."""
        if self.ids is None:
            rows[self.begin : self.end] = values
        else:
            rows.index_copy_(0, self.ids.long(), values)

    def of_sources(self, rows: Tensor) -> Tensor:
        return rows.index_select(0, self.sources)

    def own(self, rows: Tensor) -> Tensor:
        """Of data of all destinations, the rows that the tile's indptr has."""
        return rows[self.first : self.last]

    def of_destinations(self, rows: Tensor) -> Tensor:
        own = torch.arange(self.first, self.last, device=rows.device)
        count = self.end - self.begin
        return rows.index_select(0, torch.repeat_interleave(own, self.indptr.diff(), output_size=count))

    def positions(self) -> Tensor:
        return torch.arange(self.begin, self.end, device=self.indptr.device)

    def reduce(self, values: Tensor, reduce: str, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Of values (T, *) to rows first ... last; and for a maximum where in the tile it is."""
        return _gspmm(*self.side, "copy_rhs", reduce, None, values, dtype)

    def add_to_destinations(self, values: Tensor, total: Tensor) -> None:
        self.own(total).add_(self.reduce(values, "sum", total.dtype)[0])

    def add_to_sources(self, values: Tensor, total: Tensor) -> None:
        """In a fixed order, without atomics: sums over edges with one source, of which each is then added once."""
        sources, order = torch.sort(self.sources, stable=True)
        if reads_back(values):
            rows, counts = torch.unique_consecutive(sources, return_counts=True)
            offsets = F.pad(counts.cumsum(0), (1, 0))
        else:  # all rows: how many have edges is not known here
            offsets = torch.searchsorted(sources, torch.arange(total.shape[0] + 1, device=sources.device))
        ids = self.indptr.dtype
        sums = _gspmm(offsets.to(ids), self.sources, order.to(ids), "copy_rhs", "sum", None, values, total.dtype)[0]
        if reads_back(values):
            total.index_add_(0, rows, sums)
        else:
            total += sums


def tiles(csc: Sequence[Tensor | None], size: int) -> Iterator[Tile]:
    """All edges, `size` at a time."""
    indptr, indices, edge_ids = csc
    assert indptr is not None and indices is not None
    num_rows, num_edges = indptr.shape[0] - 1, indices.shape[0]
    for begin in range(0, num_edges, size):
        end, first, last = min(begin + size, num_edges), 0, num_rows
        if reads_back(indptr):
            ends = torch.tensor([begin, end - 1], dtype=indptr.dtype)
            first, last = torch.searchsorted(indptr, ends, right=True).tolist()
            first -= 1
        offsets = indptr[first : last + 1].clamp(begin, end) - begin
        yield Tile(
            begin, end, first, last, offsets, indices[begin:end], None if edge_ids is None else edge_ids[begin:end]
        )
