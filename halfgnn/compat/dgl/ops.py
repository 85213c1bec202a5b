"""``dgl.ops``: halfgnn's operators on graphs of one edge type or several."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import permutations
from typing import Any

import torch
from torch import Tensor

from ... import ops
from ...common.arguments import MESSAGE_OPS, REDUCES
from ...graph import Graph
from .base import ALL, DGLError, check_ids, id_tensor, is_all
from .cross_types import reduced
from .graph_data import GraphData
from .topology import Relation

segment_reduce = ops.segment_reduce


def gspmm(g: GraphData, op: str, reduce_op: str, lhs_data: Any, rhs_data: Any) -> Any:
    """:func:`halfgnn.ops.gspmm`. Nodes without in-edges get 0, under max and min too.

    On a graph of several edge types lhs_data has a tensor per node type and rhs_data one per edge type, in sequences by id, or in
    mappings by name. The result is a tuple with a tensor per node type, None for types that have no in-edges. The types' results
    are reduced: mean is not available.
    """
    if len(g._graph.relations) == 1:
        graph = g._graph.relations[0].graph()
        return ops.gspmm(graph, op, reduce_op, _only(g, lhs_data, "u"), _only(g, rhs_data, "e"))
    by_type: dict[int, list[tuple[Tensor, Relation]]] = {}
    for etid, (_, dst) in enumerate(g._graph.metagraph.ends):
        relation = g._graph.relations[etid]
        lhs, rhs = _operand(g, lhs_data, "u", etid), _operand(g, rhs_data, "e", etid)
        if relation.num_edges or (lhs if op == "copy_lhs" else rhs) is not None:
            result = ops.gspmm(relation.graph(), op, reduce_op, lhs, rhs)
            by_type.setdefault(dst, []).append((result, relation))
    return tuple(
        reduced(by_type[ntid], reduce_op) if ntid in by_type else None for ntid in range(len(g._graph.node_counts))
    )


def gsddmm(g: GraphData, op: str, lhs_data: Any, rhs_data: Any, lhs_target: str = "u", rhs_target: str = "v") -> Any:
    """:func:`halfgnn.ops.gsddmm`. With several edge types operands are as for :func:`gspmm`, and the result is a tuple."""
    if len(g._graph.relations) == 1:
        lhs, rhs = _only(g, lhs_data, lhs_target), _only(g, rhs_data, rhs_target)
        return ops.gsddmm(g._graph.relations[0].graph(), op, lhs, rhs, lhs_target, rhs_target)
    results: list[Tensor | None] = []
    for etid, relation in enumerate(g._graph.relations):
        lhs, rhs = _operand(g, lhs_data, lhs_target, etid), _operand(g, rhs_data, rhs_target, etid)
        if (lhs if op != "copy_rhs" else rhs) is None:
            results.append(None)
        else:
            results.append(ops.gsddmm(relation.graph(), op, lhs, rhs, lhs_target, rhs_target))
    return tuple(results)


def _only(g: GraphData, data: Any, target: str) -> Any:
    return data if data is None or isinstance(data, Tensor) else _operand(g, data, target, 0)


def _operand(g: GraphData, data: Any, target: str, etid: int) -> Tensor | None:
    """Of one edge type: of its edges, or of its type of sources or destinations."""
    if data is None:
        return None
    src, dst = g._graph.metagraph.ends[etid]
    place = {"u": src, "v": dst, "e": etid}[target]
    if isinstance(data, Mapping):
        name: Any = g.canonical_etypes[etid] if target == "e" else g.ntypes[place]
        return data.get(name, data.get(name[1]) if target == "e" else None)
    if isinstance(data, Tensor) or len(data) <= place:
        what = "edge" if target == "e" else "node"
        raise DGLError(
            f"an operand is a {type(data).__name__}; expected one tensor per {what} type, as the graph has several edge types"
        )
    return data[place]


def _spmm(op: str, reduce: str) -> Callable:
    def function(g: GraphData, x: Any, y: Any) -> Any:
        return gspmm(g, op, reduce, x, y)

    function.__doc__ = f"{reduce} over in-edges (u, v) of {op}(x[u], y[e]). See gspmm."
    return function


def _copy_spmm(target: str, reduce: str) -> Callable:
    def function(g: GraphData, x: Any) -> Any:
        return gspmm(g, "copy_lhs", reduce, x, None) if target == "u" else gspmm(g, "copy_rhs", reduce, None, x)

    function.__doc__ = f"{reduce} over in-edges of x[{target}]. See gspmm."
    return function


def _sddmm(op: str, lhs: str, rhs: str) -> Callable:
    def function(g: GraphData, x: Any, y: Any) -> Any:
        return gsddmm(g, op, x, y, lhs, rhs)

    function.__doc__ = f"{op}(x[{lhs}], y[{rhs}]) for every edge e = (u, v). See gsddmm."
    return function


def _copy_sddmm(target: str) -> Callable:
    def function(g: GraphData, x: Any) -> Any:
        return gsddmm(g, "copy_lhs", x, None, target, "v")

    function.__doc__ = f"x[{target}] for every edge e = (u, v). See gsddmm."
    return function


def _generated() -> dict[str, Callable]:
    return {
        **{f"u_{op}_e_{reduce}": _spmm(op, reduce) for op in MESSAGE_OPS for reduce in REDUCES},
        **{f"copy_{target}_{reduce}": _copy_spmm(target, reduce) for target in "ue" for reduce in REDUCES},
        **{f"{u}_{op}_{v}": _sddmm(op, u, v) for op in (*MESSAGE_OPS, "dot") for u, v in permutations("uve", 2)},
        **{f"copy_{target}": _copy_sddmm(target) for target in "uve"},
    }


for _name, _function in _generated().items():
    _function.__name__ = _function.__qualname__ = _name
    globals()[_name] = _function


def edge_softmax(graph: GraphData, logits: Any, eids: Any = ALL, norm_by: str = "dst") -> Any:
    """:func:`halfgnn.ops.edge_softmax` of all edges, or of the edges `eids`, which logits are of and over which it normalises.

    On a graph of several edge types logits are {edge type: tensor}, and so is the result. It normalises over the edges of all
    types that share a node.
    """
    relations = graph._graph.relations
    if not isinstance(logits, Mapping):
        if len(relations) != 1:
            raise DGLError(
                f"logits is a {type(logits).__name__}; expected {{edge type: tensor}}, as the graph has several"
            )
        relation = relations[0]
        if not is_all(eids):
            ids = id_tensor(eids, relation.idtype, relation.device, "eids", masks=True).long()
            check_ids(ids, relation.num_edges, "eids", "an edge")
            src, dst = (ends[ids] for ends in relation.edges())
            relation = Relation.from_edges(src, dst, relation.num_src, relation.num_dst, check=False)
        return ops.edge_softmax(relation.graph(), logits, norm_by)
    if not is_all(eids):
        raise DGLError("eids are given for a graph of several edge types; expected all edges")
    named = {graph.to_canonical_etype(etype): tensor for etype, tensor in logits.items()}
    etids = [i for i, etype in enumerate(graph.canonical_etypes) if etype in named]
    ordered = [named[graph.canonical_etypes[i]] for i in etids]
    joined = _joined(graph, etids, 0 if norm_by == "src" else 1)
    parts = ops.edge_softmax(joined.graph(), torch.cat(ordered)).split([part.shape[0] for part in ordered])
    return {graph.canonical_etypes[i]: part for i, part in zip(etids, parts)}


def _joined(graph: GraphData, etids: list[int], side: int) -> Relation:
    """Edges of several types one after the other, into the nodes of all types that edges have on one side."""
    counts = graph._graph.node_counts
    starts = [sum(counts[:i]) for i in range(len(counts))]
    ends = [graph._graph.relations[i].edges()[side] + starts[graph._graph.metagraph.ends[i][side]] for i in etids]
    into = torch.cat(ends)
    return Relation.from_edges(torch.zeros_like(into), into, 1, sum(counts), check=False)


# ---- segments and products -------------------------------------------------------------------------------------------------------


def segment_softmax(seglen: Tensor, value: Tensor) -> Tensor:
    """softmax of the values (R, *) of each segment, of which seglen (S,) has the lengths."""
    offsets = torch.nn.functional.pad(seglen.cumsum(0, dtype=seglen.dtype), (1, 0))
    rows = torch.arange(value.shape[0], dtype=seglen.dtype, device=value.device)
    return ops.edge_softmax(Graph.from_csc(offsets, rows, num_src=value.shape[0]), value)


def segment_mm(a: Tensor, b: Tensor, seglen_a: Tensor) -> Tensor:
    """Rows of each segment of a (R, in) times that segment's matrix of b (S, in, out): (R, out). seglen_a (S,): lengths."""
    lengths = seglen_a.tolist()
    fits = a.dim() == 2 and b.dim() == 3 and len(lengths) == b.shape[0] and sum(lengths) == a.shape[0]
    if not fits or min(lengths, default=0) < 0:
        raise DGLError(
            f"a has shape {tuple(a.shape)}, b {tuple(b.shape)} and seglen_a {tuple(seglen_a.shape)}, which adds up to"
            f" {sum(lengths)}; expected (R, in), (S, in, out) and (S,) of lengths that add up to R"
        )
    if not lengths:
        return a.new_zeros(0, b.shape[2])
    return torch.cat([rows @ b[i] for i, rows in enumerate(a.split(lengths))])


def gather_mm(a: Tensor, b: Tensor, *, idx_b: Tensor) -> Tensor:
    """Each row of a (R, in) times the matrix of b (S, in, out) that idx_b (R,) names: (R, out)."""
    if idx_b.shape != a.shape[:1]:
        raise DGLError(f"idx_b has shape {tuple(idx_b.shape)}; expected ({a.shape[0]},), one id per row of a")
    check_ids(idx_b, b.shape[0], "idx_b", "a matrix")
    order = idx_b.argsort(stable=True)
    lengths = torch.bincount(idx_b, minlength=b.shape[0])
    products = segment_mm(a[order], b, lengths.cpu())
    return torch.empty_like(products).index_copy(0, order, products)


__all__ = [
    "edge_softmax",
    "gather_mm",
    "gsddmm",
    "gspmm",
    "segment_mm",
    "segment_reduce",
    "segment_softmax",
    *_generated(),
]
