"""Graphs from edges, and from graphs of other forms."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ...common.arguments import checked_integer
from .base import EID, ETYPE, NID, NTYPE, DGLError, EdgeType, check_idtype
from .edge_data import EdgeData, edge_data
from .frame import Frame
from .heterograph import DGLBlock, DGLGraph
from .slicing import combined
from .topology import MetaGraph, Topology
from .view import DataView

__all__ = [
    "bipartite_from_scipy",
    "block_to_graph",
    "create_block",
    "from_scipy",
    "graph",
    "heterograph",
    "to_heterogeneous",
    "to_homogeneous",
]


def graph(
    data: Any,
    *,
    num_nodes: int | None = None,
    idtype: Any = None,
    device: Any = None,
    row_sorted: bool = False,
    col_sorted: bool = False,
) -> DGLGraph:
    """A graph of one type of nodes and one of edges.

    Args:
        data: (src, dst), two tensors, arrays or sequences of ids (E,); ("coo", (src, dst)); ("csr", (indptr, indices, edge ids)) or
            "csc" with edge ids or an empty sequence; a list of pairs; a scipy sparse matrix; a networkx graph.
        num_nodes: by default one more than the largest id.
        idtype: torch.int32 or torch.int64; by default that of tensors, or int64.
        device: by default that of tensors, or the CPU.
        row_sorted, col_sorted: not needed.

    Raises:
        DGLError: data of other forms or dtypes, ids out of range.
    """
    edges = edge_data(data, idtype, device)
    count = max(edges.least) if num_nodes is None else _count(num_nodes, "num_nodes")
    relation = edges.relation(count, count)
    return DGLGraph(Topology(_HOMOGENEOUS, (count,), (relation,)))


_HOMOGENEOUS = MetaGraph([(0, 0)], 1)


def _count(count: Any, name: str) -> int:
    return checked_integer(count, name, "a number of nodes")


def heterograph(
    data_dict: Mapping[EdgeType, Any],
    num_nodes_dict: Mapping[str, int] | None = None,
    idtype: Any = None,
    device: Any = None,
) -> DGLGraph:
    """A graph of typed nodes and edges. Types are sorted by name.

    Args:
        data_dict: {(source type, edge type, destination type): edges}, each as for :func:`graph`.
        num_nodes_dict: {node type: number of nodes}; by default one more than the largest id.
    """
    edges = {_checked_etype(etype): edge_data(data, idtype, device) for etype, data in data_dict.items()}
    counts: dict[str, int] = {}
    for (src, _, dst), data in edges.items():
        for ntype, least in ((src, data.least[0]), (dst, data.least[1])):
            counts[ntype] = max(counts.get(ntype, 0), least)
    if num_nodes_dict is not None:
        missing = [ntype for ntype in counts if ntype not in num_nodes_dict]
        if missing:
            raise DGLError(f"num_nodes_dict has no {missing}; expected a number for every node type")
        counts = {ntype: _count(count, f"num_nodes_dict[{ntype!r}]") for ntype, count in num_nodes_dict.items()}
    ntypes = sorted(counts)
    ids = {ntype: i for i, ntype in enumerate(ntypes)}
    topology = _topology(edges, ids, ids, [counts[ntype] for ntype in ntypes])
    return DGLGraph(topology, ntypes, [etype for _, etype, _ in sorted(edges)])


def _checked_etype(etype: Any) -> EdgeType:
    if not isinstance(etype, tuple) or len(etype) != 3 or not all(isinstance(part, str) for part in etype):
        raise DGLError(f"data_dict has the key {etype!r}; expected a triple (source type, edge type, destination type)")
    return etype


def _topology(
    edges: Mapping[EdgeType, EdgeData], src_ids: Mapping[str, int], dst_ids: Mapping[str, int], counts: Sequence[int]
) -> Topology:
    """Of edges by type, sorted by the names of types, with one dtype of ids on one device."""
    order = sorted(edges)
    firsts = [edges[etype].arrays[0] for etype in order]
    dtypes, devices = {ids.dtype for ids in firsts}, {ids.device for ids in firsts}
    if len(devices) > 1:
        raise DGLError(f"the edges are on {devices}; expected one device")
    dtype = torch.int32 if dtypes == {torch.int32} else torch.int64
    ends = [(src_ids[src], dst_ids[dst]) for src, _, dst in order]
    relations = [
        edges[etype].to(dtype, next(iter(devices))).relation(counts[src], counts[dst], f"data_dict[{etype}]")
        for etype, (src, dst) in zip(order, ends)
    ]
    return Topology(MetaGraph(ends, len(counts)), counts, relations)


def create_block(
    data_dict: Any,
    num_src_nodes: Any = None,
    num_dst_nodes: Any = None,
    idtype: Any = None,
    device: Any = None,
    node_count_check: bool = True,
) -> DGLBlock:
    """A block, whose source and destination nodes are counted apart.

    Args:
        data_dict: edges as for :func:`graph`, or {(source type, edge type, destination type): edges}.
        num_src_nodes, num_dst_nodes: numbers, or {type: number} if data_dict is a dict; by default one more than the largest id.
        node_count_check: not needed; numbers are always checked.
    """
    is_typed = isinstance(data_dict, Mapping)
    if (num_src_nodes is None) != (num_dst_nodes is None):
        raise DGLError("one of num_src_nodes and num_dst_nodes is None; expected both or neither")
    if num_src_nodes is not None:
        for value, name in ((num_src_nodes, "num_src_nodes"), (num_dst_nodes, "num_dst_nodes")):
            if isinstance(value, Mapping) != is_typed:
                expected = "{type: number}" if is_typed else "a number"
                raise DGLError(f"{name} is a {type(value).__name__}; expected {expected}, as data_dict is")
    if not is_typed:
        data_dict = {("_N", "_E", "_N"): data_dict}
        num_src_nodes, num_dst_nodes = (
            None if count is None else {"_N": count} for count in (num_src_nodes, num_dst_nodes)
        )
    edges = {_checked_etype(etype): edge_data(data, idtype, device) for etype, data in data_dict.items()}
    sources = _counts(edges, 0) if num_src_nodes is None else dict(num_src_nodes)
    destinations = _counts(edges, 1) if num_dst_nodes is None else dict(num_dst_nodes)
    src_types, dst_types = sorted(sources), sorted(destinations)
    src_ids = {ntype: i for i, ntype in enumerate(src_types)}
    dst_ids = {ntype: i + len(src_types) for i, ntype in enumerate(dst_types)}
    counts = [_count(sources[ntype], "num_src_nodes") for ntype in src_types]
    counts += [_count(destinations[ntype], "num_dst_nodes") for ntype in dst_types]
    topology = _topology(edges, src_ids, dst_ids, counts)
    return DGLBlock(topology, (src_types, dst_types), [etype for _, etype, _ in sorted(edges)])


def _counts(edges: Mapping[EdgeType, EdgeData], side: int) -> dict[str, int]:
    counts: dict[str, int] = {}
    for etype, data in edges.items():
        counts[etype[2 * side]] = max(counts.get(etype[2 * side], 0), data.least[side])
    return counts


def block_to_graph(block: DGLGraph) -> DGLGraph:
    """A block as a graph whose types of nodes are named apart, with the endings ``_src`` and ``_dst``. It shares the features."""
    names = [f"{ntype}_src" for ntype in block.srctypes], [f"{ntype}_dst" for ntype in block.dsttypes]
    return DGLGraph(block._graph, names, block.etypes, block._node_frames, block._edge_frames)


# ---- one type and several --------------------------------------------------------------------------------------------------------


def to_homogeneous(
    G: DGLGraph,
    ndata: Iterable[str] | None = None,
    edata: Iterable[str] | None = None,
    store_type: bool = True,
    return_count: bool = False,
) -> Any:
    """All nodes and edges as one type each, sorted by type, with their former ids in ``dgl.NID`` and ``dgl.EID``.

    Args:
        ndata, edata: features to keep, which all types must have with one shape and dtype.
        store_type: keep the ids of types in ``dgl.NTYPE`` and ``dgl.ETYPE``.
        return_count: return (graph, numbers of nodes per type, numbers of edges per type).
    """
    topology = G._graph
    starts = [sum(topology.node_counts[:i]) for i in range(len(topology.node_counts))]
    ends = [relation.edges() for relation in topology.relations]
    src, dst = (
        torch.cat([edge[side] + starts[types[side]] for edge, types in zip(ends, topology.metagraph.ends)])
        for side in (0, 1)
    )
    whole = graph((src, dst), num_nodes=sum(topology.node_counts))
    edge_counts = [relation.num_edges for relation in topology.relations]
    whole._node_frames[0] = combined(G._node_frames, range(len(topology.node_counts)), list(ndata or ()))
    whole._edge_frames[0] = combined(G._edge_frames, range(len(edge_counts)), list(edata or ()))
    for frame, counts, id_name, type_name in (
        (whole._node_frames[0], topology.node_counts, NID, NTYPE),
        (whole._edge_frames[0], edge_counts, EID, ETYPE),
    ):
        frame[id_name] = torch.cat([torch.arange(count, dtype=G.idtype, device=G.device) for count in counts])
        if store_type:
            types = torch.arange(len(counts), device=G.device)
            frame[type_name] = types.repeat_interleave(torch.tensor(counts, device=G.device))
    return (whole, list(topology.node_counts), edge_counts) if return_count else whole


def to_heterogeneous(
    G: DGLGraph,
    ntypes: Sequence[str],
    etypes: Sequence[str],
    ntype_field: str = NTYPE,
    etype_field: str = ETYPE,
    metagraph: Any = None,
) -> DGLGraph:
    """A graph of typed nodes and edges from one whose features have the ids of their types.

    Edges of one type id between several pairs of node types become several types. Former ids are kept in ``dgl.NID``, ``dgl.EID``.

    Args:
        ntypes, etypes: the names of types by id.
        ntype_field, etype_field: the features that have the ids of types.
        metagraph: networkx.MultiDiGraph of the types that there are; by default those that edges have.
    """
    if len(G.ntypes) > 1 or len(G.etypes) > 1:
        raise DGLError(f"G has the types {G.ntypes} and {G.etypes}; expected one of nodes and one of edges")
    node_types, edge_types = G.ndata[ntype_field].long(), G.edata[etype_field].long()
    for types, names, name in ((node_types, ntypes, "ntypes"), (edge_types, etypes, "etypes")):
        if types.numel() and int(types.max()) >= len(names):
            raise DGLError(f"{name} has {len(names)} names; expected one for every id up to {int(types.max())}")
    nodes = [(node_types == i).nonzero().squeeze(1) for i in range(len(ntypes))]
    local = torch.empty_like(node_types)
    for members in nodes:
        local[members] = torch.arange(members.numel(), device=G.device)
    src, dst = (ends.long() for ends in G.all_edges(order="eid"))
    triples = torch.stack([node_types[src], edge_types, node_types[dst]], 1)
    if metagraph is None:
        wanted = torch.unique(triples, dim=0).tolist()
    else:
        found = list(metagraph.edges(keys=True))
        wanted = [[ntypes.index(u), etypes.index(etype), ntypes.index(v)] for u, v, etype in found]
    edges = {}
    for triple in wanted:
        members = (triples == torch.tensor(triple, device=G.device)).all(1).nonzero().squeeze(1)
        edges[ntypes[triple[0]], etypes[triple[1]], ntypes[triple[2]]] = members
    data = {etype: (local[src[ids]], local[dst[ids]]) for etype, ids in edges.items()}
    counts = {ntype: members.numel() for ntype, members in zip(ntypes, nodes)}
    typed = heterograph(data, counts, idtype=G.idtype, device=G.device)
    for ntype, members in zip(ntypes, nodes):
        _take(typed.nodes[ntype].data, G._node_frames[0], members, (ntype_field, NID), NID)
    for etype, members in edges.items():
        _take(typed.edges[etype].data, G._edge_frames[0], members, (etype_field, EID), EID)
    return typed


def _take(view: DataView, frame: Frame, rows: Tensor, left: tuple[str, ...], id_name: str) -> None:
    for name, column in frame._columns.items():
        if name not in left:
            view[name] = column.subcolumn(rows)
    view[id_name] = rows


# ---- scipy -----------------------------------------------------------------------------------------------------------------------


def from_scipy(sp_mat: Any, eweight_name: str | None = None, idtype: Any = None, device: Any = None) -> DGLGraph:
    """A graph of the entries of a square scipy matrix, whose rows are sources. eweight_name: the feature that gets their values."""
    if sp_mat.shape[0] != sp_mat.shape[1]:
        raise DGLError(f"sp_mat has shape {sp_mat.shape}; expected a square: bipartite_from_scipy takes others")
    made = graph(sp_mat, num_nodes=sp_mat.shape[0], idtype=check_idtype(idtype or torch.int64), device=device)
    return _with_weights(made, sp_mat, eweight_name)


def bipartite_from_scipy(
    sp_mat: Any,
    utype: str,
    etype: str,
    vtype: str,
    eweight_name: str | None = None,
    idtype: Any = None,
    device: Any = None,
) -> DGLGraph:
    """A bipartite graph of the entries of a scipy matrix, whose rows are sources."""
    counts = {utype: sp_mat.shape[0], vtype: sp_mat.shape[1]}
    made = heterograph({(utype, etype, vtype): sp_mat}, counts, check_idtype(idtype or torch.int64), device)
    return _with_weights(made, sp_mat, eweight_name)


def _with_weights(made: DGLGraph, matrix: Any, name: str | None) -> DGLGraph:
    if name is not None:
        values = matrix.data if matrix.format in ("csr", "csc", "coo") else matrix.tocoo().data
        made.edata[name] = torch.as_tensor(values).clone().to(made.device)
    return made
