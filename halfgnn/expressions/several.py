"""Several reductions of the same messages, in one pass over the edges (:func:`halfgnn.ops.copy_u_reduce`).

What a message adds to rows of sources and of edges for the node in which it ends, as half of a linear layer of cat([x_i, x_j])
does, is added to the results: the maximum of u + v over the edges of v is the maximum of u, plus v.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from .. import ops
from ..common.autograd import snapshot
from ..graph import Graph
from ..nn.principal import of_ends
from ..ops.copy_u_reduce import STD_EPS
from .accounts import routed
from .expression import Expression
from .reduce import has_rows_of, incidence
from .values import EDGES, Evaluation, Rows, Value, has_difference, shared_values, sum_of, terms_of


def reduced_at_once(
    x: Expression, names: Sequence[str], row: int, num_nodes: int, cast: torch.dtype | None = None
) -> dict[str, Tensor]:
    """The reductions (num_nodes, *) over the edges of each node of the row, by their names. The edges are x's first dimension.

    names: of copy_u_reduce, each once. cast: a half type in which rows are gathered and which the results have.
    """
    evaluation = Evaluation(x, splits=True)
    evaluation.num_nodes[row] = num_nodes
    is_taken_apart = not x.is_watched() and has_rows_of(x, row, num_nodes)
    rest, own = _split(evaluation.of(x), row) if is_taken_apart else (None, None)
    if rest is None:
        g, rows = incidence(x.propagation.ending_in(row, num_nodes)), shared_values(x)
    elif isinstance(rest, Rows) and rest.side == 1 - row:
        g, rows = x.propagation.into(row, num_nodes, rest.x.shape[0]), snapshot(rest.x)
    else:
        g, rows = incidence(x.propagation.ending_in(row, num_nodes)), evaluation.tensor_of(rest)
    rows = rows if cast is None else rows.to(cast)
    if own is None:
        return rows_reduced_at_once(g, rows, names)
    routed[f"copy_u_reduce:{'_'.join(names)}"] += 1
    return {name: out.to(cast or x.dtype) for name, out in of_ends(g, rows, own, names, STD_EPS).items()}


def rows_reduced_at_once(g: Graph, rows: Tensor, names: Sequence[str]) -> dict[str, Tensor]:
    """The reductions (num_dst, *) of rows (num_src, *)."""
    routed[f"copy_u_reduce:{'_'.join(names)}"] += 1
    return dict(zip(names, ops.copy_u_reduce(g, rows, tuple(names))))


def _split(value: Value, row: int) -> tuple[Value | None, Tensor | None]:
    """The rows of sources and of edges, and what is added for the node of the row; None for what there is none of."""
    terms = terms_of(value)
    if (
        terms is None
        or has_difference(value)
        or any(not isinstance(x.x, Tensor) or x.side not in (0, 1, EDGES) for x in terms)
    ):
        return None, None
    shape, dtype = terms[0].x.shape[1:], terms[0].x.dtype
    if any(x.x.shape[1:] != shape or x.x.dtype is not dtype for x in terms):
        return None, None
    own = [x.x for x in terms if x.side == row]
    rest: list[Value] = [x for x in terms if x.side != row]
    return (sum_of(rest), sum(own[1:], own[0]) if own else None) if rest else (None, None)
