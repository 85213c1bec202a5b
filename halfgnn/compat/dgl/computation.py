"""Message passing along the edges of one type: built-in functions by halfgnn's operators, others by batches."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ... import ops
from ...common.operands import name_operands, operand_errors
from . import function as fn
from .base import DGLError, EdgeType
from .frame import Frame
from .graph_data import GraphData
from .topology import Relation
from .udf import EdgeBatch, NodeBatch, reduced_by_degree

Features = Mapping[str, Tensor]
_SWAPPED = ("add", "mul")  # operators of which e op u is u op e


@dataclass
class Part:
    """The edges of one type that take part, and the features of their ends.

    Attributes:
        relation: among the rows of src and dst.
        src, dst, edges: features.
        edge_ids, dst_ids: ids in the graph of the rows of edges and dst; None: all.
    """

    graph: GraphData
    etype: EdgeType
    relation: Relation
    src: Frame
    dst: Frame
    edges: Frame
    edge_ids: Tensor | None = None
    dst_ids: Tensor | None = None

    @classmethod
    def whole(cls, graph: GraphData, etid: int) -> Part:
        """All edges of a type."""
        src, dst = graph._graph.metagraph.ends[etid]
        nodes = graph._node_frames
        relation = graph._graph.relations[etid]
        return cls(
            graph, graph._types.canonical_etypes[etid], relation, nodes[src], nodes[dst], graph._edge_frames[etid]
        )

    def of_edges(self, edge_ids: Tensor) -> Part:
        """Some of the edges, among all nodes."""
        src, dst = (ends[edge_ids.long()] for ends in self.relation.edges())
        relation = Relation.from_edges(src, dst, self.relation.num_src, self.relation.num_dst, check=False)
        edges = self.edges.subframe(edge_ids)
        return Part(self.graph, self.etype, relation, self.src, self.dst, edges, edge_ids)

    def into(self, dst_ids: Tensor) -> Part:
        """The same edges, but only these destinations, which rise and have all edges."""
        src, dst = self.relation.edges()
        dst = torch.searchsorted(dst_ids, dst).to(dst.dtype)
        relation = Relation.from_edges(src, dst, self.relation.num_src, dst_ids.numel(), check=False)
        frame = self.dst.subframe(dst_ids)
        return Part(self.graph, self.etype, relation, self.src, frame, self.edges, self.edge_ids, dst_ids)

    def operand(self, target: str, name: str) -> Tensor:
        """The feature of sources (u), destinations (v) or edges (e)."""
        frame, what = {
            "u": (self.src, "source nodes"), "v": (self.dst, "destination nodes"), "e": (self.edges, "edges")
        }[target]  # fmt: skip
        if name not in frame:
            raise DGLError(f"the {what} of {self.etype} have no feature {name!r}; expected one of {list(frame)}")
        return frame[name]

    def ids(self, own: Tensor | None, count: int) -> Tensor:
        """The ids themselves, or all."""
        return torch.arange(count, dtype=self.relation.idtype, device=self.relation.device) if own is None else own


# ---- edges -----------------------------------------------------------------------------------------------------------------------


def messages(part: Part, func: Any) -> Features:
    """{name: (E, *)} that a message function gives."""
    if not isinstance(func, fn.BuiltinFunction):
        return func(edge_batch(part))
    if not isinstance(func, fn.MessageFunction):
        raise DGLError(
            f"the message function is {func!r}; expected copy_u, copy_e, a binary one as u_mul_e, or a function"
        )
    try:
        return {func.out_field: _message(part, func)}
    except operand_errors() as error:
        _name_features(error, func)
        raise


def _message(part: Part, func: fn.MessageFunction) -> Tensor:
    graph = part.relation.graph()
    if isinstance(func, fn.CopyMessageFunction):
        x = part.operand(func.target_name, func.in_field)
        return x if func.target_name == "e" else ops.gsddmm(graph, "copy_lhs", x, None, "u", "v")
    assert isinstance(func, fn.BinaryMessageFunction)
    x, y = part.operand(func.lhs_target, func.lhs_field), part.operand(func.rhs_target, func.rhs_field)
    return ops.gsddmm(graph, func.binary_op, x, y, func.lhs_target, func.rhs_target)


def _name_features(error: Exception, func: Any) -> None:
    """Replaces the operators' names of operands in an error by those of features."""
    if isinstance(func, fn.CopyMessageFunction):
        name_operands(error, lhs_data=f"the feature {func.in_field!r}", rhs_data=f"the feature {func.in_field!r}")
    elif isinstance(func, fn.BinaryMessageFunction):
        name_operands(error, lhs_data=f"the feature {func.lhs_field!r}", rhs_data=f"the feature {func.rhs_field!r}")


def edge_batch(part: Part) -> EdgeBatch:
    """What a function on edges is given."""
    src, dst = part.relation.edges()
    ids = part.ids(part.edge_ids, part.relation.num_edges)
    ends = src, dst if part.dst_ids is None else part.dst_ids[dst.long()]
    return EdgeBatch(part.graph, ids, part.etype, part.src.subframe(src), part.edges, part.dst.subframe(dst), ends)


# ---- nodes -----------------------------------------------------------------------------------------------------------------------


def passed(part: Part, message_func: Any, reduce_func: Any, apply_node_func: Callable | None = None) -> Features:
    """{name: (N, *)} of the destinations: messages, reduced, then changed by apply_node_func."""
    results: Features
    if isinstance(reduce_func, fn.ReduceFunction):
        results = {reduce_func.out_field: _reduced(part, message_func, reduce_func)}
    elif isinstance(reduce_func, fn.BuiltinFunction):
        raise DGLError(f"the reduce function is {reduce_func!r}; expected sum, mean, max, min, or a function")
    else:
        made = messages(part, message_func)
        ids = part.ids(part.dst_ids, part.relation.num_dst)
        graph, ntype = part.relation.graph(), part.etype[2]
        results = reduced_by_degree(part.graph, graph, ntype, part.dst, ids, made, reduce_func)
    if apply_node_func is None:
        return results
    features = part.dst.clone()
    features.update(results)
    return applied(part, features, apply_node_func)


def applied(part: Part, features: Frame, func: Callable) -> Features:
    """What a function on nodes makes of the destinations' features."""
    if isinstance(func, fn.BuiltinFunction):
        raise DGLError(f"apply_node_func is {func!r}; expected a function of a batch of nodes")
    ids = part.ids(part.dst_ids, part.relation.num_dst)
    return func(NodeBatch(part.graph, ids, part.etype[2], features))


def _reduced(part: Part, message_func: Any, reduce_func: fn.ReduceFunction) -> Tensor:
    call = fused_call(message_func, reduce_func)
    graph = part.relation.graph()
    if call is None:
        made = messages(part, message_func)
        if reduce_func.msg_field not in made:
            raise DGLError(
                f"the messages are {list(made)}; expected {reduce_func.msg_field!r}, which {reduce_func} reads"
            )
        return ops.gspmm(graph, "copy_rhs", reduce_func.name, None, made[reduce_func.msg_field])
    op, lhs, rhs = call
    x = None if lhs is None else part.operand("u", lhs)
    y = None if rhs is None else part.operand("e", rhs)
    try:
        return ops.gspmm(graph, op, reduce_func.name, x, y)
    except operand_errors() as error:
        name_operands(error, lhs_data=f"the feature {lhs!r}", rhs_data=f"the feature {rhs!r}")
        raise


def fused_call(message_func: Any, reduce_func: fn.ReduceFunction) -> tuple[str, str | None, str | None] | None:
    """gspmm's op and the names of its operands, if one gspmm does both functions."""
    if isinstance(message_func, fn.BuiltinFunction):
        if not isinstance(message_func, fn.MessageFunction):
            raise DGLError(
                f"the message function is {message_func!r}; expected copy_u, copy_e, a binary one, or a function"
            )
        if message_func.out_field != reduce_func.msg_field:
            raise DGLError(
                f"{message_func} writes the message {message_func.out_field!r}, but {reduce_func} reads {reduce_func.msg_field!r};"
                " expected one name"
            )
    if isinstance(message_func, fn.CopyMessageFunction):
        is_node = message_func.target_name == "u"
        name = message_func.in_field
        return ("copy_lhs", name, None) if is_node else ("copy_rhs", None, name)
    if isinstance(message_func, fn.BinaryMessageFunction) and message_func.binary_op != "dot":
        targets = message_func.lhs_target, message_func.rhs_target
        if targets == ("u", "e"):
            return message_func.binary_op, message_func.lhs_field, message_func.rhs_field
        if targets == ("e", "u") and message_func.binary_op in _SWAPPED:
            return message_func.binary_op, message_func.rhs_field, message_func.lhs_field
    return None
