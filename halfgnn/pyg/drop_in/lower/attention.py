"""Attention that is written by hand in messages, as one fused operator, unless ``patch(fuse=False)``.

The softmax of logits over the edges of a node is put off, as a message, until messages that it weights are summed. Then

* logits ``(q_i * (k_j + e)).sum(-1)``, scaled, with a bias per edge and head, and values ``v_j + f`` make one dot_attention;
* logits ``(leaky_relu(x_i + y_j + e) * a).sum(-1)``, of which values are ``y_j``, one gatv2_attention;
* logits ``leaky_relu(a_i + b_j + e)``, one per head, and values ``v_j``, one gat_attention.

Anything else is computed step by step. Modules whose softmax was read before, by dropout or to be returned, are left alone.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .... import ops
from ....common.autograd import is_recorded, snapshot
from ....common.precision import HALF, autocasts, without_autocast
from ....drop_in.switch import is_checkpointed
from ....graph import Graph
from ..accounts import routed
from ..call import Propagation, current_module
from ..expression import AbstractMessage, Applied, Lifted, Softmax, check_version, version_of
from ..message import OWN_NODES, Message
from ..rules import BINARY, ORDERLY, SUM, strides_like
from .values import Evaluation, Rows, is_over_last

_LEAKY_RELU = torch.ops.aten.leaky_relu.default


@dataclass
class _Logits:
    """Of dot attention: (query_i * (key_j + edge)).sum(-1) * scale + bias; query, key: messages (E, H, D).

    With a slope they are leaky_relu(query_i + key_j + edge) of numbers per head; with an attention (H, D) too, the sums over D of
    its products with that.
    """

    query: AbstractMessage
    key: AbstractMessage
    edge: Tensor | None
    scale: float = 1.0
    bias: Tensor | None = None
    slope: float | None = None
    attention: Tensor | None = None


# Modules whose softmax was read, in evaluation and in training: what is put off is then made step by step, at a cost.
_READ: tuple[weakref.WeakSet[Any], weakref.WeakSet[Any]] = weakref.WeakSet(), weakref.WeakSet()


def softmax_of(logits: Message, propagation: Propagation, row: int, num_nodes: int, any_dot: bool) -> Tensor | None:
    """The softmax over the edges of each node of a row, put off; None if nothing can be made of it.

    any_dot: also that of a dot without terms of edges, which takes as long as its steps, but keeps less.
    """
    if logits.propagation.edge_index is not propagation.edge_index or logits.edge_dim != 0:
        return None
    module = current_module()
    readers = _READ[bool(getattr(module, "training", False))]
    if module in readers:
        return None
    parsed = _logits(logits, row)
    if parsed is None or not (any_dot or parsed.slope is not None or parsed.edge is not None):
        return None
    dtype = torch.float32 if is_exp_wide(logits) else logits.dtype
    recipe = Softmax(logits, row, num_nodes, dtype, autocasts(logits.device), lambda: _note_read(module, readers))
    if torch.is_grad_enabled() and logits.requires_grad:
        return _Softmax.apply(logits, recipe)
    return _of(recipe)


def is_exp_wide(x: Tensor) -> bool:
    """Whether autocast takes the exp of x in fp32, as it does on CUDA."""
    return x.is_cuda and x.dtype in HALF and autocasts(x.device)


def _note_read(module: Any, readers: weakref.WeakSet[Any]) -> None:
    if module is not None and not is_checkpointed():  # which would not put off again what it recomputes
        readers.add(module)


def _of(recipe: Softmax, cell: Any = None) -> Message:
    """cell: where its values are; None for a new one."""
    logits = recipe.logits
    strides = strides_like(logits)
    return Message.of(recipe, logits.shape, recipe.dtype, logits, None, logits.shape[0], strides, cell)


class _Softmax(torch.autograd.Function):
    """The softmax as a Message. This backward runs if something reads its values."""

    @staticmethod
    def forward(ctx: Any, logits: Message, recipe: Softmax) -> Tensor:
        message = _of(recipe)
        # Not the message: its node would keep itself alive, and all features with it.
        ctx.recipe, ctx.cell, ctx.version = recipe, message.cell, version_of(logits)
        return message

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        recipe = ctx.recipe
        propagation, row = recipe.logits.propagation, recipe.row
        g = propagation.ending_in(row, recipe.num_nodes)
        with without_autocast(grad.device):
            weights = _differentiable(ctx, g) if is_recorded() else _weights(recipe, ctx.cell)
            scaled = weights * grad
            sums = ops.gspmm(g, "copy_rhs", "sum", None, scaled)
            return scaled - weights * sums.index_select(0, propagation.edge_index[row]), None


def _weights(recipe: Softmax, cell: Any) -> Tensor:
    """The values of a softmax. Those of the cell may have been written to."""
    message = _of(recipe, None if cell.is_written else cell)
    return message.formed()


def _differentiable(ctx: Any, g: Graph) -> Tensor:
    logits = ctx.recipe.logits
    check_version(logits, ctx.version)
    return ops.edge_softmax(g, logits.ordinary().to(ctx.recipe.dtype))


OWN_NODES[Softmax] = _Softmax._backward_cls  # type: ignore[attr-defined]


def fused(message: AbstractMessage, evaluation: Evaluation, row: int, num_nodes: int) -> Tensor | None:
    """The sum (num_nodes, H, D) over the edges of each node of a row of values that a softmax weights; None for other sums."""
    recipe = message.recipe
    if not isinstance(recipe, Applied) or BINARY.get(recipe.func) != "mul" or message.dim() not in (2, 3):
        return None
    for values, weights in (recipe.args, recipe.args[::-1]):
        softmax = _softmax_behind(weights, message)
        if softmax is not None and softmax.row == row and isinstance(values, AbstractMessage):
            break
    else:
        return None
    if values.dtype is not message.dtype and not softmax.in_autocast:
        return None  # fused sums of halves are rounded
    logits = _logits(softmax.logits, row) if _have_history_like(message, message) else None
    if logits is None:
        return None
    with_gradient = message.requires_grad and torch.is_grad_enabled()
    with torch.set_grad_enabled(with_gradient):  # which terms of edges may need where the message does not
        if logits.slope is None:
            return _dot_attention(logits, values, message, evaluation, row, num_nodes)
        if values.row != 1 - row or values.shape != message.shape:
            return None
        attend = _gat_attention if logits.attention is None else _gatv2_attention
        return attend(logits, values, evaluation, row, num_nodes)


def _have_history_like(part: AbstractMessage, whole: AbstractMessage) -> bool:
    """Whether all messages down to rows of nodes need a gradient if the whole does. Else something was detached, or frozen.

    What an operator was applied to must not have been written to.
    """
    if part.requires_grad != whole.requires_grad:
        return False
    recipe = part.recipe
    if part.row is not None or isinstance(recipe, Lifted):
        return True
    if isinstance(recipe, Applied):
        recipe.check_versions()
    return all(_have_history_like(x, whole) for x in recipe.messages())


def _dot_attention(
    logits: _Logits, values: AbstractMessage, message: AbstractMessage, evaluation: Evaluation, row: int, num_nodes: int
) -> Tensor | None:
    value = _with_term(values, 1 - row)
    if value is None or not logits.query.shape == logits.key.shape == values.shape == message.shape:
        return None
    query, key, rows = (_rows(x, evaluation) for x in (logits.query, logits.key, value[0]))
    terms = [None if x is None else _with_heads(snapshot(x)) for x in (logits.edge, value[1])]
    if logits.edge is value[1]:
        terms[1] = terms[0]
    if any(x is not None and x.dtype is not key.dtype for x in (query, rows, *terms)):
        return None
    if query.shape[0] != num_nodes or rows.shape[0] != key.shape[0]:
        return None
    g = evaluation.propagation.into(row, num_nodes, key.shape[0])
    routed["dot_attention"] += 1
    out = ops.dot_attention(
        g, query, key, rows, logits.scale, edge_bias=_per_head(logits.bias), edge_key=terms[0], edge_value=terms[1]
    )
    return out.view(num_nodes, *values.shape[1:])


def _gatv2_attention(
    logits: _Logits, values: AbstractMessage, evaluation: Evaluation, row: int, num_nodes: int
) -> Tensor | None:
    attention = logits.attention
    assert attention is not None and logits.slope is not None
    if logits.query.shape != values.shape or not _are_same(logits.key, values):
        return None
    query, key = (_rows(x, evaluation) for x in (logits.query, logits.key))
    edge = None if logits.edge is None else _with_heads(snapshot(logits.edge))
    if query.shape[0] != num_nodes or any(x is not None and x.dtype is not key.dtype for x in (query, edge)):
        return None
    weight = snapshot(attention).reshape(key.shape[1:]).to(key.dtype)
    if logits.scale != 1:
        weight = weight * logits.scale
    g = evaluation.propagation.into(row, num_nodes, key.shape[0])
    routed["gatv2_attention"] += 1
    out = ops.gatv2_attention(g, key, query, weight, logits.slope, edge_bias=_per_head(logits.bias), edge_feat=edge)
    return out.view(num_nodes, *values.shape[1:])


def _gat_attention(
    logits: _Logits, values: AbstractMessage, evaluation: Evaluation, row: int, num_nodes: int
) -> Tensor | None:
    """Logits (E, H), or (E,) for values (E, D)."""
    assert logits.slope is not None
    query, key, rows = (_rows(x, evaluation) for x in (logits.query, logits.key, values))
    heads = rows.shape[1]
    if logits.query.shape != values.shape[:-1] or query.shape[0] != num_nodes or key.shape[0] != rows.shape[0]:
        return None
    wide = torch.float32 if rows.dtype in HALF else rows.dtype
    if any(x is not None and x.dtype not in (rows.dtype, wide) for x in (query, key, logits.edge)):
        return None
    g = evaluation.propagation.into(row, num_nodes, key.shape[0])
    routed["gat_attention"] += 1
    out = ops.gat_attention(
        g, rows, key.reshape(-1, heads), query.reshape(-1, heads), _per_head(logits.edge), logits.slope
    )
    return out.view(num_nodes, *values.shape[1:])


def _rows(message: AbstractMessage, evaluation: Evaluation) -> Tensor:
    """Of the nodes of one side: (nodes, H, D), or (nodes, H, 1) of numbers per head."""
    value = evaluation.of(message)
    assert isinstance(value, Rows)
    return _with_heads(snapshot(value.x))


def _per_head(x: Tensor | None) -> Tensor | None:
    return None if x is None else snapshot(x).reshape(x.shape[0], -1)


def _with_heads(x: Tensor) -> Tensor:
    return x if x.dim() == 3 else x.unsqueeze(1)


def _softmax_behind(x: Any, message: AbstractMessage) -> Softmax | None:
    """The softmax (E, H) of which x is a view that has one number for each head of the message."""
    if not isinstance(x, AbstractMessage) or tuple(x.shape) != (*message.shape[:-1], 1):
        return None
    while isinstance(x.recipe, Applied) and x.recipe.func in ORDERLY:
        (x,) = x.recipe.messages()
    if not isinstance(x.recipe, Softmax) or x.numel() != message.shape[:-1].numel():
        return None
    return x.recipe


def _logits(message: AbstractMessage, row: int) -> _Logits | None:
    """Logits (E, H) or (E, H, 1), or (E,) and (E, 1) of one head, of which the nodes of a row are the queries."""
    recipe = message.recipe
    if not isinstance(recipe, Applied) or not message.is_as_made():
        return None
    if recipe.func in ORDERLY:
        return _logits(recipe.args[0], row)
    op = BINARY.get(recipe.func)
    if op is not None:
        return _scaled(op, recipe, message, row)
    if recipe.func is _LEAKY_RELU:
        return _rectified(recipe, row)
    if recipe.func is not SUM or not is_over_last(recipe):
        return None
    recipe = recipe.args[0].recipe
    if not isinstance(recipe, Applied) or BINARY.get(recipe.func) != "mul":
        return None
    for first, second in (recipe.args, recipe.args[::-1]):
        if isinstance(first, AbstractMessage) and not isinstance(second, AbstractMessage):
            return _weighted(first, second, row)
        if isinstance(first, AbstractMessage) and first.row == row and isinstance(second, AbstractMessage):
            parts = _with_term(second, 1 - row)
            return None if parts is None else _Logits(first, *parts)
    return None


def _weighted(message: AbstractMessage, attention: Any, row: int) -> _Logits | None:
    """Logits of GATv2: what is summed over D is leaky_relu(...) * attention, with one attention for all edges."""
    recipe = message.recipe
    if not isinstance(recipe, Applied) or recipe.func is not _LEAKY_RELU or not isinstance(attention, Tensor):
        return None
    if attention.numel() != message.shape[1:].numel() or attention.shape[-1] != message.shape[-1]:
        return None
    if attention.dim() == message.dim() and attention.shape[0] != 1:
        return None  # of each edge
    logits = _rectified(recipe, row) if message.dim() in (2, 3) else None
    if logits is not None:
        logits.attention = attention
    return logits


def _rectified(recipe: Applied, row: int) -> _Logits | None:
    """leaky_relu of the sum of a message of each side, and of one tensor with a row per edge or none."""
    message = recipe.args[0]
    sides: dict[int | None, Any] = {None: None}
    for term in _terms(message):
        side = term.row if isinstance(term, AbstractMessage) else None
        is_whole = isinstance(term, Tensor) and term.shape == message.shape
        if not is_whole or sides.get(side) is not None or (side is None and isinstance(term, AbstractMessage)):
            return None
        sides[side] = term
    if sides.keys() != {None, row, 1 - row}:
        return None
    slope = recipe.args[1] if len(recipe.args) > 1 else 0.01
    return _Logits(sides[row], sides[1 - row], sides[None], slope=slope)


def _terms(x: Any) -> Iterator[Any]:
    """What is added up to a message: rows of nodes of one side, and operands that are no messages."""
    recipe = x.recipe if isinstance(x, AbstractMessage) and x.row is None else None
    if not isinstance(recipe, Applied) or BINARY.get(recipe.func) != "add":
        yield x
        return
    for term in recipe.args:
        yield from _terms(term)


def _are_same(a: Any, b: Any) -> bool:
    """Whether two messages are the same views of the same features."""
    if a is b:
        return True
    if not isinstance(a, AbstractMessage) or not isinstance(b, AbstractMessage):
        return type(a) is type(b) and not isinstance(a, Tensor) and a == b
    first, second = a.recipe, b.recipe
    if isinstance(first, Lifted) and isinstance(second, Lifted):
        return first.x is second.x and a.row == b.row and first.version == second.version
    if not isinstance(first, Applied) or not isinstance(second, Applied) or first.func is not second.func:
        return False
    return first.is_view and len(first.args) == len(second.args) and all(map(_are_same, first.args, second.args))


def _scaled(op: str, recipe: Applied, message: AbstractMessage, row: int) -> _Logits | None:
    """Logits times a number, or with a number for each edge and head added."""
    first, second = recipe.args
    if not isinstance(first, AbstractMessage) and op in ("mul", "add"):
        first, second = second, first
    logits = _logits(first, row) if isinstance(first, AbstractMessage) else None
    if logits is None or (logits.slope is not None and logits.attention is None):
        return None
    if isinstance(second, (int, float)) and op in ("mul", "div"):
        if op == "div" and second == 0:
            return None
        factor = second if op == "mul" else 1 / second
        logits.scale *= factor
        if not math.isfinite(logits.scale):
            return None
        logits.bias = None if logits.bias is None else logits.bias * factor
        return logits
    is_bias = isinstance(second, Tensor) and not isinstance(second, AbstractMessage) and second.shape == message.shape
    if op != "add" or not is_bias:
        return None
    logits.bias = second if logits.bias is None else logits.bias + second
    return logits


def _with_term(message: AbstractMessage, row: int) -> tuple[AbstractMessage, Tensor | None] | None:
    """Rows of nodes, and what is added to them for each edge."""
    if message.row is not None:
        return (message, None) if message.row == row and message.dim() in (2, 3) else None
    recipe = message.recipe
    if not isinstance(recipe, Applied) or BINARY.get(recipe.func) != "add":
        return None
    for x, term in (recipe.args, recipe.args[::-1]):
        if not isinstance(x, AbstractMessage) or isinstance(term, AbstractMessage) or not isinstance(term, Tensor):
            continue
        if x.row == row and x.shape == term.shape == message.shape:
            return x, term
    return None
