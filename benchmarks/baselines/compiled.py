"""torch.compile of the gather-scatter formulas: index_select gathers rows, and index_add scatters results."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
import torch._functorch.config
from torch import Tensor

from ..graphs import BenchGraph
from .composed import COMPOSED
from .registry import ANY_DIRECTION, ATTENTIONS, WIDE, Problem, check_messages, competitor


def _operators(graph: BenchGraph) -> Any:
    """The operators as functions that torch.compile inlines."""
    src, dst, count = graph.src, graph.dst, graph.num_nodes
    ends = dst.long()  # scatter_reduce takes only int64

    def at_dst(x: Tensor) -> Tensor:
        return x.index_select(0, dst)

    def summed(messages: Tensor) -> Tensor:
        return messages.new_zeros((count, *messages.shape[1:])).index_add(0, dst, messages)

    def largest(messages: Tensor) -> Tensor:
        """0 for nodes without in-edges."""
        index = ends.view(-1, *[1] * (messages.dim() - 1)).expand_as(messages)
        zeros = messages.new_zeros((count, *messages.shape[1:]))
        return zeros.scatter_reduce(0, index, messages, "amax", include_self=False)

    def edge_softmax(logits: Tensor) -> Tensor:
        weights = (logits - at_dst(largest(logits.detach()))).exp()
        return weights / at_dst(summed(weights))

    return SimpleNamespace(
        copy_u_sum=lambda x: summed(x.index_select(0, src)),
        copy_u_max=lambda x: largest(x.index_select(0, src)),
        u_mul_e_sum=lambda x, w: summed(x.index_select(0, src) * w),
        u_dot_v=lambda x, y: (x.index_select(0, src) * at_dst(y)).sum(-1, keepdim=True),
        u_add_v=lambda x, y: x.index_select(0, src) + at_dst(y),
        edge_softmax=edge_softmax,
        copy_e_sum=summed,
        e_sub_v=lambda x, y: x - at_dst(y),
        e_div_v=lambda x, y: x / at_dst(y),
    )


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


@compiled.does("copy_u_sum", "u_mul_e_sum", "u_dot_v", "u_add_v", "edge_softmax", directions=ANY_DIRECTION)
@compiled.does("copy_u_max", "copy_e_sum", "e_sub_v", "e_div_v")
def _operator(problem: Problem, *operands: Tensor) -> Callable[..., Tensor]:
    if problem.op in WIDE:  # tensors that the compiler does not fuse exist at the same time
        check_messages((2 if problem.is_forward else 4) * problem.message_bytes, problem.graph.device)
    return _compile(problem, getattr(_operators(problem.graph), problem.op), operands)


@compiled.does(*ATTENTIONS, directions=ANY_DIRECTION)
def _attention(problem: Problem, *operands: Tensor) -> Callable[..., Tensor]:
    check_messages((3 if problem.is_forward else 5) * problem.message_bytes, problem.graph.device)
    formula = functools.partial(COMPOSED[problem.op], _operators(problem.graph))
    return _compile(problem, formula, operands)
