"""The pure gather: a kernel that reads the feature rows of all edges, as an SpMM or a dot must, and does nothing else.

It runs beside the operators as a contestant of their cases, on a GPU. Swept in tiles of columns that fit in the L2 cache a
gather can be faster than in whole rows, so a few tiles are tried and the fastest is taken.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from .case import Case, Contestant, Unavailable, normal
from .graphs import BenchGraph
from .timing import GpuClock

LIMIT = "gather limit"
RESIDENT = "gather limit, resident"
TILES = (0, 128, 256)  # bytes of a row; 0: whole rows


def _operator() -> Callable[..., Tensor]:
    try:
        from .yardsticks import gather_limit
    except ImportError as error:
        raise Unavailable(str(error)) from None
    return gather_limit


def _fastest_tile(indices: Tensor, feat: Tensor) -> int:
    """Tries each tile on what there is."""
    operator, clock = _operator(), GpuClock(cold=False)
    row_bytes = feat.shape[1] * feat.element_size()
    seconds = {}
    for tile in TILES:
        if tile < row_bytes:
            clock.seconds(lambda tile=tile: operator(indices, feat, tile), 1)
            seconds[tile] = clock.seconds(lambda tile=tile: operator(indices, feat, tile), 3)
    return min(seconds, key=lambda tile: seconds[tile])


def contestant(
    graph: BenchGraph, feat: int, dtype: torch.dtype, by_src: bool = False, rows: int | None = None
) -> Contestant:
    """Gathers rows of `feat` elements for every edge: those of its source or, by_src, of its destination.

    rows: so few of them, their ids taken modulo: what fits into a cache.
    """
    row_bytes = feat * dtype.itemsize
    name = LIMIT if rows is None else RESIDENT
    made = Contestant(name, dtype, lambda: None, bytes_moved=graph.num_edges * (row_bytes + graph.src.element_size()))

    def make():
        if graph.device != "cuda":
            raise Unavailable("the pure gather is a CUDA kernel")
        operator = _operator()
        if row_bytes % 16:
            raise Unavailable(f"rows of {row_bytes} bytes are no whole number of vectors")
        indices = (graph.halfgnn.csr() if by_src else graph.halfgnn.csc()).indices
        x = normal((graph.num_nodes, feat), dtype, 1, graph.device)
        if rows is not None:
            indices, x = indices % rows, x[:rows]
        tile = _fastest_tile(indices, x)
        made.note = f"tiles of {tile} bytes" if tile else "whole rows"
        return lambda: operator(indices, x, tile)

    made.make = make
    return made


def beside(case: Case, by_src: bool = False, rows_an_edge: int = 1) -> Case:
    """The case with the pure gather in every dtype of its contestants, on a GPU; several rows an edge as one of their length."""
    if case.graph.device == "cuda":
        dtypes = dict.fromkeys(c.dtype for c in case.contestants)
        case.contestants += [
            contestant(case.graph, rows_an_edge * case.heads * case.dim, dtype, by_src) for dtype in dtypes
        ]
    return case
