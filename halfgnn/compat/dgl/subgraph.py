"""Subgraphs: some nodes, edges or types of a graph. Features are those of the rows kept, taken when they are read.

Nodes and edges keep their former ids in the features ``dgl.NID`` and ``dgl.EID`` unless store_ids is False. With relabel_nodes only
nodes of the subgraph remain, renumbered; otherwise all nodes remain as they are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ...common.arguments import checked_size
from .base import DGLError, check_ids, id_tensor, places_where
from .heterograph import DGLGraph
from .parts import by_type, ends_by_type, no_nodes, numberings, put_rows
from .queries import places_in_rows
from .topology import MetaGraph, Relation, Topology

__all__ = [
    "edge_subgraph",
    "edge_type_subgraph",
    "in_subgraph",
    "khop_in_subgraph",
    "khop_out_subgraph",
    "node_subgraph",
    "node_type_subgraph",
    "out_subgraph",
]

Edges = tuple[Tensor, Tensor, Tensor]  # sources, destinations and ids


def node_subgraph(
    graph: DGLGraph, nodes: Any, *, relabel_nodes: bool = True, store_ids: bool = True, output_device: Any = None
) -> DGLGraph:
    """The subgraph of nodes and of all edges between them, sorted by source.

    nodes: ids or a mask, or a dict of these per node type; without repetitions. Other types keep no node.
    """
    _refuse_block(graph)
    chosen = by_type(graph, nodes, "nodes")
    new_ids = [_new_ids(ids, count, name) for ids, count, name in zip(chosen, graph._graph.node_counts, graph.ntypes)]
    inner = [
        _inner_edges(relation, chosen[src_type], new_ids[dst_type])
        for relation, (src_type, dst_type) in zip(graph._graph.relations, graph._graph.metagraph.ends)
    ]
    if not relabel_nodes:
        kept = [
            (chosen[src_type].index_select(0, src), chosen[dst_type].index_select(0, dst), ids)
            for (src, dst, ids), (src_type, dst_type) in zip(inner, graph._graph.metagraph.ends)
        ]
        return _of_edges(graph, kept, store_ids, output_device)
    counts = [ids.numel() for ids in chosen]
    part = DGLGraph(_with_edges(graph, [(src, dst) for src, dst, _ in inner], counts), graph.ntypes, graph.etypes)
    return _moved(put_rows(part, graph, chosen, [ids for _, _, ids in inner], store_ids), output_device)


def _inner_edges(relation: Relation, src: Tensor, new_ids: Tensor) -> Edges:
    """The edges from nodes `src` to nodes that have a new id, by new ids of both ends, and their ids. By source, then by id."""
    side = relation.by_source()
    places, rows = places_in_rows(side, src)
    dst = new_ids.to(side.indices.dtype).index_select(0, side.indices.index_select(0, places))
    inside = places_where(dst >= 0)
    places, rows, dst = (every.index_select(0, inside) for every in (places, rows, dst))
    ids = places if side.edge_ids is None else side.edge_ids.index_select(0, places)
    return rows.to(src.dtype), dst.to(src.dtype), ids.to(src.dtype)


def _new_ids(nodes: Tensor, count: int, ntype: str) -> Tensor:
    """The new id of each node, -1 for those that are not kept."""
    new_ids = torch.full((count,), -1, dtype=nodes.dtype, device=nodes.device)
    places = torch.arange(nodes.numel(), dtype=nodes.dtype, device=nodes.device)
    new_ids.scatter_(0, nodes.long(), places)
    if not torch.equal(new_ids.index_select(0, nodes), places):
        raise DGLError(f"nodes[{ntype!r}] repeats a node; expected every node once")
    return new_ids


def edge_subgraph(
    graph: DGLGraph, edges: Any, *, relabel_nodes: bool = True, store_ids: bool = True, output_device: Any = None
) -> DGLGraph:
    """The subgraph of edges and of the nodes at their ends, numbered in the order in which the edges name them.

    edges: ids or a mask, or a dict of these per edge type. Other types keep no edge.
    """
    if relabel_nodes:
        _refuse_block(graph)
    if not isinstance(edges, Mapping):
        if len(graph.etypes) != 1:
            raise DGLError(f"edges is a {type(edges).__name__}; expected a dict with some of {graph.canonical_etypes}")
        edges = {graph.canonical_etypes[0]: edges}
    given = {graph.get_etype_id(etype): ids for etype, ids in edges.items()}
    kept = []
    for i, (etype, relation) in enumerate(zip(graph.canonical_etypes, graph._graph.relations)):
        ids = id_tensor(given.get(i, []), graph.idtype, graph.device, f"edges[{etype}]", masks=True)
        check_ids(ids, relation.num_edges, f"edges[{etype}]", "an edge")
        src, dst = relation.edges()
        kept.append((src[ids.long()], dst[ids.long()], ids))
    return _of_edges(graph, kept, store_ids, output_device, relabel_nodes)


def in_subgraph(
    graph: DGLGraph, nodes: Any, *, relabel_nodes: bool = False, store_ids: bool = True, output_device: Any = None
) -> DGLGraph:
    """The subgraph of all in-edges of nodes, node after node. nodes: ids, or a dict of ids per node type."""
    return _of_nodes(graph, nodes, "in", relabel_nodes, store_ids, output_device)


def out_subgraph(
    graph: DGLGraph, nodes: Any, *, relabel_nodes: bool = False, store_ids: bool = True, output_device: Any = None
) -> DGLGraph:
    """The subgraph of all out-edges of nodes, node after node. nodes: ids, or a dict of ids per node type."""
    return _of_nodes(graph, nodes, "out", relabel_nodes, store_ids, output_device)


def _of_nodes(
    graph: DGLGraph, nodes: Any, direction: str, relabel_nodes: bool, store_ids: bool, device: Any
) -> DGLGraph:
    _refuse_block(graph)
    chosen = by_type(graph, nodes, "nodes")
    kept = [edges for _, edges in _neighbors(graph, chosen, direction)]
    return _of_edges(graph, kept, store_ids, device, relabel_nodes)


def _neighbors(graph: DGLGraph, nodes: Sequence[Tensor], direction: str) -> list[tuple[int, Edges]]:
    """Per edge type the node type at the far end, and the in-edges or out-edges of nodes."""
    found = []
    for (src_type, dst_type), etype in zip(graph._graph.metagraph.ends, graph.canonical_etypes):
        if direction == "in":
            found.append((src_type, graph.in_edges(nodes[dst_type], form="all", etype=etype)))
        else:
            found.append((dst_type, graph.out_edges(nodes[src_type], form="all", etype=etype)))
    return found


# ---- neighbourhoods --------------------------------------------------------------------------------------------------------------


def khop_in_subgraph(
    graph: DGLGraph,
    nodes: Any,
    k: int,
    *,
    relabel_nodes: bool = True,
    store_ids: bool = True,
    output_device: Any = None,
) -> Any:
    """The subgraph of all nodes from which nodes are reached over at most k edges, by rising id.

    Returns:
        The subgraph; with relabel_nodes the pair of it and of the new ids of `nodes`, in a dict per node type if they are in one.
    """
    return _khop_subgraph(graph, nodes, k, "in", relabel_nodes, store_ids, output_device)


def khop_out_subgraph(
    graph: DGLGraph,
    nodes: Any,
    k: int,
    *,
    relabel_nodes: bool = True,
    store_ids: bool = True,
    output_device: Any = None,
) -> Any:
    """The subgraph of all nodes that are reached from nodes over at most k edges. See :func:`khop_in_subgraph`."""
    return _khop_subgraph(graph, nodes, k, "out", relabel_nodes, store_ids, output_device)


def _khop_subgraph(
    graph: DGLGraph, nodes: Any, k: int, direction: str, relabel_nodes: bool, store_ids: bool, device: Any
) -> Any:
    _refuse_block(graph)
    k = checked_size(k, "k")
    seeds = by_type(graph, nodes, "nodes")
    reached = [torch.unique(ids) for ids in seeds]
    frontier = reached
    for _ in range(k):
        far: list[list[Tensor]] = [[] for _ in graph.ntypes]
        for ntype, (src, dst, _) in _neighbors(graph, frontier, direction):
            far[ntype].append(src if direction == "in" else dst)
        frontier = [torch.unique(torch.cat(found)) if found else none for found, none in zip(far, no_nodes(graph))]
        reached = [torch.unique(torch.cat(both)) for both in zip(reached, frontier)]
    part = node_subgraph(
        graph,
        dict(zip(graph.ntypes, reached)),
        relabel_nodes=relabel_nodes,
        store_ids=store_ids,
        output_device=device,
    )
    if not relabel_nodes:
        return part
    places = [torch.searchsorted(all_of_type, ids) for all_of_type, ids in zip(reached, seeds)]
    if device is not None:
        places = [ids.to(device) for ids in places]
    if not isinstance(nodes, Mapping):
        return part, places[0]
    return part, {ntype: places[graph.get_ntype_id(ntype)] for ntype in nodes}


# ---- types -----------------------------------------------------------------------------------------------------------------------


def node_type_subgraph(graph: DGLGraph, ntypes: Sequence[str], output_device: Any = None) -> DGLGraph:
    """All edges between nodes of some types. It shares structure and features."""
    chosen = {graph.get_ntype_id(ntype) for ntype in ntypes}
    etypes = [
        etype
        for etype, (src, dst) in zip(graph.canonical_etypes, graph._graph.metagraph.ends)
        if src in chosen and dst in chosen
    ]
    if not etypes:
        raise DGLError(
            f"ntypes is {list(ntypes)}, between which there is no edge type; expected types of both ends of one"
        )
    return edge_type_subgraph(graph, etypes, output_device)


def edge_type_subgraph(graph: DGLGraph, etypes: Sequence[Any], output_device: Any = None) -> DGLGraph:
    """All edges of some types and all nodes of the types at their ends. It shares structure and features."""
    etids = [graph.get_etype_id(etype) for etype in etypes]
    ends = [graph._graph.metagraph.ends[etid] for etid in etids]
    ntids = sorted({ntid for pair in ends for ntid in pair})
    place = {ntid: i for i, ntid in enumerate(ntids)}
    topology = Topology(
        MetaGraph([(place[src], place[dst]) for src, dst in ends], len(ntids)),
        [graph._graph.node_counts[ntid] for ntid in ntids],
        [graph._graph.relations[etid] for etid in etids],
        graph._graph.allowed,
    )
    part = DGLGraph(
        topology,
        [graph.ntypes[ntid] for ntid in ntids],
        [graph.etypes[etid] for etid in etids],
        [graph._node_frames[ntid] for ntid in ntids],
        [graph._edge_frames[etid] for etid in etids],
    )
    part._batch_num_nodes, part._batch_num_edges = graph._batch_num_nodes, graph._batch_num_edges
    return _moved(part, output_device)


# ---- what they share -------------------------------------------------------------------------------------------------------------


def _of_edges(
    graph: DGLGraph, kept: Sequence[Edges], store_ids: bool, device: Any, relabel_nodes: bool = False
) -> DGLGraph:
    """The subgraph of these edges, in this order."""
    ends = [(src, dst) for src, dst, _ in kept]
    nodes: Sequence[Tensor | None] = [None] * len(graph._node_frames)
    counts: Sequence[int] = graph._graph.node_counts
    if relabel_nodes:
        numbered = numberings(no_nodes(graph), ends_by_type(graph, ends))
        ends = [
            (numbered[src_type].new_ids(src), numbered[dst_type].new_ids(dst))
            for (src_type, dst_type), (src, dst) in zip(graph._graph.metagraph.ends, ends)
        ]
        nodes = [numbering.nodes for numbering in numbered]
        counts = [numbering.nodes.numel() for numbering in numbered]
    part = graph._with(_with_edges(graph, ends, counts))
    return _moved(put_rows(part, graph, nodes, [ids for _, _, ids in kept], store_ids), device)


def _with_edges(graph: DGLGraph, ends: Sequence[tuple[Tensor, Tensor]], counts: Sequence[int]) -> Topology:
    relations = [
        Relation.from_edges(src, dst, counts[src_type], counts[dst_type], check=False)
        for (src_type, dst_type), (src, dst) in zip(graph._graph.metagraph.ends, ends)
    ]
    return graph._graph.with_relations(relations, counts)


def _moved(graph: DGLGraph, device: Any) -> DGLGraph:
    return graph if device is None else graph.to(device)


def _refuse_block(graph: DGLGraph) -> None:
    if graph.is_block:
        raise DGLError("graph is a block; expected a graph: block_to_graph makes one of it")
