"""The values of messages, computed from the features of nodes and the data of edges, with their history.

A value is a tree: rows of one side's nodes, rows of edges, tensors for all edges, and what combines them. Reductions, sums over the
last dimension and linear layers take the tree apart, so that little of it is formed. Its dimension of edges is the first one here.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from .... import ops
from ....common.autograd import snapshot
from ....common.precision import HALF, without_autocast
from ....drop_in.switch import is_backward
from ....graph import Graph
from ...graphs import graph_with, reached
from ..accounts import routed
from ..call import Propagation
from ..expression import AbstractMessage, Applied, Lifted, Softmax, is_negated
from ..rows import rows_at
from ..rules import BINARY, CAT, POLES, SHAPES, SUM, UNBOUNDED, is_of_edges

EDGES, ALL = "edges", "all"
_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "mul": torch.mul,
    "add": torch.add,
    "sub": torch.sub,
    "div": operator.truediv,
}
_TARGETS: dict[int | str, str] = {0: "u", 1: "v", EDGES: "e"}


@dataclass(frozen=True, slots=True)
class Rows:
    """x (rows, *), of the nodes of row `of` of edge_index, or of EDGES; or a tensor or number for ALL edges."""

    of: int | str
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
    """relu of the sum of a node's rows and an edge's."""

    sum: Combined


@dataclass(frozen=True, slots=True)
class Joined:
    """Values side by side in the last dimension."""

    parts: tuple[Value, ...]


Value = Rows | Combined | Rectified | Joined


class Evaluation:
    """Computes values of messages of one propagation, outside of autocast.

    with_history: whether gradients reach what the messages are made of.
    """

    def __init__(self, propagation: Propagation, with_history: bool) -> None:
        self.propagation, self.with_history = propagation, with_history
        self.num_nodes: dict[int, int] = {}  # of the rows of edge_index, as far as they are known

    # ---- trees ---------------------------------------------------------------------------------------------------------------

    def of(self, message: AbstractMessage) -> Value:
        if self.with_history and not message.requires_grad:
            return self._without_history().of(message)
        message.is_passed |= self.with_history
        recipe = message.recipe
        if message.row is not None:
            self.num_nodes[message.row] = message.num_rows
            return Rows(message.row, self._rows(message))
        shared = message.cell.shared
        if shared is not None and (shared.requires_grad or not self.with_history):
            return Rows(EDGES, shared if self.with_history else shared.detach())
        if isinstance(recipe, Softmax):
            logits = self.form(self.of(recipe.logits)).to(message.dtype).expand(message.shape)
            routed["edge_softmax"] += not is_backward()
            return Rows(EDGES, ops.edge_softmax(self.propagation.ending_in(recipe.row, recipe.num_nodes), logits))
        assert isinstance(recipe, Applied)
        recipe.check_versions()
        op = BINARY.get(recipe.func)
        if op is not None:
            value = combined(op, *(self._operand(x, message) for x in recipe.args))
            if op == "add" and isinstance(value, Combined) and any(map(is_negated, recipe.args)):
                return replace(value, is_difference=True)
            return value
        if recipe.func is CAT:
            return Joined(tuple(self._operand(x, message) for x in recipe.args[0]))
        inner = self.of(recipe.args[0])
        if recipe.name == "u_relu_add_e" and isinstance(inner, Combined):
            return Rectified(inner)
        if recipe.func is SUM:
            summed = self._dot(inner, message) if is_over_last(recipe) else None
            if summed is not None:
                return summed
        elif isinstance(inner, Joined) and all(isinstance(x, Rows) for x in inner.parts):
            parts = self._of_parts(recipe, inner, message)
            if parts is not None:
                return parts
        return Rows(EDGES, _applied(recipe, message, self.form(inner)))

    def _without_history(self) -> Evaluation:
        plain = Evaluation(self.propagation, False)
        plain.num_nodes = self.num_nodes
        return plain

    def _rows(self, message: AbstractMessage) -> Tensor:
        """What belongs to the nodes of message.row, computed for each node once."""
        recipe, has_history = message.recipe, self.with_history and message.requires_grad
        message.is_passed |= has_history
        if isinstance(recipe, Lifted):
            x = recipe.current(has_history)
            return x if recipe.dim == 0 else x.movedim(recipe.dim, 0)
        assert isinstance(recipe, Applied)  # a softmax belongs to edges
        recipe.check_versions()
        args = []
        for place, x in enumerate(recipe.args):
            if isinstance(x, AbstractMessage):
                rows = (self if has_history else self._without_history())._rows(x)
                rows = self._argument(recipe, place, rows, x.row) if has_history else rows
                # The operator may keep it for its backward.
                x = snapshot(rows) if isinstance(x.recipe, Lifted) and not recipe.is_view else rows
            elif isinstance(x, Tensor):
                x = _with_edges_first(x if has_history else x.detach(), message)
            args.append(x)
        if recipe.func in SHAPES:
            return args[0].reshape(args[0].shape[0], *message.shape[1:])
        if recipe.func is torch.ops.aten.expand.default:
            return args[0].expand(args[0].shape[0], *message.shape[1:])
        return recipe.func(*args, **recipe.kwargs)

    def _argument(self, recipe: Applied, place: int, x: Tensor, row: int | None) -> Tensor:
        """x, of an operator that may make NaN of a gradient of 0: at a pole, or in the gradient of the other factor."""
        if recipe.func in POLES or (recipe.func is torch.ops.aten.div.Tensor and place == 1):
            return self.read(x, row)
        return self.read(x, row, True) if recipe.func in UNBOUNDED else x

    def read(self, x: Tensor, row: int | None, if_infinite: bool = False) -> Tensor:
        """Rows x of the nodes of a row. A node without edges gets the values of another: what is made of its own is nobody's.

        if_infinite: finite values may stay.
        """
        assert row is not None
        edge_index = self.propagation.edge_index
        mask = reached(edge_index, row, x.shape[0])
        if mask is None or (if_infinite and not x.is_cuda and bool(x.detach()[~mask].isfinite().all())):
            return x
        return torch.where(mask.view(-1, *[1] * (x.dim() - 1)), x, x.detach().index_select(0, edge_index[row, :1]))

    def _operand(self, x: Any, message: AbstractMessage) -> Value:
        if isinstance(x, AbstractMessage):
            return self.of(x)
        if not isinstance(x, Tensor):
            return Rows(ALL, x)
        of = EDGES if is_of_edges(x, message) else ALL
        return Rows(of, _with_edges_first(x if self.with_history else x.detach(), message))

    def _of_parts(self, recipe: Applied, joined: Joined, message: AbstractMessage) -> Value | None:
        """A row or column of what is joined along the last dimension, as that of each part."""
        func, rank = recipe.func, recipe.args[0].dim()
        if func not in (torch.ops.aten.select.int, torch.ops.aten.slice.Tensor, torch.ops.aten.squeeze.dim):
            return None
        if recipe.args[1] % rank == rank - 1:
            return None
        parts = [x for x in joined.parts if isinstance(x, Rows)]
        if func is torch.ops.aten.select.int:
            dim, place = recipe.args[1] % rank, recipe.args[2]
            return Joined(tuple(Rows(x.of, self._selected(recipe.args[0], x.x, dim, place)) for x in parts))
        return Joined(tuple(Rows(x.of, func(x.x, *recipe.args[1:], **recipe.kwargs)) for x in parts))

    def _selected(self, joined: AbstractMessage, x: Tensor, dim: int, place: int) -> Tensor:
        """x.select(dim, place). The layers of PNA select one tower after another: one gradient of all fills x's, where each
        select would fill it with zeros and add it to those of the others."""
        if not (
            self.with_history and x.requires_grad and torch.is_grad_enabled()
        ):  # parts that are kept have a history
            return x.select(dim, place)
        for known, known_dim, parts in joined.cell.unbound:
            if known is x and known_dim == dim:
                return parts[place]
        parts = x.unbind(dim)
        joined.cell.unbound.append((x, dim, parts))
        return parts[place]

    # ---- sums over the last dimension ------------------------------------------------------------------------------------------

    def _dot(self, value: Value, message: AbstractMessage) -> Value | None:
        recipe = message.recipe
        assert isinstance(recipe, Applied)
        source = recipe.args[0]
        summed = self._summed(value, source.shape[-1], message.dtype)
        if summed is None:
            return None
        x = self.form(summed)
        if message.dim() < source.dim():
            x = x.squeeze(-1)
        return Rows(EDGES, x if x.dtype is message.dtype else x.to(message.dtype))

    def _summed(self, value: Value, width: int, dtype: torch.dtype, is_part: bool = False) -> Value | None:
        """The sum over the last dimension, kept as 1; None if it has to be formed first. is_part: it is added to others."""
        if isinstance(value, Rows):
            if isinstance(value.x, Tensor) and value.x.dim() and value.x.shape[-1] == width and value.of != ALL:
                is_wide = is_part and value.x.dtype in HALF  # what is added up is rounded once
                return Rows(value.of, value.x.sum(-1, keepdim=True, dtype=torch.float32 if is_wide else None))
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

    # ---- formed ----------------------------------------------------------------------------------------------------------------

    def form(self, value: Value) -> Tensor:
        """The value of each edge (E, *), or what broadcasts to it."""
        if isinstance(value, Rows):
            if isinstance(value.of, str):
                return value.x
            if not self.with_history:
                x, row = value.x, value.of
                return rows_at(x, self.propagation.edge_index[row], lambda: self.propagation.ending_in(row, x.shape[0]))
            return ops.gsddmm(self._graph(), "copy_lhs", value.x, None, _TARGETS[value.of], "v")
        if isinstance(value, Rectified):
            return self.form(value.sum).relu_()  # a tensor of its own
        if isinstance(value, Joined):
            return torch.cat([self.form(x) for x in value.parts], -1)
        three = _three_terms(value)
        if three is not None:
            routed["u_add_v_add_e"] += not is_backward()
            return ops.u_add_v_add_e(self._graph(), *(snapshot(x) for x in three))
        first, second = value.first, value.second
        if isinstance(first, Rows) and isinstance(second, Rows) and _are_ends(first, second):
            return self._of_ends(value.op, first, second)
        x, y = self.form(first), self.form(second)
        if value.op in ("add", "sub") and isinstance(first, Combined) and _fits_in(x, y):
            return x.add_(y) if value.op == "add" else x.sub_(y)  # no backward reads what a combination made
        return _FUNCTIONS[value.op](x, y)

    def _of_ends(self, op: str, first: Rows, second: Rows, out_dtype: torch.dtype | None = None) -> Tensor:
        """op of the rows of nodes of both ends of each edge, or of one end and of the edge."""
        targets = _TARGETS[first.of], _TARGETS[second.of]
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
        return graph_with(self.propagation.edge_index, row, count)


def combined(op: str, first: Value, second: Value) -> Value:
    """op of two values; of the rows of the same nodes, or of these and what is for all edges, computed at once."""
    if isinstance(first, Rows) and isinstance(second, Rows):
        nodes = [x.of for x in (first, second) if isinstance(x.of, int)]
        if (len(nodes) == 2 and nodes[0] == nodes[1]) or (len(nodes) == 1 and ALL in (first.of, second.of)):
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
    return first.of != second.of and ALL not in (first.of, second.of) and first.x.dim() == second.x.dim()


def _three_terms(value: Combined) -> tuple[Tensor, Tensor, Tensor] | None:
    """The rows of u, v and e, of one shape and dtype, of which the value is the sum."""
    terms = _terms(value)
    if terms is None or len(terms) != 3:
        return None
    by_side = {x.of: x.x for x in terms}
    if by_side.keys() != {0, 1, EDGES}:
        return None
    rows = by_side[0], by_side[1], by_side[EDGES]
    if len({(x.dtype, x.shape[1:]) for x in rows}) > 1:
        return None
    return rows


def _terms(value: Value) -> list[Rows] | None:
    if isinstance(value, Rows):
        return [value]
    if not isinstance(value, Combined) or value.op != "add":
        return None
    first, second = _terms(value.first), _terms(value.second)
    return None if first is None or second is None else first + second


def is_over_last(recipe: Applied) -> bool:
    rank = recipe.args[0].dim()
    return recipe.args[1][0] % rank == rank - 1


def _with_edges_first(x: Tensor, message: AbstractMessage) -> Tensor:
    if message.edge_dim == 0 or x.dim() == 0:
        return x
    return x.view(*[1] * (message.dim() - x.dim()), *x.shape).movedim(message.edge_dim, 0)


def _applied(recipe: Applied, message: AbstractMessage, x: Tensor) -> Tensor:
    """The operator of the recipe on the formed values of its only message."""
    if recipe.func in SHAPES:
        return x.reshape(message.shape)
    return recipe.func(x, *recipe.args[1:], **recipe.kwargs)


def form(message: AbstractMessage) -> Tensor:
    """The values, without their history. The caller has turned gradients and autocast off."""
    recipe = message.recipe
    if isinstance(recipe, Lifted):
        x = recipe.current(False)
        if recipe.dim != 0:
            return x.index_select(recipe.dim, recipe.ids)
        return rows_at(x, recipe.ids, lambda: recipe.propagation.ending_in(recipe.row, x.shape[0]))
    return _formed(message, False)


def with_history(message: AbstractMessage) -> Tensor:
    """The values, with gradients of their own to what the message is made of.

    They are shared with what reads the message later, and so are those of the message that it scales: an aggregation by a softmax
    weighs messages with a function of their own.
    """
    recipe = message.recipe
    scaled = list(recipe.messages()) if isinstance(recipe, Applied) and recipe.func in BINARY else []
    with without_autocast(message.device):
        for x in [*scaled, message] if len(scaled) == 1 else [message]:
            if x.row is None and x.edge_dim == 0 and x.cell.shared is None:
                x.cell.shared = _formed(x, message.requires_grad)
        return _formed(message, message.requires_grad)


def _formed(message: AbstractMessage, with_history: bool) -> Tensor:
    evaluation = Evaluation(message.propagation, with_history)
    x = evaluation.form(evaluation.of(message))
    return (x if message.edge_dim == 0 else x.movedim(0, message.edge_dim)).expand(message.shape)
