"""Products of rows of nodes with one matrix per edge, which is that of the edge's relation, as torch.bmm has them in a graph."""

from __future__ import annotations

from typing import Any

from ..expressions.expression import Expression, Gather
from ..expressions.values import Evaluation, Rows


def goes_by_relation(rows: Any, matrices: Any) -> bool:
    """Whether rows (E, 1, C) are those of nodes, and matrices (E, C, D) those of relations."""
    if not isinstance(rows, Expression) or not isinstance(matrices, Gather) or rows.row is None:
        return False
    if rows.dim() != 3 or rows.shape[1] != 1 or rows.edge_dim != 0 or matrices.dim() != 3 or matrices.edge_dim != 0:
        return False
    has_gradients = rows.requires_grad or not _requires_grad(rows)
    return rows.dtype is matrices.dtype and has_gradients and matrices.requires_grad == matrices.x.requires_grad


def _requires_grad(x: Expression) -> bool:
    """Whether what an expression is made of requires a gradient, which the expression may have been detached from."""
    return x.x.requires_grad if isinstance(x, Gather) else any(map(_requires_grad, x.operands()))


def multiplied(rows: Any, matrices: Any) -> Gather:
    """The products (E, 1, D), as rows of a table of those of each node with the matrix of each relation."""
    value = Evaluation(rows).of(rows)
    assert isinstance(value, Rows)
    num_relations, inputs, outputs = matrices.x.shape
    table = value.x.reshape(-1, inputs) @ matrices.x.transpose(0, 1).reshape(inputs, num_relations * outputs)
    pairs = rows.propagation.pairs(rows.row, rows.num_rows, matrices.ids, matrices.propagation, num_relations)
    return Gather(table.view(-1, 1, outputs), pairs, rows.row, pairs.ids(rows.row))
