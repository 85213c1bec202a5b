"""scipy.sparse: CSR @ x, by one thread."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ..operators import Problem
from ..optional import Unavailable, import_package
from .pytorch import in_adjacency_order
from .registry import competitor

scipy = competitor("scipy")


@scipy.does("copy_u_sum", "u_mul_e_sum", one_head=True, devices=("cpu",))
def _matmul(problem: Problem, x: Tensor, weight: Tensor | None = None) -> Callable[..., Tensor]:
    library = import_package("scipy.sparse")
    if problem.dtype != torch.float32:
        raise Unavailable("it has fp32 and fp64 only")
    graph = problem.graph
    indptr, indices, _ = (ids if ids is None else ids.numpy() for ids in graph.halfgnn.csc())
    ones = x.new_ones(graph.num_edges)

    def work(x: Tensor, weight: Tensor | None = None) -> Tensor:
        values = ones if weight is None else in_adjacency_order(graph, weight)
        matrix = library.csr_matrix((values.numpy(), indices, indptr), shape=(graph.num_nodes, graph.num_nodes))
        return torch.from_numpy(matrix @ x.numpy())

    return work
