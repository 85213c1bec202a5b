"""One number per edge and head: copy_e_sum, e_sub_v and e_div_v, from which a softmax can be made."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from halfgnn import ops, reference

from . import verify
from .baselines import Problem
from .case import Case, Config, Contestant, directed, normal, uniform
from .graphs import BenchGraph
from .rivals import rivals

OPS = ("copy_e_sum", "e_sub_v", "e_div_v")


def _tensors(name: str, graph: BenchGraph, heads: int, dtype: torch.dtype) -> tuple[Tensor, ...]:
    x = normal((graph.num_edges, heads), dtype, 1, graph.device)
    if name == "copy_e_sum":
        return (x,)
    y = uniform((graph.num_nodes, heads), torch.float32, 2, graph.device) + 0.5
    return x, y.to(dtype)


def _truth(name: str, part: verify.Sample, tensors: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
    """For the sample, in float64: the result, and the sum of the magnitudes of its terms."""
    x = verify.take(tensors[0], part.edges).double()
    if name == "copy_e_sum":
        return tuple(reference.gspmm(part.graph, "copy_rhs", "sum", None, t) for t in (x, x.abs()))
    y, op = verify.take(tensors[1], part.rows).double(), name[2:5]
    bound = "add" if op == "sub" else op
    return (
        reference.gsddmm(part.graph, op, x, y, "e", "v"),
        reference.gsddmm(part.graph, bound, x.abs(), y.abs(), "e", "v"),
    )


def _check(name: str, graph: BenchGraph, heads: int, dtype: torch.dtype, strict: bool) -> Callable[[Tensor], float]:
    def compare(out: Tensor) -> float:
        part = verify.sample(graph)
        truth, magnitude = _truth(name, part, _tensors(name, graph, heads, dtype))
        result = verify.take(out, part.rows if name == "copy_e_sum" else part.edges)
        if strict:
            return verify.check_rounded_once(result, truth, magnitude, f"{name} {dtype}")
        return verify.relative_error(result.reshape(truth.shape), truth)

    return compare


def _contestants(config: Config, name: str, graph: BenchGraph, heads: int) -> Iterator[Contestant]:
    for dtype in config.torch_dtypes():
        operands = functools.partial(_tensors, name, graph, heads, dtype)
        operator = functools.partial(getattr(ops, name), graph.halfgnn)
        moved = graph.num_edges * heads * dtype.itemsize * (1 if name == "copy_e_sum" else 2)

        def make(operands=operands, operator=operator):
            return directed("forward", operator, operands(), 5)

        strict = _check(name, graph, heads, dtype, strict=True)
        yield Contestant("halfgnn", dtype, make, strict, bytes_moved=moved)
        problem = Problem(name, "forward", graph, heads, 1, dtype)
        yield from rivals(config, problem, operands, _check(name, graph, heads, dtype, strict=False), moved)


def cases(config: Config) -> Iterator[Case]:
    heads = max(config.heads)
    for graph in config.ordered_graphs():
        for name in OPS:
            yield Case("edges", name, "forward", graph, heads, 1, list(_contestants(config, name, graph, heads)))
