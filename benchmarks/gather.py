"""The pure gather: a kernel that reads the feature rows of all edges, as an SpMM or a dot must, and does nothing else.

On a GPU it is a backend in the cases of the operators. A gather can be faster in tiles of columns that fit in the L2
cache than in whole rows. So a few tiles are tried, and the fastest is used.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from .case import Backend, Case
from .graphs import BenchGraph
from .inputs import normal
from .optional import Unavailable
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
    """Tries each tile on these indices and features."""
    operator, clock = _operator(), GpuClock(cold=False)
    row_bytes = feat.shape[1] * feat.element_size()
    seconds = {}
    for tile in TILES:
        if tile < row_bytes:
            clock.seconds(lambda tile=tile: operator(indices, feat, tile), 1)
            seconds[tile] = clock.seconds(lambda tile=tile: operator(indices, feat, tile), 3)
    return min(seconds, key=lambda tile: seconds[tile])


def backend(graph: BenchGraph, feat: int, dtype: torch.dtype, by_src: bool = False, rows: int | None = None) -> Backend:
    """Gathers a row of `feat` elements for every edge: that of its source or, with by_src, of its destination.

    rows: gather only this many rows, with ids modulo `rows`, so that they fit into a cache.
    """
    row_bytes = feat * dtype.itemsize
    name = LIMIT if rows is None else RESIDENT
    made = Backend(name, dtype, lambda: None, bytes_moved=graph.num_edges * (row_bytes + graph.src.element_size()))

    def make():
        if graph.device != "cuda":
            raise Unavailable("the pure gather is a CUDA kernel")
        operator = _operator()
        if row_bytes % 16:
            raise Unavailable(f"rows of {row_bytes} bytes are not a whole number of 16-byte vectors")
        indices = (graph.halfgnn.csr() if by_src else graph.halfgnn.csc()).indices
        x = normal((graph.num_nodes, feat), dtype, 1, graph.device)
        if rows is not None:
            indices, x = indices % rows, x[:rows]
        tile = _fastest_tile(indices, x)
        made.note = f"tiles of {tile} bytes" if tile else "whole rows"
        return lambda: operator(indices, x, tile)

    made.make = make
    return made


def add_to(case: Case, by_src: bool = False, rows_per_edge: int = 1) -> None:
    """On a GPU adds the pure gather to the case, in every dtype of its backends. Several rows per edge are gathered
    as one row of their total length."""
    if case.graph.device == "cuda":
        feat = rows_per_edge * case.heads * case.dim
        dtypes = dict.fromkeys(c.dtype for c in case.backends)
        case.backends += [backend(case.graph, feat, dtype, by_src) for dtype in dtypes]
