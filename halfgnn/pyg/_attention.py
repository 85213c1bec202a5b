"""Attention that is written by hand in messages, as one fused operator: ``patch(fuse=True)``.

The softmax of logits over the edges of a node is put off, as a message, until messages that it weights are summed. Then logits
``(q_i * (k_j + e)).sum(-1)``, scaled, with a bias per edge and head, and values ``v_j + f`` make one dot_attention; anything else
is computed step by step.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .. import ops
from ..common.autograd import snapshot
from ..common.precision import without_autocast
from ._accounts import routed
from ._deferred import BINARY, SUM
from ._messages import OWN_NODES, Message
from ._propagation import Propagation
from ._recipes import AbstractMessage, Applied, Softmax
from ._values import Evaluation, Rows, form, is_over_last

_SELECT = torch.ops.aten.select.int


@dataclass
class _Logits:
    """(query_i * (key_j + edge_key)).sum(-1) * scale + bias. query, key: messages (E, H, D)."""

    query: AbstractMessage
    key: AbstractMessage
    edge_key: Tensor | None
    scale: float = 1.0
    bias: Tensor | None = None


def softmax_of(logits: Message, propagation: Propagation, row: int, num_nodes: int) -> Tensor | None:
    """The softmax over the edges of each node of a row, put off; None if nothing can be made of it."""
    if logits.propagation.edge_index is not propagation.edge_index or _logits(logits, row) is None:
        return None
    recipe = Softmax(logits, row, num_nodes)
    if torch.is_grad_enabled() and logits.requires_grad:
        return _Softmax.apply(logits, recipe)
    return _of(recipe)


def _of(recipe: Softmax) -> Message:
    logits = recipe.logits
    return Message.of(recipe, logits.shape, logits.dtype, logits, None, logits.shape[0])


class _Softmax(torch.autograd.Function):
    """The softmax as a Message. This backward runs if something reads its values."""

    @staticmethod
    def forward(ctx: Any, logits: Message, recipe: Softmax) -> Tensor:
        ctx.message = _of(recipe)
        ctx.graph = logits.propagation, recipe.row, recipe.num_nodes
        return ctx.message

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        propagation, row, num_nodes = ctx.graph
        message = ctx.message  # whose values may have been written to
        weights = form(message) if message.cell.is_written else message.formed()
        g = propagation.ending_in(row, num_nodes)
        with without_autocast(grad.device):
            scaled = weights * grad
            sums = ops.gspmm(g, "copy_rhs", "sum", None, scaled)
            return scaled - weights * sums.index_select(0, propagation.edge_index[row]), None


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
    logits, value = _logits(softmax.logits, row), _with_term(values, 1 - row)
    if logits is None or value is None or not logits.query.shape == logits.key.shape == values.shape == message.shape:
        return None
    if not all(x.requires_grad == message.requires_grad for x in (logits.query, logits.key, value[0])):
        return None
    return _dot_attention(logits, value, evaluation, row, num_nodes)


def _dot_attention(
    logits: _Logits, value: tuple[AbstractMessage, Tensor | None], evaluation: Evaluation, row: int, num_nodes: int
) -> Tensor | None:
    nodes = [evaluation.of(x) for x in (logits.query, logits.key, value[0])]
    query, key, values = (_with_heads(snapshot(x.x)) for x in nodes if isinstance(x, Rows))
    terms = [None if x is None else _with_heads(snapshot(x)) for x in (logits.edge_key, value[1])]
    if logits.edge_key is value[1]:
        terms[1] = terms[0]
    if any(x is not None and x.dtype is not key.dtype for x in (query, values, *terms)):
        return None
    num_others = key.shape[0]
    if query.shape[0] != num_nodes or values.shape[0] != num_others:
        return None
    g = evaluation.propagation.into(row, num_nodes, num_others)
    routed["dot_attention"] += 1
    bias = None if logits.bias is None else logits.bias.reshape(logits.bias.shape[0], -1)
    out = ops.dot_attention(g, query, key, values, logits.scale, edge_bias=bias, edge_key=terms[0], edge_value=terms[1])
    return out.view(num_nodes, *value[0].shape[1:])


def _with_heads(x: Tensor) -> Tensor:
    return x if x.dim() == 3 else x.unsqueeze(1)


def _softmax_behind(x: Any, message: AbstractMessage) -> Softmax | None:
    """The softmax (E, H) of which x is a view that has one number for each head of the message."""
    if not isinstance(x, AbstractMessage) or tuple(x.shape) != (*message.shape[:-1], 1):
        return None
    while isinstance(x.recipe, Applied) and x.recipe.is_view and x.recipe.func is not _SELECT:
        (x,) = x.recipe.messages()
    if not isinstance(x.recipe, Softmax) or x.numel() != message.shape[:-1].numel():
        return None
    return x.recipe


def _logits(message: AbstractMessage, row: int) -> _Logits | None:
    """Logits (E, H) or (E, H, 1), or (E,) and (E, 1) of one head, of which the nodes of a row are the queries."""
    recipe = message.recipe
    if not isinstance(recipe, Applied) or not message.is_as_made():
        return None
    if recipe.is_view and recipe.func is not _SELECT and message.numel() == recipe.args[0].numel():
        return _logits(recipe.args[0], row)
    op = BINARY.get(recipe.func)
    if op is not None:
        return _scaled(op, recipe, message, row)
    if recipe.func is not SUM or not is_over_last(recipe):
        return None
    recipe = recipe.args[0].recipe
    if not isinstance(recipe, Applied) or BINARY.get(recipe.func) != "mul":
        return None
    for query, key in (recipe.args, recipe.args[::-1]):
        if isinstance(query, AbstractMessage) and query.row == row and isinstance(key, AbstractMessage):
            parts = _with_term(key, 1 - row)
            return None if parts is None else _Logits(query, *parts)
    return None


def _scaled(op: str, recipe: Applied, message: AbstractMessage, row: int) -> _Logits | None:
    """Logits times a number, or with a number for each edge and head added."""
    first, second = recipe.args
    if not isinstance(first, AbstractMessage) and op in ("mul", "add"):
        first, second = second, first
    logits = _logits(first, row) if isinstance(first, AbstractMessage) else None
    if logits is None:
        return None
    if isinstance(second, (int, float)) and op in ("mul", "div"):
        factor = second if op == "mul" else 1 / second
        logits.scale *= factor
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
            recipe.check_versions()
            return x, term
    return None
