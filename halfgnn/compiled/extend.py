"""Functions of PyTorch on expressions of an FX graph: which expression they make, asked of the operators that they are made of."""

from __future__ import annotations

import operator
import sys
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx
from torch.utils._python_dispatch import TorchDispatchMode

from ..common.fx_nodes import value_of
from ..expressions.expression import Expression, flat
from ..expressions.rules import EXTENDING, extended, named, uncast

_OPERATORS = tuple(getattr(operator, name) for name in ("mul", "add", "sub", "truediv", "neg", "pow", "getitem", "abs"))
_EXTENDING = {*named(*EXTENDING, "view_as", "reshape_as", "expand_as", "type_as", "to"), *_OPERATORS}
_METHODS = {*EXTENDING, "view_as", "reshape_as", "expand_as", "type_as", "to"}


class _NotExtended(Exception):
    """Raised through a function of PyTorch by which no expression can be extended."""


class _Extending(TorchDispatchMode):
    """Notes the expressions of the results of operators; tensors stand for expressions by their identity."""

    def __init__(self, expressions: dict[int, Expression]) -> None:
        super().__init__()
        self.expressions, self.results = expressions, []  # type: ignore[var-annotated]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        mapped = tuple(self._of(x) for x in args)
        is_metadata = func.namespace == "prim"  # which indexing asks for
        if is_metadata or not any(isinstance(x, Expression) for x in flat(mapped)):
            return func(*args, **kwargs)
        lazy = mapped[0] if _is_whole(func, args) else extended(func, mapped, kwargs)
        if lazy is None:
            raise _NotExtended
        out = func(*args, **kwargs)
        if not isinstance(out, Tensor) or out.dtype is not lazy.dtype or out.shape != lazy.shape:
            raise _NotExtended
        self.expressions[id(out)] = lazy
        self.results.append(out)  # whose id is the key
        return out

    def _of(self, x: Any) -> Any:
        if isinstance(x, (list, tuple)):
            return type(x)(self._of(y) for y in x)
        return self.expressions.get(id(x), x) if isinstance(x, Tensor) else x


def _is_whole(func: Any, args: Any) -> bool:
    """Whether an operator is a slice of all, which eager code does not make where the sizes are numbers."""
    if func is not torch.ops.aten.slice.Tensor or len(args) < 4:
        return False
    _, dim, start, stop = args[:4]
    return dim == 0 and start in (None, 0) and (stop is None or stop == sys.maxsize) and args[4:] in ((), (1,))


def is_extending(node: fx.Node) -> bool:
    if node.op == "call_method":
        return node.target in _METHODS
    return node.op == "call_function" and _is_hashable(node.target) and node.target in _EXTENDING


def _is_hashable(target: Any) -> bool:
    return getattr(target, "__hash__", None) is not None


def extend(node: fx.Node, expressions: dict[fx.Node, Expression]) -> Expression | list[Expression | None] | None:
    """What a node makes of expressions: one, or several of which later nodes take items; None if they have to be materialized."""
    if node.target is F.dropout:
        return _dropout(node, expressions)
    if not is_extending(node):
        return None
    by_id = {id(value_of(n)): lazy for n, lazy in expressions.items() if isinstance(value_of(n), Tensor)}
    mode = _Extending(by_id)
    args, kwargs = fx.map_arg((node.args, dict(node.kwargs)), value_of)
    function = node.target if callable(node.target) else getattr(Tensor, str(node.target))
    try:
        with torch._C.DisableTorchFunction(), torch._C._AutoDispatchBelowADInplaceOrView(), uncast(args, kwargs), mode:
            out = function(*args, **kwargs)
    except _NotExtended:
        return None
    if isinstance(out, (list, tuple)):
        return [by_id.get(id(x)) for x in out]
    return by_id.get(id(out))


def _dropout(node: fx.Node, expressions: dict[fx.Node, Expression]) -> Expression | None:
    """``torch.nn.functional.dropout``, which returns its argument in evaluation."""

    def dropout(input: Any, p: Any = 0.5, training: Any = True, inplace: Any = False) -> Expression | None:
        is_identity = isinstance(p, (int, float)) and (training is False or p == 0)
        return expressions.get(input) if is_identity and isinstance(input, fx.Node) else None

    return dropout(*node.args, **node.kwargs)
