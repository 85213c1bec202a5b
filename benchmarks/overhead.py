"""What a call costs where there is next to nothing to compute: a graph of 30 nodes, 100 edges.

The same weighted sum by DGL's update_all, by DGL's update_all routed through the drop-in, by
halfgnn.ops on a Graph and on the DGLGraph, and by the raw dispatcher operator. On a GPU, where PyPI's DGL has no graphs: by
PyTorch's and PyG's ways, and by the replay of a CUDA graph. Time is the host's, the wait for the GPU included.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

import halfgnn
import halfgnn.dgl
from halfgnn import ops, reference

from . import baselines, graphs, verify
from .case import Case, Config, Contestant, Unavailable, normal, uniform, with_backward
from .graphs import BenchGraph

RECIPE = graphs.Recipe(30, 100, 0.0, 0.0)
FEATURES = 16


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


def _captured(graph: halfgnn.Graph) -> Callable[[Tensor, Tensor], Tensor]:
    """The replay of a CUDA graph, made at the first call."""
    made: list = []

    def call(x: Tensor, w: Tensor) -> Tensor:
        if not made:
            ops.u_mul_e_sum(graph, x, w)
            torch.cuda.synchronize()
            capture = torch.cuda.CUDAGraph()
            with torch.cuda.graph(capture):
                out = ops.u_mul_e_sum(graph, x, w)
            made.extend([capture, out])
        made[0].replay()
        return made[1]

    return call


def _index_add(graph: BenchGraph) -> Callable[[Tensor, Tensor], Tensor]:
    def call(x: Tensor, w: Tensor) -> Tensor:
        return x.new_zeros(x.shape).index_add(0, graph.dst, x.index_select(0, graph.src) * w)

    return call


def _pyg(graph: BenchGraph) -> Callable[[Tensor, Tensor], Tensor]:
    scatter, (src, dst) = baselines.import_pyg().utils.scatter, graph.edge_index
    return lambda x, w: scatter(x.index_select(0, src) * w, dst, 0, graph.num_nodes, "sum")


# Name, function of (x, w), whether the drop-in is in force, whether it has a gradient of its own.
_WAYS = (
    ("dgl update_all", lambda g: _update_all(g), False, True),
    ("halfgnn update_all", lambda g: _update_all(g), True, True),
    ("halfgnn.ops, DGLGraph", lambda g: _direct(g.dgl), False, True),
    ("halfgnn.ops", lambda g: _direct(g.halfgnn), False, True),
    ("halfgnn torch.ops", lambda g: _raw(g.halfgnn), False, False),
)
_GPU_WAYS = (
    *(way for way in _WAYS if way[0] in ("halfgnn.ops", "halfgnn torch.ops")),
    ("halfgnn, CUDA graph", lambda g: _captured(g.halfgnn), False, False),
    ("index_add", _index_add, False, True),
    ("pyg scatter", _pyg, False, True),
)
_BASELINES = {"dgl update_all": "dgl", "index_add": "index_add", "pyg scatter": "pyg"}


def _contestant(graph: BenchGraph, way, dtype: torch.dtype, backward: bool) -> Contestant:
    name, function_of, routed, _ = way
    inputs = (normal((30, FEATURES), dtype, 1, graph.device), uniform((100, 1), dtype, 2, graph.device))

    def make():
        if name == "dgl update_all" and dtype == torch.float16:
            raise Unavailable("DGL has no fp16 on the CPU")
        function = function_of(graph)
        return with_backward(function, inputs, 5) if backward else lambda: function(*inputs)

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


def cases(config: Config) -> Iterator[Case]:
    if not config.on_gpu:
        baselines.import_dgl()
    ways = _GPU_WAYS if config.on_gpu else _WAYS
    ways = [way for way in ways if way[0] not in _BASELINES or _BASELINES[way[0]] in config.baselines]
    graph = graphs.make(RECIPE, "30 nodes (synthetic)", "insertion", config.idtype, device=config.device)
    for direction in dict.fromkeys(d if d == "forward" else "forward+backward" for d in config.directions):
        backward = direction != "forward"
        contestants = [
            _contestant(graph, way, dtype, backward)
            for dtype in config.torch_dtypes()
            for way in ways
            if way[3] or not backward
        ]
        yield Case("overhead", "u_mul_e_sum", direction, graph, 1, FEATURES, contestants)
