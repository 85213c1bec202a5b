"""DGL's own operators."""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
from torch import Tensor

from ..graphs import BenchGraph
from ..optional import Unavailable, dgl_runs_on, import_dgl
from .composed import COMPOSED, MESSAGES, operators_of
from .registry import ANY_DIRECTION, ATTENTIONS, OPERATORS, Problem, check_messages, competitor

YARDSTICK = "dgl copy_u_sum"


def check_dgl(graph: BenchGraph, dtype: torch.dtype) -> None:
    """Raises Unavailable if DGL does not support this graph's device and dtype."""
    import_dgl()
    if dtype == torch.float16 and graph.device == "cpu":
        raise Unavailable("DGL has no fp16 on the CPU")
    if not dgl_runs_on(graph.device):
        raise Unavailable(f"this DGL has no {graph.device}")


def dgl_op(graph: BenchGraph, name: str, dtype: torch.dtype) -> Callable[..., Tensor]:
    """DGL's own operator `name` on the graph, as a function of its tensors."""
    check_dgl(graph, dtype)
    return functools.partial(getattr(import_dgl().ops, name), graph.dgl)


dgl = competitor("dgl", everywhere=True)


# The maximum takes part only in the forward. In DGL's gradient, nodes without in-edges pass their gradient to node 0.
@dgl.does("copy_u_max")
@dgl.does(*(name for name in OPERATORS if name not in ("copy_u_max", *ATTENTIONS)), directions=ANY_DIRECTION)
def _operator(problem: Problem, *operands: Tensor) -> Callable[..., Tensor]:
    return dgl_op(problem.graph, problem.op, problem.dtype)


@dgl.does(*ATTENTIONS, directions=ANY_DIRECTION)
def _attention(problem: Problem, *operands: Tensor) -> Callable[..., Tensor]:
    check_dgl(problem.graph, problem.dtype)
    check_messages(MESSAGES[problem.op] * problem.message_bytes, problem.graph.device)
    return functools.partial(COMPOSED[problem.op], operators_of(import_dgl().ops, problem.graph.dgl))


# DGL's plain sum of rows of the same width: the yardstick of the CPU's marks.
yardstick = competitor(YARDSTICK, option="dgl", everywhere=True, checked=False)


@yardstick.does("copy_u_max", "u_mul_e_sum", "u_dot_v")
def _plain_sum(problem: Problem, x: Tensor, *others: Tensor) -> Callable[..., Tensor]:
    work, rows = dgl_op(problem.graph, "copy_u_sum", problem.dtype), x.flatten(1)
    return lambda *operands: work(rows)
