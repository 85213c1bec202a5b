"""The algorithm of DGL's kernels for half precision, written from scratch (benchmarks/yardsticks/scalar_baseline.h), for GPUs
without DGL.

It does what the kernels do: loads of one element, one thread per feature or one warp per dot, results that are cleared
first and then added to, edge data read by ids even if it is in order, the winners of a maximum, an edge softmax of five
operators. It leaves out what the library does around them: checks, and tables of broadcasts that are copied to the GPU
in every call.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from ..graphs import BenchGraph
from ..operators import ATTENTIONS, OPERATORS, Problem
from ..optional import Unavailable
from .composed import made_of
from .registry import competitor


def _operators(yardsticks: Any, graph: BenchGraph) -> Any:
    indptr, indices, edge_ids = graph.halfgnn.csc()
    if edge_ids is None:
        edge_ids = torch.arange(graph.num_edges, dtype=indptr.dtype, device=indptr.device)
    spmm = functools.partial(yardsticks.scalar_spmm, indptr, indices, edge_ids)
    sddmm = functools.partial(yardsticks.scalar_sddmm, graph.src, graph.dst)

    def edge_softmax(logits: Tensor) -> Tensor:
        largest = spmm("copy_rhs", "max", None, logits)[0]
        weights = sddmm("sub", logits, largest, "e", "v").exp()
        return sddmm("div", weights, spmm("copy_rhs", "sum", None, weights)[0], "e", "v")

    return SimpleNamespace(
        copy_u_sum=lambda x: spmm("copy_lhs", "sum", x, None)[0],
        copy_u_max=lambda x: spmm("copy_lhs", "max", x, None)[0],
        u_mul_e_sum=lambda x, w: spmm("mul", "sum", x, w)[0],
        u_dot_v=lambda x, y: sddmm("dot", x, y, "u", "v"),
        u_add_v=lambda x, y: sddmm("add", x, y, "u", "v"),
        edge_softmax=edge_softmax,
        copy_e_sum=lambda x: spmm("copy_rhs", "sum", None, x)[0],
        e_sub_v=lambda x, y: sddmm("sub", x, y, "e", "v"),
        e_div_v=lambda x, y: sddmm("div", x, y, "e", "v"),
    )


algorithm = competitor("dgl algorithm", everywhere=("cuda",))


@algorithm.does(*(name for name, operator in OPERATORS.items() if operator.family != "messages"))
def _operator(problem: Problem, *operands: Tensor) -> Callable[..., Tensor]:
    try:
        from .. import yardsticks
    except ImportError as error:
        raise Unavailable(str(error)) from None
    if not yardsticks.has_kernels(problem.graph.device):
        raise Unavailable("it has CUDA kernels only")
    if problem.dtype == torch.float32 and (
        problem.op == "copy_u_sum" or (problem.op == "u_mul_e_sum" and problem.heads == 1)
    ):
        raise Unavailable("in fp32 DGL calls cuSPARSE for it")
    on = _operators(yardsticks, problem.graph)
    return made_of(problem, on) if problem.op in ATTENTIONS else getattr(on, problem.op)
