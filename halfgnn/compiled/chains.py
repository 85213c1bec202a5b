"""Sums of what is computed element by element of the rows of both ends, which Inductor fuses into one loop that stores no values of
edges."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, fx
from torch._inductor import config
from torch.fx.experimental.symbolic_shapes import statically_known_true

from ..common.fx_nodes import name_of, nodes_in, value_of
from .recognize import Reduction, gather_of

_ELEMENTWISE = {
    "add", "sub", "rsub", "mul", "div", "truediv", "neg", "abs", "pow", "square", "sqrt", "rsqrt", "exp", "log", "sin", "cos",
    "sigmoid", "tanh", "relu", "leaky_relu", "elu", "gelu", "silu", "softplus", "clamp", "where",
    "view", "reshape", "unsqueeze", "squeeze", "expand", "contiguous",
}  # fmt: skip


class Fused(Exception):
    """A sum is left to Inductor: an operator would store values of edges that Inductor does not."""


def chain_of(call: Reduction) -> set[fx.Node]:
    """The nodes from the rows of both ends to their sum, if Inductor computes it all in one loop; else none.

    On one thread of a CPU: those of several add atomically, which takes longer than to store the values. Of half types Inductor's
    sums are half-precision values.
    """
    src = value_of(call.src)
    if call.kind != "sum" or src.dtype not in (torch.float32, torch.float64) or not _has_one_thread(src):
        return set()
    chain: set[fx.Node] = set()
    ends, todo = set(), [call.src]
    while todo:
        node = todo.pop()
        if node in chain or not _is_computed_of_edges(node, src.shape[0]):
            continue
        chain.add(node)
        gather = gather_of(node)
        if gather is None and name_of(node) not in _ELEMENTWISE:
            return set()
        if gather is None:
            todo += nodes_in([node.args, node.kwargs])
        elif has_as_many(node, src):
            ends.add(gather.ids)
    return chain if len(ends) == 2 else set()


def _has_one_thread(x: Tensor) -> bool:
    has_one = config.cpp.threads == 1 or (config.cpp.threads < 1 and torch.get_num_threads() == 1)
    return x.is_cpu and has_one and not config.cpp.dynamic_threads and not torch.are_deterministic_algorithms_enabled()


def _is_computed_of_edges(node: fx.Node, num_edges: int | torch.SymInt) -> bool:
    value = value_of(node)
    is_computed = node.op in ("call_function", "call_method") and isinstance(value, Tensor) and value.dim() > 0
    return is_computed and statically_known_true(value.shape[0] == num_edges)


def has_as_many(node: fx.Node, x: Tensor) -> bool:
    """Whether a node has as many values as x."""
    value = value_of(node)
    return isinstance(value, Tensor) and statically_known_true(value.numel() == x.numel())


def store_edges(nodes: Iterable[fx.Node], src: Tensor) -> bool:
    """Whether nodes read or return as many values as src, the rows that are reduced, has."""
    return any(has_as_many(x, src) for node in nodes for x in (node, *nodes_in([node.args, node.kwargs])))
