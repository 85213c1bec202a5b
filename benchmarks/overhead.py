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
import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

import halfgnn
import halfgnn.dgl
from halfgnn import ops

from . import graphs, models, sweep, train, verify
from .baselines.composed import gather_scatter
from .baselines.dgl import check_dgl
from .case import Backend, Case, Config, name_of
from .graphs import BenchGraph
from .inputs import directed
from .operators import Problem
from .optional import Unavailable, import_dgl, import_pyg

SIZES = ((30, 100), (300, 3_000), (3_000, 30_000), (30_000, 300_000), (400_000, 4_000_000))  # nodes, edges
FEATURES, HEADS, HIDDEN = 16, 2, 16
MODEL = dataclasses.replace(models.MODELS["GAT"], depth=2)
WARM_UPS = 3  # calls before a CUDA graph is captured
COMPILED, CAPTURED = "halfgnn, compiled", "halfgnn, CUDA graph"
Sum = Callable[[Tensor, Tensor], Tensor]  # of features and weights

# ---- ways to a weighted sum ------------------------------------------------------------------------------------------


def _update_all(graph: BenchGraph) -> Sum:
    fn, g = import_dgl().function, graph.dgl
    message, reduce = fn.u_mul_e("x", "w", "m"), fn.sum("m", "out")

    def call(x: Tensor, w: Tensor) -> Tensor:
        with g.local_scope():
            g.srcdata["x"], g.edata["w"] = x, w
            g.update_all(message, reduce)
            return g.dstdata["out"]

    return call


def _by_ops(graph: halfgnn.Graph) -> Sum:
    """On a Graph or a DGLGraph."""
    return lambda x, w: ops.u_mul_e_sum(graph, x, w)


def _raw(graph: BenchGraph) -> Sum:
    indptr, indices, edge_ids = graph.halfgnn.csc()
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


def _captured(graph: BenchGraph) -> Sum:
    """Captured at the first call, with the tensors of that call."""
    direct, captured = _by_ops(graph.halfgnn), []

    def call(x: Tensor, w: Tensor) -> Tensor:
        if not captured:
            captured.append(_replayed(lambda: direct(x, w)))
        return captured[0]()

    return call


def _pyg(graph: BenchGraph) -> Sum:
    scatter, (src, dst) = import_pyg().utils.scatter, graph.edge_index
    return lambda x, w: scatter(x.index_select(0, src) * w, dst, 0, graph.num_nodes, "sum")


@dataclass(frozen=True)
class _Way:
    """of: makes the function of a graph. option: its name in --baselines."""

    name: str
    of: Callable[[BenchGraph], Sum]
    devices: tuple[str, ...] = ("cpu", "cuda")
    option: str = ""
    has_gradient: bool = True
    context: Callable[[], contextlib.AbstractContextManager] = contextlib.nullcontext

    def takes_part(self, config: Config, direction: str) -> bool:
        chosen = self.option in ("", *config.baselines) and not (config.eager and self.name == COMPILED)
        return chosen and config.device in self.devices and (self.has_gradient or direction == "forward")


WAYS = (
    _Way("dgl update_all", _update_all, ("cpu",), option="dgl"),
    _Way("halfgnn update_all", _update_all, ("cpu",), context=halfgnn.dgl.accelerate),
    _Way("halfgnn.ops, DGLGraph", lambda g: _by_ops(g.dgl), ("cpu",)),
    _Way("halfgnn.ops", lambda g: _by_ops(g.halfgnn)),
    _Way(COMPILED, lambda g: torch.compile(_by_ops(g.halfgnn), fullgraph=True, dynamic=False)),
    _Way("halfgnn torch.ops", _raw, has_gradient=False),
    _Way(CAPTURED, _captured, ("cuda",), has_gradient=False),
    _Way("index_add", lambda g: gather_scatter(g.src, g.dst, g.num_nodes).u_mul_e_sum, ("cuda",), option="index_add"),
    _Way("pyg scatter", _pyg, ("cuda",), option="pyg"),
)


def _sum_backend(problem: Problem, way: _Way) -> Backend:
    def make() -> Callable:
        if way.option == "dgl":
            check_dgl(problem.graph, problem.dtype)
        work = directed(problem.direction, way.of(problem.graph), problem.operands())
        if way.name in (COMPILED, CAPTURED):
            work()
        return work

    def check(out) -> float:
        result = out if problem.is_forward else out[0]
        return sweep.error_of(problem, result) if way.option else sweep.check(problem, result, way.name)

    return Backend(way.name, problem.dtype, make, check, way.context)


# ---- training steps --------------------------------------------------------------------------------------------------


def _step_backend(graph: BenchGraph, name: str, dtype: torch.dtype) -> Backend:
    """name: one of models.py's backends, COMPILED or CAPTURED."""
    base = models.OURS if name in (COMPILED, CAPTURED) else name
    ran: list[Tensor] = []  # losses

    def make() -> Callable:
        if name == CAPTURED and dtype == torch.float16:
            raise Unavailable("a GradScaler waits for the GPU, and a CUDA graph cannot wait")
        if name == "dgl" and graph.device == "cpu" and dtype != torch.float32:
            raise Unavailable("dgl.nn raises under autocast on the CPU")
        network = train.network_of(MODEL, graph, HIDDEN, HEADS, base)
        topology, _ = train.topology_of(graph, base)
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
        network, losses = train.network_of(MODEL, graph, HIDDEN, HEADS, models.OURS), []
        step = train.training(network, graph.halfgnn, train.data_of(graph), dtype, losses)
        for _ in range(steps):
            step()
        error = abs(float(ran[-1]) - float(losses[-1])) / float(losses[-1])
        if not error < 0.02:
            raise verify.WrongResult(f"{MODEL.name} step, {name}, {name_of(dtype)}: loss {ran[-1]}, not {losses[-1]}")
        return error

    checked = check if name in (COMPILED, CAPTURED) else None
    return Backend(name, dtype, make, checked, functools.partial(models.context_of, base))


# ---- cases -----------------------------------------------------------------------------------------------------------


def _graph(nodes: int, edges: int, config: Config) -> BenchGraph:
    recipe = graphs.Recipe(nodes, edges, 0.0, 0.0)
    return graphs.make(recipe, f"{nodes:,} nodes (synthetic)", "insertion", config.idtype, device=config.device)


def _sum_cases(config: Config, graph: BenchGraph, dtypes: list[torch.dtype]) -> Iterator[Case]:
    for direction in dict.fromkeys(d if d == "forward" else "forward+backward" for d in config.directions):
        problems = [Problem("u_mul_e_sum", direction, graph, 1, FEATURES, dtype) for dtype in dtypes]
        ways = [way for way in WAYS if way.takes_part(config, direction)]
        backends = [_sum_backend(problem, way) for problem in problems for way in ways]
        # Reset first: earlier compilations count towards the limit of versions per function.
        yield Case("overhead", "u_mul_e_sum", direction, graph, 1, FEATURES, backends, torch.compiler.reset)


def _step_case(config: Config, graph: BenchGraph, dtypes: list[torch.dtype]) -> Case:
    names = train.names_of(config, MODEL)
    more = [*([] if config.eager else [COMPILED]), *([CAPTURED] if config.on_gpu else [])]

    def before() -> None:
        torch.compiler.reset()
        train.check_all(config, MODEL, HEADS, names)

    backends = [_step_backend(graph, name, dtype) for dtype in dtypes for name in (*names, *more)]
    return Case("overhead", MODEL.name, "step", graph, HEADS, HIDDEN, backends, before)


def cases(config: Config) -> Iterator[Case]:
    if not config.on_gpu:
        import_dgl()
    for nodes, edges in SIZES[:1] if config.effort.is_quick else SIZES:
        graph = _graph(nodes, edges, config)
        # All dtypes on the smallest graph, whose calls are only overhead, and the first dtype on the others.
        dtypes = config.torch_dtypes() if edges == SIZES[0][1] else config.torch_dtypes()[:1]
        yield from _sum_cases(config, graph, dtypes)
        yield _step_case(config, graph, dtypes)
