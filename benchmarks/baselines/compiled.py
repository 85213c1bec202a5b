"""torch.compile of the gather-scatter formulas."""

from __future__ import annotations

import types
from collections.abc import Callable

import torch
import torch._functorch.config
from torch import Tensor

from ..operators import OPERATORS, Problem
from .composed import COMPOSED, gather_scatter, made_of
from .registry import ANY_DIRECTION, check_messages, competitor


def _compile(problem: Problem, formula: Callable[..., Tensor], operands: tuple[Tensor, ...]) -> Callable[..., Tensor]:
    """`formula`, compiled for these operands: the forward and, if the direction needs it, the backward."""

    def function(*tensors: Tensor) -> Tensor:
        return formula(*tensors)

    # Dynamo keeps compiled versions with the code of a function, and stops after a few. So each function has its own
    # code.
    code = types.FunctionType(function.__code__.replace(), globals(), closure=function.__closure__)
    call = torch.compile(code, fullgraph=True, dynamic=False)
    leaves = [x.clone().requires_grad_(not problem.is_forward) for x in operands]
    if problem.direction == "backward" and hasattr(torch._functorch.config, "donated_buffer"):
        # Otherwise a backward destroys what the next backward reads. The setting is read in every backward.
        torch._functorch.config.donated_buffer = False
    out = call(*leaves)
    if not problem.is_forward:
        torch.autograd.grad(out, leaves, torch.ones_like(out))
    return call


compiled = competitor("torch.compile")


@compiled.does("copy_u_sum", "u_mul_e_sum", "u_dot_v", "u_add_v", "edge_softmax", *COMPOSED, directions=ANY_DIRECTION)
@compiled.does("copy_u_max", "copy_e_sum", "e_sub_v", "e_div_v")
def _operator(problem: Problem, *operands: Tensor) -> Callable[..., Tensor]:
    graph = problem.graph
    on = gather_scatter(graph.src, graph.dst, graph.num_nodes)
    # Rows of features per edge that the compiler does not fuse, so that they exist at the same time.
    messages = 2 + (problem.op in COMPOSED) + (0 if problem.is_forward else 2)
    if problem.op in COMPOSED:
        return _compile(problem, made_of(problem, on, messages), operands)
    if OPERATORS[problem.op].is_wide:
        check_messages(messages * problem.message_bytes, graph.device)
    return _compile(problem, getattr(on, problem.op), operands)
