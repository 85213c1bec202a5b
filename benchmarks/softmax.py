"""Edge softmax over the in-edges of every node."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from halfgnn import ops, reference

from . import verify
from .baselines import Problem
from .case import Case, Config, Contestant, directed, normal, with_backward
from .graphs import BenchGraph
from .rivals import rivals


def _logits(graph: BenchGraph, heads: int, dtype: torch.dtype) -> Tensor:
    return normal((graph.num_edges, heads, 1), dtype, 1, graph.device)


def _check(graph: BenchGraph, heads: int, dtype: torch.dtype, strict: bool) -> Callable[[Tensor], float]:
    def compare(out: Tensor) -> float:
        part = verify.sample(graph)
        logits = verify.take(_logits(graph, heads, dtype), part.edges).double()
        truth, result = reference.edge_softmax(part.graph, logits), verify.take(out, part.edges)
        if strict:
            # exp turns the rounding error of its argument, a few units, into a relative error.
            return verify.check_rounded_once(result, truth, 16 * truth, f"edge_softmax {dtype}")
        return verify.relative_error(result.reshape(truth.shape), truth)

    return compare


def _contestants(config: Config, graph: BenchGraph, heads: int, direction: str) -> Iterator[Contestant]:
    is_forward, operator = direction == "forward", functools.partial(ops.edge_softmax, graph.halfgnn)
    for dtype in config.torch_dtypes():
        moved = graph.num_edges * 2 * heads * dtype.itemsize if is_forward else 0

        def operands(dtype=dtype) -> tuple[Tensor]:
            return (_logits(graph, heads, dtype),)

        def make(operands=operands):
            return directed(direction, operator, operands(), 5)

        strict = _check(graph, heads, dtype, strict=True) if is_forward else None
        yield Contestant("halfgnn", dtype, make, strict, bytes_moved=moved)
        problem = Problem("edge_softmax", direction, graph, heads, 1, dtype)
        yield from rivals(config, problem, operands, _check(graph, heads, dtype, strict=False), moved)


def _check_gradients(config: Config, heads: int, order: str) -> None:
    graph = verify.miniature(order, config.idtype, config.device)
    for dtype in config.torch_dtypes():
        verify.check_like_formula(
            lambda t: with_backward(lambda x: ops.edge_softmax(graph.halfgnn, x), t, 5)(),
            lambda t: with_backward(lambda x: reference.edge_softmax(graph.halfgnn, x), t, 5)(),
            (_logits(graph, heads, dtype),),
            f"edge_softmax with gradients, {dtype}",
        )


def cases(config: Config) -> Iterator[Case]:
    for graph in config.ordered_graphs():
        for heads in config.heads:
            for direction in config.directions:
                backward = direction != "forward"
                if backward and not (heads == max(config.heads) and config.main_order(graph)):
                    continue

                def before(backward=backward, heads=heads, order=graph.order) -> None:
                    if backward:
                        _check_gradients(config, heads, order)

                contestants = list(_contestants(config, graph, heads, direction))
                yield Case("softmax", "edge_softmax", direction, graph, heads, 1, contestants, before)
