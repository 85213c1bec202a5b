"""SpMM: copy_u and u_mul_e, reduced into destination nodes.

Every case also times DGL's copy_u_sum (``dgl copy_u_sum``), the yardstick of the marks.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from halfgnn import ops, reference

from . import baselines, verify
from .case import Case, Config, Contestant, normal, uniform, with_backward
from .graphs import BenchGraph

YARDSTICK = "dgl copy_u_sum"


@dataclass(frozen=True)
class Spmm:
    name: str
    op: str
    reduce: str

    @property
    def weighted(self) -> bool:
        return self.op == "mul"


OPS = (
    Spmm("copy_u_sum", "copy_lhs", "sum"),
    Spmm("copy_u_max", "copy_lhs", "max"),
    Spmm("u_mul_e_sum", "mul", "sum"),
)


def features(graph: BenchGraph, heads: int, dim: int, dtype: torch.dtype, seed: int = 1) -> Tensor:
    """(N, F) for one head, else (N, H, D)."""
    return normal((graph.num_nodes, *((heads, dim) if heads > 1 else (dim,))), dtype, seed)


def weights(graph: BenchGraph, heads: int, dtype: torch.dtype) -> Tensor:
    """(E, 1) for one head, else (E, H, 1)."""
    return uniform((graph.num_edges, *((heads, 1) if heads > 1 else (1,))), dtype, 2)


def gathered_bytes(graph: BenchGraph, feat: int, heads: int, dtype: torch.dtype) -> int:
    """A feature row, a source id and the weights for every edge."""
    ids = graph.src.element_size()
    return graph.num_edges * (ids + (feat + heads) * dtype.itemsize)


def yardstick(graph: BenchGraph, dim: int, dtype: torch.dtype) -> Contestant:
    """DGL's own copy_u_sum of a row of `dim` elements."""

    def make():
        x = normal((graph.num_nodes, dim), dtype, 1)
        function = baselines.dgl_op(graph, "copy_u_sum", x)
        return lambda: function(x)

    moved = gathered_bytes(graph, dim, 0, dtype)
    return Contestant(YARDSTICK, dtype, make, bytes_moved=moved)


@dataclass(frozen=True)
class _Inputs:
    """What the contestants of a case work on; the tensors are made when a contestant prepares."""

    spmm: Spmm
    graph: BenchGraph
    heads: int
    dim: int

    def tensors(self, dtype: torch.dtype) -> tuple[Tensor, ...]:
        x = features(self.graph, self.heads, self.dim, dtype)
        return (x, weights(self.graph, self.heads, dtype)) if self.spmm.weighted else (x,)

    def check(self, dtype: torch.dtype, strict: bool) -> Callable[[Tensor], float]:
        def compare(out: Tensor) -> float:
            truth, magnitude = _truth(self, dtype)
            result = out[verify.sample(self.graph).rows]
            if strict:
                return verify.check_rounded_once(result, truth, magnitude, f"{self.spmm.name} {dtype}")
            if self.spmm.reduce == "max":  # DGL's operator gives -inf to nodes without in-edges
                result = result.masked_fill(result.isinf(), 0)
            return verify.relative_error(result.reshape(truth.shape), truth)

        return compare


@functools.lru_cache(maxsize=3)
def _truth(inputs: _Inputs, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """In float64, of the sampled rows: the result, and the same of magnitudes."""
    part = verify.sample(inputs.graph)
    x, *rest = (t.double() for t in inputs.tensors(dtype))
    w = rest[0][part.edges] if rest else None

    def formula(x: Tensor, w: Tensor | None) -> Tensor:
        return reference.gspmm(part.graph, inputs.spmm.op, inputs.spmm.reduce, x, w)

    return formula(x, w), formula(x.abs(), w)  # weights are not negative


def _contestant(inputs: _Inputs, name: str, dtype: torch.dtype, backward: bool) -> Contestant:
    def function() -> Callable[..., Tensor]:
        tensors = inputs.tensors(dtype)
        if name == "dgl":
            return baselines.dgl_op(inputs.graph, inputs.spmm.name, *tensors)
        graph, operator = inputs.graph.halfgnn, getattr(ops, inputs.spmm.name)
        return lambda *args: operator(graph, *args)

    def make():
        tensors, work = inputs.tensors(dtype), function()
        return with_backward(work, tensors, 5) if backward else lambda: work(*tensors)

    check = None if backward else inputs.check(dtype, strict=name == "halfgnn")
    feat = inputs.heads * inputs.dim
    weight_count = inputs.heads if inputs.spmm.weighted else 0
    moved = 0 if backward else gathered_bytes(inputs.graph, feat, weight_count, dtype)
    return Contestant(name, dtype, make, check, bytes_moved=moved)


def _torch_contestant(inputs: _Inputs, name: str, dtype: torch.dtype) -> Contestant:
    maker = {"torch.sparse": baselines.sparse_matmul, "index_add": baselines.index_add}[name]

    def make():
        x, *rest = inputs.tensors(dtype)
        return maker(inputs.graph, x, rest[0] if rest else None)

    return Contestant(name, dtype, make, inputs.check(dtype, strict=False))


def _contestants(inputs: _Inputs, config: Config, backward: bool) -> Iterator[Contestant]:
    # PyTorch's ways take seconds and are measured once an operator.
    torch_too = not backward and inputs.spmm.reduce == "sum" and inputs.heads == 1 and config.main_order(inputs.graph)
    for dtype in config.torch_dtypes():
        yield _contestant(inputs, "halfgnn", dtype, backward)
        if "dgl" in config.baselines:
            yield _contestant(inputs, "dgl", dtype, backward)
            if not backward and inputs.spmm.name != "copy_u_sum":
                yield yardstick(inputs.graph, inputs.heads * inputs.dim, dtype)
        for name in ("torch.sparse", "index_add"):
            if name in config.baselines and torch_too:
                yield _torch_contestant(inputs, name, dtype)


def _check_gradients(config: Config, spmm: Spmm, heads: int, dim: int, order: str) -> None:
    graph = verify.miniature(order, config.idtype)
    operator = getattr(ops, spmm.name)

    def formula(x: Tensor, w: Tensor | None = None) -> Tensor:
        return reference.gspmm(graph.halfgnn, spmm.op, spmm.reduce, x, w)

    for dtype in config.torch_dtypes():
        verify.check_like_formula(
            lambda inputs: with_backward(lambda *t: operator(graph.halfgnn, *t), inputs, 5)(),
            lambda inputs: with_backward(formula, inputs, 5)(),
            _Inputs(spmm, graph, heads, dim).tensors(dtype),
            f"{spmm.name} with gradients, {dtype}",
        )


def cases(config: Config) -> Iterator[Case]:
    for graph in config.ordered_graphs():
        for spmm in OPS:
            if not spmm.weighted and not config.main_order(graph):
                continue  # no edge data: its order is nothing to it
            for heads in config.heads_on(graph) if spmm.weighted else (1,):
                for feat in config.dims:
                    yield from _directions(config, graph, spmm, heads, feat // heads)


def _directions(config: Config, graph: BenchGraph, spmm: Spmm, heads: int, dim: int):
    inputs = _Inputs(spmm, graph, heads, dim)
    for direction in config.directions:
        backward = direction != "forward"
        # Of copy_u the backward is the forward on the reverse graph.
        if backward and not (spmm.weighted and heads == max(config.heads) and config.main_order(graph)):
            continue

        def before(backward=backward) -> None:
            if backward:
                _check_gradients(config, spmm, heads, dim, graph.order)

        contestants = list(_contestants(inputs, config, backward))
        yield Case("spmm", spmm.name, direction, graph, heads, dim, contestants, before)
