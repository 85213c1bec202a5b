"""The values of expressions, computed from the features of nodes and the data of edges, with their history.

A value is a tree: rows of one side's nodes, rows of edges, tensors for all edges, and what combines them. Reductions, sums over the
last dimension and linear layers take the tree apart, so that little of it is materialized. Its dimension of edges is the first one
here.
"""

from __future__ import annotations

import copy
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from .. import ops
from ..common.autograd import snapshot
from ..common.precision import HALF, without_autocast
from ..drop_in.checkpoint import is_backward
from ..graph import Graph
from .accounts import routed
from .expression import (
    BINARY,
    CAT,
    POLES,
    SHAPES,
    STACK,
    SUM,
    UNBOUNDED,
    WHERE,
    Expression,
    Gather,
    Op,
    Softmax,
    is_negated,
    is_of_edges,
    modified_error,
    of_own_strides,
)
from .rows import gathered_rows

EDGES, ALL = "edges", "all"
RECTIFIED = "u_relu_add_e", "u_relu_add_v"  # names of relu of a sum
_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "mul": torch.mul,
    "add": torch.add,
    "sub": torch.sub,
    "div": operator.truediv,
}
_TARGETS: dict[int | str, str] = {0: "u", 1: "v", EDGES: "e"}


@dataclass(frozen=True, slots=True)
class Rows:
    """x (rows, *), of the nodes of row `side` of edge_index, or of EDGES; or a tensor or number for ALL edges."""

    side: int | str
    x: Any


@dataclass(frozen=True, slots=True)
class Combined:
    """op (mul, add, sub, div) of two values. is_difference: of a sum, whether it is written as one of x and -y."""

    op: str
    first: Value
    second: Value
    is_difference: bool = False


@dataclass(frozen=True, slots=True)
class Rectified:
    """relu of the sum of a node's rows and of others."""

    sum: Combined


@dataclass(frozen=True, slots=True)
class Joined:
    """Values side by side in the last dimension."""

    parts: tuple[Value, ...]


Value = Rows | Combined | Rectified | Joined


class Evaluation:
    """Computes values of expressions of one propagation, outside of autocast.

    is_live: whether gradients reach what the expressions are made of. Those of an expression that requires none never do. splits:
    whether a linear layer is the sum of its parts; otherwise it is materialized.
    """

    def __init__(self, expression: Expression, splits: bool = False) -> None:
        self.propagation, self.is_live, self.splits = expression.propagation, expression.requires_grad, splits
        self.num_nodes: dict[int, int] = {}  # of the rows of edge_index, as far as they are known

    # ---- trees ---------------------------------------------------------------------------------------------------------------

    def of(self, x: Expression) -> Value:
        if self.is_live and not x.requires_grad:
            return self._detached().of(x)
        values = x.materialized_values()
        if x.cache.is_split and not self.splits:
            values = materialize(x)
        elif not (x.cache.is_observed or (x.cache.is_shared and x.row is None)):
            values = None
        if values is not None:
            return Rows(EDGES, self._alive(values if x.edge_dim == 0 else values.movedim(x.edge_dim, 0)))
        x.grad_bypassed |= self.is_live
        if x.row is not None and not x.is_watched():
            self.num_nodes[x.row] = x.num_rows
            return Rows(x.row, self._rows(x))
        if isinstance(x, Softmax):
            logits = self.tensor_of(self.of(x.logits)).to(x.dtype).expand(x.shape)
            routed["edge_softmax"] += not is_backward()
            return Rows(EDGES, ops.edge_softmax(self.propagation.ending_in(x.over, x.num_nodes), logits))
        if not isinstance(
            x, Op
        ):  # rows whose gradient somebody waits for, modified in place through a view that is no message
            raise modified_error()
        x.check_versions()
        op = BINARY.get(x.func)
        if op is not None:
            value = combined(op, *(self._operand(y, x) for y in x.args))
            if op == "add" and isinstance(value, Combined) and any(map(is_negated, x.args)):
                return replace(value, is_difference=True)
            return value
        if x.func is CAT:
            return Joined(tuple(self._operand(y, x) for y in x.args[0]))
        if x.func is STACK:
            return self._stacked(x)
        if x.func is WHERE:
            return Rows(EDGES, x.func(*(self._formed_operand(y, x) for y in x.args)))
        inner = self.of(x.args[0])
        if x.name in RECTIFIED and isinstance(inner, Combined):
            return Rectified(inner)
        if x.func is SUM:
            summed = self._dot(inner, x) if is_over_last(x) else None
            if summed is not None:
                return summed
        elif isinstance(inner, Joined) and all(isinstance(part, Rows) for part in inner.parts):
            parts = self._of_parts(x, inner)
            if parts is not None:
                return parts
        return Rows(EDGES, _applied(x, self.tensor_of(inner)))

    def _detached(self) -> Evaluation:
        twin = copy.copy(self)  # which knows the same numbers of nodes
        twin.is_live = False
        return twin

    def _alive(self, x: Tensor) -> Tensor:
        return x if self.is_live or not x.requires_grad else x.detach()

    def _rows(self, x: Expression) -> Tensor:
        """What belongs to the nodes of x.row, computed for each node once."""
        if self.is_live and not x.requires_grad:
            return self._detached()._rows(x)
        x.grad_bypassed |= self.is_live
        if isinstance(x, Gather):
            rows = self._alive(x.current())
            return rows if x.edge_dim == 0 else rows.movedim(x.edge_dim, 0)
        assert isinstance(x, Op)  # a softmax belongs to edges
        x.check_versions()
        args = []
        for place, y in enumerate(x.args):
            if isinstance(y, Expression):
                rows = self._rows(y)
                rows = self._argument(x, place, rows, y.row) if self.is_live else rows
                # The operator may save it for its backward.
                y = snapshot(rows) if isinstance(y, Gather) and not x.is_view else rows
            elif isinstance(y, Tensor):
                y = _with_edges_first(self._alive(y), x)
            args.append(y)
        if x.func in SHAPES:
            return args[0].reshape(args[0].shape[0], *x.shape[1:])
        if x.func is torch.ops.aten.expand.default:
            return args[0].expand(args[0].shape[0], *x.shape[1:])
        return x.func(*args, **x.kwargs)

    def _argument(self, op: Op, place: int, x: Tensor, row: int | None) -> Tensor:
        """x, of an operator that may make NaN of a gradient of 0: at a pole, or in the gradient of the other factor."""
        if op.func in POLES or (op.func is torch.ops.aten.div.Tensor and place == 1):
            return self.read(x, row)
        return self.read(x, row, True) if op.func in UNBOUNDED else x

    def read(self, x: Tensor, row: int | None, if_infinite: bool = False) -> Tensor:
        """Rows x of the nodes of a row. A node without edges gets the values of another: what is made of its own is nobody's.

        if_infinite: finite values may stay.
        """
        assert row is not None
        mask = self.propagation.reached(row, x.shape[0])
        if mask is None or (if_infinite and self.propagation.may_read(x) and bool(x.detach()[~mask].isfinite().all())):
            return x
        return torch.where(
            mask.view(-1, *[1] * (x.dim() - 1)), x, x.detach().index_select(0, self.propagation.ids(row)[:1])
        )

    def _operand(self, y: Any, x: Op) -> Value:
        if isinstance(y, Expression):
            return self.of(y)
        if not isinstance(y, Tensor):
            return Rows(ALL, y)
        return Rows(EDGES if is_of_edges(y, x) else ALL, _with_edges_first(self._alive(y), x))

    def _formed_operand(self, y: Any, x: Op) -> Any:
        """An operand with the dimension of edges first, and all of its dimensions."""
        value = self.tensor_of(self.of(y)) if isinstance(y, Expression) else _with_edges_first(self._alive(y), x)
        return value if value.dim() == x.dim() else value.reshape(*[1] * (x.dim() - value.dim()), *value.shape)

    def _of_parts(self, x: Op, joined: Joined) -> Value | None:
        """A row or column of what is joined along the last dimension, as that of each part."""
        func, rank = x.func, x.args[0].dim()
        if func not in (torch.ops.aten.select.int, torch.ops.aten.slice.Tensor, torch.ops.aten.squeeze.dim):
            return None
        if x.args[1] % rank == rank - 1:
            return None
        parts = [part for part in joined.parts if isinstance(part, Rows)]
        if func is torch.ops.aten.select.int:
            dim, place = x.args[1] % rank, x.args[2]
            return Joined(tuple(Rows(part.side, self._selected(x.args[0], part.x, dim, place)) for part in parts))
        return Joined(tuple(Rows(part.side, func(part.x, *x.args[1:], **x.kwargs)) for part in parts))

    def _stacked(self, x: Op) -> Value:
        """Sums of rows of the same sides are stacked side by side."""
        values = [self.of(y) for y in x.args[0]]
        dim = (x.args[1] if len(x.args) > 1 else x.kwargs["dim"]) % x.dim()
        terms = [None if has_difference(value) else terms_of(value) for value in values]
        kinds = [None if part is None else _kinds(part, x.args[0][0].shape[1:]) for part in terms]
        if kinds[0] is None or any(kind != kinds[0] for kind in kinds):
            return Rows(EDGES, torch.stack([self.tensor_of(value) for value in values], dim))
        stacked = [Rows(rows[0].side, torch.stack([y.x for y in rows], dim)) for rows in zip(*terms)]  # type: ignore[arg-type]
        return sum_of(stacked)

    def _selected(self, joined: Expression, x: Tensor, dim: int, place: int) -> Tensor:
        """x.select(dim, place). The layers of PNA select one tower after another: one gradient of all fills x's, where each
        select would fill it with zeros and add it to those of the others."""
        if not (self.is_live and x.requires_grad and torch.is_grad_enabled()):  # parts that are kept have a history
            return x.select(dim, place)
        for known, known_dim, parts in joined.unbound:
            if known is x and known_dim == dim:
                return parts[place]
        parts = x.unbind(dim)
        joined.unbound.append((x, dim, parts))
        return parts[place]

    # ---- sums over the last dimension ------------------------------------------------------------------------------------------

    def _dot(self, value: Value, x: Op) -> Value | None:
        source = x.args[0]
        summed = self._summed(value, source.shape[-1], x.dtype)
        if summed is None:
            return None
        out = self.tensor_of(summed)
        if x.dim() < source.dim():
            out = out.squeeze(-1)
        return Rows(EDGES, out if out.dtype is x.dtype else out.to(x.dtype))

    def _summed(self, value: Value, width: int, dtype: torch.dtype, is_part: bool = False) -> Value | None:
        """The sum over the last dimension, kept as 1; None if it has to be materialized first. is_part: it is added to others."""
        if isinstance(value, Rows):
            if isinstance(value.x, Tensor) and value.x.dim() and value.x.shape[-1] == width and value.side != ALL:
                is_wide = is_part and value.x.dtype in HALF  # what is added up is rounded once
                return Rows(value.side, value.x.sum(-1, keepdim=True, dtype=torch.float32 if is_wide else None))
            return None
        if not isinstance(value, Combined):
            return None
        first, second = value.first, value.second
        if value.op == "sub" or value.is_difference:
            return None  # two sums may be nearly equal, or equal along a self-loop, and each is rounded in its own way
        if value.op == "add":
            parts = self._summed(first, width, dtype, True), self._summed(second, width, dtype, True)
            return None if None in parts else combined(value.op, *parts)  # type: ignore[arg-type]
        if is_narrow(second, width):
            inner = self._summed(first, width, dtype, True)
            return None if inner is None else Combined(value.op, inner, second)
        if value.op != "mul":
            return None
        if is_narrow(first, width):
            inner = self._summed(second, width, dtype, True)
            return None if inner is None else Combined("mul", inner, first)
        for x, y in ((first, second), (second, first)):
            if isinstance(x, Combined) and x.op in ("add", "sub") and isinstance(y, Rows):
                terms = (combined("mul", x.first, y), combined("mul", x.second, y))
                return self._summed(Combined(x.op, *terms), width, dtype)
        if not (isinstance(first, Rows) and isinstance(second, Rows) and _are_ends(first, second)):
            return None
        if not first.x.shape[-1] == second.x.shape[-1] == width:
            return None
        is_wide = (is_part or dtype is torch.float32) and first.x.dtype in HALF and second.x.dtype in HALF
        return Rows(EDGES, self._of_ends("dot", first, second, torch.float32 if is_wide else None))

    # ---- materialization -------------------------------------------------------------------------------------------------------

    def tensor_of(self, value: Value) -> Tensor:
        """The value of each edge (E, *), or what broadcasts to it."""
        if isinstance(value, Rows):
            if isinstance(value.side, str):
                return value.x
            rows, side = value.x, value.side
            index = self.propagation.ids(side)
            return gathered_rows(rows, index, lambda: self.propagation.ending_in(side, rows.shape[0]))
        if isinstance(value, Rectified):
            return self.tensor_of(value.sum).relu_()  # a tensor of its own
        if isinstance(value, Joined):
            return torch.cat([self.tensor_of(x) for x in value.parts], -1)
        three = _three_terms(value)
        if three is not None:
            routed["u_add_v_add_e"] += not is_backward()
            return ops.u_add_v_add_e(self._graph(), *(snapshot(x) for x in three))
        first, second = value.first, value.second
        if isinstance(first, Rows) and isinstance(second, Rows) and _are_ends(first, second):
            return self._of_ends(value.op, first, second)
        x, y = self.tensor_of(first), self.tensor_of(second)
        if value.op in ("add", "sub") and isinstance(first, Combined) and _fits_in(x, y):
            return x.add_(y) if value.op == "add" else x.sub_(y)  # no backward reads what a combination made
        return _FUNCTIONS[value.op](x, y)

    def _of_ends(self, op: str, first: Rows, second: Rows, out_dtype: torch.dtype | None = None) -> Tensor:
        """op of the rows of nodes of both ends of each edge, or of one end and of the edge."""
        targets = _TARGETS[first.side], _TARGETS[second.side]
        if not is_backward():
            routed[f"gsddmm:{targets[0]}_{op}_{targets[1]}"] += 1
        x, y = first.x, second.x
        if op in ("mul", "div", "dot"):
            x, y = snapshot(x), snapshot(y)
        return ops.gsddmm(self._graph(), op, x, y, *targets, out_dtype=out_dtype)

    def _graph(self) -> Graph:
        """From the nodes of row 0 to those of row 1."""
        known = self.num_nodes
        if len(known) == 2:
            return self.propagation.into(1, known[1], known[0])
        row, count = next(iter(known.items()))
        other = self.propagation.size[1 - row] if self.propagation.size else None
        if other is not None:
            return self.propagation.into(1, *((count, other) if row == 1 else (other, count)))
        return self.propagation.graph_with(row, count)


def combined(op: str, first: Value, second: Value) -> Value:
    """op of two values; of the rows of the same nodes, or of these and what is for all edges, computed at once."""
    if isinstance(first, Rows) and isinstance(second, Rows):
        nodes = [x.side for x in (first, second) if isinstance(x.side, int)]
        if (len(nodes) == 2 and nodes[0] == nodes[1]) or (len(nodes) == 1 and ALL in (first.side, second.side)):
            return Rows(nodes[0], _FUNCTIONS[op](first.x, second.x))
    return Combined(op, first, second)


def is_narrow(value: Value, width: int) -> bool:
    """Whether it has one number for the whole last dimension."""
    if not isinstance(value, Rows):
        return False
    return not isinstance(value.x, Tensor) or value.x.dim() == 0 or (value.x.shape[-1] == 1 and width > 1)


def _fits_in(x: Tensor, y: Any) -> bool:
    """Whether the sum of x and y has x's shape and dtype."""
    if not isinstance(y, Tensor):
        return isinstance(y, (int, float)) and x.is_floating_point()
    return x.shape == y.shape and x.dtype is y.dtype


def _are_ends(first: Rows, second: Rows) -> bool:
    """Whether one operator combines them: rows of nodes and rows of edges, or of nodes of both sides."""
    return first.side != second.side and ALL not in (first.side, second.side) and first.x.dim() == second.x.dim()


def _three_terms(value: Combined) -> tuple[Tensor, Tensor, Tensor] | None:
    """The rows of u, v and e, of one shape and dtype, of which the value is the sum."""
    terms = terms_of(value)
    if terms is None or len(terms) != 3:
        return None
    by_side = {x.side: x.x for x in terms}
    if by_side.keys() != {0, 1, EDGES}:
        return None
    rows = by_side[0], by_side[1], by_side[EDGES]
    if any(x.dtype is not rows[0].dtype or x.shape[1:] != rows[0].shape[1:] for x in rows):
        return None
    return rows


def terms_of(value: Value) -> list[Rows] | None:
    """The rows of which the value is the sum."""
    if isinstance(value, Rows):
        return [value]
    if not isinstance(value, Combined) or value.op != "add":
        return None
    first, second = terms_of(value.first), terms_of(value.second)
    return None if first is None or second is None else first + second


def sum_of(terms: Sequence[Value]) -> Value:
    total, *others = terms
    for x in others:
        total = Combined("add", total, x)
    return total


def _kinds(terms: Sequence[Rows], shape: tuple[int, ...]) -> list[Any] | None:
    """The sides and dtypes of rows that all have the shape; None if one has another."""
    is_whole = all(isinstance(x.x, Tensor) and x.side != ALL and x.x.shape[1:] == shape for x in terms)
    return [(x.side, x.x.dtype) for x in terms] if is_whole else None


def has_difference(value: Value) -> bool:
    """Whether it has a sum of x and -y, whose terms are larger than the sum."""
    return isinstance(value, Combined) and (
        value.is_difference or has_difference(value.first) or has_difference(value.second)
    )


def is_over_last(x: Op) -> bool:
    rank = x.args[0].dim()
    return x.args[1][0] % rank == rank - 1


def is_dot(x: Expression) -> bool:
    """Whether it is the dot product of rows of both ends of each edge."""
    if not isinstance(x, Op) or x.func is not SUM or not is_over_last(x):
        return False
    product = x.args[0]
    if not isinstance(product, Op) or BINARY.get(product.func) != "mul":
        return False
    rows = {y.row for y in product.args if isinstance(y, Expression) and y.shape == product.shape}
    return rows == {0, 1}


def _with_edges_first(x: Tensor, like: Expression) -> Tensor:
    if like.edge_dim == 0 or x.dim() == 0:
        return x
    return x.view(*[1] * (like.dim() - x.dim()), *x.shape).movedim(like.edge_dim, 0)


def _applied(x: Op, values: Tensor) -> Tensor:
    """The operator on the values of its only expression."""
    if x.func in SHAPES:
        return values.reshape(x.shape)
    return x.func(values, *x.args[1:], **x.kwargs)


def materialize(x: Expression) -> Tensor:
    """The values with their history, which are cached with the expression."""
    known = x.materialized_values()
    if known is not None:
        return known
    with torch.set_grad_enabled(x.requires_grad), without_autocast(x.device):
        x.put(of_own_strides(x, _materialized(x)))
    assert x.cache.values is not None
    return x.cache.values


def _materialized(x: Expression) -> Tensor:
    if isinstance(x, Gather) and x.edge_dim:
        rows = x.current() if x.requires_grad else x.current().detach()
        return gathered_rows(rows, x.ids, partial(x.propagation.ending_in, x.side, x.num_rows), x.edge_dim)
    if isinstance(x, Op) and x.row is not None and x.requires_grad and x.func not in BINARY:
        # Not for the nodes: a program may differentiate it with regard to what it is made of, which it has at hand.
        x.check_versions()
        return _applied(x, materialize(x.args[0]))
    grad_bypassed, evaluation = x.grad_bypassed, Evaluation(x, splits=x.cache.is_split)
    values = evaluation.tensor_of(evaluation.of(x))
    x.grad_bypassed = grad_bypassed  # gradients pass through the values
    values = values if x.edge_dim == 0 else values.movedim(0, x.edge_dim)
    return values if values.shape == x.shape else values.expand(x.shape)


def own_values(values: Tensor) -> Tensor:
    """values as a tensor of the caller's, who may modify it in place: an operator saves those with a history for its backward."""
    if not values.requires_grad:
        return values
    with torch.enable_grad():
        own = snapshot(values)
        return own.clone() if own is values else own


def shared_values(x: Expression) -> Tensor:
    """The values, materialized after those of the expression that x scales, if it scales one: an aggregation by a softmax weighs
    messages with a function of their own, and reads both."""
    scaled = list(x.operands()) if isinstance(x, Op) and x.func in BINARY else []
    for y in [*scaled, x] if len(scaled) == 1 else [x]:
        if y.row is None:
            materialize(y)
            y.cache.is_shared = True
    return materialize(x)
