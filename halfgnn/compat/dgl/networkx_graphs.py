"""Graphs from networkx, and to it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .base import DGLError
from .convert import graph, heterograph, to_homogeneous
from .heterograph import DGLGraph

__all__ = ["bipartite_from_networkx", "from_networkx", "to_networkx"]


def from_networkx(
    nx_graph: Any,
    node_attrs: Sequence[str] | None = None,
    edge_attrs: Sequence[str] | None = None,
    edge_id_attr_name: str | None = None,
    idtype: Any = None,
    device: Any = None,
) -> DGLGraph:
    """A graph of a networkx graph. Its nodes are sorted, and each edge of an undirected graph becomes two.

    Args:
        node_attrs, edge_attrs: attributes that become features. All nodes or edges must have them.
        edge_id_attr_name: the attribute that has the ids of edges; by default edges have networkx's order.
    """
    if edge_id_attr_name is not None and not nx_graph.is_directed():
        raise DGLError(
            "edge_id_attr_name is given for an undirected graph; expected a directed one, as each edge becomes two"
        )
    if edge_attrs is not None and not nx_graph.is_directed():
        raise DGLError(
            "edge_attrs are given for an undirected graph; expected a directed one: nx_graph.to_directed() makes it"
        )
    directed = nx_graph if nx_graph.is_directed() else nx_graph.to_directed()
    names = sorted(directed.nodes())
    ids = {name: i for i, name in enumerate(names)}
    ends, attributes = _edges_of(directed, ids, ids, edge_id_attr_name)
    made = graph(ends, num_nodes=len(names), idtype=idtype or torch.int64, device=device)
    for name in node_attrs or ():
        made.ndata[name] = _stacked([directed.nodes[node] for node in names], name, "nodes").to(made.device)
    for name in edge_attrs or ():
        made.edata[name] = _stacked(attributes, name, "edges").to(made.device)
    return made


def bipartite_from_networkx(
    nx_graph: Any,
    utype: str,
    etype: str,
    vtype: str,
    u_attrs: Sequence[str] | None = None,
    e_attrs: Sequence[str] | None = None,
    v_attrs: Sequence[str] | None = None,
    edge_id_attr_name: str | None = None,
    idtype: Any = None,
    device: Any = None,
) -> DGLGraph:
    """A bipartite graph of a directed networkx graph, whose nodes have the attribute `bipartite`: 0 for sources, 1 for others.

    Otherwise like :func:`from_networkx`.
    """
    if not nx_graph.is_directed():
        raise DGLError("nx_graph is undirected; expected a directed graph: nx_graph.to_directed() makes one")
    sides: tuple[list, list] = [], []
    for node, side in nx_graph.nodes(data="bipartite"):
        if side not in (0, 1):
            raise DGLError(f"the node {node!r} has bipartite={side!r}; expected 0 or 1")
        sides[side].append(node)
    sources, destinations = ({node: i for i, node in enumerate(sorted(side))} for side in sides)
    ends, attributes = _edges_of(nx_graph, sources, destinations, edge_id_attr_name)
    counts = {utype: len(sources), vtype: len(destinations)}
    made = heterograph({(utype, etype, vtype): ends}, counts, idtype=idtype or torch.int64, device=device)
    for names, nodes, view in ((u_attrs, sources, made.srcdata), (v_attrs, destinations, made.dstdata)):
        for name in names or ():
            view[name] = _stacked([nx_graph.nodes[node] for node in nodes], name, "nodes").to(made.device)
    for name in e_attrs or ():
        made.edata[name] = _stacked(attributes, name, "edges").to(made.device)
    return made


def _edges_of(nx_graph: Any, sources: dict, destinations: dict, id_name: str | None) -> tuple[tuple, list[dict]]:
    """Ids of the ends of all edges, and their attributes, by edge id."""
    edges = list(nx_graph.edges(data=True))
    if id_name is not None:
        order = [-1] * len(edges)
        for place, (_, _, attributes) in enumerate(edges):
            eid = int(np.asarray(attributes[id_name]).reshape(()))
            if not 0 <= eid < len(edges) or order[eid] >= 0:
                raise DGLError(f"{id_name} of an edge is {eid}; expected every number in [0, {len(edges)}) once")
            order[eid] = place
        edges = [edges[place] for place in order]
    for u, v, _ in edges:
        if u not in sources or v not in destinations:
            raise DGLError(
                f"an edge leads from {u!r} to {v!r}; expected a node with bipartite=0 and one with bipartite=1"
            )
    src, dst = [sources[u] for u, _, _ in edges], [destinations[v] for _, v, _ in edges]
    return (src, dst), [attributes for _, _, attributes in edges]


def _stacked(attributes: Iterable[dict], name: str, what: str) -> Tensor:
    values = []
    for attribute in attributes:
        if name not in attribute:
            raise DGLError(f"not all {what} have the attribute {name!r}")
        values.append(attribute[name])
    if values and isinstance(values[0], Tensor):
        return torch.stack(values)
    return torch.as_tensor(np.asarray(values))


def to_networkx(
    g: DGLGraph,
    node_attrs: Sequence[str] | None = None,
    edge_attrs: Sequence[str] | None = None,
    ntype_attr: str = "ntype",
    etype_attr: str = "etype",
    eid_attr: str = "id",
) -> Any:
    """A networkx.MultiDiGraph, with ids of edges as the attribute `eid_attr`, and for several types names of types.

    node_attrs, edge_attrs: features that become attributes, of the types that have them.
    """
    import networkx

    if g.device.type != "cpu":
        raise DGLError(f"g is on {g.device}; expected a graph on the CPU: g.cpu() makes one")
    is_typed = not g.is_homogeneous
    taken = [
        (ntype_attr, node_attrs, "ntype_attr"),
        (etype_attr, edge_attrs, "etype_attr"),
        (eid_attr, edge_attrs, "eid_attr"),
    ]
    for attribute, features, name in taken:
        if is_typed and attribute in (features or ()):
            raise DGLError(f"{name} is {attribute!r}, which is a feature; expected another name")
    nx_graph = networkx.MultiDiGraph()
    node = 0
    for ntype, frame in zip(g.ntypes, g._node_frames):
        for row in range(frame.num_rows):
            own = {ntype_attr: ntype} if is_typed else {}
            nx_graph.add_node(node, **own, **_row(frame, node_attrs, row, is_typed))
            node += 1
    src, dst = (ends.tolist() for ends in to_homogeneous(g).all_edges(order="eid"))
    edge = 0
    for etype, frame in zip(g.canonical_etypes, g._edge_frames):
        for row in range(frame.num_rows):
            names: dict[str, Any] = {eid_attr: edge, etype_attr: etype} if is_typed else {"id": edge}
            nx_graph.add_edge(src[edge], dst[edge], **names, **_row(frame, edge_attrs, row, is_typed))
            edge += 1
    return nx_graph


def _row(frame: Any, names: Sequence[str] | None, row: int, may_lack: bool) -> dict[str, Tensor]:
    return {name: frame[name][row] for name in names or () if name in frame or not may_lack}
