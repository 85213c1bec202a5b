"""What nodes of FX graphs of PyTorch's functions are called, stand for, and modify in place."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx


def value_of(node: Any) -> Any:
    """The fake tensor or symbol of a node; other arguments are their own value."""
    return node.meta.get("example_value") if isinstance(node, fx.Node) else node


def name_of(node: fx.Node) -> str:
    """The name of the method or function that a node calls, without the underscore of one in place."""
    return full_name_of(node).rstrip("_")


def full_name_of(node: fx.Node) -> str:
    return node.target if node.op == "call_method" else getattr(node.target, "__name__", str(node.target))  # type: ignore[return-value]


def nodes_in(args: Any) -> Iterator[fx.Node]:
    if isinstance(args, fx.Node):
        yield args
    elif isinstance(args, (list, tuple)):
        for x in args:
            yield from nodes_in(x)
    elif isinstance(args, dict):
        yield from nodes_in(list(args.values()))


# ---- memory ------------------------------------------------------------------------------------------------------------------


def memory_of_tensor(x: Any) -> set[int]:
    return {x.untyped_storage()._cdata} if isinstance(x, Tensor) and x.layout is torch.strided else set()


_OPERATORS = {getattr(operator, f"__{name}__") for name in (
    "iadd", "isub", "imul", "itruediv", "ifloordiv", "imod", "ipow", "imatmul", "iand", "ior", "ixor", "ilshift", "irshift",
    "setitem",
)}  # fmt: skip


def written_by(node: fx.Node) -> Iterator[Any]:
    """What a node modifies in place."""
    if _is_in_place(node):
        yield from nodes_in(node.args[:1])
    if "out" in node.kwargs:
        yield from nodes_in(node.kwargs["out"])
    if isinstance(node.target, torch._ops.HigherOrderOperator):  # as an autograd Function of a program
        yield from nodes_in([node.args, node.kwargs])
    schema = getattr(node.target, "_schema", None)
    if schema is not None and schema.is_mutable:
        yield from nodes_in([node.args, node.kwargs])


def _is_in_place(node: fx.Node) -> bool:
    if node.op == "call_method":
        name = str(node.target)
        return (name.endswith("_") and not name.endswith("__")) or name == "__setitem__" or name.startswith("__i")
    if node.op != "call_function":
        return False
    name = getattr(node.target, "__name__", "")
    if node.kwargs.get("inplace") or (name.endswith("_") and not name.endswith("__")):
        return True
    if node.target is F.dropout:
        return len(node.args) > 3 and node.args[3] is True
    if getattr(node.target, "__module__", "") == F.__name__ or node.target in (
        F.leaky_relu,
        F.elu,
        F.hardtanh,
        F.relu6,
    ):
        return any(x is True for x in node.args[1:])  # modules of activations say inplace by its place
    return any(node.target is x for x in _OPERATORS)
