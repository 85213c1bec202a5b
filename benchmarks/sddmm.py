"""SDDMM: u_dot_v and u_add_v, one result per edge."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from halfgnn import ops, reference

from . import gather, verify
from .baselines import Problem
from .case import Case, Config, Contestant, directed, with_backward
from .graphs import BenchGraph
from .rivals import rivals
from .spmm import features, gathered_bytes


@dataclass(frozen=True)
class _Inputs:
    op: str  # dot or add
    graph: BenchGraph
    heads: int
    dim: int

    @property
    def name(self) -> str:
        return f"u_{self.op}_v"

    def tensors(self, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        x, y = (features(self.graph, self.heads, self.dim, dtype, seed) for seed in (1, 2))
        return x, y

    def check(self, dtype: torch.dtype, strict: bool) -> Callable[[Tensor], float]:
        def compare(out: Tensor) -> float:
            truth, magnitude = _truth(self, dtype)
            result = verify.take(out, verify.sample(self.graph).edges)
            if strict:
                return verify.check_rounded_once(result, truth, magnitude, f"{self.name} {dtype}")
            return verify.relative_error(result.reshape(truth.shape), truth)

        return compare


@functools.lru_cache(maxsize=3)
def _truth(inputs: _Inputs, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """For the sampled edges, in float64: the result, and the result computed from magnitudes."""
    part = verify.sample(inputs.graph)
    x, y = inputs.tensors(dtype)
    x, y = verify.take(x, part.sources).double(), verify.take(y, part.rows).double()
    signed, unsigned = ((x, y), (x.abs(), y.abs()))
    return reference.gsddmm(part.graph, inputs.op, *signed), reference.gsddmm(part.graph, inputs.op, *unsigned)


def _contestants(inputs: _Inputs, config: Config, direction: str) -> Iterator[Contestant]:
    graph, heads, dim, is_forward = inputs.graph, inputs.heads, inputs.dim, direction == "forward"
    for dtype in config.torch_dtypes(heads * dim if inputs.op == "dot" else None):
        operator = functools.partial(getattr(ops, inputs.name), graph.halfgnn)
        moved = gathered_bytes(graph, heads * dim, heads, dtype) if is_forward else 0

        def make(operator=operator, dtype=dtype):
            return directed(direction, operator, inputs.tensors(dtype), 5)

        strict = inputs.check(dtype, strict=True) if is_forward else None
        yield Contestant("halfgnn", dtype, make, strict, bytes_moved=moved)
        problem = Problem(inputs.name, direction, graph, heads, dim, dtype)
        yield from rivals(
            config, problem, functools.partial(inputs.tensors, dtype), inputs.check(dtype, strict=False), moved
        )


def _check_gradients(config: Config, timed: _Inputs) -> None:
    graph = verify.miniature(timed.graph.order, config.idtype, config.device)
    inputs = _Inputs(timed.op, graph, timed.heads, timed.dim)
    operator = getattr(ops, inputs.name)
    for dtype in config.torch_dtypes():
        verify.check_like_formula(
            lambda t: with_backward(lambda x, y: operator(graph.halfgnn, x, y), t, 5)(),
            lambda t: with_backward(lambda x, y: reference.gsddmm(graph.halfgnn, inputs.op, x, y), t, 5)(),
            inputs.tensors(dtype),
            f"{inputs.name} with gradients, {dtype}",
        )


def cases(config: Config) -> Iterator[Case]:
    for graph in config.ordered_graphs():
        for heads in config.heads_on(graph):
            for feat in config.dims:
                yield from _directions(config, _Inputs("dot", graph, heads, feat // heads))
        # The logits of GAT: one number per node and head.
        yield from _directions(config, _Inputs("add", graph, max(config.heads), 1))


def _directions(config: Config, inputs: _Inputs) -> Iterator[Case]:
    for direction in config.directions:
        backward = direction != "forward"
        if backward and not (inputs.heads == max(config.heads) and config.main_order(inputs.graph)):
            continue

        def before(backward=backward) -> None:
            if backward:
                _check_gradients(config, inputs)

        contestants = list(_contestants(inputs, config, direction))
        case = Case("sddmm", inputs.name, direction, inputs.graph, inputs.heads, inputs.dim, contestants, before)
        yield gather.beside(case, by_src=direction == "backward") if inputs.op == "dot" else case
