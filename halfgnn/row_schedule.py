"""Row schedules: the order in which sums and GAT on a GPU walk the rows of a graph that is used again and again.

Warps there walk several rows at once, and wait for the longest of them. A schedule puts rows of like lengths side by side, among
neighbouring ones so that caches serve what they share, as the row swizzle of Sputnik does (Gale et al., SC 2020); and it lists the
pieces into which long rows are cut, which warps else search for. Results have the same bits with a schedule and without.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .common.caching import is_captured
from .graph import LONG_ROW_EDGES, Graph

WINDOW_LOG2 = 12  # rows that are ordered among one another, 2^k
FIRST_USE = 3  # of a side, that makes its schedule: to sort takes as long as a schedule saves in some calls
# Graphs of fewer edges keep a GPU busy for about as long as a launch takes, and those of more are bound by its memory. Larger
# rows than these, on average, fill a warp each.
MIN_EDGES, MAX_EDGES, MAX_ROWS, MAX_DEGREE = 1 << 17, 1 << 23, 1 << 23, 64
# Pieces of long rows (csrc/cuda/kernels/core/rows.cuh: rows_of): log2 of their edges; from how many edges on they are shorter,
# until there are so many of them.
LOG2_PIECE, MIN_LOG2_PIECE, MANY_EDGES, MANY_PIECES = LONG_ROW_EDGES.bit_length() - 1, 7, 1 << 17, 1 << 14
_SIDES = "_row_schedules"  # of a Graph, by side
_USES = "_row_schedule_uses"


def row_schedule(indptr: Tensor, num_edges: int, short_rows: bool = False) -> Tensor:
    """The schedule of the rows of a compressed adjacency, for `schedule` of the raw operators. Nothing waits for the device.

    Args:
        indptr: (rows + 1,) int32 or int64.
        num_edges: the last entry of indptr, at most MAX_EDGES.
        short_rows: as the raw operators are given it.

    Returns:
        (2 S + rows,) int32, with a slot every 2^k edges, S in all, or none if short_rows: the slots that pieces of long rows belong
        to and -1 for each other one; the rows of these pieces; the short rows by falling degree within each 2^WINDOW_LOG2 rows, and
        -1 for each other row.
    """
    device, rows = indptr.device, indptr.numel() - 1
    log2_piece = 31 if short_rows else log2_of_piece(num_edges)
    slots = -(-num_edges >> log2_piece) if num_edges >> log2_piece else 0
    degrees = indptr.diff().int()
    is_long = degrees >> log2_piece != 0
    order = (torch.arange(rows, device=device) >> WINDOW_LOG2).int() * LONG_ROW_EDGES
    order += LONG_ROW_EDGES - 1 - degrees.clamp(max=LONG_ROW_EDGES - 1)
    order = order.masked_fill(is_long, torch.iinfo(torch.int32).max).argsort(stable=True).int()
    short = order.masked_fill(is_long.index_select(0, order), -1)
    starts = torch.arange(slots, device=device, dtype=indptr.dtype) << log2_piece
    row_of_slot = torch.searchsorted(indptr, starts, right=True, out_int32=True) - 1
    is_piece = is_long.index_select(0, row_of_slot)
    by_piece = (~is_piece).int().argsort(stable=True).int()
    pieces = by_piece.masked_fill(~is_piece.index_select(0, by_piece), -1)
    return torch.cat([pieces, row_of_slot.index_select(0, by_piece), short])


def log2_of_piece(num_edges: int) -> int:
    """Of the edges from which rows are cut, of a graph of at most MAX_EDGES edges that may have long rows."""
    log2_piece = LOG2_PIECE
    while num_edges >= MANY_EDGES and num_edges >> log2_piece < MANY_PIECES and log2_piece > MIN_LOG2_PIECE:
        log2_piece -= 1
    return log2_piece


def scheduled_device(device: torch.device) -> bool:
    """Whether kernels of a device read schedules."""
    return device.type == "cuda"


def schedules_of(g: Graph, reads_csr: bool) -> tuple[Tensor | None, Tensor | None]:
    """The schedules of csc() and, if reads_csr, of csr(). Each is made at its FIRST_USE-th use: None before, and where none
    helps."""
    if not scheduled_device(g.device) or not _may_gain(g):
        return None, None
    return _schedule(g, "csc"), _schedule(g, "csr") if reads_csr else None


def _may_gain(g: Graph) -> bool:
    if torch.compiler.is_compiling() or not MIN_EDGES <= g.num_edges <= MAX_EDGES:
        return False
    return max(g.num_src, g.num_dst) <= MAX_ROWS and g.num_edges <= MAX_DEGREE * min(g.num_src, g.num_dst)


def _schedule(g: Graph, side: str) -> Tensor | None:
    indptr = getattr(g, side)().indptr
    if type(indptr) is not Tensor:
        return None  # it is traced
    made = g.cached(_SIDES, None, side)
    if made is not None:
        return made
    uses = getattr(g, _USES, None) or {}
    count = uses.get(side, 0) + 1
    object.__setattr__(g, _USES, {**uses, side: count})
    if count < FIRST_USE or is_captured(g.device):
        return None
    short = g.short_csc if side == "csc" else g.short_csr
    return g.cached(_SIDES, lambda _: row_schedule(indptr, g.num_edges, short), side)
