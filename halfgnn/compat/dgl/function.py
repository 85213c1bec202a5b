"""Built-in message and reduce functions, which say what to compute and name the features.

``copy_u`` and ``copy_e`` copy the feature of an edge's source or of the edge. ``{u,v,e}_{add,sub,mul,div,dot}_{u,v,e}`` combine
two features, of the source (u), destination (v) or edge (e): ``u_mul_e(lhs_field, rhs_field, out)``. ``sum``, ``mean``, ``max``
and ``min`` reduce messages: ``sum(msg, out)``.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import permutations

from ...common.arguments import MESSAGE_OPS, REDUCES

OPS = (*MESSAGE_OPS, "dot")


class TargetCode:
    """Numbers of what has an operand."""

    SRC, DST, EDGE = 0, 1, 2
    CODE2STR = {0: "u", 1: "v", 2: "e"}  # noqa: RUF012


_CODES = {"u": TargetCode.SRC, "v": TargetCode.DST, "e": TargetCode.EDGE}


class BuiltinFunction:
    """A function that is named rather than written."""

    name: str


class MessageFunction(BuiltinFunction):
    """Makes the message of each edge."""

    out_field: str


class BinaryMessageFunction(MessageFunction):
    """Of two features. lhs, rhs: what has them, as numbers of TargetCode."""

    def __init__(self, binary_op: str, lhs: str, rhs: str, lhs_field: str, rhs_field: str, out_field: str):
        self.name = f"{lhs}_{binary_op}_{rhs}"
        self.binary_op = binary_op
        self.lhs_target, self.rhs_target = lhs, rhs
        self.lhs, self.rhs = _CODES[lhs], _CODES[rhs]
        self.lhs_field, self.rhs_field, self.out_field = lhs_field, rhs_field, out_field

    def __repr__(self) -> str:
        return f"{self.name}({self.lhs_field!r}, {self.rhs_field!r}, {self.out_field!r})"


class CopyMessageFunction(MessageFunction):
    """Of one feature."""

    def __init__(self, target: str, in_field: str, out_field: str):
        self.name = f"copy_{target}"
        self.target_name, self.target = target, _CODES[target]
        self.in_field, self.out_field = in_field, out_field

    def __repr__(self) -> str:
        return f"{self.name}({self.in_field!r}, {self.out_field!r})"


class ReduceFunction(BuiltinFunction):
    """Reduces the messages of each destination node."""

    def __init__(self, name: str, msg_field: str, out_field: str):
        self.name, self.msg_field, self.out_field = name, msg_field, out_field

    def __repr__(self) -> str:
        return f"{self.name}({self.msg_field!r}, {self.out_field!r})"


SimpleReduceFunction = ReduceFunction


def copy_u(u: str, out: str) -> CopyMessageFunction:
    """The message `out` is the source's feature `u`."""
    return CopyMessageFunction("u", u, out)


def copy_e(e: str, out: str) -> CopyMessageFunction:
    """The message `out` is the edge's feature `e`."""
    return CopyMessageFunction("e", e, out)


def copy_src(src: str, out: str) -> CopyMessageFunction:
    """:func:`copy_u` by its older name."""
    return copy_u(src, out)


def copy_edge(edge: str, out: str) -> CopyMessageFunction:
    """:func:`copy_e` by its older name."""
    return copy_e(edge, out)


def _binary(op: str, lhs: str, rhs: str) -> Callable[[str, str, str], BinaryMessageFunction]:
    def function(lhs_field: str, rhs_field: str, out: str) -> BinaryMessageFunction:
        return BinaryMessageFunction(op, lhs, rhs, lhs_field, rhs_field, out)

    function.__doc__ = f"The message `out` is {op} of the feature `lhs_field` of {lhs} and `rhs_field` of {rhs}."
    return function


def _reduce(name: str) -> Callable[[str, str], ReduceFunction]:
    def function(msg: str, out: str) -> ReduceFunction:
        return ReduceFunction(name, msg, out)

    function.__doc__ = f"The node's feature `out` is the {name} of the messages `msg`; 0 without messages."
    return function


def _generated() -> dict[str, Callable]:
    messages = {f"{u}_{op}_{v}": _binary(op, u, v) for op in OPS for u, v in permutations("uve", 2)}
    return {**messages, **{name: _reduce(name) for name in REDUCES}}


for _name, _function in _generated().items():
    _function.__name__ = _function.__qualname__ = _name
    globals()[_name] = _function

__all__ = [
    "BinaryMessageFunction",
    "BuiltinFunction",
    "CopyMessageFunction",
    "MessageFunction",
    "ReduceFunction",
    "TargetCode",
    "copy_e",
    "copy_edge",
    "copy_src",
    "copy_u",
    *_generated(),
]
