"""From DGL's graph index to :class:`halfgnn.Graph`, once.

A graph index (``DGLGraph._graph``) is immutable: whatever changes a DGLGraph gives it a new index.
So what is derived from an index is kept on the index itself: it lives as long and cannot go stale.
It is kept in the ``__dict__``, because an index can neither be hashed nor asked for an attribute
that it lacks.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch import Tensor

from .._kept import Kept, kept, may_keep, refuse_capture, taken
from ..graph import Graph, ordinary_tensors
from ..heterograph import HeteroGraph

_TOPOLOGY = "_halfgnn_topology"  # of one relation: its Topology
_RELATIONS = "_halfgnn_relations"  # edge type id -> index of that relation alone
_IS_RELATION = "_halfgnn_is_relation"  # set on those
_SCHEMA = "_halfgnn_schema"  # (source, destination) node type ids of every edge type
_HETEROGRAPHS = "_halfgnn_heterographs"  # canonical edge types -> HeteroGraph
_UNIONS = "_halfgnn_unions"  # (node type id, norm_by) -> Topology of all edges that end in that type


class Topology:
    """One relation: its Graph, copies of that on other devices, and its nodes without in-edges."""

    __slots__ = ("_copies", "_isolated", "device", "graph")

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.device = graph.device
        self._copies: dict[torch.device, Graph] = {}
        self._isolated: dict[torch.device, Tensor | Kept[Tensor | None] | None] = {}

    def on(self, device: torch.device) -> Graph:
        """The graph on the device of the features."""
        if device == self.device:
            return self.graph
        copy = self._copies.get(device)
        if copy is None:
            refuse_capture(device, "the graph has to be copied to the device of the features", "call the module once")
            with ordinary_tensors():
                copy = self._copies[device] = self.graph.to(device)._for_all_streams()
        return copy

    def isolated(self, device: torch.device) -> Tensor | None:
        """Mask (num_dst,) of nodes without in-edges; on the CPU None where there are none."""
        if device in self._isolated:
            return taken(self._isolated[device])
        indptr = self.on(device).csc()[0]
        with ordinary_tensors():
            mask = indptr[1:] == indptr[:-1]
        # To ask a GPU would stall its stream; to mask in vain costs less.
        found = None if device.type == "cpu" and not bool(mask.any()) else mask
        if may_keep(device):
            self._isolated[device] = kept(found, [found])
        return found


def relation_graph(gidx: Any, etype: int) -> Any:
    """``HeteroGraphIndex.get_relation_graph``, but the same object on every call.

    So what is kept on it lasts from one ``update_all`` to the next.
    """
    attributes = gidx.__dict__
    if _IS_RELATION in attributes:
        return gidx
    relations = attributes.get(_RELATIONS)
    if relations is None:
        relations = attributes[_RELATIONS] = {}
    relation = relations.get(etype)
    if relation is None:
        relation = relations[etype] = _make_relation(gidx, int(etype))
        relation.__dict__[_IS_RELATION] = True
    return relation


def _make_relation(gidx: Any, etype: int) -> Any:
    # The body of the method, which may be replaced by relation_graph at this time.
    return sys.modules[type(gidx).__module__]._CAPI_DGLHeteroGetRelationGraph(gidx, etype)


def _edge_ids(ids: Tensor) -> Tensor | None:
    """DGL's edge ids of a sparse format; None, which is faster, where edges have that order."""
    if ids.numel() == 0:
        return None
    # On the CPU only, where to look costs nothing; most other orders show at their ends.
    ordered = ids.device.type == "cpu" and int(ids[0]) == 0 and int(ids[-1]) == ids.numel() - 1
    if ordered and torch.equal(ids, torch.arange(ids.numel(), dtype=ids.dtype)):
        return None
    return ids


def _convert(relation: Any) -> Graph:
    """The sparse formats of one relation, uncopied. COO only if the graph allows nothing else."""
    formats = relation.formats()
    created, allowed = formats["created"], formats["created"] + formats["not created"]
    if "csc" not in allowed and "csr" not in allowed:
        source, destination = relation.metagraph.find_edge(0)
        num_src, num_dst = relation.num_nodes(source), relation.num_nodes(destination)
        src, dst, _ = relation.edges(0, "eid")
        return Graph.from_edges(src, dst, num_src=num_src, num_dst=num_dst, check=False)
    csc = csr = None
    if "csc" in allowed:
        num_dst, num_src, indptr, indices, ids = relation.adjacency_matrix_tensors(0, True, "csr")
        _check_sampled(indices, num_src)
        csc = (indptr, indices, _edge_ids(ids))
    if csc is None or "csr" in created:
        num_src, num_dst, indptr, indices, ids = relation.adjacency_matrix_tensors(0, False, "csr")
        csr = (indptr, indices, _edge_ids(ids))
    return Graph(num_src, num_dst, csc=csc, csr=csr)


def _check_sampled(indices: Tensor, num_src: int) -> None:
    """Raises for what the samplers of dgl 1.1.3 make, on the CPU, of graphs with int32 ids: sources that do not exist."""
    if indices.dtype == torch.int32 and indices.device.type == "cpu" and indices.numel():
        low, high = (int(x) for x in torch.aminmax(indices))
        if low < 0 or high >= num_src:
            raise ValueError(
                f"g has a source node {high if high >= num_src else low}, but {num_src} source nodes; if it is a block, sample it "
                "from g.long(): DGL's samplers on the CPU go wrong on int32 ids"
            )


def relation_topology(gidx: Any, etype: int) -> Topology:
    """The topology of one relation of a graph index, made at most once."""
    relation = relation_graph(gidx, etype)
    topology = relation.__dict__.get(_TOPOLOGY)
    if topology is None:
        with ordinary_tensors():
            topology = Topology(_convert(relation))
        if may_keep(topology.device):
            topology.graph._for_all_streams()
            relation.__dict__[_TOPOLOGY] = topology
    return topology


def topology_of(gidx: Any) -> Topology | None:
    """The topology of a graph index; None if it has several relations."""
    topology = gidx.__dict__.get(_TOPOLOGY)
    if topology is None:
        if gidx.number_of_etypes() != 1:
            return None
        topology = relation_topology(gidx, 0)
        if may_keep(topology.device):
            gidx.__dict__[_TOPOLOGY] = topology
    return topology


def schema_of(gidx: Any) -> list[tuple[int, int]]:
    """(source node type id, destination node type id) of every edge type of a graph index."""
    schema = gidx.__dict__.get(_SCHEMA)
    if schema is None:
        metagraph = gidx.metagraph
        schema = [metagraph.find_edge(etype) for etype in range(metagraph.num_edges())]
        gidx.__dict__[_SCHEMA] = schema
    return schema


def union_topology(gidx: Any, etypes: list[int], side: int) -> Topology:
    """All edges of these relations, one relation after the other, as in-edges of one node type.

    That is their destination type where `side` is 1, their source type where it is 0. Only good for
    operators that do not look at the other end.
    """
    unions = gidx.__dict__.setdefault(_UNIONS, {})
    key = (side, *etypes)
    union = unions.get(key)
    if union is None:
        graphs = [relation_topology(gidx, etype).graph for etype in etypes]
        num_nodes = graphs[0].num_dst if side else graphs[0].num_src
        with ordinary_tensors():
            ends = torch.cat([graph.edges()[side] for graph in graphs])
        graph = Graph.from_edges(ends, ends, num_src=num_nodes, num_dst=num_nodes, check=False)
        union = Topology(graph)
        if may_keep(graph.device):
            graph._for_all_streams()
            unions[key] = union
    return union


def graph_from_dgl(g: Any, etype: str | tuple[str, str, str] | None = None) -> Graph:
    """The topology of a DGL graph, a block, or one edge type of a heterograph.

    Shares memory with DGL's own CSC (and CSR, if DGL has made it) and is kept with the graph, so
    that a second call costs next to nothing; a DGLGraph that is changed afterwards is converted
    anew. Edge data keep DGL's order.

    Args:
        g: DGLGraph.
        etype: edge type, in any form that DGL takes; may be left out where there is only one.

    Raises:
        TypeError: `g` is not a DGLGraph.
        ValueError: `etype` is missing.
    """
    gidx = getattr(g, "_graph", None)
    if gidx is None:
        raise TypeError(f"g must be a DGLGraph, got {type(g).__name__}")
    if etype is not None:
        return relation_topology(gidx, g.get_etype_id(etype)).graph
    topology = topology_of(gidx)
    if topology is None:
        raise ValueError(f"etype must be given for a graph of several edge types: {g.canonical_etypes}")
    return topology.graph


def heterograph_from_dgl(g: Any) -> HeteroGraph:
    """All relations of a DGL graph or block; kept with it as :func:`graph_from_dgl` does.

    Raises:
        TypeError: `g` is not a DGLGraph.
    """
    gidx = getattr(g, "_graph", None)
    if gidx is None:
        raise TypeError(f"g must be a DGLGraph, got {type(g).__name__}")
    known = gidx.__dict__.setdefault(_HETEROGRAPHS, {})
    etypes = tuple(g.canonical_etypes)  # names are the graph's, not the index's
    heterograph = known.get(etypes)
    if heterograph is None:
        heterograph = HeteroGraph(
            {etype: relation_topology(gidx, g.get_etype_id(etype)).graph for etype in etypes},
            num_src={ntype: g.num_src_nodes(ntype) for ntype in g.srctypes},
            num_dst={ntype: g.num_dst_nodes(ntype) for ntype in g.dsttypes},
        )
        if may_keep(heterograph.device):
            known[etypes] = heterograph
    return heterograph
