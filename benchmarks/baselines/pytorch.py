"""PyTorch itself: torch.sparse, and index_select with index_add."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ..operators import Problem
from ..optional import Unavailable
from .composed import gather_scatter
from .registry import check_messages, competitor

sparse = competitor("torch.sparse")


def _matrix(problem: Problem, values: Tensor) -> Tensor:
    """The adjacency as CSR with these values, one per edge."""
    indptr, indices, _ = problem.graph.halfgnn.csc()
    size = (problem.graph.num_nodes, problem.graph.num_nodes)
    return torch.sparse_csr_tensor(indptr, indices, values, size, check_invariants=False)


@sparse.does("copy_u_sum", "u_mul_e_sum", one_head=True)
def _matmul(problem: Problem, x: Tensor, weight: Tensor | None = None) -> Callable[..., Tensor]:
    """A @ x. A holds the weights, or ones. Its values are set before timing."""
    edge_ids = problem.graph.halfgnn.csc().edge_ids
    values = x.new_ones(problem.graph.num_edges) if weight is None else weight.flatten()
    if weight is not None and edge_ids is not None:
        values = values[edge_ids.long()]
    matrix = _matrix(problem, values)
    return lambda x, weight=None: matrix @ x


@sparse.does("u_dot_v", one_head=True, devices=("cuda",))
def _sampled_addmm(problem: Problem, x: Tensor, y: Tensor) -> Callable[..., Tensor]:
    if problem.graph.halfgnn.csc().edge_ids is not None:
        raise Unavailable("its results are in the order of the adjacency")
    matrix = _matrix(problem, x.new_zeros(problem.graph.num_edges))
    return lambda x, y: torch.sparse.sampled_addmm(matrix, y, x.t(), beta=0.0).values().unsqueeze(1)


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


@gather.does("u_dot_v", one_head=True)
def _gathered_dot(problem: Problem, *operands: Tensor) -> Callable[..., Tensor]:
    """(x[src] * y[dst]).sum(-1)"""
    graph = problem.graph
    check_messages(2 * problem.message_bytes, graph.device)

    def work(x: Tensor, y: Tensor) -> Tensor:
        return x.index_select(0, graph.src).mul_(y.index_select(0, graph.dst)).sum(-1, keepdim=True)

    return work
