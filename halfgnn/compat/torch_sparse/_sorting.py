"""Orders of ids, by the counting sort that makes a graph's adjacencies."""

from __future__ import annotations

from torch import Tensor

from ...common.ids import INT32_MAX
from ...graph import Graph


def order_of(ids: Tensor, num_ids: int) -> Tensor:
    """The stable order (n,) int64 that sorts ids (n,), which are in [0, num_ids)."""
    ids = ids.int() if max(num_ids, ids.numel()) <= INT32_MAX else ids
    _, order = Graph.from_edges(ids, ids, num_src=num_ids, num_dst=num_ids, sort=True, check=False)
    return order.long()


def row_major_order(row: Tensor, col: Tensor, sizes: tuple[int, int]) -> Tensor:
    """The stable order (n,) int64 that sorts entries by row, and those of one row by column."""
    by_col = order_of(col, sizes[1])
    return by_col[order_of(row[by_col], sizes[0])]
