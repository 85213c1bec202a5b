"""SpMM: copy_u and u_mul_e, reduced into destination nodes.

On a GPU the pure gather over the same indices is timed too.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from halfgnn import ops, reference

from . import gather, verify
from .baselines import Problem
from .case import Case, Config, Contestant, directed, normal, uniform, with_backward
from .graphs import BenchGraph
from .rivals import rivals


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
    """(N, F) for one head, otherwise (N, H, D)."""
    return normal((graph.num_nodes, *((heads, dim) if heads > 1 else (dim,))), dtype, seed, graph.device)


def weights(graph: BenchGraph, heads: int, dtype: torch.dtype) -> Tensor:
    """(E, 1) for one head, otherwise (E, H, 1)."""
    return uniform((graph.num_edges, *((heads, 1) if heads > 1 else (1,))), dtype, 2, graph.device)


def gathered_bytes(graph: BenchGraph, feat: int, heads: int, dtype: torch.dtype) -> int:
    """A feature row, a source id and the weights for every edge."""
    ids = graph.src.element_size()
    return graph.num_edges * (ids + (feat + heads) * dtype.itemsize)


@dataclass(frozen=True)
class _Inputs:
    """The inputs of the contestants of a case. The tensors are made when a contestant prepares."""

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
            result = verify.take(out, verify.sample(self.graph).rows)
            if strict:
                return verify.check_rounded_once(result, truth, magnitude, f"{self.spmm.name} {dtype}")
            if self.spmm.reduce == "max":  # DGL's operator gives -inf to nodes without in-edges
                result = result.masked_fill(result.isinf(), 0)
            return verify.relative_error(result.reshape(truth.shape), truth)

        return compare


@functools.lru_cache(maxsize=3)
def _truth(inputs: _Inputs, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """For the sampled rows, in float64: the result, and the result computed from magnitudes."""
    part = verify.sample(inputs.graph)
    x, *rest = inputs.tensors(dtype)
    x = verify.take(x, part.sources).double()
    w = verify.take(rest[0], part.edges).double() if rest else None

    def formula(x: Tensor, w: Tensor | None) -> Tensor:
        return reference.gspmm(part.graph, inputs.spmm.op, inputs.spmm.reduce, x, w)

    return formula(x, w), formula(x.abs(), w)  # weights are not negative


def _contestants(inputs: _Inputs, config: Config, direction: str) -> Iterator[Contestant]:
    graph, heads, dim = inputs.graph, inputs.heads, inputs.dim
    is_forward, weight_count = direction == "forward", heads if inputs.spmm.weighted else 0
    for dtype in config.torch_dtypes(heads * dim):
        operator = functools.partial(getattr(ops, inputs.spmm.name), graph.halfgnn)
        moved = 0 if direction == "forward+backward" else gathered_bytes(graph, heads * dim, weight_count, dtype)

        def make(operator=operator, dtype=dtype):
            return directed(direction, operator, inputs.tensors(dtype), 5)

        strict = inputs.check(dtype, strict=True) if is_forward else None
        yield Contestant("halfgnn", dtype, make, strict, bytes_moved=moved)
        problem = Problem(inputs.spmm.name, direction, graph, heads, dim, dtype)
        yield from rivals(
            config, problem, functools.partial(inputs.tensors, dtype), inputs.check(dtype, strict=False), moved
        )


def _check_gradients(config: Config, spmm: Spmm, heads: int, dim: int, order: str) -> None:
    graph = verify.miniature(order, config.idtype, config.device)
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
                continue  # it has no edge data, so the order does not matter
            for heads in config.heads_on(graph) if spmm.weighted else (1,):
                for feat in config.dims:
                    yield from _directions(config, graph, spmm, heads, feat // heads)


def _directions(config: Config, graph: BenchGraph, spmm: Spmm, heads: int, dim: int):
    inputs = _Inputs(spmm, graph, heads, dim)
    for direction in config.directions:
        backward = direction != "forward"
        # The backward of copy_u is its forward on the reverse graph.
        if backward and not (spmm.weighted and heads in _backward_heads(config) and config.main_order(graph)):
            continue

        def before(backward=backward) -> None:
            if backward:
                _check_gradients(config, spmm, heads, dim, graph.order)

        contestants = list(_contestants(inputs, config, direction))
        case = Case("spmm", spmm.name, direction, graph, heads, dim, contestants, before)
        yield gather.beside(case, by_src=direction == "backward")


def _backward_heads(config: Config) -> set[int]:
    return {min(config.heads), max(config.heads)} if config.on_gpu else {max(config.heads)}
