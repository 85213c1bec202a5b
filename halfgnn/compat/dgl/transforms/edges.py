"""Graphs with other edges or nodes: reversed, both ways, without repetitions, with and without self-loops."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from .... import ops
from ..base import EID, DGLError, EdgeType, dgl_warning
from ..frame import Frame
from ..heterograph import DGLGraph
from ..parts import copy_features, rows_of_frames
from ..topology import Relation

__all__ = [
    "add_edges",
    "add_nodes",
    "add_reverse_edges",
    "add_self_loop",
    "remove_edges",
    "remove_nodes",
    "remove_self_loop",
    "reverse",
    "to_bidirected",
    "to_simple",
    "to_simple_graph",
]

# ---- both ways -------------------------------------------------------------------------------------------------------------------


def reverse(
    g: DGLGraph,
    copy_ndata: bool = True,
    copy_edata: bool = False,
    *,
    share_ndata: bool | None = None,
    share_edata: bool | None = None,
) -> DGLGraph:
    """Every edge in the other direction, under the same id. It shares the structure.

    copy_ndata, copy_edata: keep the features (share_ndata, share_edata are their former names).
    """
    if g.is_block:
        raise DGLError("g is a block; expected a graph: blocks cannot be reversed")
    made = DGLGraph(g._graph.reverse(), g.ntypes, g.etypes)
    made._batch_num_nodes = g._batch_num_nodes
    if g._batch_num_edges is not None:
        made._batch_num_edges = {(v, etype, u): counts for (u, etype, v), counts in g._batch_num_edges.items()}
    nodes, edges = (
        copy if share is None else share for copy, share in ((copy_ndata, share_ndata), (copy_edata, share_edata))
    )
    return copy_features(made, g, nodes, edges)


def add_reverse_edges(
    g: DGLGraph,
    readonly: Any = None,
    copy_ndata: bool = True,
    copy_edata: bool = False,
    ignore_bipartite: bool = False,
    exclude_self: bool = True,
) -> DGLGraph:
    """The edges, followed by their reverses.

    Args:
        copy_ndata: keep features of nodes.
        copy_edata: reverse edges get the features of their edges, and all edges the ids of those in ``dgl.EID``.
        ignore_bipartite: leave edges between different types as they are; by default these are refused.
        exclude_self: self-loops are not added again.

    Raises:
        DGLError: edges between different types.
    """
    _warn_of_readonly(readonly)
    relations, origins = [], []
    for etype, relation in zip(g.canonical_etypes, g._graph.relations):
        origin = torch.arange(relation.num_edges, dtype=g.idtype, device=g.device)
        if etype[0] == etype[2]:
            src, dst = relation.edges()
            again = origin[src != dst] if exclude_self else origin
            ends = torch.cat([src, dst[again.long()]]), torch.cat([dst, src[again.long()]])
            relation = Relation.from_edges(*ends, relation.num_src, relation.num_dst, check=False)
            origin = torch.cat([origin, again])
        elif not ignore_bipartite:
            raise DGLError(
                f"g has the edge type {etype}; expected one type of nodes at both ends, or ignore_bipartite=True"
            )
        relations.append(relation)
        origins.append(origin)
    made = copy_features(g._with(g._graph.with_relations(relations)), g, copy_ndata, edata=False)
    if copy_edata:
        made._edge_frames = rows_of_frames(g._edge_frames, origins, EID)
    return made


def to_bidirected(g: DGLGraph, copy_ndata: bool = False, readonly: Any = None) -> DGLGraph:
    """Edges in both directions, none twice, sorted by source and destination. Edges between different types are refused."""
    both = add_reverse_edges(g, readonly, copy_ndata=copy_ndata)
    return to_simple(both, return_counts=None, copy_ndata=copy_ndata)


def _warn_of_readonly(readonly: Any) -> None:
    if readonly is not None:
        dgl_warning("readonly has no effect", stacklevel=3)


# ---- without repetitions ---------------------------------------------------------------------------------------------------------


def to_simple(
    g: DGLGraph,
    return_counts: str | None = "count",
    writeback_mapping: bool = False,
    copy_ndata: bool = True,
    copy_edata: bool = False,
    aggregator: str = "arbitrary",
) -> Any:
    """One edge in place of all that have the same ends, sorted by source and destination.

    Args:
        return_counts: the edge feature that gets the numbers of former edges; None for none.
        writeback_mapping: also return the new id of each former edge: a tensor, or a dict per edge type if there are several.
        copy_ndata: keep features of nodes.
        copy_edata: keep features of edges, and with "arbitrary" former ids in ``dgl.EID``.
        aggregator: of the features of edges that become one: "arbitrary" takes the first, "sum" or "mean".
    """
    if g.is_block:
        raise DGLError("g is a block; expected a graph")
    if aggregator not in ("arbitrary", "sum", "mean"):
        raise DGLError(f"aggregator is {aggregator!r}; expected 'arbitrary', 'sum' or 'mean'")
    relations, frames, mapping = [], [], {}
    for etype, relation, frame in zip(g.canonical_etypes, g._graph.relations, g._edge_frames):
        order, counts, first = _groups(relation)
        src, dst = (end[first] for end in relation.edges())
        relations.append(Relation.from_edges(src, dst, relation.num_src, relation.num_dst, check=False))
        frames.append(
            _merged(frame, order, counts, first.to(g.idtype), aggregator) if copy_edata else Frame(num_rows=len(first))
        )
        if return_counts is not None:
            frames[-1][return_counts] = counts.to(g.idtype)
        if writeback_mapping:
            places = torch.arange(len(first), dtype=g.idtype, device=g.device).repeat_interleave(counts)
            mapping[etype] = torch.empty_like(places).index_copy(0, order, places)
    made = g._with(g._graph.with_relations(relations), None, frames)
    copy_features(made, g, copy_ndata, edata=False)
    if not writeback_mapping:
        return made
    return made, mapping if len(mapping) != 1 else next(iter(mapping.values()))


def _groups(relation: Relation) -> tuple[Tensor, Tensor, Tensor]:
    """Ids of edges by ends, the lengths of the groups with the same ends, and the smallest id of each group."""
    keys, order = relation.pairs()
    _, counts = torch.unique_consecutive(keys, return_counts=True)
    return order, counts, order[counts.cumsum(0) - counts]


def _merged(frame: Frame, order: Tensor, counts: Tensor, first: Tensor, aggregator: str) -> Frame:
    if aggregator == "arbitrary":
        return rows_of_frames([frame], [first], EID)[0]
    merged = Frame(num_rows=len(counts))
    for name in frame.schemes:
        values = frame[name][order]
        if values.is_floating_point():
            merged[name] = ops.segment_reduce(counts, values, aggregator)
        elif aggregator == "sum":
            groups = torch.arange(len(counts), device=order.device).repeat_interleave(counts)
            merged[name] = values.new_zeros(len(counts), *values.shape[1:]).index_add(0, groups, values)
        else:
            raise DGLError(
                f"the feature {name!r} has dtype {values.dtype}; expected floating point for aggregator='mean'"
            )
    return merged


def to_simple_graph(g: DGLGraph) -> DGLGraph:
    """The former name of :func:`to_simple`."""
    dgl_warning("dgl.to_simple_graph is a former name of dgl.to_simple")
    return to_simple(g)


# ---- added and removed -----------------------------------------------------------------------------------------------------------


def add_nodes(g: DGLGraph, num: int, data: Mapping[str, Tensor] | None = None, ntype: str | None = None) -> DGLGraph:
    """Another graph with `num` nodes more. See :meth:`DGLGraph.add_nodes`."""
    g = g.clone()
    g.add_nodes(num, data=data, ntype=ntype)
    return g


def add_edges(g: DGLGraph, u: Any, v: Any, data: Mapping[str, Tensor] | None = None, etype: Any = None) -> DGLGraph:
    """Another graph with edges from u to v added. See :meth:`DGLGraph.add_edges`."""
    g = g.clone()
    g.add_edges(u, v, data=data, etype=etype)
    return g


def remove_edges(g: DGLGraph, eids: Any, etype: Any = None, store_ids: bool = False) -> DGLGraph:
    """Another graph without these edges. See :meth:`DGLGraph.remove_edges`."""
    g = g.clone()
    g.remove_edges(eids, etype=etype, store_ids=store_ids)
    return g


def remove_nodes(g: DGLGraph, nids: Any, ntype: str | None = None, store_ids: bool = False) -> DGLGraph:
    """Another graph without these nodes and their edges. See :meth:`DGLGraph.remove_nodes`."""
    g = g.clone()
    g.remove_nodes(nids, ntype=ntype, store_ids=store_ids)
    return g


def add_self_loop(
    g: DGLGraph, edge_feat_names: Sequence[str] | None = None, fill_data: float | str = 1.0, etype: Any = None
) -> DGLGraph:
    """A self-loop of every node after the edges, also of nodes that have one.

    Args:
        edge_feat_names: features that the new edges get; by default all. Others get initial values.
        fill_data: a number, or how a node's in-edges give the value: "sum", "mean", "max" or "min".
    """
    etype = _with_one_ntype(g, etype)
    frame = g._edge_frames[g.get_etype_id(etype)]
    if isinstance(fill_data, str) and fill_data not in ("sum", "mean", "max", "min"):
        raise DGLError(f"fill_data is {fill_data!r}; expected a number, 'sum', 'mean', 'max' or 'min'")
    data = {}
    for name in frame.schemes if edge_feat_names is None else edge_feat_names:
        values = frame[name]
        if isinstance(fill_data, str):
            data[name] = getattr(ops, f"copy_e_{fill_data}")(g._relation(etype).graph(), values)
        else:
            data[name] = values.new_full((g.num_nodes(etype[0]), *values.shape[1:]), fill_data)
    nodes = g.nodes(etype[0])
    return add_edges(g, nodes, nodes, data, etype)


def remove_self_loop(g: DGLGraph, etype: Any = None) -> DGLGraph:
    """Another graph without self-loops."""
    etype = _with_one_ntype(g, etype)
    src, dst = g.all_edges(etype=etype)
    return remove_edges(g, (src == dst).nonzero().squeeze(1), etype)


def _with_one_ntype(g: DGLGraph, etype: Any) -> EdgeType:
    found = g.to_canonical_etype(etype)
    if found[0] != found[2]:
        raise DGLError(f"etype is {found}, which has no self-loops; expected one type of nodes at both ends")
    return found
