"""Wrappers of the functions through which DGL's message passing goes.

Each has the signature of the function that it replaces (in ``dgl.backend.pytorch.sparse`` or ``dgl.ops``), and routes a call to
halfgnn or leaves it to DGL.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from .. import ops
from ..common.arguments import MESSAGE_OPS, REDUCES, TARGETS
from ..common.precision import HALF, computed_type
from ..drop_in.gate import Reason, operands_reason
from .accounts import accounts, fell_back, routed
from .topology import Topology, relation_topology, schema_of, topology_of, union_topology

# DGL's own functions, filled in by patch().
ORIGINALS: dict[str, Callable[..., Any]] = {}

_ALL_EDGES = "__ALL__"  # dgl.ALL

# Operator -> its name in dgl.ops. Operators that are missing here are not routed.
_SPMM_NAMES = {
    (op, reduce_op): f"{message}_{reduce_op}"
    for reduce_op in REDUCES
    for op, message in [
        ("add", "u_add_e"),
        ("sub", "u_sub_e"),
        ("mul", "u_mul_e"),
        ("div", "u_div_e"),
        ("copy_lhs", "copy_u"),
        ("copy_rhs", "copy_e"),
    ]
}
_SPMM_KEYS = {key: f"gspmm:{name}" for key, name in _SPMM_NAMES.items()}
_SDDMM_NAMES = {
    (op, lhs_target, rhs_target): (
        f"copy_{TARGETS[lhs_target if op == 'copy_lhs' else rhs_target]}"
        if op.startswith("copy")
        else f"{TARGETS[lhs_target]}_{op}_{TARGETS[rhs_target]}"
    )
    for op in (*MESSAGE_OPS, "dot", "copy_lhs", "copy_rhs")
    for lhs_target in TARGETS
    for rhs_target in TARGETS
    if op.startswith("copy") or TARGETS[lhs_target] != TARGETS[rhs_target]
}


# -- what falls back to DGL ---------------------------------------------------------------------------


def _fall_back(api: str, name: str, reason: str, *args: Any) -> Any:
    fell_back[(name, reason)] += 1
    return ORIGINALS[api](*args)


def _read(op: str, lhs: Any, rhs: Any) -> tuple[Any, ...]:
    """The operands that `op` reads."""
    if op == "copy_lhs":
        return (lhs,)
    return (rhs,) if op == "copy_rhs" else (lhs, rhs)


def invoke_edge_udf(*args: Any, **kwargs: Any) -> Any:
    """``dgl.core.invoke_edge_udf``: a user's function of edges, counted, which falls back to DGL."""
    fell_back[("udf:message", "user-defined function")] += 1
    return ORIGINALS["invoke_edge_udf"](*args, **kwargs)


def invoke_udf_reduce(*args: Any, **kwargs: Any) -> Any:
    """``dgl.core.invoke_udf_reduce``: a user's function of a mailbox, counted, which falls back to DGL."""
    fell_back[("udf:reduce", "user-defined function")] += 1
    return ORIGINALS["invoke_udf_reduce"](*args, **kwargs)


# -- one relation ----------------------------------------------------------------------------------


def _spmm(topology: Topology, op: str, reduce_op: str, lhs: Any, rhs: Any, out_dtype: Any = None) -> Tensor:
    lhs = None if op == "copy_rhs" else lhs
    rhs = None if op == "copy_lhs" else rhs
    graph = topology.on((rhs if lhs is None else lhs).device)
    return ops.gspmm(graph, op, reduce_op, lhs, rhs, out_dtype=out_dtype)


def _sddmm(topology: Topology, op: str, lhs: Any, rhs: Any, lhs_target: str, rhs_target: str) -> Tensor:
    lhs = None if op == "copy_rhs" else lhs
    rhs = None if op == "copy_lhs" else rhs
    graph = topology.on((rhs if lhs is None else lhs).device)
    return ops.gsddmm(graph, op, lhs, rhs, TARGETS[lhs_target], TARGETS[rhs_target])


def _unbound(topology: Topology, reduce_op: str, out: Tensor) -> Tensor:
    """out with DGL's max or min of no message, which is infinite.

    A cross-type reducer of multi_update_all would take a zero for a message. DGL's update_all makes it zero in the end.
    """
    isolated = topology.isolated(out.device)
    if isolated is None:
        return out
    identity = float("-inf") if reduce_op == "max" else float("inf")
    return out.masked_fill(isolated.view(-1, *[1] * (out.dim() - 1)), identity)


def _refuse_spmm(gidx: Any, op: str, reduce_op: str, lhs: Any, rhs: Any) -> str | None:
    if (op, reduce_op) not in _SPMM_NAMES:
        return Reason.NO_OPERATOR
    operands = _read(op, lhs, rhs)
    accounts.note(operands[0])
    return operands_reason(operands, mixed=True) or _refuse_relations(gidx)


def _refuse_relations(gidx: Any) -> str | None:
    return Reason.SEVERAL_EDGE_TYPES if topology_of(gidx) is None else None


def _routed_spmm(gidx: Any, op: str, reduce_op: str, lhs: Any, rhs: Any) -> Tensor:
    routed[_SPMM_KEYS[op, reduce_op]] += 1
    topology = topology_of(gidx)
    assert topology is not None
    out = _spmm(topology, op, reduce_op, lhs, rhs)
    # In a graph without edges DGL gives zero for every reducer.
    if reduce_op in ("max", "min") and topology.graph.num_edges > 0:
        return _unbound(topology, reduce_op, out)
    return out


def gspmm(gidx: Any, op: str, reduce_op: str, lhs_data: Any, rhs_data: Any) -> Any:
    """``dgl.backend.gspmm``."""
    reason = _refuse_spmm(gidx, op, reduce_op, lhs_data, rhs_data)
    if reason is None:
        return _routed_spmm(gidx, op, reduce_op, lhs_data, rhs_data)
    name = f"gspmm:{_SPMM_NAMES.get((op, reduce_op), (op, reduce_op))}"
    return _fall_back("gspmm", name, reason, gidx, op, reduce_op, lhs_data, rhs_data)


def gspmm_of_graph(g: Any, op: str, reduce_op: str, lhs_data: Any, rhs_data: Any) -> Any:
    """``dgl.ops.gspmm``. A call that it does not route meets another wrapper inside DGL."""
    gidx = g._graph
    if _refuse_spmm(gidx, op, reduce_op, lhs_data, rhs_data) is None:
        return _routed_spmm(gidx, op, reduce_op, lhs_data, rhs_data)
    return ORIGINALS["ops.gspmm"](g, op, reduce_op, lhs_data, rhs_data)


def gsddmm(gidx: Any, op: str, lhs_data: Any, rhs_data: Any, lhs_target: str = "u", rhs_target: str = "v") -> Any:
    """``dgl.backend.gsddmm``."""
    name = _SDDMM_NAMES.get((op, lhs_target, rhs_target))
    reason = Reason.NO_OPERATOR if name is None else operands_reason(_read(op, lhs_data, rhs_data), mixed=True)
    name = f"gsddmm:{name or (op, lhs_target, rhs_target)}"
    topology = topology_of(gidx) if reason is None else None
    if topology is None:
        reason = reason or Reason.SEVERAL_EDGE_TYPES
        return _fall_back("gsddmm", name, reason, gidx, op, lhs_data, rhs_data, lhs_target, rhs_target)
    routed[name] += 1
    return _sddmm(topology, op, lhs_data, rhs_data, lhs_target, rhs_target)


def edge_softmax(gidx: Any, logits: Any, eids: Any = _ALL_EDGES, norm_by: str = "dst") -> Any:
    """``dgl.backend.edge_softmax``. With `eids` it is over the subgraph of these edges."""
    name = f"edge_softmax:{norm_by}"
    reason = operands_reason((logits,)) if norm_by in ("src", "dst") else Reason.NO_OPERATOR
    subgraph = gidx
    if reason is None and not _is_all(eids) and gidx.number_of_etypes() == 1:
        subgraph = gidx.edge_subgraph([eids], True).graph
    topology = topology_of(subgraph) if reason is None else None
    if topology is None:
        reason = reason or Reason.SEVERAL_EDGE_TYPES
        return _fall_back("edge_softmax", name, reason, gidx, logits, eids, norm_by)
    routed[name] += 1
    return ops.edge_softmax(topology.on(logits.device), logits, norm_by)


def _is_all(eids: Any) -> bool:
    return isinstance(eids, str) and eids == _ALL_EDGES


# -- segments --------------------------------------------------------------------------------------


def segment_reduce(op: str, x: Any, offsets: Tensor) -> Any:
    """``dgl.backend.segment_reduce``: `offsets` (segments + 1); sum, max or min."""
    reason = operands_reason((x,)) if op in REDUCES else Reason.NO_OPERATOR
    if reason is not None:
        return _fall_back("segment_reduce", f"segment_reduce:{op}", reason, op, x, offsets)
    routed[f"segment_reduce:{op}"] += 1
    return ops.segment_reduce(offsets.diff(), x, op)


def segment_reduce_of_lengths(seglen: Tensor, value: Any, reducer: str = "sum") -> Any:
    """``dgl.ops.segment_reduce``. A call that it does not route meets `segment_reduce` inside DGL."""
    if reducer not in REDUCES or operands_reason((value,)) is not None:
        return ORIGINALS["ops.segment_reduce"](seglen, value, reducer)
    routed[f"segment_reduce:{reducer}"] += 1
    return ops.segment_reduce(seglen.to(value.device), value, reducer)


# -- all relations of a heterograph at once, by the operators for one ------------------------------


def _first_refusal(all_operands: Sequence[Sequence[Any]], mixed: bool = False) -> str | None:
    for operands in all_operands:
        accounts.note(operands[0])
        reason = operands_reason(operands, mixed)
        if reason is not None:
            return reason
    return None


class _Joined(torch.autograd.Function):
    """Identity on several tensors. If one of them gets a gradient, all get one, which may be zero."""

    @staticmethod
    def forward(ctx: Any, *tensors: Tensor) -> Any:
        return tuple(x.view_as(x) for x in tensors)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        return grads


def _joined(operands: Sequence[Any]) -> list[Any]:
    """The operands of a call on all relations, joined because the call is one node of the autograd graph in DGL."""
    joined = list(operands)
    if torch.is_grad_enabled():
        leaves = [i for i, x in enumerate(joined) if isinstance(x, Tensor) and x.requires_grad]
        if len(leaves) > 1:
            for i, x in zip(leaves, _Joined.apply(*(joined[i] for i in leaves))):
                joined[i] = x
    return joined


def gspmm_hetero(gidx: Any, op: str, reduce_op: str, lhs_len: int, *lhs_and_rhs: Any) -> Any:
    """``dgl.backend.gspmm_hetero``, with lhs by node type, rhs by edge type and results by node type."""
    schema = schema_of(gidx)
    joined = _joined(lhs_and_rhs)
    lhs, rhs = joined[:lhs_len], joined[lhs_len:]
    pairs = [(lhs[source], rhs[etype]) for etype, (source, _) in enumerate(schema)]
    name = f"gspmm_hetero:{_SPMM_NAMES.get((op, reduce_op), (op, reduce_op))}"
    reason = _first_refusal([_read(op, *pair) for pair in pairs], mixed=True)
    if (op, reduce_op) not in _SPMM_NAMES or reduce_op == "mean":
        reason = Reason.NO_OPERATOR
    if reason is not None:
        return _fall_back("gspmm_hetero", name, reason, gidx, op, reduce_op, lhs_len, *lhs_and_rhs)
    routed[name] += 1
    parts: list[list[Tensor]] = [[] for _ in range(gidx.number_of_ntypes())]
    for etype, (_, destination) in enumerate(schema):
        topology = relation_topology(gidx, etype)
        shared = reduce_op == "sum" and sum(destination == other for _, other in schema) > 1
        parts[destination].append(_spmm_part(topology, op, reduce_op, *pairs[etype], shared))
    dtype = computed_type(_read(op, *pairs[0])[0])
    return tuple(_combine(part, reduce_op).to(dtype) if part else torch.tensor([]) for part in parts)


def _spmm_part(topology: Topology, op: str, reduce_op: str, lhs: Any, rhs: Any, keep_fp32: bool) -> Tensor:
    """One relation's part of a result. keep_fp32: half results stay fp32, because others are added to them."""
    half = computed_type(_read(op, lhs, rhs)[0]) in HALF
    out = _spmm(topology, op, reduce_op, lhs, rhs, torch.float32 if half and keep_fp32 else None)
    return out if reduce_op == "sum" else _unbound(topology, reduce_op, out)


def _combine(parts: list[Tensor], reduce_op: str) -> Tensor:
    out = parts[0]
    for part in parts[1:]:
        if part.shape != out.shape:
            raise ValueError(
                f"relations into one node type give results of shapes {tuple(out.shape)} and {tuple(part.shape)}; "
                "expected one shape"
            )
        if reduce_op == "sum":
            out = out + part
        else:
            # As inside a relation: the first of equals gets the whole gradient, and NaN propagates.
            wins = out >= part if reduce_op == "max" else out <= part
            out = torch.where(wins | out.isnan(), out, part)
    return out


def gsddmm_hetero(
    gidx: Any,
    op: str,
    lhs_len: int,
    lhs_target: str = "u",
    rhs_target: str = "v",
    *lhs_and_rhs: Any,
) -> Any:
    """``dgl.backend.gsddmm_hetero``, with operands by node type, or by edge type for target e, and results by edge type."""
    joined = _joined(lhs_and_rhs)
    lhs, rhs = joined[:lhs_len], joined[lhs_len:]
    name = _SDDMM_NAMES.get((op, lhs_target, rhs_target))
    reason: str | None = Reason.NO_OPERATOR
    pairs = []
    if name is not None:
        pairs = [
            (_operand_of(lhs, lhs_target, etype, ends), _operand_of(rhs, rhs_target, etype, ends))
            for etype, ends in enumerate(schema_of(gidx))
        ]
        reason = _first_refusal([_read(op, *pair) for pair in pairs], mixed=True)
    name = f"gsddmm_hetero:{name or (op, lhs_target, rhs_target)}"
    if reason is not None:
        return _fall_back("gsddmm_hetero", name, reason, gidx, op, lhs_len, lhs_target, rhs_target, *lhs_and_rhs)
    routed[name] += 1
    return tuple(
        _sddmm(relation_topology(gidx, etype), op, *pair, lhs_target, rhs_target) for etype, pair in enumerate(pairs)
    )


def _operand_of(operands: Sequence[Any], target: str, etype: int, ends: tuple[int, int]) -> Any:
    index = {"u": ends[0], "v": ends[1], "e": etype}[TARGETS[target]]
    return operands[index] if index < len(operands) else None


def edge_softmax_hetero(gidx: Any, eids: Any = _ALL_EDGES, norm_by: str = "dst", *logits: Any) -> Any:
    """``dgl.backend.edge_softmax_hetero``: the softmax over all edges into a node, of all types together."""
    name = f"edge_softmax_hetero:{norm_by}"
    reason = operands_reason(logits)
    if reason is None and len({x.shape[1:] for x in logits}) > 1:
        reason = Reason.LOGITS
    if norm_by not in ("src", "dst"):
        reason = Reason.NO_OPERATOR
    elif not _is_all(eids):
        reason = Reason.EIDS
    if reason is not None:
        return _fall_back("edge_softmax_hetero", name, reason, gidx, eids, norm_by, *logits)
    routed[name] += 1
    logits = tuple(_joined(logits))
    side = 1 if norm_by == "dst" else 0
    groups: dict[int, list[int]] = {}
    for etype, ends in enumerate(schema_of(gidx)):
        groups.setdefault(ends[side], []).append(etype)
    scores: list[Any] = [None] * len(logits)
    for etypes in groups.values():
        union = union_topology(gidx, etypes, side).on(logits[0].device)
        softmax = ops.edge_softmax(union, torch.cat([logits[etype] for etype in etypes]), "dst")
        for etype, score in zip(etypes, softmax.split([len(logits[etype]) for etype in etypes])):
            scores[etype] = score
    return tuple(scores)
