"""DGL's own operators."""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
from torch import Tensor

from ..graphs import BenchGraph
from ..operators import OPERATORS, Problem
from ..optional import Unavailable, dgl_runs_on, import_dgl
from .composed import made_of, operators_of
from .registry import ANY_DIRECTION, competitor


def check_dgl(graph: BenchGraph, dtype: torch.dtype) -> None:
    """Raises Unavailable if DGL does not support this graph's device and dtype."""
    import_dgl()
    if dtype == torch.float16 and graph.device == "cpu":
        raise Unavailable("DGL has no fp16 on the CPU")
    if not dgl_runs_on(graph.device):
        raise Unavailable(f"this DGL has no {graph.device}")


dgl = competitor("dgl", everywhere=("cpu", "cuda"))


# The maximum takes part only in the forward. In DGL's gradient, nodes without in-edges pass their gradient to node 0.
@dgl.does("copy_u_max")
@dgl.does(
    *(name for name in OPERATORS if name != "copy_u_max"),
    directions=ANY_DIRECTION,
)
def _operator(problem: Problem, *operands: Tensor) -> Callable[..., Tensor]:
    check_dgl(problem.graph, problem.dtype)
    ops, function = import_dgl().ops, OPERATORS[problem.op].function or problem.op
    if hasattr(ops, function):
        return functools.partial(getattr(ops, function), problem.graph.dgl)
    return made_of(problem, operators_of(ops, problem.graph.dgl))


# Its kernels are compiled for both types of ids.
other_ids = competitor("dgl, other ids", option="dgl")


@other_ids.does("copy_u_sum", "u_mul_e_sum", "u_dot_v", "u_add_v", "edge_softmax")
def _with_other_ids(problem: Problem, *operands: Tensor) -> Callable[..., Tensor]:
    check_dgl(problem.graph, problem.dtype)
    return functools.partial(getattr(import_dgl().ops, problem.op), problem.graph.dgl_other_ids)
