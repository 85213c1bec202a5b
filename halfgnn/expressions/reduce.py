"""Messages reduced into the nodes of a row of edge_index, with as little materialized of them as possible."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from .. import ops
from ..common.autograd import snapshot
from ..common.precision import HALF
from ..drop_in.checkpoint import is_checkpointed
from ..graph import Graph
from .accounts import routed
from .expression import SHAPES, SUM, Expression, Op
from .values import ALL, EDGES, Combined, Evaluation, Rectified, Rows, Value, is_narrow

_NAMES = {"copy_lhs": "copy_u", "copy_rhs": "copy_e"}  # of operators that read one side, as counted


# (expression, evaluation, row, number of nodes) -> the sums (nodes, *) over the edges of each node, or None.
Lowering = Callable[[Expression, Evaluation, int, int], Tensor | None]


def reduced(
    x: Expression,
    reduction: str,
    row: int,
    num_nodes: int,
    lowerings: Sequence[Lowering],
    dtype: torch.dtype | None = None,
) -> Tensor:
    """The reduction (num_nodes, *) over the edges of each node of the row.

    reduction: sum, mean, max or min. lowerings: of sums, tried in order.
    dtype: a half type in which operands are gathered and which the result has.
    """
    out_dtype = dtype or x.dtype
    out = _Reduction(Evaluation(x), reduction, row, num_nodes, out_dtype, dtype, lowerings).of_expression(x)
    out = out if out.dtype is out_dtype else out.to(out_dtype)
    dim, sizes = x.edge_dim, [*x.shape]
    shape = (num_nodes, *sizes[:dim], *sizes[dim + 1 :])
    out = out if out.shape == shape else out.expand(shape)
    return as_result(out, dim)


def as_result(out: Tensor, dim: int) -> Tensor:
    """Reduced rows (N, *), with N as dimension dim.

    They are contiguous as torch_geometric's, because callers take views of them. Those that a checkpoint returns are no views,
    because callers modify them in place.
    """
    out = out.movedim(0, dim).contiguous() if dim else out.contiguous()
    return out.clone() if out._is_view() and is_checkpointed() else out


def has_rows_of(x: Expression, row: int, num_nodes: int) -> bool:
    """Whether all features of the nodes of a row that an expression is made of have so many rows.

    torch_geometric notes the rows of x[0] as the nodes of row 0 under either flow, and a program may give another dim_size.
    """
    if x.row is not None:
        return x.row != row or x.num_rows == num_nodes
    return all(has_rows_of(y, row, num_nodes) for y in x.operands())


class _Reduction:
    """dtype: of the result. cast: of operands; None: theirs."""

    def __init__(
        self,
        evaluation: Evaluation,
        reduction: str,
        row: int,
        num_nodes: int,
        dtype: torch.dtype,
        cast: torch.dtype | None,
        lowerings: Sequence[Lowering],
    ) -> None:
        self.cast, self.lowerings = cast, lowerings
        self.evaluation, self.reduction, self.row, self.num_nodes = evaluation, reduction, row, num_nodes
        self.dtype, self.is_linear = dtype, reduction in ("sum", "mean")
        self._degrees: Tensor | None = None
        self.rank = 1  # of the values that are reduced
        evaluation.num_nodes[row] = num_nodes

    def of_expression(self, x: Expression) -> Tensor:
        """What views and sums do after the dimension of edges, they do to the result too."""
        if isinstance(x, Op) and x.row is None and x.materialized_values() is None and _is_alive_like(x):
            if x.is_view:
                x.check_versions()
                x.grad_bypassed |= self.evaluation.is_live
                out = self.of_expression(x.args[0])
                if x.func in SHAPES:
                    return out.reshape(out.shape[0], *x.shape[1:])
                if x.func is torch.ops.aten.expand.default:
                    return out.expand(out.shape[0], *x.shape[1:])
                return x.func(out, *x.args[1:], **x.kwargs)
            if x.func is SUM and self.is_linear:
                inner = self.evaluation.of(x.args[0])
                if self._is_weighted(inner):
                    x.grad_bypassed |= self.evaluation.is_live
                    self.rank = x.args[0].dim()
                    return x.func(self.of(inner), *x.args[1:], **x.kwargs)
        if self.reduction == "sum" and self.cast is None:
            for lowering in self.lowerings:
                rows = lowering(x, self.evaluation, self.row, self.num_nodes)
                if rows is not None:
                    return rows
        self.rank = x.dim()
        return self.of(self.evaluation.of(x))

    def _is_weighted(self, value: Value) -> bool:
        """Whether it is a product of sources and edges, which one operator reduces."""
        if not isinstance(value, Combined) or value.op != "mul":
            return False
        return all(isinstance(x, Rows) for x in (value.first, value.second)) and {
            value.first.side, value.second.side  # type: ignore[union-attr]
        } == {1 - self.row, EDGES}  # fmt: skip

    def of(self, value: Value, weight: Tensor | None = None, is_part: bool = False) -> Tensor:
        """weight (E, *, 1): what the value is multiplied with. is_part: the result is added to others."""
        if isinstance(value, Rows):
            return self._of_rows(value, weight, is_part)
        if isinstance(value, Rectified):
            node, edge = _by_side(value.sum, 1 - self.row)
            if weight is None and node is not None and node.x.dim() == edge.x.dim():
                return self._gspmm("relu_add", node.x, edge.x, is_part)
            if weight is None:
                return self._of_rectified(value, is_part)
        elif isinstance(value, Combined):
            out = self._of_combined(value, weight, is_part)
            if out is not None:
                return out
        return self._of_rows(Rows(EDGES, self.evaluation.tensor_of(value)), weight, is_part)

    def _of_rows(self, value: Rows, weight: Tensor | None, is_part: bool) -> Tensor:
        x = value.x
        if value.side == 1 - self.row:
            return self._gspmm("copy_lhs" if weight is None else "mul", x, weight, is_part)
        if value.side == EDGES:
            if weight is None:
                return self._gspmm("copy_rhs", None, x, is_part)
            return self._gspmm("mul", x, weight, is_part, incidence(self._graph()))
        if not self.is_linear:
            x = self.evaluation.tensor_of(value)
            return self._gspmm("copy_rhs", None, x if value.side != ALL else self._for_edges(x), is_part)
        x = self._factor(value)
        if weight is not None:
            return self._gspmm("copy_rhs", None, weight, is_part) * x
        degrees = self._in_degrees()
        counts = degrees if self.reduction == "sum" else degrees.clamp(max=1)
        dtype = torch.promote_types(self.dtype, torch.float32)  # which holds a degree
        return counts.to(dtype).view(-1, *[1] * (self.rank - 1)) * x

    def _of_combined(self, value: Combined, weight: Tensor | None, is_part: bool) -> Tensor | None:
        op, first, second = value.op, value.first, value.second
        node, edge = _by_side(value, 1 - self.row)
        is_direct = node is not None and node.x.dim() == edge.x.dim() and (op in ("mul", "add") or node is first)
        if weight is None and is_direct:
            return self._gspmm(op, node.x, edge.x, is_part)
        if weight is None and op == "mul" and _are_of_edges(first, second):
            return self._gspmm("mul", first.x, second.x, is_part, incidence(self._graph()))  # type: ignore[union-attr]
        if not self.is_linear:
            return None
        if op == "add" and self._is_split(value, weight):
            return self.of(first, weight, True) + self.of(second, weight, True)
        if op in ("mul", "div"):
            return self._of_product(op, first, second, weight, is_part)
        return None

    def _of_rectified(self, value: Rectified, is_part: bool) -> Tensor:
        """A node of the result reads its own summand once for all of its edges, whose sums are not materialized."""
        first, second = value.sum.first, value.sum.second
        for x, y in ((first, second), (second, first)):
            if isinstance(x, Rows) and x.side == self.row:
                g, edge = self._in_order(y, x.x.shape[1:])
                if isinstance(edge, Tensor) and edge.shape == (g.num_edges, *x.x.shape[1:]):
                    return self._gspmm("relu_add", x.x, edge, is_part, destinations(g))
                value = Rectified(Combined("add", x, Rows(EDGES, edge)))
                break
        return self._of_rows(Rows(EDGES, self.evaluation.tensor_of(value)), None, is_part)

    def _in_order(self, value: Value, shape: torch.Size) -> tuple[Graph, Tensor]:
        """The value of each edge (E, *), and a Graph with edge data in that order: by destination, if both ends make the value in
        that shape, and nothing has the order of the edges."""
        g = self._graph()
        if isinstance(value, Combined):
            ends = {x.side: x.x for x in (value.first, value.second) if isinstance(x, Rows)}
            if ends.keys() == {0, 1} and ends[0].shape[1:] == ends[1].shape[1:] == shape:
                g = by_destination(g)
                x, y = (snapshot(part.x) for part in (value.first, value.second))  # type: ignore[union-attr]
                sides = ["v" if part.side == self.row else "u" for part in (value.first, value.second)]  # type: ignore[union-attr]
                routed[f"gsddmm:{sides[0]}_{value.op}_{sides[1]}"] += 1
                return g, ops.gsddmm(g, value.op, x, y, *sides)
        return g, self.evaluation.tensor_of(value)

    def _is_split(self, value: Combined, weight: Tensor | None) -> bool:
        """Whether two sums are reduced for less than the sums of two: weighted, or of what all edges of a node have alike."""
        sides = {x.side for x in (value.first, value.second) if isinstance(x, Rows)}
        return ALL in sides or (not value.is_difference and (weight is not None or self.row in sides))

    def _of_product(self, op: str, first: Value, second: Value, weight: Tensor | None, is_part: bool) -> Tensor | None:
        """A factor that belongs to the node of the result, or to all edges, is applied to the result."""
        if isinstance(second, Rows) and second.side in (self.row, ALL):
            out = self.of(first, weight, True)
            return out * self._factor(second) if op == "mul" else out / self._factor(second)
        if op != "mul":
            return None
        if isinstance(first, Rows) and first.side in (self.row, ALL):
            return self._factor(first) * self.of(second, weight, True)
        for x, y in ((first, second), (second, first)):
            if isinstance(x, Rows) and x.side == EDGES and is_narrow(x, 2) and not _is_narrow_value(y):
                return self.of(y, x.x if weight is None else weight * x.x, is_part)
        if weight is None:
            return None
        for x, y in ((first, second), (second, first)):
            if isinstance(x, Rows) and x.side == EDGES and isinstance(y, Rows) and y.side == 1 - self.row:
                return self._gspmm("mul", y.x, x.x * weight, is_part)
        return None

    def _factor(self, value: Rows) -> Any:
        """By what results are multiplied or divided. What no edge reads may be infinite, or 0 and divide."""
        return value.x if value.side == ALL else self.evaluation.read(value.x, self.row)

    # ---- operators -------------------------------------------------------------------------------------------------------------

    def _gspmm(self, op: str, x: Tensor | None, edge: Tensor | None, is_part: bool, g: Graph | None = None) -> Tensor:
        name = _NAMES.get(op) or f"u_{op}_e"
        routed[f"gspmm:{name}_{self.reduction}"] += 1
        if self.cast is not None:
            x, edge = (None if y is None else y.to(self.cast) for y in (x, edge))
        if x is not None and edge is not None:  # what the operator saves may be modified in place before its backward
            x = snapshot(x) if edge.requires_grad or op == "relu_add" else x
            edge = snapshot(edge) if x.requires_grad or op == "relu_add" else edge
        first = edge if x is None else x
        assert first is not None
        is_wide = first.dtype in HALF and (is_part or self.dtype is torch.float32)
        return ops.gspmm(g or self._graph(), op, self.reduction, x, edge, out_dtype=torch.float32 if is_wide else None)

    def _graph(self) -> Graph:
        """Into the nodes of the row."""
        known = self.evaluation.num_nodes
        propagation = self.evaluation.propagation
        if 1 - self.row in known:
            return propagation.into(self.row, self.num_nodes, known[1 - self.row])
        return propagation.ending_in(self.row, self.num_nodes)

    def _in_degrees(self) -> Tensor:
        if self._degrees is None:
            self._degrees = self._graph().in_degrees()
        return self._degrees

    def _for_edges(self, x: Any) -> Tensor:
        num_edges = self.evaluation.propagation.num_edges
        return torch.as_tensor(x, dtype=self.dtype).expand(num_edges, *getattr(x, "shape", ())[1:]).contiguous()


def _is_alive_like(x: Op) -> bool:
    """Whether gradients reach what x is made of if they reach x."""
    return all(y.requires_grad == x.requires_grad for y in x.operands())


def _by_side(value: Combined, row: int) -> tuple[Any, Any]:
    """The rows of nodes and those of edges of which the value is made; (None, None) if it is made of others."""
    sides = {x.side: x for x in (value.first, value.second) if isinstance(x, Rows)}
    return (sides[row], sides[EDGES]) if sides.keys() == {row, EDGES} else (None, None)


def _are_of_edges(*values: Value) -> bool:
    """Whether all have one row of the same shape per edge."""
    if not all(isinstance(x, Rows) and x.side == EDGES for x in values):
        return False
    first, *others = (x.x.shape for x in values)  # type: ignore[union-attr]
    return all(shape == first for shape in others)  # sizes that are not known have no hash


def _is_narrow_value(value: Value) -> bool:
    return isinstance(value, Rows) and value.side == EDGES and is_narrow(value, 2)


def incidence(g: Graph) -> Graph:
    """The graph from each edge to the node in which it ends, with the edge's data. It is cached with the graph."""
    return g.cached("_incidence", _incidence)


def _incidence(g: Graph) -> Graph:
    indptr, indices, edge_ids = g.csc()
    ids = torch.arange(g.num_edges, dtype=indices.dtype, device=g.device) if edge_ids is None else edge_ids
    return Graph(g.num_edges, g.num_dst, csc=(indptr, ids, edge_ids))


def destinations(g: Graph) -> Graph:
    """The graph of the same edges from the node in which each ends to that node. It is cached with the graph."""
    return g.cached("_destinations", _destinations)


def _destinations(g: Graph) -> Graph:
    indptr, indices, edge_ids = g.csc()
    nodes = torch.arange(g.num_dst, dtype=indices.dtype, device=g.device)
    side = indptr, nodes.repeat_interleave(indptr.diff(), output_size=g.num_edges), edge_ids
    return Graph(g.num_dst, g.num_dst, csc=side, csr=side)


def by_destination(g: Graph) -> Graph:
    """The graph with edge data in the order of destinations. It is cached with the graph."""
    return g if g.csc().edge_ids is None else g.cached("_by_destination", _by_destination)


def _by_destination(g: Graph) -> Graph:
    indptr, indices, _ = g.csc()
    return Graph(g.num_src, g.num_dst, csc=(indptr, indices, None))
