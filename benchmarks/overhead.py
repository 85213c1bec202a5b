"""What a call costs where there is next to nothing to compute: a graph of 30 nodes, 100 edges.

The same weighted sum by DGL's update_all, by DGL's update_all routed through the drop-in, by
halfgnn.ops on a Graph and on the DGLGraph, and by the raw dispatcher operator.
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


# Name, function of (x, w), whether the drop-in is in force, whether it has a gradient of its own.
_WAYS = (
    ("dgl update_all", lambda g: _update_all(g), False, True),
    ("halfgnn update_all", lambda g: _update_all(g), True, True),
    ("halfgnn.ops, DGLGraph", lambda g: _direct(g.dgl), False, True),
    ("halfgnn.ops", lambda g: _direct(g.halfgnn), False, True),
    ("halfgnn torch.ops", lambda g: _raw(g.halfgnn), False, False),
)


def _contestant(graph: BenchGraph, way, dtype: torch.dtype, backward: bool) -> Contestant:
    name, function_of, routed, _ = way
    inputs = (normal((30, FEATURES), dtype, 1), uniform((100, 1), dtype, 2))

    def make():
        if name == "dgl update_all" and dtype == torch.float16:
            raise Unavailable("DGL has no fp16 on the CPU")
        function = function_of(graph)
        return with_backward(function, inputs, 5) if backward else lambda: function(*inputs)

    def check(out) -> float:
        result = out[0] if backward else out
        x, w = (t.double() for t in inputs)
        truth = reference.gspmm(graph.halfgnn, "mul", "sum", x, w)
        if name.startswith("halfgnn"):
            magnitude = reference.gspmm(graph.halfgnn, "mul", "sum", x.abs(), w)
            return verify.check_rounded_once(result, truth, magnitude, f"{name} {dtype}")
        return verify.relative_error(result, truth)

    context = halfgnn.dgl.accelerate if routed else contextlib.nullcontext
    return Contestant(name, dtype, make, check, context)


def cases(config: Config) -> Iterator[Case]:
    baselines.import_dgl()
    graph = graphs.make(RECIPE, "30 nodes (synthetic)", "insertion", config.idtype)
    for direction in config.directions:
        backward = direction != "forward"
        contestants = [
            _contestant(graph, way, dtype, backward)
            for dtype in config.torch_dtypes()
            for way in _WAYS
            if (way[3] or not backward) and (way[0] != "dgl update_all" or "dgl" in config.baselines)
        ]
        yield Case("overhead", "u_mul_e_sum", direction, graph, 1, FEATURES, contestants)
