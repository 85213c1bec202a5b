"""PyTorch itself: torch.sparse, embedding_bag, and index_select with index_add.

Weights are operands in the order of edge data. What takes them in the order of the adjacency has them permuted in its
time, if that is another order.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ..graphs import BenchGraph
from ..operators import Problem
from ..rows import INDEXED_COPY
from .composed import gather_scatter
from .registry import check_messages, competitor

COPY_BYTES = 4 << 20  # that an indexed copy writes at a time: they stay in the cache


def in_adjacency_order(graph: BenchGraph, weight: Tensor) -> Tensor:
    """One weight per edge, flat."""
    edge_ids = graph.halfgnn.csc().edge_ids
    return weight.flatten() if edge_ids is None else weight.flatten().index_select(0, edge_ids)


sparse = competitor("torch.sparse", everywhere=("cpu",))
reducing = competitor("torch.sparse.mm", option="torch.sparse", everywhere=("cpu",))


def _csr(problem: Problem) -> Callable[[Tensor], Tensor]:
    """The adjacency as CSR with the given values, one per edge. On a CPU ids are int32, which MKL takes as they are."""
    indptr, indices, _ = problem.graph.halfgnn.csc()
    if problem.graph.device == "cpu":
        indptr, indices = indptr.int(), indices.int()
    size = (problem.graph.num_nodes, problem.graph.num_nodes)
    return lambda values: torch.sparse_csr_tensor(indptr, indices, values, size, check_invariants=False)


def _product(
    problem: Problem, x: Tensor, weight: Tensor | None, multiply: Callable[[Tensor, Tensor], Tensor]
) -> Callable[..., Tensor]:
    """multiply(A, x). A holds the weights, or ones."""
    csr, graph = _csr(problem), problem.graph
    ones = csr(x.new_ones(graph.num_edges))

    def work(x: Tensor, weight: Tensor | None = None) -> Tensor:
        return multiply(ones if weight is None else csr(in_adjacency_order(graph, weight)), x)

    return work


@sparse.does("copy_u_sum", "u_mul_e_sum", one_head=True)
def _matmul(problem: Problem, x: Tensor, weight: Tensor | None = None) -> Callable[..., Tensor]:
    return _product(problem, x, weight, torch.matmul)


@reducing.does("copy_u_sum", "copy_u_max", "u_mul_e_sum", one_head=True, devices=("cpu",))
def _reduce(problem: Problem, x: Tensor, weight: Tensor | None = None) -> Callable[..., Tensor]:
    """With the argument `reduce` torch.sparse.mm has kernels of its own, also for half precision."""
    reduce = "amax" if problem.op == "copy_u_max" else "sum"
    return _product(problem, x, weight, lambda matrix, x: torch.sparse.mm(matrix, x, reduce))


@sparse.does("u_dot_v", one_head=True)
def _sampled_addmm(problem: Problem, x: Tensor, y: Tensor) -> Callable[..., Tensor]:
    """Its results are in the order of the adjacency."""
    edge_ids = problem.graph.halfgnn.csc().edge_ids
    matrix = _csr(problem)(x.new_zeros(problem.graph.num_edges))

    def work(x: Tensor, y: Tensor) -> Tensor:
        out = torch.sparse.sampled_addmm(matrix, y, x.t(), beta=0.0).values()
        return (out if edge_ids is None else torch.empty_like(out).index_copy_(0, edge_ids.long(), out)).unsqueeze(1)

    return work


bag = competitor("embedding_bag", everywhere=("cpu",))


@bag.does("copy_u_sum", "u_mul_e_sum", one_head=True, devices=("cpu",))
def _embedding_bag(problem: Problem, x: Tensor, weight: Tensor | None = None) -> Callable[..., Tensor]:
    """By FBGEMM's kernels, which are generated for the width and dtype."""
    graph = problem.graph
    indptr, indices, _ = graph.halfgnn.csc()

    def work(x: Tensor, weight: Tensor | None = None) -> Tensor:
        weights = None if weight is None else in_adjacency_order(graph, weight)
        return torch.nn.functional.embedding_bag(
            indices, x, indptr, mode="sum", per_sample_weights=weights, include_last_offset=True
        )

    return work


copy = competitor(INDEXED_COPY, everywhere=("cpu",), checked=False)


@copy.does("copy_u_sum", one_head=True, devices=("cpu",))
def _indexed_copy(problem: Problem, x: Tensor) -> Callable[..., Tensor]:
    """The gather without the sum: index_select of the same rows into a buffer that stays in the cache."""
    indices = problem.graph.halfgnn.csc().indices
    rows = max(1, COPY_BYTES // (problem.width * problem.dtype.itemsize))
    parts, out = indices.split(rows), x.new_empty((min(rows, indices.numel()), problem.width))

    def work(x: Tensor) -> Tensor:
        for part in parts:
            torch.index_select(x, 0, part, out=out[: part.numel()])
        return out

    return work


index_add = competitor("index_add")


@index_add.does("copy_u_sum", "u_mul_e_sum", one_head=True, directions=("forward", "backward"))
def _index_add(problem: Problem, *operands: Tensor) -> Callable[..., Tensor]:
    """x[src], times weights, index_add'ed by destination."""
    graph = problem.graph
    check_messages((1 if problem.is_forward else 5) * problem.message_bytes, graph.device)

    def in_place(x: Tensor, weight: Tensor | None = None) -> Tensor:
        messages = x.index_select(0, graph.src)
        if weight is not None:
            messages.mul_(weight)
        return x.new_zeros(x.shape).index_add_(0, graph.dst, messages)

    differentiable = getattr(gather_scatter(graph.src, graph.dst, graph.num_nodes), problem.op)
    return in_place if problem.is_forward else differentiable


@index_add.does("copy_e_sum", "e_sub_v", "e_div_v")
def _parts_of_softmax(problem: Problem, *operands: Tensor) -> Callable[..., Tensor]:
    graph = problem.graph
    if problem.op != "copy_e_sum":
        return getattr(gather_scatter(graph.src, graph.dst, graph.num_nodes), problem.op)
    return lambda x: x.new_zeros((graph.num_nodes, *x.shape[1:])).index_add_(0, graph.dst, x)


gather = competitor("torch gather", option="index_add")


@gather.does("u_add_v")
def _gathered_sum(problem: Problem, *operands: Tensor) -> Callable[..., Tensor]:
    graph = problem.graph
    return lambda x, y: x.index_select(0, graph.src).add_(y.index_select(0, graph.dst))


@gather.does("u_dot_v", one_head=True)
def _gathered_dot(problem: Problem, *operands: Tensor) -> Callable[..., Tensor]:
    """(x[src] * y[dst]).sum(-1)"""
    graph = problem.graph
    check_messages(2 * problem.message_bytes, graph.device)

    def work(x: Tensor, y: Tensor) -> Tensor:
        return x.index_select(0, graph.src).mul_(y.index_select(0, graph.dst)).sum(-1, keepdim=True)

    return work
