"""Neighbours and walks, drawn with PyTorch's generator."""

from __future__ import annotations

import torch
from torch import Tensor
from typing_extensions import Self

from ...common.arguments import checked_fanout, checked_size
from ...common.ids import check_ids, check_range
from ._select import selected
from .storage import SparseStorage, offsets_of_counts, rows_of


class Sampling:
    """The part of SparseTensor that draws neighbours: the columns of a row's entries."""

    storage: SparseStorage

    def random_walk(self, start: Tensor, walk_length: int) -> Tensor:
        """Nodes (n, walk_length + 1) of walks from start (n,). A walk stays at a node without neighbours."""
        return random_walk(self.storage.rowptr(), self.storage.col(), start, walk_length)

    def sample(self, num_neighbors: int, subset: Tensor | None = None) -> Tensor:
        """Neighbours (n, num_neighbors) of each node, or of a subset (n,), with replacement. A node without any is its own."""
        nodes = (
            torch.arange(self.storage.sparse_size(0), device=self.storage.col().device) if subset is None else subset
        )
        check_ids(nodes, "subset")
        check_range(nodes, "subset", self.storage.sparse_size(0))
        return _neighbors(
            self.storage.rowptr(), self.storage.col(), nodes.long(), checked_size(num_neighbors, "num_neighbors")
        )

    def sample_adj(self, subset: Tensor, num_neighbors: int, replace: bool = False) -> tuple[Self, Tensor]:
        """Up to num_neighbors neighbours of each node of a subset (n,), -1 for all, as a matrix of new ids.

        The nodes of the subset are different ones.

        Returns:
            The matrix (n, m), and the old ids (m,) of its columns: the subset, then the other neighbours in order of appearance.
        """
        rowptr, col, n_id, e_id = sample_adj(self.storage.rowptr(), self.storage.col(), subset, num_neighbors, replace)
        value = self.storage.value()
        new = SparseStorage(
            rowptr=rowptr,
            col=col,
            value=None if value is None else value[e_id],
            sparse_sizes=(subset.numel(), n_id.numel()),
            is_sorted=True,
            trust_data=True,
        )
        return self.from_storage(new), n_id  # type: ignore[attr-defined]

    def saint_subgraph(self, node_idx: Tensor) -> tuple[Self, Tensor]:
        """The matrix (n, n) of nodes node_idx (n,), and the positions of its entries in this one."""
        numbered = self.storage.set_value(
            torch.arange(self.storage.col().numel(), device=self.storage.col().device), "coo"
        )
        part = selected(selected(numbered, 0, node_idx, "node_idx"), 1, node_idx, "node_idx")
        edge_index = part.value()
        assert edge_index is not None
        value = self.storage.value()
        part = part.set_value(None if value is None else value[edge_index], "coo")
        return self.from_storage(part), edge_index  # type: ignore[attr-defined]


def random_walk(rowptr: Tensor, col: Tensor, start: Tensor, walk_length: int) -> Tensor:
    """Nodes (n, walk_length + 1) of walks along the entries of rows."""
    check_ids(start, "start")
    check_range(start, "start", rowptr.numel() - 1)
    nodes = [start.long()]
    for _ in range(checked_size(walk_length, "walk_length")):
        nodes.append(_neighbors(rowptr, col, nodes[-1], 1).squeeze(1))
    return torch.stack(nodes, dim=1)


def _neighbors(rowptr: Tensor, col: Tensor, nodes: Tensor, number: int) -> Tensor:
    """Neighbours (n, number) of each node, with replacement. A node without any is its own."""
    counts = rowptr[nodes + 1] - rowptr[nodes]
    own = nodes.unsqueeze(1).expand(-1, number)
    if col.numel() == 0:
        return own.clone()
    entries = _drawn(rowptr[nodes], counts, number).clamp_(max=col.numel() - 1)
    return torch.where(counts.unsqueeze(1) > 0, col[entries], own)


def sample_adj(
    rowptr: Tensor, col: Tensor, subset: Tensor, num_neighbors: int, replace: bool = False
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Offsets, new columns, the old ids of the columns, and positions of the entries drawn. See Sampling.sample_adj."""
    num_neighbors = checked_fanout(num_neighbors, "num_neighbors")
    check_ids(subset, "subset")
    check_range(subset, "subset", rowptr.numel() - 1)
    subset = subset.long()
    counts, starts = rowptr.diff()[subset], rowptr[subset]
    if replace and num_neighbors >= 0:
        has_any = counts > 0
        entries = _drawn(starts[has_any], counts[has_any], num_neighbors).flatten()
        ptr = offsets_of_counts(has_any * num_neighbors)
    else:
        ptr = offsets_of_counts(counts)
        rows = rows_of(ptr, int(ptr[-1]))
        entries = torch.arange(rows.numel(), device=col.device) + (starts - ptr[:-1])[rows]
        if num_neighbors >= 0:
            order = torch.rand(rows.numel(), device=col.device, dtype=torch.float64).add_(rows).argsort()
            is_drawn = torch.arange(rows.numel(), device=col.device) - ptr[rows] < num_neighbors
            entries = entries[order[is_drawn]]
            ptr = offsets_of_counts(counts.clamp(max=num_neighbors))
    n_id, new = _renumbered(subset, col[entries])
    order = (rows_of(ptr, entries.numel()) * n_id.numel() + new).argsort(stable=True)
    return ptr, new[order], n_id, entries[order]


def _drawn(starts: Tensor, counts: Tensor, number: int) -> Tensor:
    """Positions (n, number) of entries, drawn with replacement from counts (n,) that begin at starts (n,)."""
    fractions = torch.rand(counts.numel(), number, device=counts.device, dtype=torch.float64)
    return (fractions * counts.unsqueeze(1)).long() + starts.unsqueeze(1)


def _renumbered(subset: Tensor, nodes: Tensor) -> tuple[Tensor, Tensor]:
    """The ids of a subset and then other nodes in order of appearance, and the place of each node among them."""
    ids, inverse = torch.cat([subset, nodes]).unique(return_inverse=True)
    places = torch.arange(inverse.numel(), device=nodes.device)
    first = torch.full_like(ids, inverse.numel()).scatter_reduce_(0, inverse, places, "amin")
    order = first.argsort()
    rank = torch.empty_like(order).scatter_(0, order, torch.arange(ids.numel(), device=nodes.device))
    repeated = (rank[inverse[: subset.numel()]] != places[: subset.numel()]).nonzero()
    if repeated.numel():
        raise ValueError(f"subset holds {int(subset[repeated[0]])} more than once; expected different nodes")
    return ids[order], rank[inverse[subset.numel() :]]
