"""What the wrappers need of a DGL graph index. It is computed once and cached on the index, as :mod:`halfgnn.dgl_index` says."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..common.caching import Cached, cacheable, may_cache, ordinary_tensors, read_cached, refuse_capture
from ..dgl_index import relation_index
from ..graph import Graph
from ..heterograph import HeteroGraph

_TOPOLOGY = "_halfgnn_topology"  # of one relation: its Topology
_SCHEMA = "_halfgnn_schema"  # (source, destination) node type ids of every edge type
_UNIONS = "_halfgnn_unions"  # (node type id, norm_by) -> Topology of all edges that end in that type


class Topology:
    """One relation: its Graph, copies of that on other devices, and its nodes without in-edges."""

    __slots__ = ("_copies", "_isolated", "device", "graph")

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.device = graph.device
        self._copies: dict[torch.device, Graph] = {}
        self._isolated: dict[torch.device, Tensor | Cached[Tensor | None] | None] = {}

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
        """Mask (num_dst,) of nodes without in-edges. On the CPU None if there are none."""
        if device in self._isolated:
            return read_cached(self._isolated[device])
        indptr = self.on(device).csc()[0]
        with ordinary_tensors():
            mask = indptr[1:] == indptr[:-1]
        # Asking a GPU would stall its stream. A mask of no nodes costs less.
        mask_or_none = None if device.type == "cpu" and not bool(mask.any()) else mask
        if may_cache(device):
            self._isolated[device] = cacheable(mask_or_none, [mask_or_none])
        return mask_or_none


def relation_topology(gidx: Any, etype: int) -> Topology:
    """The topology of one relation of a graph index. It is made once."""
    relation = relation_index(gidx, etype)
    topology = relation.__dict__.get(_TOPOLOGY)
    if topology is None:
        topology = Topology(Graph._from_dgl_index(relation, 0))
        if may_cache(topology.device):
            relation.__dict__[_TOPOLOGY] = topology
    return topology


def topology_of(gidx: Any) -> Topology | None:
    """The topology of a graph index; None if it has several relations."""
    topology = gidx.__dict__.get(_TOPOLOGY)
    if topology is None:
        if gidx.number_of_etypes() != 1:
            return None
        topology = relation_topology(gidx, 0)
        if may_cache(topology.device):
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

    side: 1 for their destination type, 0 for their source type. Only for operators that do not read the other end.
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
        if may_cache(graph.device):
            graph._for_all_streams()
            unions[key] = union
    return union


def graph_from_dgl(g: Any, etype: str | tuple[str, str, str] | None = None) -> Graph:
    """The topology of a DGL graph, a block, or one edge type of a heterograph.

    It shares memory with DGL's own CSC (and CSR, if DGL has made one) and is cached with the graph, so a second call is cheap. A
    DGLGraph that has changed is converted again. Edge data keeps DGL's order.

    Args:
        g: DGLGraph.
        etype: edge type, in any form that DGL takes. Not needed if there is only one.

    Raises:
        TypeError: `g` is not a DGLGraph.
        ValueError: `etype` is missing, and there are several.
    """
    return Graph.from_dgl(g, etype)


def heterograph_from_dgl(g: Any) -> HeteroGraph:
    """All relations of a DGL graph or block. The HeteroGraph is cached with it, as in :func:`graph_from_dgl`.

    Raises:
        TypeError: `g` is not a DGLGraph.
    """
    return HeteroGraph.from_dgl(g)
