"""A number an edge and head: copy_e_sum, e_sub_v and e_div_v, the parts of which a softmax can be made."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from halfgnn import ops, reference

from . import baselines, verify
from .case import Case, Config, Contestant, normal, uniform
from .graphs import BenchGraph

OPS = ("copy_e_sum", "e_sub_v", "e_div_v")


def _tensors(name: str, graph: BenchGraph, heads: int, dtype: torch.dtype) -> tuple[Tensor, ...]:
    x = normal((graph.num_edges, heads), dtype, 1, graph.device)
    if name == "copy_e_sum":
        return (x,)
    y = uniform((graph.num_nodes, heads), torch.float32, 2, graph.device) + 0.5
    return x, y.to(dtype)


def _truth(name: str, part: verify.Sample, tensors: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
    """In float64, of the sample: the result, and the sum of the magnitudes of its terms."""
    x = verify.take(tensors[0], part.edges).double()
    if name == "copy_e_sum":
        return tuple(reference.gspmm(part.graph, "copy_rhs", "sum", None, t) for t in (x, x.abs()))
    y, op = verify.take(tensors[1], part.rows).double(), name[2:5]
    bound = "add" if op == "sub" else op
    return (
        reference.gsddmm(part.graph, op, x, y, "e", "v"),
        reference.gsddmm(part.graph, bound, x.abs(), y.abs(), "e", "v"),
    )


def _work(name: str, graph: BenchGraph, contender: str, tensors: tuple[Tensor, ...]) -> Callable[[], Tensor]:
    if contender == "dgl":
        work = baselines.dgl_op(graph, name, *tensors)
        return lambda: work(*tensors)
    if contender == "halfgnn":
        operator = getattr(ops, name)
        return lambda: operator(graph.halfgnn, *tensors)
    if name == "copy_e_sum":
        shape = (graph.num_nodes, *tensors[0].shape[1:])
        return lambda: tensors[0].new_zeros(shape).index_add_(0, graph.dst, tensors[0])
    combine = torch.sub if name == "e_sub_v" else torch.div
    return lambda: combine(tensors[0], tensors[1].index_select(0, graph.dst))


def _contestant(name: str, graph: BenchGraph, heads: int, contender: str, dtype: torch.dtype) -> Contestant:
    def check(out: Tensor) -> float:
        part = verify.sample(graph)
        truth, magnitude = _truth(name, part, _tensors(name, graph, heads, dtype))
        result = verify.take(out, part.rows if name == "copy_e_sum" else part.edges)
        if contender == "halfgnn":
            return verify.check_rounded_once(result, truth, magnitude, f"{name} {dtype}")
        return verify.relative_error(result, truth)

    moved = graph.num_edges * heads * dtype.itemsize * (1 if name == "copy_e_sum" else 2)
    return Contestant(
        contender,
        dtype,
        lambda: _work(name, graph, contender, _tensors(name, graph, heads, dtype)),
        check,
        bytes_moved=moved,
    )


def cases(config: Config) -> Iterator[Case]:
    for graph in config.ordered_graphs():
        for name in OPS:
            heads = max(config.heads)
            contestants = []
            for dtype in config.torch_dtypes():
                contestants += [
                    _contestant(name, graph, heads, contender, dtype)
                    for contender in ("halfgnn", "dgl", "index_add")
                    if contender == "halfgnn" or contender in config.baselines
                ]
            yield Case("edges", name, "forward", graph, heads, 1, contestants)
