"""Attentions and sums of messages made of a library's separate operators, as models write them, and the operators made of
index_select and index_add."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from ..operators import Problem
from .registry import check_messages

SLOPE = 0.2


def _leaky(x: Tensor) -> Tensor:
    return torch.nn.functional.leaky_relu(x, SLOPE)


# `on` has u_add_v, u_dot_v, edge_softmax, u_mul_e_sum, copy_u and copy_e_sum on one graph.


def _gat(on: Any, x: Tensor, src: Tensor, dst: Tensor) -> Tensor:
    return on.u_mul_e_sum(x, on.edge_softmax(_leaky(on.u_add_v(src.unsqueeze(-1), dst.unsqueeze(-1)))))


def _gatv2(on: Any, x_src: Tensor, x_dst: Tensor, attn: Tensor) -> Tensor:
    logits = (_leaky(on.u_add_v(x_src, x_dst)) * attn).sum(-1, keepdim=True)
    return on.u_mul_e_sum(x_src, on.edge_softmax(logits))


def _dot(on: Any, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return on.u_mul_e_sum(value, on.edge_softmax(on.u_dot_v(key, query) * query.shape[-1] ** -0.5))


def _add(on: Any, x: Tensor, e: Tensor) -> Tensor:
    return on.copy_e_sum(on.copy_u(x) + e)


def _mul(on: Any, x: Tensor, e: Tensor) -> Tensor:
    return on.copy_e_sum(on.copy_u(x) * e)


def _relu_add(on: Any, x: Tensor, e: Tensor) -> Tensor:
    return on.copy_e_sum(torch.relu(on.copy_u(x) + e))


def _add_three(on: Any, x: Tensor, y: Tensor, e: Tensor) -> Tensor:
    return on.u_add_v(x, y) + e


def _gated(on: Any, value: Tensor, gate_src: Tensor, gate_dst: Tensor, gate_edge: Tensor) -> Tensor:
    return on.copy_e_sum(on.copy_u(value) * torch.sigmoid(on.u_add_v(gate_src, gate_dst) + gate_edge))


COMPOSED = {
    **{"gat_attention": _gat, "gatv2_attention": _gatv2, "dot_attention": _dot},
    **{"u_add_e_sum": _add, "u_mul_e_sum_of_rows": _mul, "u_relu_add_e_sum": _relu_add},
    **{"u_add_v_add_e": _add_three, "gated_sum": _gated},
}
# Rows of features per edge that exist at the same time: the results of u_add_v, of leaky_relu and of the product, ...
MESSAGES = {"gat_attention": 0, "gatv2_attention": 3, "dot_attention": 0}
MESSAGES |= {"u_add_e_sum": 2, "u_mul_e_sum_of_rows": 2}
MESSAGES |= {"u_relu_add_e_sum": 3, "u_add_v_add_e": 2, "gated_sum": 4}


def made_of(problem: Problem, on: Any, messages: int | None = None) -> Callable[..., Tensor]:
    """The operator of the problem, made of `on`. Raises Unavailable if so many rows of features per edge do not fit."""
    messages = MESSAGES[problem.op] if messages is None else messages
    check_messages(messages * problem.message_bytes, problem.graph.device)
    return functools.partial(COMPOSED[problem.op], on)


def operators_of(library: Any, graph: Any) -> Any:
    """The operators of a library, bound to its graph, which is their first argument."""
    names = ("u_add_v", "u_dot_v", "edge_softmax", "u_mul_e_sum", "copy_u", "copy_e_sum")
    return SimpleNamespace(**{name: functools.partial(getattr(library, name), graph) for name in names})


def gather_scatter(src: Tensor, dst: Tensor, count: int) -> Any:
    """All operators on a graph of `count` nodes: index_select gathers rows, index_add scatters results."""
    ends = dst.long()  # scatter_reduce takes only int64

    def at_src(x: Tensor) -> Tensor:
        return x.index_select(0, src)

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
        copy_u_sum=lambda x: summed(at_src(x)),
        copy_u_max=lambda x: largest(at_src(x)),
        u_mul_e_sum=lambda x, w: summed(at_src(x) * w),
        u_dot_v=lambda x, y: (at_src(x) * at_dst(y)).sum(-1, keepdim=True),
        u_add_v=lambda x, y: at_src(x) + at_dst(y),
        copy_u=at_src,
        edge_softmax=edge_softmax,
        copy_e_sum=summed,
        e_sub_v=lambda x, y: x - at_dst(y),
        e_div_v=lambda x, y: x / at_dst(y),
    )
