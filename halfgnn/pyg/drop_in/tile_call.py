"""A call of a module of torch_geometric on a tile: its arguments, of which each tile has its rows."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...common.autograd import snapshot
from ...drop_in.gate import Reason
from ...expressions.propagation import Propagation
from ...graph import Graph
from ...tiles.rows import Kept, Source
from ...tiles.topology import Tile
from .gate import FallBack, ids_reason, require

_thread = threading.local()  # is_in: whether a tile is being made


def is_in_tile() -> bool:
    return getattr(_thread, "is_in", False)


class Step(NamedTuple):
    """What a module does with edges.

    names: of the arguments of its functions. run: of the module and what is collected for these; its result.
    """

    names: list[str]
    run: Callable[[Any, dict[str, Any]], Any]


def propagation_step(conv: Any) -> Step:
    names = conv.inspector.get_flat_param_names(["message", "aggregate"], exclude=conv.special_args)
    return Step(names, _aggregated)


def _aggregated(conv: Any, collected: dict[str, Any]) -> Any:
    of = conv.inspector.collect_param_data
    return conv.aggregate(conv.message(**of("message", collected)), **of("aggregate", collected))


def update_step(conv: Any) -> Step:
    return Step(conv._edge_user_args, _updated)


def _updated(conv: Any, collected: dict[str, Any]) -> Any:
    return conv.edge_update(**conv.inspector.collect_param_data("edge_update", collected))


class TiledCall:
    """Attributes:
    i, j: the rows of edge_index of destinations and of sources.
    src, dst, edge: tensors by the name of the argument.
    """

    def __init__(self, conv: Any, step: Step, edge_index: Tensor, size: Any, kwargs: dict[str, Any]) -> None:
        self.conv, self.step, self.edge_index, self.kwargs = conv, step, edge_index, kwargs
        self.i, self.j = (1, 0) if conv.flow == "source_to_target" else (0, 1)
        self._size: list[int | None] = [None, None] if size is None else list(size)
        self.src: dict[str, Any] = {}
        self.dst: dict[str, Source] = {}
        self.edge: dict[str, Source] = {}
        ends = {name[:-2] for name in step.names if name[-2:] in ("_i", "_j")}
        if ends.intersection(step.names):
            raise FallBack(Reason.READS_IDS)  # the rows of all nodes, too
        for name in step.names:
            if name[-2:] in ("_i", "_j") and name[:-2] in kwargs:
                self._add_nodes(name[:-2], self.i if name[-2:] == "_i" else self.j)
        size_i, size_j = self._size[self.i], self._size[self.j]
        num_dst, num_src = size_j if size_i is None else size_i, size_i if size_j is None else size_j
        if num_dst is None or num_src is None:
            raise FallBack(Reason.MISSING_OPERAND)
        self.num_dst, self.num_src, self.num_edges = num_dst, num_src, edge_index.shape[1]
        for name in step.names:
            if name[-2:] not in ("_i", "_j"):
                self._add_edges(name, kwargs.get(name))
        self._kept = [Kept(x) for x in self.src.values() if isinstance(x, Tensor)]
        self._modules = Modules(conv)

    def _add_nodes(self, name: str, side: int) -> None:
        data = self.kwargs[name]
        sides = data if isinstance(data, (tuple, list)) else [data if side == each else None for each in (0, 1)]
        if len(sides) != 2:
            raise FallBack(Reason.NO_PAIR)
        for each, x in enumerate(sides):
            if isinstance(x, Tensor):
                self.conv._set_size(self._size, each, x)
        x = sides[side]
        if side == self.j:
            self.src[name] = snapshot(x) if type(x) is Tensor else x
        elif isinstance(x, Tensor) and name not in self.dst:
            self.dst[name] = Source(x, self.dim_of(x))

    def _add_edges(self, name: str, data: Any) -> None:
        if not isinstance(data, Tensor) or data.dim() == 0:
            return
        num_rows = data.shape[self.dim_of(data)]
        if num_rows in (self.num_dst, self.num_src):  # of all nodes, or of edges?
            raise FallBack(Reason.ROWS_OF_EDGES if num_rows == self.num_edges else Reason.READS_IDS)
        if num_rows == self.num_edges:
            self.edge[name] = Source(data, self.dim_of(data))

    def dim_of(self, x: Tensor) -> int:
        """The dimension of rows."""
        dim = self.conv.node_dim
        return dim if -x.dim() <= dim < x.dim() else 0

    def graph(self) -> Graph:
        propagation = Propagation(self.edge_index, [None, None])
        for row, count in ((self.i, self.num_dst), (self.j, self.num_src)):
            require(ids_reason(propagation, row, count))
        return propagation.into(self.i, self.num_dst, self.num_src)

    def on_tile(self, tile: Tile, dst: Sequence[Tensor], edge: Sequence[Tensor]) -> tuple[Tensor, ...]:
        for x in self._kept:
            x.check()
        with self._modules.as_they_were():
            rows = dict(zip(self.dst, dst)), dict(zip(self.edge, edge))
            found = self.call(tile, *rows, self.src, tile.graph.num_dst)
        return found if isinstance(found, tuple) else (found,)

    def call(
        self, tile: Tile, dst: dict[str, Any], edge: dict[str, Any], src: dict[str, Any], num_dst: int, first: int = 0
    ) -> Any:
        """num_dst, first: how many destinations there are, and the id of the tile's first one."""
        edge_index = _edges_of(tile, self.i, self.edge_index.dtype)
        if first:
            edge_index = edge_index.clone()
            edge_index[self.i] += first
        kwargs, size = {**self.kwargs, **edge}, [num_dst, num_dst]
        size[self.j] = self.num_src
        for name in {**dst, **self.src}:
            pair = [None, None]
            pair[self.i], pair[self.j] = dst.get(name), src.get(name, self.src.get(name))
            kwargs[name] = tuple(pair)
        outer, _thread.is_in = is_in_tile(), True
        try:
            sizes = self.conv._check_input(edge_index, tuple(size))
            return self.step.run(self.conv, self.conv._collect(self.step.names, edge_index, sizes, kwargs))
        finally:
            _thread.is_in = outer

    # ---- to plan it ----------------------------------------------------------------------------------------------------------

    def leaves(self) -> dict[str, Tensor]:
        """Features of sources, by name, as leaves: copies where a program may write to them."""
        found = {name: x for name, x in self.src.items() if isinstance(x, Tensor)}
        with torch.inference_mode(False):
            return {name: _leaf(x.clone() if x.is_inference() else x.detach()) for name, x in found.items()}

    def rows(self, tile: Tile, is_global: bool = False) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Those of a tile, of destinations and of edges, by name, as leaves. is_global: of all destinations."""
        edge = {name: _leaf(tile.place("edge").take(x.values, x.dim).clone()) for name, x in self.edge.items()}
        if is_global:
            return {name: _leaf(x.values.clone()) for name, x in self.dst.items()}, edge
        return {name: _leaf(tile.place("dst").take(x.values, x.dim).clone()) for name, x in self.dst.items()}, edge

    def signature(self) -> Any:
        """What decides what a module does, as far as its arguments say."""
        shapes = [(name, _widths(x.values, x.dim)) for name, x in (*self.dst.items(), *self.edge.items())]
        shapes += [(name, _widths(x, self.dim_of(x))) for name, x in self.src.items() if isinstance(x, Tensor)]
        known = self.src.keys() | self.dst.keys() | self.edge.keys()
        others = [(name, _described(x)) for name, x in self.kwargs.items() if name not in known]
        device = self.edge_index.device.type
        modes = *(m.training for m in self.conv.modules()), torch.is_autocast_enabled(device)
        return tuple(self.step.names), tuple(shapes), tuple(others), modes


class Modules:
    """What the modules of a call are as it begins: a backward calls them again, when a program may have changed them."""

    def __init__(self, conv: Any) -> None:
        self._modes = [(m, m.training) for m in conv.modules()]
        self._tensors = [Kept(x) for x in _read(conv)]
        self._conv = conv

    @contextlib.contextmanager
    def as_they_were(self) -> Iterator[None]:
        """A block with their modes. Raises RuntimeError if their parameters are others, or were modified in place."""
        tensors = _read(self._conv)
        if len(tensors) != len(self._tensors) or any(x is not y.x for x, y in zip(tensors, self._tensors)):
            raise RuntimeError(
                f"{type(self._conv).__name__} was called in tiles, and has other parameters in the backward: compute the "
                "gradient while it has those of the forward, or call it without patch(tile=...)"
            )
        for x in self._tensors:
            x.check()
        changed = [(m, m.training) for m, training in self._modes if m.training is not training]
        for m, training in self._modes:
            m.training = training
        try:
            yield
        finally:
            for m, training in changed:
                m.training = training


def _read(conv: Any) -> list[Tensor]:
    """Parameters and buffers, but for the statistics that norms of nodes modify at every call."""
    norms = [m for m in conv.modules() if hasattr(m, "track_running_stats")]
    counted = {id(x) for m in norms for x in m.buffers(recurse=False)}
    return [x for x in (*conv.parameters(), *conv.buffers()) if id(x) not in counted]


def _leaf(x: Tensor) -> Tensor:
    return x.requires_grad_(x.is_floating_point())


def _described(x: Any) -> Any:
    if isinstance(x, Tensor):
        return x.shape, x.dtype
    try:
        hash(x)
    except TypeError:
        return type(x), id(x)
    return type(x), x


def _widths(x: Tensor, dim: int) -> Any:
    shape = list(x.shape)
    shape[dim] = -1
    return tuple(shape), x.dtype


def _edges_of(tile: Tile, i: int, dtype: torch.dtype) -> Tensor:
    """The edge_index of a tile, which is cached with its graph."""

    def make(g: Graph) -> Tensor:
        src, dst = g.edges()
        return torch.stack((dst, src) if i == 0 else (src, dst)).to(dtype)

    return tile.graph.cached("_edge_index", make, (i, dtype))
