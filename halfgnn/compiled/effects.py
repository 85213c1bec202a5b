"""What nodes of an FX graph do beside returning values: modes that they set, and memory that they write to."""

from __future__ import annotations

import torch
from torch import Tensor, fx

from ..common.fx_nodes import memory_of_tensor, name_of, value_of, written_by
from ..expressions import expression as expressions
from .recognize import gather_of, reduction_of


class Contexts:
    """Autocast and the modes of autograd, as the nodes of a graph set them."""

    def __init__(self) -> None:
        self._grad, self._open = torch.is_grad_enabled(), {}  # type: ignore[var-annotated]

    def enter(self, node: fx.Node) -> None:
        if node.target is torch._C._set_grad_enabled:
            torch._C._set_grad_enabled(*node.args)  # type: ignore[arg-type]
        elif node.target is torch.amp.autocast_mode._enter_autocast:
            self._open[node] = torch.amp.autocast_mode._enter_autocast(*node.args)
        elif node.target is torch.amp.autocast_mode._exit_autocast:
            torch.amp.autocast_mode._exit_autocast(self._open.pop(node.args[0]))

    def close(self) -> None:
        for mode in reversed(self._open.values()):
            torch.amp.autocast_mode._exit_autocast(mode)
        torch._C._set_grad_enabled(self._grad)


def sets_mode(node: fx.Node) -> bool:
    modes = torch.amp.autocast_mode
    return node.target in (torch._C._set_grad_enabled, modes._enter_autocast, modes._exit_autocast)


def memory_of(x: expressions.Expression) -> set[int]:
    found = memory_of_tensor(x.x) | memory_of_tensor(x.ids) if isinstance(x, expressions.Gather) else set()
    if isinstance(x, expressions.Op):
        for y in x.args:
            found |= set().union(*map(memory_of_tensor, y)) if isinstance(y, (list, tuple)) else memory_of_tensor(y)
    return found.union(*(memory_of(y) for y in x.operands()))


def dead_nodes(graph: fx.Graph) -> list[fx.Node]:
    """Nodes whose results nothing reads, users first."""
    dead: dict[fx.Node, None] = {}
    for node in reversed(graph.nodes):
        if node.op in ("call_function", "call_method") and all(user in dead for user in node.users) and _is_pure(node):
            dead[node] = None
    return list(dead)


def erase_dead(graph: fx.Graph) -> None:
    for node in dead_nodes(graph):
        graph.erase_node(node)


def _is_pure(node: fx.Node) -> bool:
    """Whether nothing notices that a node without users is gone."""
    if not isinstance(value_of(node), (Tensor, torch.Size, torch.SymInt, int, tuple, list)):
        return False
    name = name_of(node)
    return not any(True for _ in written_by(node)) and (
        gather_of(node) is not None or reduction_of(node) is not None or name in _PURE
    )


_PURE = {
    "mul", "add", "sub", "truediv", "div", "exp", "view", "expand_as", "expand", "unsqueeze", "reshape", "getitem", "new_zeros",
    "new_ones", "zeros", "zeros_like", "new_full", "size", "Size", "detach", "cat", "linear", "relu", "leaky_relu", "sum", "select",
    "neg", "to", "float", "squeeze", "transpose", "split", "chunk", "unbind", "matmul", "sigmoid", "tanh", "silu", "where",
    "graph_side", "index_side", "pair_side", "Graph", "default",
}  # fmt: skip


def in_order(graph: fx.Graph) -> None:
    """Moves nodes before their users: those of a Graph, which was first needed later. They read sizes and ids alone."""
    seen: set[fx.Node] = set()

    def place(node: fx.Node, user: fx.Node) -> None:
        if node not in seen:
            user.prepend(node)
            for x in node.all_input_nodes:
                place(x, node)
            seen.add(node)

    for node in list(graph.nodes):
        for x in node.all_input_nodes:
            place(x, node)
        seen.add(node)
