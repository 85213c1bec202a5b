"""Edge softmax over the in-edges of every node."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from halfgnn import ops, reference

from . import baselines, verify
from .case import Case, Config, Contestant, directed, normal, with_backward
from .graphs import BenchGraph


def _logits(graph: BenchGraph, heads: int, dtype: torch.dtype) -> Tensor:
    return normal((graph.num_edges, heads, 1), dtype, 1, graph.device)


def _contestant(graph: BenchGraph, heads: int, name: str, dtype: torch.dtype, direction: str) -> Contestant:
    backward = direction != "forward"

    def check(out: Tensor) -> float:
        part = verify.sample(graph)
        logits = verify.take(_logits(graph, heads, dtype), part.edges).double()
        truth, result = reference.edge_softmax(part.graph, logits), verify.take(out, part.edges)
        if name == "halfgnn":
            # exp turns the rounding of its argument, of a few units, into a relative error.
            return verify.check_rounded_once(result, truth, 16 * truth, f"edge_softmax {dtype}")
        return verify.relative_error(result, truth)

    def make():
        logits = _logits(graph, heads, dtype)
        if name == "dgl":
            work = baselines.dgl_op(graph, "edge_softmax", logits)
        elif name == "pyg softmax":
            work = baselines.pyg_softmax(graph)
        else:

            def work(x):
                return ops.edge_softmax(graph.halfgnn, x)

        return directed(direction, work, (logits,), 5)

    moved = 0 if backward else graph.num_edges * 2 * heads * dtype.itemsize
    return Contestant(name, dtype, make, None if backward else check, bytes_moved=moved)


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
    names = ["halfgnn", *(["dgl"] if "dgl" in config.baselines else [])]
    names += ["pyg softmax"] if "pyg" in config.baselines else []
    for graph in config.ordered_graphs():
        for heads in config.heads:
            for direction in config.directions:
                backward = direction != "forward"
                if backward and not (heads == max(config.heads) and config.main_order(graph)):
                    continue

                def before(backward=backward, heads=heads, order=graph.order) -> None:
                    if backward:
                        _check_gradients(config, heads, order)

                contestants = [
                    _contestant(graph, heads, name, dtype, direction)
                    for dtype in config.torch_dtypes()
                    for name in names
                ]
                yield Case("softmax", "edge_softmax", direction, graph, heads, 1, contestants, before)
