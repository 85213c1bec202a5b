"""Whether a module's call is done in tiles, asked once per module and kind of arguments by running a tile of it.

It shows how much the module keeps per edge, and whether rows of a part of the tile are those of the tile: values, and gradients of
parameters and of features. What mixes the edges of several destinations, reads rows by ids, or has a state, is left as it is.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parameter import is_lazy

from ...drop_in.gate import Reason
from ...graph import Graph
from ...tiles import sizes
from ...tiles.topology import Tile, tile_from
from .gate import FallBack
from .tile_call import TiledCall

Results = tuple[Tensor, ...]
_PLACES = (2, 4, 1, 8)  # parts of the edges before a tile that is tried
_MOST_PLANS = 16  # per module; the oldest goes first
_PART = 8  # of a tile, beside which it is checked
_TRANSIENT = {Reason.WRONG_ROWS, Reason.RAISES, Reason.FEW_DESTINATIONS}  # which other graphs may not have


class Plan(NamedTuple):
    """per_edge: bytes that a call makes per edge. results: of each, whether rows are of "dst" or "edge", and their dimension.
    is_tuple: whether a call returns several. refusal: why it is not done in tiles; None if it is."""

    per_edge: float
    results: tuple[tuple[str, int], ...]
    is_tuple: bool
    refusal: str | None = None


_plans: weakref.WeakKeyDictionary[Any, dict[Any, Plan]] = weakref.WeakKeyDictionary()


def plan_of(call: TiledCall, g: Graph, least: int) -> Plan:
    """least: bytes per edge from which on it is checked what a call mixes."""
    plans = _plans.setdefault(call.conv, {})
    signature = call.signature(), _attributes(call.conv)
    plan = plans.get(signature)
    if plan is None:
        try:
            plan = _planned(call, g, least)
        except FallBack as left:
            plan = Plan(0.0, (), False, left.reason)
        if plan.refusal not in _TRANSIENT:
            while len(plans) >= _MOST_PLANS:  # of a module that counts its calls, say
                plans.pop(next(iter(plans)), None)
            plans[signature] = plan
    return plan


def _attributes(conv: Any) -> Any:
    """Numbers and words that modules have, by which they may do other things."""
    return tuple(
        (name, x) for m in conv.modules() for name, x in vars(m).items() if isinstance(x, (bool, int, float, str))
    )


def _planned(call: TiledCall, g: Graph, least: int) -> Plan:
    tile = _tile_with_destinations(g)
    modules = list(call.conv.modules())
    refuse_modules(modules)
    # Own hooks: a checkpoint around would count what is saved here, and not in its second run.
    own_hooks = torch.autograd.graph.saved_tensors_hooks(_same, _same)
    with torch.inference_mode(False), own_hooks, _random_state(), _evaluating(modules) as restart, _kept_state(modules):
        try:
            return _plan(call, tile, least, restart)
        except FallBack:
            raise
        except Exception:  # of the program, which then raises it, or because a tensor has the rows of all edges
            raise FallBack(Reason.RAISES) from None


def _same(x: Tensor) -> Tensor:
    return x


def _plan(call: TiledCall, tile: Tile, least: int, modes: _Modes) -> Plan:
    found: list[Any] = []
    leaves = call.leaves()
    dst, edge = call.rows(tile)
    beside = [*leaves.values(), *dst.values(), *edge.values()]

    def run() -> None:
        found.append(call.call(tile, dst, edge, leaves, tile.graph.num_dst))

    with modes.as_they_were():
        per_edge = sizes.working_bytes(run, tile.graph.num_edges, beside)
    is_tuple = type(found[0]) is tuple
    results = tuple(_kind(x, call, tile) for x in (found[0] if is_tuple else (found[0],)))
    if per_edge >= least:
        _check(call, tile, results)
    return Plan(per_edge, results, is_tuple)


def _kind(x: Any, call: TiledCall, tile: Tile) -> tuple[str, int]:
    if type(x) is not Tensor or x.dim() == 0 or not x.is_floating_point():
        raise FallBack(Reason.WRONG_ROWS)
    dim = call.dim_of(x)
    counts = {tile.graph.num_dst: "dst", tile.graph.num_edges: "edge"}
    if x.shape[dim] not in counts or len(counts) == 1:
        raise FallBack(Reason.WRONG_ROWS)
    return counts[x.shape[dim]], dim


# ---- whether a part has the rows of the whole --------------------------------------------------------------------------------


def _tile_with_destinations(g: Graph) -> Tile:
    """A tile of several destinations with edges."""
    offsets = g.csc().indptr
    for part in _PLACES:
        first = int(torch.searchsorted(offsets, g.num_edges // part, right=True)) - 1 if part > 1 else 0
        tile = tile_from(g, max(first, 0), sizes.PROBED)
        if int((tile.graph.in_degrees() > 0).sum()) > 1:
            return tile
    raise FallBack(Reason.FEW_DESTINATIONS)


def _check(call: TiledCall, tile: Tile, kinds: Sequence[tuple[str, int]]) -> None:
    """Raises FallBack unless a few destinations in the middle have the same rows, and gradients, in a tile of their own: with ids
    from 0 on, and with those of the whole graph."""
    begin, end = _middle(tile)
    whole = _Run(call, tile, kinds)
    part = _Run(call, _part_of(tile, begin, end), kinds)
    edges = tile.graph.csc().indptr[[begin, end]].tolist()
    rows, within = part.rows(), whole.rows({"dst": (begin, end), "edge": tuple(edges)})
    if not _are_alike(within, rows) or not _are_alike_in_all(whole.gradients(within), part.gradients(rows)):
        raise FallBack(Reason.MIXES_EDGES)
    if not _are_alike(rows, _Run(call, part.tile, kinds, is_global=True).rows()):
        raise FallBack(Reason.READS_IDS)


def _middle(tile: Tile) -> tuple[int, int]:
    """Destinations with a few of the edges, but not all."""
    offsets, num_edges = tile.graph.csc().indptr, tile.graph.num_edges
    begin = int(torch.searchsorted(offsets, num_edges // 2, right=True)) - 1
    end = int(torch.searchsorted(offsets, num_edges // 2 + max(num_edges // _PART, 1)))
    end = max(min(end, tile.graph.num_dst), begin + 1)
    return (begin, begin + 1) if int(offsets[end] - offsets[begin]) == num_edges else (begin, end)


def _part_of(tile: Tile, begin: int, end: int) -> Tile:
    indptr, indices, _ = tile.graph.csc()
    first, last = (int(indptr[place]) for place in (begin, end))
    graph = Graph(tile.graph.num_src, end - begin, (indptr[begin : end + 1] - first, indices[first:last], None))
    ids = None if tile.edge_ids is None else tile.edge_ids[first:last]
    return Tile(graph, tile.first + begin, tile.begin + first, ids)


class _Run:
    """A call on a tile, and the gradients of some of its rows. is_global: with the ids of all destinations."""

    def __init__(self, call: TiledCall, tile: Tile, kinds: Sequence[tuple[str, int]], is_global: bool = False) -> None:
        self.tile, self._kinds = tile, kinds
        self._leaves = call.leaves()
        with torch.enable_grad():
            dst, edge = call.rows(tile, is_global)
            num_dst, first = (call.num_dst, tile.first) if is_global else (tile.graph.num_dst, 0)
            found = call.call(tile, dst, edge, self._leaves, num_dst, first)
        self._results = found if type(found) is tuple else (found,)
        if is_global:
            of_dst = tile.place("dst")
            self._results = tuple(
                of_dst.take(x, dim) if kind == "dst" else x for x, (kind, dim) in zip(self._results, kinds)
            )
        self._read = [x for x in (*self._leaves.values(), *call.conv.parameters()) if x.requires_grad]

    def rows(self, within: dict[str, tuple[int, int]] | None = None) -> list[Tensor]:
        """within: from where to where; all if it is None."""
        return [
            x if within is None else x.narrow(dim, within[kind][0], within[kind][1] - within[kind][0])
            for x, (kind, dim) in zip(self._results, self._kinds)
        ]

    def gradients(self, rows: Sequence[Tensor]) -> list[Tensor | None]:
        """Of a sum of rows, each value times another number: those of norms, and of softmaxes, have constant sums."""
        loss: Any = 0.0
        for x, (_, dim) in zip(rows, self._kinds):
            if x.requires_grad:
                values = x.movedim(dim, 0).flatten(1).float()
                weights = torch.arange(values.numel(), device=x.device).view(values.shape).cos()
                loss = loss + (values * weights).sum()
        if not isinstance(loss, Tensor) or not self._read:
            return []
        with _without_hooks(self._read):
            return [*torch.autograd.grad(loss, self._read, allow_unused=True, retain_graph=True)]


def _are_alike(found: Sequence[Tensor], expected: Sequence[Tensor]) -> bool:
    """Whether tensors agree but for the order of sums."""
    return all(
        x.shape == y.shape and _error(x, y) <= _tolerance(x) * _scale(y) for x, y in zip(found, expected, strict=True)
    )


def _are_alike_in_all(found: Sequence[Tensor | None], expected: Sequence[Tensor | None]) -> bool:
    """The same of gradients, some of which are rounding errors: beside the largest of all."""
    pairs = [
        (torch.zeros_like(y) if x is None else x, torch.zeros_like(x) if y is None else y)  # type: ignore[arg-type]
        for x, y in zip(found, expected)
        if not (x is None and y is None)
    ]
    largest = max((_scale(y) for _, y in pairs), default=0.0)
    return all(_error(x, y) <= _tolerance(x) * largest for x, y in pairs)


def _error(x: Tensor, y: Tensor) -> float:
    """The largest difference; infinite if other values are not finite."""
    x, y = x.detach().double(), y.detach().double()
    if not torch.equal(x.isfinite(), y.isfinite()):
        return float("inf")
    return float((x - y).nan_to_num(0, 0, 0).abs().max()) if x.numel() else 0.0


def _scale(x: Tensor) -> float:
    return float(x.detach().abs().nan_to_num(0, 0, 0).max()) if x.numel() else 0.0


def _tolerance(x: Tensor) -> float:
    is_exact = x.dtype in (torch.float32, torch.float64) and not torch.is_autocast_enabled(x.device.type)
    return 1e-4 if is_exact else 3e-2


# ---- the state of modules ----------------------------------------------------------------------------------------------------


def refuse_modules(modules: Sequence[Any]) -> None:
    """Raises FallBack for those that something else sees, or makes, at every call."""
    for m in modules:
        if m._forward_hooks or m._forward_pre_hooks or m._backward_hooks or m._backward_pre_hooks:
            raise FallBack(Reason.HOOKS)
        if any(x is not None and is_lazy(x) for x in (*m._parameters.values(), *m._buffers.values())):
            raise FallBack(Reason.RAISES)
        if any(x is not None and type(x) is not torch.nn.Parameter for x in m._parameters.values()):
            raise FallBack(Reason.PARAMETRIZED)  # by torch.func.functional_call, say
        if "parametrizations" in m._modules and m.training:
            raise FallBack(Reason.PARAMETRIZED)


def normalizes_edges(x: Any) -> bool:
    """Whether a module is a batch norm with the statistics of what it is given."""
    return isinstance(x, _BatchNorm) and (x.training or not x.track_running_stats)


class _Modes:
    """Modules in evaluation, so that dropout draws nothing."""

    def __init__(self, modules: Sequence[Any]) -> None:
        self._training = [m for m in modules if m.training]

    def evaluate(self) -> None:
        for m in self._training:
            m.training = False

    def restore(self) -> None:
        for m in self._training:
            m.training = True

    @contextlib.contextmanager
    def as_they_were(self) -> Iterator[None]:
        self.restore()
        try:
            yield
        finally:
            self.evaluate()


@contextlib.contextmanager
def _evaluating(modules: Sequence[Any]) -> Iterator[_Modes]:
    """A block in which modules are evaluated, and a batch norm that was in training raises FallBack."""

    def refuse(*args: Any) -> None:
        raise FallBack(Reason.BATCH_NORM)

    hooks = [x.register_forward_pre_hook(refuse) for x in modules if normalizes_edges(x)]
    modes = _Modes(modules)
    modes.evaluate()
    try:
        yield modes
    finally:
        modes.restore()
        for hook in hooks:
            hook.remove()


@contextlib.contextmanager
def _without_hooks(leaves: Sequence[Tensor]) -> Iterator[None]:
    """A block in which gradients of leaves are not shown to the hooks that a program has registered with them."""
    hooks = [(x, x._backward_hooks) for x in leaves if x._backward_hooks]
    for x, _ in hooks:
        x._backward_hooks = None
    try:
        yield
    finally:
        for x, each in hooks:
            x._backward_hooks = each


@contextlib.contextmanager
def _random_state() -> Iterator[None]:
    devices = [torch.cuda.current_device()] if torch.cuda.is_initialized() else []
    with torch.random.fork_rng(devices):
        yield


@contextlib.contextmanager
def _kept_state(modules: Sequence[Any]) -> Iterator[None]:
    """Raises FallBack if something that modules hold is changed by the block, and restores it."""
    before = [_state_of(m) for m in modules]
    contents = [
        (x, x.clone() if isinstance(x, Tensor) else x.copy(), _version(x)) for state in before for x in _held(state)
    ]
    changed = False
    try:
        yield
    finally:
        for m, state in zip(modules, before):
            for owner, held in zip((m.__dict__, m._buffers), state):
                if {name: id(x) for name, x in owner.items()} != {name: id(x) for name, x in held.items()}:
                    changed = True
                    owner.clear()
                    owner.update(held)
        for x, copy, version in contents:
            if isinstance(x, Tensor) and x._version != version:
                changed = True
                with torch.no_grad():
                    x.copy_(copy)
            elif not isinstance(x, Tensor) and len(x) != len(copy):
                changed = True
                x.clear()
                x.extend(copy) if isinstance(x, list) else x.update(copy)
    if changed:
        raise FallBack(Reason.SETS_ATTRIBUTES)


def _state_of(m: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Attributes, but for whether it is in training; and buffers."""
    return dict(m.__dict__), dict(m._buffers)


def _held(state: tuple[dict[str, Any], dict[str, Any]]) -> Iterator[Any]:
    """Tensors, lists and dictionaries of a module, which may be modified in place."""
    attributes, buffers = state
    yield from (x for x in buffers.values() if isinstance(x, Tensor) and not x.is_inference())
    yield from (x for name, x in attributes.items() if name[:1] != "_" and type(x) in (list, dict))
    yield from (x for x in attributes.values() if type(x) is Tensor and not x.is_inference())


def _version(x: Any) -> int | None:
    return x._version if isinstance(x, Tensor) else None
