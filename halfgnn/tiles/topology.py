"""The tiles of a Graph: consecutive destinations and their in-edges."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from ..common.caching import refuse_capture
from ..graph import Graph
from .rows import Place


class Tile(NamedTuple):
    """Destinations, and their in-edges from all sources.

    Attributes:
        graph: from all sources to the tile's destinations, whose first is 0; edge data is in the order of its CSC.
        first: the first destination.
        begin: the place of the first edge in the CSC of the whole graph.
        edge_ids: (T,), rows of edge data of the whole graph; None if they follow one another from begin.
    """

    graph: Graph
    first: int
    begin: int
    edge_ids: Tensor | None

    def place(self, kind: str) -> Place:
        """Of its rows of "dst" or "edge"."""
        if kind == "dst":
            return Place(self.first, self.graph.num_dst)
        return Place(self.begin, self.graph.num_edges, self.edge_ids)


class Tiles(tuple[Tile, ...]):
    __slots__ = ()

    def _for_all_streams(self) -> Tiles:
        """As of a Graph."""
        for tile in self:
            tile.graph._for_all_streams()
        return self


def tiles_of(g: Graph, num_edges: int) -> Tiles:
    """Tiles of at most so many edges each, or of one destination with edges; all have one, if the graph has. They are cached with
    the graph, for two sizes."""
    refuse_capture(g.device, "offsets of tiles are not known yet, so they have to be read", "call the function once")
    return g.cached("_tiles", lambda g: Tiles(_tiles(g, num_edges)), num_edges, only_last=True)


def tile_from(g: Graph, first: int, num_edges: int) -> Tile:
    """A tile of destinations from first on, of at most so many edges."""
    return next(_tiles(g, num_edges, first))


def _tiles(g: Graph, num_edges: int, first: int = 0) -> Iterator[Tile]:
    indptr, indices, edge_ids = g.csc()
    offsets = indptr.cpu()
    while first < g.num_dst or first == 0:  # one without a destination, of a graph without any
        begin = int(offsets[first])
        with_edges = int(
            torch.searchsorted(offsets, begin, right=True)
        )  # destinations up to the first one with an edge
        most = max(begin + num_edges, int(offsets[min(with_edges, g.num_dst)]))
        last = int(torch.searchsorted(offsets, most, right=True)) - 1  # and those without an edge behind them
        end = int(offsets[last])
        side = indptr[first : last + 1] - begin, indices[begin:end], None
        graph = Graph(g.num_src, last - first, side)
        yield Tile(graph, first, begin, None if edge_ids is None else edge_ids[begin:end])
        first = max(last, 1)
