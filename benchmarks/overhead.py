"""The cost of a call and of a training step with little to compute: graphs from 30 nodes to 4 M edges.

``u_mul_e_sum``: the same weighted sum of 16 features by DGL's update_all, by DGL's update_all routed through the drop-in, by
halfgnn.ops on a Graph and on the DGLGraph, by halfgnn.ops in a compiled function, and by the raw dispatcher operator.
``GAT``: a step of a two-layer GAT with two heads of 16, 128 features and 40 classes (see train.py), eager and compiled.

On a GPU the competitors are PyTorch's index_add and PyG, because PyPI's DGL has no graphs there. The replay of a CUDA
graph is also timed, of the sum and of the whole step. Time is the host's, including the wait for the GPU.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

import halfgnn
import halfgnn.dgl
from halfgnn import ops, reference

from . import baselines, graphs, train, verify
from .case import Case, Config, Contestant, Unavailable, name_of, normal, uniform, with_backward
from .graphs import BenchGraph

SIZES = ((30, 100), (300, 3_000), (3_000, 30_000), (30_000, 300_000), (400_000, 4_000_000))  # nodes, edges
FEATURES, HEADS, HIDDEN = 16, 2, 16
MODEL = dataclasses.replace(train.MODELS["GAT"], layers=2)
WARM_UPS = 3  # calls before a CUDA graph is captured
COMPILED, CAPTURED = "halfgnn, compiled", "halfgnn, CUDA graph"


def _update_all(graph: BenchGraph) -> Callable[[Tensor, Tensor], Tensor]:
    fn = baselines.import_dgl().function
    message, reduce = fn.u_mul_e("x", "w", "m"), fn.sum("m", "out")
    g = graph.dgl

    def call(x: Tensor, w: Tensor) -> Tensor:
        with g.local_scope():
            g.srcdata["x"], g.edata["w"] = x, w
            g.update_all(message, reduce)
            return g.dstdata["out"]

    return call


def _direct(graph) -> Callable[[Tensor, Tensor], Tensor]:
    return lambda x, w: ops.u_mul_e_sum(graph, x, w)


def _raw(graph: halfgnn.Graph) -> Callable[[Tensor, Tensor], Tensor]:
    indptr, indices, edge_ids = graph.csc()
    operator = torch.ops.halfgnn.gspmm.default
    return lambda x, w: operator(indptr, indices, edge_ids, "mul", "sum", x, w, None)[0]


def _replayed(work: Callable[[], Tensor | None]) -> Callable[[], Tensor | None]:
    """A function that replays a CUDA graph of `work` and returns its result."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):  # workspaces and the state of an optimizer must exist before the capture
        for _ in range(WARM_UPS):
            work()
    torch.cuda.current_stream().wait_stream(side)
    capture = torch.cuda.CUDAGraph()
    with torch.cuda.graph(capture):
        out = work()

    def replay() -> Tensor | None:
        capture.replay()
        return out

    return replay


def _captured(graph: halfgnn.Graph) -> Callable[[Tensor, Tensor], Tensor]:
    """A function that replays a CUDA graph, which is captured at the first call."""
    made: list = []

    def call(x: Tensor, w: Tensor) -> Tensor:
        if not made:
            made.append(_replayed(lambda: ops.u_mul_e_sum(graph, x, w)))
        return made[0]()

    return call


def _index_add(graph: BenchGraph) -> Callable[[Tensor, Tensor], Tensor]:
    def call(x: Tensor, w: Tensor) -> Tensor:
        return x.new_zeros(x.shape).index_add(0, graph.dst, x.index_select(0, graph.src) * w)

    return call


def _pyg(graph: BenchGraph) -> Callable[[Tensor, Tensor], Tensor]:
    scatter, (src, dst) = baselines.import_pyg().utils.scatter, graph.edge_index
    return lambda x, w: scatter(x.index_select(0, src) * w, dst, 0, graph.num_nodes, "sum")


def _compiled(graph: halfgnn.Graph) -> Callable[[Tensor, Tensor], Tensor]:
    return torch.compile(_direct(graph), fullgraph=True, dynamic=False)


# Name, function of a graph that gives a function of (x, w), whether the drop-in is active, whether it has a gradient.
_WAYS = (
    ("dgl update_all", lambda g: _update_all(g), False, True),
    ("halfgnn update_all", lambda g: _update_all(g), True, True),
    ("halfgnn.ops, DGLGraph", lambda g: _direct(g.dgl), False, True),
    ("halfgnn.ops", lambda g: _direct(g.halfgnn), False, True),
    (COMPILED, lambda g: _compiled(g.halfgnn), False, True),
    ("halfgnn torch.ops", lambda g: _raw(g.halfgnn), False, False),
)
_GPU_WAYS = (
    *(way for way in _WAYS if way[0] in ("halfgnn.ops", "halfgnn torch.ops", COMPILED)),
    (CAPTURED, lambda g: _captured(g.halfgnn), False, False),
    ("index_add", _index_add, False, True),
    ("pyg scatter", _pyg, False, True),
)
_BASELINES = {"dgl update_all": "dgl", "index_add": "index_add", "pyg scatter": "pyg"}


def _contestant(graph: BenchGraph, way, dtype: torch.dtype, backward: bool) -> Contestant:
    name, function_of, routed, _ = way
    inputs = (
        normal((graph.num_nodes, FEATURES), dtype, 1, graph.device),
        uniform((graph.num_edges, 1), dtype, 2, graph.device),
    )

    def make():
        if name == "dgl update_all" and dtype == torch.float16:
            raise Unavailable("DGL has no fp16 on the CPU")
        function = function_of(graph)
        work = with_backward(function, inputs, 5) if backward else lambda: function(*inputs)
        if name in (COMPILED, CAPTURED):
            work()
        return work

    def check(out) -> float:
        result = out[0] if backward else out
        x, w = (t.double() for t in inputs)  # on the device: the reference is PyTorch's
        truth = reference.gspmm(graph.halfgnn, "mul", "sum", x, w)
        if name.startswith("halfgnn"):
            magnitude = reference.gspmm(graph.halfgnn, "mul", "sum", x.abs(), w)
            return verify.check_rounded_once(result, truth, magnitude, f"{name} {dtype}")
        return verify.relative_error(result, truth)

    context = halfgnn.dgl.accelerate if routed else contextlib.nullcontext
    return Contestant(name, dtype, make, check, context)


def _step_contestant(graph: BenchGraph, name: str, dtype: torch.dtype) -> Contestant:
    """The contestant of a training step. name: one of train.py's contestants, COMPILED or CAPTURED."""
    of = train.OURS if name in (COMPILED, CAPTURED) else name
    ran: list[Tensor] = []  # losses

    def make():
        if name == CAPTURED and dtype == torch.float16:
            raise Unavailable("a GradScaler waits for the GPU, and a CUDA graph cannot wait")
        if name == "dgl" and graph.device == "cpu" and dtype != torch.float32:
            raise Unavailable("dgl.nn raises under autocast on the CPU")
        network = train.network_of(MODEL, graph, HIDDEN, HEADS, of)
        topology, _ = train.topology_of(graph, of)
        if name == COMPILED:
            network = torch.compile(network, fullgraph=True, dynamic=False)
        ran.clear()
        step = train.training(network, topology, train.data_of(graph), dtype, ran, capturable=name == CAPTURED)
        if name == COMPILED:
            step()
        return _replayed(step) if name == CAPTURED else step

    def check(_) -> float:
        """The relative difference of the last loss from the loss of an eager training after as many steps."""
        steps = WARM_UPS + 1 if name == CAPTURED else len(ran)
        network, losses = train.network_of(MODEL, graph, HIDDEN, HEADS, train.OURS), []
        step = train.training(network, graph.halfgnn, train.data_of(graph), dtype, losses)
        for _ in range(steps):
            step()
        error = abs(float(ran[-1]) - float(losses[-1])) / float(losses[-1])
        if not error < 0.02:
            raise verify.WrongResult(f"{MODEL.name} step, {name}, {name_of(dtype)}: loss {ran[-1]}, not {losses[-1]}")
        return error

    return Contestant(name, dtype, make, check if name in (COMPILED, CAPTURED) else None, lambda: train.context_of(of))


def _graph(nodes: int, edges: int, config: Config) -> BenchGraph:
    recipe = graphs.Recipe(nodes, edges, 0.0, 0.0)
    return graphs.make(recipe, f"{nodes:,} nodes (synthetic)", "insertion", config.idtype, device=config.device)


def _dtypes(config: Config, edges: int) -> list[torch.dtype]:
    """All dtypes on the smallest graph, whose calls are only overhead, and the first dtype on the others."""
    return config.torch_dtypes() if edges == SIZES[0][1] else config.torch_dtypes()[:1]


def _sum_cases(config: Config, graph: BenchGraph, dtypes: list[torch.dtype]) -> Iterator[Case]:
    ways = _GPU_WAYS if config.on_gpu else _WAYS
    ways = [way for way in ways if way[0] not in _BASELINES or _BASELINES[way[0]] in config.baselines]
    ways = [way for way in ways if way[0] != COMPILED or not config.eager]
    for direction in dict.fromkeys(d if d == "forward" else "forward+backward" for d in config.directions):
        backward = direction != "forward"
        contestants = [
            _contestant(graph, way, dtype, backward) for dtype in dtypes for way in ways if way[3] or not backward
        ]
        # Reset first: earlier compilations count towards the limit of versions per function.
        yield Case("overhead", "u_mul_e_sum", direction, graph, 1, FEATURES, contestants, torch.compiler.reset)


def _step_case(config: Config, graph: BenchGraph, dtypes: list[torch.dtype]) -> Case:
    names = [
        *train.names_of(config, MODEL),
        *([] if config.eager else [COMPILED]),
        *([CAPTURED] if config.on_gpu else []),
    ]

    def before() -> None:
        torch.compiler.reset()
        for name in names:
            if name in (train.OURS, train.DROP_IN, train.FUSED):
                train.check(config, MODEL, HEADS, name)

    contestants = [_step_contestant(graph, name, dtype) for dtype in dtypes for name in names]
    return Case("overhead", MODEL.name, "step", graph, HEADS, HIDDEN, contestants, before)


def cases(config: Config) -> Iterator[Case]:
    if not config.on_gpu:
        baselines.import_dgl()
    for nodes, edges in SIZES[:1] if config.effort.is_quick else SIZES:
        graph, dtypes = _graph(nodes, edges, config), _dtypes(config, edges)
        yield from _sum_cases(config, graph, dtypes)
        yield _step_case(config, graph, dtypes)
