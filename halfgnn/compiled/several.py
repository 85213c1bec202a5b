"""Reductions of the same rows by the same index, such as the mean, the extremes and the standard deviation of an aggregation: one
pass over the edges makes them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor, fx

from ..common.fx_nodes import memory_of_tensor, name_of, value_of, written_by
from ..expressions.expression import Expression
from ..expressions.reduce import has_rows_of, incidence
from ..expressions.several import reduced_at_once, rows_reduced_at_once
from ..graph import Graph
from .edges import TracedEdges
from .effects import sets_mode
from .recognize import Reduction, is_ones

SQUARES = "squares"  # the sum of squares, which programs make of variances


class Group(NamedTuple):
    """src: the rows. names: of the nodes that reduce them, what they are."""

    src: fx.Node
    names: dict[fx.Node, str]

    def reduces(self) -> tuple[str, ...]:
        """Those of copy_u_reduce that make them."""
        found = dict.fromkeys(name for name in self.names.values() if name != SQUARES)
        return tuple(found if SQUARES not in self.names.values() else {**found, "mean": None, "var": None})


def group_of(node: fx.Node, reductions: Mapping[fx.Node, Reduction]) -> Group | None:
    """The reductions of what a node reduces, of which it is the first; None if there are no others."""
    call = reductions[node]
    src = _squared(call.src) or call.src
    if call.dim or call.target is not None or is_ones(src):
        return None
    names, readers = {}, {node}
    for other, found in reductions.items():
        is_squared = found.src is not src
        if is_squared and (found.kind != "sum" or _squared(found.src) is not src):
            continue
        if (found.ids, found.dim, str(found.num_rows), found.target) == (call.ids, 0, str(call.num_rows), None):
            names[other] = SQUARES if is_squared else found.kind
            readers |= {other, found.src} if is_squared else {other}
    if len(set(names.values())) < 2 or set(names.values()) == {"sum", "mean"} or not _is_constant(src, readers):
        return None
    return Group(src, names) if next(iter(names)) is node else None


def _squared(node: fx.Node) -> fx.Node | None:
    """What a node is the square of."""
    if node.op not in ("call_function", "call_method") or node.kwargs or not node.args:
        return None
    name, (source, *others) = name_of(node), node.args
    is_product = name in ("mul", "multiply") and len(others) == 1 and others[0] is source
    is_power = name == "square" or (name == "pow" and others == [2])
    return source if isinstance(source, fx.Node) and (is_product or is_power) else None


def _is_constant(src: fx.Node, readers: set[fx.Node]) -> bool:
    """Whether from the first reader to the last nothing modifies the rows in place, and nothing sets a mode: whether gradients are
    recorded, and autocast."""
    left, memory = set(readers), memory_of_tensor(value_of(src))
    for node in src.graph.nodes:
        left.discard(node)
        if not left:
            return True
        has_begun = len(left) < len(readers)
        if has_begun and (sets_mode(node) or any(memory_of_tensor(value_of(x)) & memory for x in written_by(node))):
            return False
    return False


def goes_along(lazy: Expression, edges: TracedEdges, row: int, num_rows: int) -> bool:
    """Whether an expression is of the edges, in its first dimension."""
    return edges.has(lazy, row) and lazy.edge_dim == 0 and has_rows_of(lazy, row, num_rows)


def reduced(group: Group, rows: Tensor | Expression, edges: TracedEdges, row: int, num_rows: int) -> dict[str, Tensor]:
    """The results by their names."""
    names = group.reduces()
    if isinstance(rows, Expression):
        results = reduced_at_once(rows, names, row, num_rows)
    else:
        results = rows_reduced_at_once(incidence(edges.ending_in(row, num_rows)), rows, names)
    if SQUARES in group.names.values():
        results[SQUARES] = _squares(results["var"], results["mean"], edges.ending_in(row, num_rows))
    return results


def _squares(var: Tensor, mean: Tensor, g: Graph) -> Tensor:
    counts = g.in_degrees().to(torch.promote_types(var.dtype, torch.float32))
    return ((var + mean * mean) * counts.view(-1, *[1] * (var.dim() - 1))).to(var.dtype)
