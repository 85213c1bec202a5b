"""Hand-written attention in messages, as one fused operator, unless ``patch(fuse=False)``.

The softmax of logits over the edges of a node is deferred, as a message, until messages that it weights are summed. Then

* logits ``(q_i * (k_j + e)).sum(-1)``, scaled, with a bias per edge and head, and values ``v_j + f`` make one dot_attention;
* logits ``(leaky_relu(x_i + y_j + e) * a).sum(-1)``, of which values are ``y_j``, one gatv2_attention;
* logits ``leaky_relu(a_i + b_j + e)``, one per head, and values ``v_j``, one gat_attention.

Anything else is computed step by step.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .. import ops
from ..common.autograd import snapshot
from ..common.precision import HALF, autocasts
from .accounts import routed
from .expression import BINARY, ORDERLY, SUM, Expression, Gather, Op, Softmax, strides_like
from .propagation import Propagation
from .values import Evaluation, Rows, is_over_last

_LEAKY_RELU = torch.ops.aten.leaky_relu.default


@dataclass
class _Logits:
    """Of dot attention: (query_i * (key_j + edge)).sum(-1) * scale + bias; query, key: messages (E, H, D).

    With a slope they are leaky_relu(query_i + key_j + edge) of numbers per head; with an attention (H, D) too, the sums over D of
    its products with that.
    """

    query: Expression
    key: Expression
    edge: Tensor | None
    scale: float = 1.0
    bias: Tensor | None = None
    slope: float | None = None
    attention: Tensor | None = None


def softmax_of(
    logits: Expression,
    propagation: Propagation,
    row: int,
    num_nodes: int,
    any_dot: bool,
    note_read: Callable[[], None] = lambda: None,
) -> Softmax | None:
    """The softmax over the edges of each node of a row; None if nothing can be made of it.

    any_dot: also that of a dot without terms of edges, which takes as long as its steps, but keeps less. note_read: called when
    the softmax is materialized.
    """
    if logits.propagation.edge_index is not propagation.edge_index or logits.edge_dim != 0:
        return None
    parsed = _logits(logits, row)
    if parsed is None or not (any_dot or parsed.slope is not None or parsed.edge is not None):
        return None
    dtype = torch.float32 if is_exp_wide(logits) else logits.dtype
    return Softmax(logits, row, num_nodes, dtype, strides_like(logits), autocasts(logits.device), note_read)


def is_exp_wide(x: Expression | Tensor) -> bool:
    """Whether autocast takes the exp of x in fp32, as it does on CUDA."""
    return x.is_cuda and x.dtype in HALF and autocasts(x.device)


def fused(x: Expression, evaluation: Evaluation, row: int, num_nodes: int) -> Tensor | None:
    """The sum (num_nodes, H, D) over the edges of each node of a row of values that a softmax weights; None for other sums."""
    if not isinstance(x, Op) or BINARY.get(x.func) != "mul" or x.dim() not in (2, 3):
        return None
    for values, weights in (x.args, x.args[::-1]):
        softmax = _softmax_behind(weights, x)
        if softmax is not None and softmax.over == row and isinstance(values, Expression):
            break
    else:
        return None
    if values.dtype is not x.dtype and not softmax.in_autocast:
        return None  # fused sums of half-precision values are rounded
    logits = _logits(softmax.logits, row) if _is_alive_like(x, x) else None
    if logits is None:
        return None
    with torch.set_grad_enabled(
        x.requires_grad and torch.is_grad_enabled()
    ):  # which terms of edges may need where x does not
        if logits.slope is None:
            return _dot_attention(logits, values, x, evaluation, row, num_nodes)
        if values.row != 1 - row or values.shape != x.shape:
            return None
        attend = _gat_attention if logits.attention is None else _gatv2_attention
        return attend(logits, values, evaluation, row, num_nodes)


def _is_alive_like(part: Expression, whole: Expression) -> bool:
    """Whether all expressions down to rows of nodes need a gradient if the whole does, and no gradient of one is observed.

    Otherwise something was detached, or frozen. What an operator was applied to must not have been modified in place: that raises
    RuntimeError.
    """
    if part.requires_grad != whole.requires_grad or part.is_watched():
        return False
    if part.row is not None:
        return True
    part.check_versions()
    return all(_is_alive_like(x, whole) for x in part.operands())


def _dot_attention(
    logits: _Logits, values: Expression, x: Expression, evaluation: Evaluation, row: int, num_nodes: int
) -> Tensor | None:
    value = _with_term(values, 1 - row)
    if value is None or not logits.query.shape == logits.key.shape == values.shape == x.shape:
        return None
    query, key, rows = (_rows(part, evaluation) for part in (logits.query, logits.key, value[0]))
    terms = _edge_terms(logits.edge, value[1], evaluation)
    if any(part is not None and part.dtype is not key.dtype for part in (query, rows, *terms.values())):
        return None
    if query.shape[0] != num_nodes or rows.shape[0] != key.shape[0]:
        return None
    g = evaluation.propagation.into(row, num_nodes, key.shape[0])
    routed["dot_attention"] += 1
    out = ops.dot_attention(g, query, key, rows, logits.scale, edge_bias=_per_head(logits.bias), **terms)
    return out.view(num_nodes, *values.shape[1:])


def _edge_terms(key: Tensor | None, value: Tensor | None, evaluation: Evaluation) -> dict[str, Any]:
    """What edges add to keys and values: rows, or columns and the weights that project them."""
    given = {"key": key, "value": value}
    found = {name: evaluation.propagation.projection_of(x) for name, x in given.items() if x is not None}
    columns = {id(x[0]): x[0] for x in found.values() if x is not None}
    if None not in found.values() and len(columns) == 1:
        weights = {f"edge_{name}_weight": x[1] for name, x in found.items() if x is not None}
        return {"edge_feat": next(iter(columns.values())), **weights}
    rows = {id(x): _with_heads(snapshot(x)) for x in given.values() if x is not None}
    return {f"edge_{name}": rows.get(id(x)) for name, x in given.items()}


def _gatv2_attention(
    logits: _Logits, values: Expression, evaluation: Evaluation, row: int, num_nodes: int
) -> Tensor | None:
    attention = logits.attention
    assert attention is not None and logits.slope is not None
    if logits.query.shape != values.shape or not _are_same(logits.key, values):
        return None
    query, key = (_rows(x, evaluation) for x in (logits.query, logits.key))
    terms = _edge_rows(logits.edge, evaluation)
    if query.shape[0] != num_nodes or any(x is not None and x.dtype is not key.dtype for x in (query, *terms.values())):
        return None
    weight = snapshot(attention).reshape(key.shape[1:]).to(key.dtype)
    if logits.scale != 1:
        weight = weight * logits.scale
    g = evaluation.propagation.into(row, num_nodes, key.shape[0])
    routed["gatv2_attention"] += 1
    out = ops.gatv2_attention(g, key, query, weight, logits.slope, edge_bias=_per_head(logits.bias), **terms)
    return out.view(num_nodes, *values.shape[1:])


def _edge_rows(rows: Tensor | None, evaluation: Evaluation) -> dict[str, Any]:
    """What edges add to the features of both ends of GATv2: rows, or columns and the weight that projects them."""
    found = None if rows is None else evaluation.propagation.projection_of(rows)
    if found is not None:
        return {"edge_feat": found[0], "edge_weight": found[1]}
    return {"edge_feat": None if rows is None else _with_heads(snapshot(rows))}


def _gat_attention(
    logits: _Logits, values: Expression, evaluation: Evaluation, row: int, num_nodes: int
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


def _rows(x: Expression, evaluation: Evaluation) -> Tensor:
    """Of the nodes of one side: (nodes, H, D), or (nodes, H, 1) of numbers per head."""
    value = evaluation.of(x)
    assert isinstance(value, Rows)
    return _with_heads(snapshot(value.x))


def _per_head(x: Tensor | None) -> Tensor | None:
    return None if x is None else snapshot(x).reshape(x.shape[0], -1)


def _with_heads(x: Tensor) -> Tensor:
    return x if x.dim() == 3 else x.unsqueeze(1)


def _softmax_behind(x: Any, weighted: Expression) -> Softmax | None:
    """The softmax (E, H) of which x is a view that has one number for each head of what is weighted."""
    if not isinstance(x, Expression) or tuple(x.shape) != (*weighted.shape[:-1], 1):
        return None
    while isinstance(x, Op) and x.func in ORDERLY:
        x = x.args[0]
    return x if isinstance(x, Softmax) and _have_as_many(x.shape, weighted.shape[:-1]) else None


def _have_as_many(shape: torch.Size, other: torch.Size) -> bool:
    """Whether tensors of two shapes with one row per edge have as many values. Nothing is asked of the number of edges alone."""
    return shape == other or math.prod(shape[1:]) == math.prod(other[1:])


def _logits(x: Expression, row: int) -> _Logits | None:
    """Logits (E, H) or (E, H, 1), or (E,) and (E, 1) of one head, of which the nodes of a row are the queries."""
    if not isinstance(x, Op) or not x.is_current():
        return None
    if x.func in ORDERLY:
        return _logits(x.args[0], row)
    op = BINARY.get(x.func)
    if op is not None:
        return _scaled(op, x, row)
    if x.func is _LEAKY_RELU:
        return _rectified(x, row)
    if x.func is not SUM or not is_over_last(x):
        return None
    product = x.args[0]
    if not isinstance(product, Op) or BINARY.get(product.func) != "mul":
        return None
    for first, second in (product.args, product.args[::-1]):
        if isinstance(first, Expression) and not isinstance(second, Expression):
            return _weighted(first, second, row)
        if isinstance(first, Expression) and first.row == row and isinstance(second, Expression):
            parts = _with_term(second, 1 - row)
            return None if parts is None else _Logits(first, *parts)
    return None


def _weighted(x: Expression, attention: Any, row: int) -> _Logits | None:
    """Logits of GATv2: what is summed over D is leaky_relu(...) * attention, with one attention for all edges."""
    if not isinstance(x, Op) or x.func is not _LEAKY_RELU or not isinstance(attention, Tensor):
        return None
    if attention.numel() != math.prod(x.shape[1:]) or attention.shape[-1] != x.shape[-1]:
        return None
    if attention.dim() == x.dim() and attention.shape[0] != 1:
        return None  # of each edge
    logits = _rectified(x, row) if x.dim() in (2, 3) else None
    if logits is not None:
        logits.attention = attention
    return logits


def _rectified(x: Op, row: int) -> _Logits | None:
    """leaky_relu of the sum of rows of each side, and of one tensor with a row per edge or none."""
    total = x.args[0]
    sides: dict[int | None, Any] = {None: None}
    for term in _terms(total):
        side = term.row if isinstance(term, Expression) else None
        is_whole = isinstance(term, (Expression, Tensor)) and term.shape == total.shape
        if not is_whole or sides.get(side) is not None or (side is None and isinstance(term, Expression)):
            return None
        sides[side] = term
    if sides.keys() != {None, row, 1 - row}:
        return None
    slope = x.args[1] if len(x.args) > 1 else 0.01
    return _Logits(sides[row], sides[1 - row], sides[None], slope=slope)


def _terms(x: Any) -> Iterator[Any]:
    """What is added up to an expression: rows of nodes of one side, and operands that are no expressions."""
    if not isinstance(x, Op) or x.row is not None or BINARY.get(x.func) != "add":
        yield x
        return
    for term in x.args:
        yield from _terms(term)


def _are_same(a: Any, b: Any) -> bool:
    """Whether two expressions are the same views of the same features."""
    if a is b:
        return True
    if not isinstance(a, Expression) or not isinstance(b, Expression):
        return type(a) is type(b) and not isinstance(a, Tensor) and a == b
    if isinstance(a, Gather) and isinstance(b, Gather):
        return a.x is b.x and a.row == b.row and a.version == b.version
    if not isinstance(a, Op) or not isinstance(b, Op) or a.func is not b.func:
        return False
    return a.is_view and len(a.args) == len(b.args) and all(map(_are_same, a.args, b.args))


def _scaled(op: str, x: Op, row: int) -> _Logits | None:
    """Logits times a number, or with a number for each edge and head added."""
    first, second = x.args
    if not isinstance(first, Expression) and op in ("mul", "add"):
        first, second = second, first
    logits = _logits(first, row) if isinstance(first, Expression) else None
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
    if op != "add" or not isinstance(second, Tensor) or second.shape != x.shape:
        return None
    logits.bias = second if logits.bias is None else logits.bias + second
    return logits


def _with_term(x: Expression, row: int) -> tuple[Expression, Tensor | None] | None:
    """Rows of nodes, and what is added to them for each edge."""
    if x.row is not None:
        return (x, None) if x.row == row and x.dim() in (2, 3) else None
    if not isinstance(x, Op) or BINARY.get(x.func) != "add":
        return None
    for rows, term in (x.args, x.args[::-1]):
        if not isinstance(rows, Expression) or not isinstance(term, Tensor):
            continue
        if rows.row == row and rows.shape == term.shape == x.shape:
            return rows, term
    return None
