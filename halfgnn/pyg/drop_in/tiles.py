"""Calls of MessagePassing in tiles of destinations, for patch(tile=...): messages exist for one tile at a time.

A call is planned once per module and kind of arguments, by running a tile of it: how much it keeps per edge, and whether a tile has
the rows of the whole. What mixes the edges of several destinations is left as it is.
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm

from ...drop_in.gate import Reason, index_reason
from ...expressions.propagation import Propagation
from ...graph import Graph
from ...tiles import sizes
from ...tiles.rows import Source
from ...tiles.tiled import run_tiles
from ...tiles.topology import Tile, tile_from
from .call import module_reason
from .gate import FallBack, ids_reason, require

_SMALLEST = 64  # bytes per edge: what keeps less than so many is not materialized, but for logits and the like


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
    """A call of a module, whose arguments are rows of sources, of destinations, of edges, and others."""

    def __init__(self, conv: Any, step: Step, edge_index: Tensor, size: Any, kwargs: dict[str, Any]) -> None:
        self.conv, self.step, self.edge_index, self.kwargs = conv, step, edge_index, kwargs
        self.i, self.j = (1, 0) if conv.flow == "source_to_target" else (0, 1)
        self.size: list[int | None] = [None, None] if size is None else list(size)
        self.dst: dict[str, Source] = {}
        self.edge: dict[str, Source] = {}
        self.src: dict[str, Any] = {}
        for name in step.names:
            if name[-2:] in ("_i", "_j"):
                self._add_nodes(name[:-2], self.i if name[-2:] == "_i" else self.j)
        num_dst = self.size[self.i] if self.size[self.i] is not None else self.size[self.j]
        num_src = self.size[self.j] if self.size[self.j] is not None else num_dst
        if num_dst is None or num_src is None:
            raise FallBack(Reason.MISSING_OPERAND)
        self.num_dst, self.num_src, self.num_edges = num_dst, num_src, edge_index.shape[1]
        for name in step.names:
            if name[-2:] not in ("_i", "_j"):
                self._add_edges(name, kwargs.get(name))

    def _add_nodes(self, name: str, side: int) -> None:
        if name not in self.kwargs:
            return
        data = self.kwargs[name]
        sides = data if isinstance(data, (tuple, list)) else [data if side == each else None for each in (0, 1)]
        if len(sides) != 2:
            raise FallBack(Reason.NO_PAIR)
        for each, x in enumerate(sides):
            if isinstance(x, Tensor):
                self.conv._set_size(self.size, each, x)
        x = sides[side]
        if side == self.j:
            self.src[name] = x
        elif isinstance(x, Tensor) and name not in self.dst:
            self.dst[name] = Source(x, self._dim(x))

    def _add_edges(self, name: str, data: Any) -> None:
        if not isinstance(data, Tensor) or data.dim() == 0 or data.shape[self._dim(data)] != self.num_edges:
            return
        if self.num_edges in (self.num_dst, self.num_src):  # whose rows are these?
            raise FallBack(Reason.ROWS_OF_EDGES)
        self.edge[name] = Source(data, self._dim(data))

    def _dim(self, x: Tensor) -> int:
        dim = self.conv.node_dim
        return dim if -x.dim() <= dim < x.dim() else 0

    def graph(self) -> Graph:
        propagation = Propagation(self.edge_index, [None, None])
        for row, count in ((self.i, self.num_dst), (self.j, self.num_src)):
            require(ids_reason(propagation, row, count))
        return propagation.into(self.i, self.num_dst, self.num_src)

    def tensors(self) -> list[Tensor]:
        sources = *self.dst.values(), *self.edge.values()
        return [x.values for x in sources] + [x for x in self.src.values() if isinstance(x, Tensor)]

    def on_tile(self, tile: Tile, dst: Sequence[Tensor], edge: Sequence[Tensor]) -> tuple[Tensor, ...]:
        found = self.call(tile, dict(zip(self.dst, dst)), dict(zip(self.edge, edge)), tile.graph.num_dst, 0)
        return found if isinstance(found, tuple) else (found,)

    def call(self, tile: Tile, dst: dict[str, Any], edge: dict[str, Any], num_dst: int, first: int) -> Any:
        """first, num_dst: of the destinations' ids, and how many there are."""
        edge_index = _edges_of(tile, self.i, self.edge_index.dtype)
        if first:
            edge_index = edge_index.clone()
            edge_index[self.i] += first
        kwargs, size = {**self.kwargs, **edge}, [num_dst, num_dst]
        size[self.j] = self.num_src
        for name in {**dst, **self.src}:
            pair = [None, None]
            pair[self.i], pair[self.j] = dst.get(name), self.src.get(name)
            kwargs[name] = tuple(pair)
        outer, _thread.is_in = is_in_tile(), True
        try:
            sizes = self.conv._check_input(edge_index, tuple(size))
            return self.step.run(self.conv, self.conv._collect(self.step.names, edge_index, sizes, kwargs))
        finally:
            _thread.is_in = outer

    def rows(self, tile: Tile) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Those of a tile, of destinations and of edges, by name, as leaves."""
        of_kinds = (("dst", self.dst), ("edge", self.edge))
        dst, edge = ({name: x.leaf(tile.place(kind)) for name, x in sources.items()} for kind, sources in of_kinds)
        return dst, edge

    def signature(self) -> Any:
        """What a plan holds for."""
        shapes = [(name, _widths(x.values, x.dim)) for name, x in (*self.dst.items(), *self.edge.items())]
        shapes += [(name, _widths(x, self._dim(x))) for name, x in self.src.items() if isinstance(x, Tensor)]
        others = [(name, type(x)) for name, x in self.kwargs.items() if not isinstance(x, (Tensor, tuple, list))]
        modes = self.conv.training, torch.is_autocast_enabled(self.edge_index.device.type)
        return tuple(self.step.names), tuple(shapes), tuple(others), modes


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


# ---- plans -------------------------------------------------------------------------------------------------------------------


class Plan(NamedTuple):
    """per_edge: bytes that a call makes per edge. results: of each, whether rows are of "dst" or "edge", and their dimension.
    is_tuple: whether a call returns several. refusal: why it is not done in tiles; None if it is."""

    per_edge: float
    results: tuple[tuple[str, int], ...]
    is_tuple: bool
    refusal: str | None = None


_plans: weakref.WeakKeyDictionary[Any, dict[Any, Plan]] = weakref.WeakKeyDictionary()


def plan_of(call: TiledCall, g: Graph) -> Plan:
    plans = _plans.setdefault(call.conv, {})
    signature = call.signature()
    if signature not in plans:
        try:
            plans[signature] = _plan(call, g)
        except FallBack as left:
            plans[signature] = Plan(0.0, (), False, left.reason)
    return plans[signature]


def _plan(call: TiledCall, g: Graph) -> Plan:
    """Runs a tile in the middle of the graph."""
    tile = tile_from(g, g.num_dst // 2, sizes.PROBED)
    found: list[Any] = []
    attributes = {name: id(x) for name, x in vars(call.conv).items()}
    dst, edge = call.rows(tile)
    beside = [*call.tensors(), *dst.values(), *edge.values()]

    def run() -> None:
        found.append(call.call(tile, dst, edge, tile.graph.num_dst, 0))

    with _without_batch_norms(call.conv), _random_state() as restart:
        per_edge = sizes.working_bytes(run, tile.graph.num_edges, beside)
        if {name: id(x) for name, x in vars(call.conv).items()} != attributes:
            raise FallBack(Reason.SETS_ATTRIBUTES)
        results = found[0] if isinstance(found[0], tuple) else (found[0],)
        kinds = tuple(_kind(x, call, tile) for x in results)
        if per_edge >= _SMALLEST:
            _check_ids(call, tile, results, kinds, restart)
            _check_rows(call, tile, results, kinds, restart)
    return Plan(per_edge, kinds, isinstance(found[0], tuple))


def _kind(x: Any, call: TiledCall, tile: Tile) -> tuple[str, int]:
    if not isinstance(x, Tensor) or x.dim() == 0:
        raise FallBack(Reason.WRONG_ROWS)
    dim = call._dim(x)
    counts = {tile.graph.num_dst: "dst", tile.graph.num_edges: "edge"}
    if x.shape[dim] not in counts or len(counts) == 1:
        raise FallBack(Reason.WRONG_ROWS)
    return counts[x.shape[dim]], dim


def _check_ids(call: TiledCall, tile: Tile, results: Any, kinds: Any, restart: Callable[[], bool]) -> None:
    """Raises FallBack unless results are the same with the ids of all destinations: a module may read other rows by them."""
    restart()
    edge = call.rows(tile)[1]
    try:
        again = call.call(tile, {name: x.values for name, x in call.dst.items()}, edge, call.num_dst, tile.first)
    except (IndexError, RuntimeError):  # an aggregation that does not take destinations without edges
        raise FallBack(Reason.READS_IDS) from None
    again = again if isinstance(again, tuple) else (again,)
    for x, y, (kind, dim) in zip(results, again, kinds):
        if not _are_alike(x, tile.place("dst").take(y, dim) if kind == "dst" else y):
            raise FallBack(Reason.READS_IDS)


def _check_rows(call: TiledCall, tile: Tile, results: Any, kinds: Any, restart: Callable[[], bool]) -> None:
    """Raises FallBack if a smaller tile has other rows, unless these are random."""
    if restart():
        return
    g = call.graph()
    small = tile_from(g, tile.first, max(tile.graph.num_edges // 2, 1))
    again = call.call(small, *call.rows(small), small.graph.num_dst, 0)
    again = again if isinstance(again, tuple) else (again,)
    for x, y, (_, dim) in zip(results, again, kinds):
        if not _are_alike(x.narrow(dim, 0, y.shape[dim]), y):
            raise FallBack(Reason.MIXES_EDGES)


def _are_alike(x: Tensor, y: Tensor) -> bool:
    """Whether two results of the same rows agree but for the order of sums."""
    if x.shape != y.shape:
        return False
    x, y = x.detach().float(), y.detach().float()
    scale = float(x.abs().nan_to_num(posinf=0).amax()) if x.numel() else 0.0
    return torch.allclose(x, y, rtol=2e-2, atol=2e-2 * scale, equal_nan=True)


@contextlib.contextmanager
def _random_state() -> Iterator[Callable[[], bool]]:
    """A block after which random numbers go on as before it. restart(): begins anew; whether any were drawn."""
    devices = [torch.cuda.current_device()] if torch.cuda.is_initialized() else []
    with torch.random.fork_rng(devices):
        states = [torch.get_rng_state(), *(torch.cuda.get_rng_state(device) for device in devices)]

        def restart() -> bool:
            now = [torch.get_rng_state(), *(torch.cuda.get_rng_state(device) for device in devices)]
            torch.set_rng_state(states[0])
            for device, state in zip(devices, states[1:]):
                torch.cuda.set_rng_state(state, device)
            return not all(map(torch.equal, now, states))

        yield restart


@contextlib.contextmanager
def _without_batch_norms(conv: Any) -> Iterator[None]:
    """Raises FallBack at a batch norm in training, whose statistics are those of all edges."""

    def refuse(*args: Any) -> None:
        raise FallBack(Reason.BATCH_NORM)

    norms = [x for x in conv.modules() if isinstance(x, _BatchNorm) and (x.training or not x.track_running_stats)]
    hooks = [x.register_forward_pre_hook(refuse) for x in norms]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


# ---- calls -------------------------------------------------------------------------------------------------------------------


def in_tiles(conv: Any, step: Step, edge_index: Any, size: Any, kwargs: dict[str, Any], tile: int | str) -> Any:
    """The results of a call of a module. Raises FallBack if it is not done in tiles."""
    require(index_reason(edge_index))
    if edge_index.dim() != 2 or edge_index.shape[0] != 2:
        raise FallBack(Reason.NO_EDGE_INDEX)
    num_edges = edge_index.shape[1]
    if num_edges <= (tile if isinstance(tile, int) else sizes.PROBED):
        raise FallBack(Reason.FEW_VALUES)
    require(module_reason(conv))
    if conv.decomposed_layers > 1:
        raise FallBack(Reason.OPTIONS)
    call = TiledCall(conv, step, edge_index, size, kwargs)
    g = call.graph()
    plan = plan_of(call, g)
    require(plan.refusal)
    if isinstance(tile, str):
        tile = sizes.edges_in(sizes.memory_for(tile, g.device), plan.per_edge)
    if plan.per_edge < _SMALLEST or tile >= num_edges:
        raise FallBack(Reason.FEW_VALUES)
    found = run_tiles(g, tile, call.on_tile, [*call.dst.values()], [*call.edge.values()], plan.results)
    return tuple(found) if plan.is_tuple else found[0]
