"""GraphData: a graph's types, counts, features and batches."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

from ...graph import Graph
from ...heterograph import HeteroGraph
from .base import ALL, DGLError, EdgeType, check_ids, id_tensor, is_all
from .frame import Column, Frame, Initializer, Scheme
from .topology import MetaGraph, Relation, Topology
from .types import Types, names_of, types_of
from .view import HeteroEdgeDataView, HeteroEdgeView, HeteroNodeDataView, HeteroNodeView

Self = TypeVar("Self", bound="GraphData")


class GraphData:
    """A Topology under names of types, with a Frame of features per type.

    Args:
        gidx: the Topology; or edges (source ids, destination ids) of a graph of one type; by default a graph without nodes.
        ntypes: names of the node types; of a block the pair (names for sources, names for destinations).
        etypes: names of the edge types.
        node_frames, edge_frames: one Frame or None per type, which the graph takes.
    """

    is_block = False

    _graph: Topology
    _node_frames: list[Frame]
    _edge_frames: list[Frame]
    _batch_num_nodes: dict[str, Tensor] | None
    _batch_num_edges: dict[EdgeType, Tensor] | None

    def __init__(
        self,
        gidx: Any = None,
        ntypes: Sequence = ("_N",),
        etypes: Sequence[str] = ("_E",),
        node_frames: Sequence[Frame | None] | None = None,
        edge_frames: Sequence[Frame | None] | None = None,
    ):
        topology = gidx if isinstance(gidx, Topology) else _topology_of_edges(gidx)
        types = types_of(names_of(ntypes), tuple(etypes), topology.metagraph.ends)
        self._put(topology, types, node_frames, edge_frames)

    def _put(
        self,
        topology: Topology,
        types: Types,
        node_frames: Sequence[Frame | None] | None,
        edge_frames: Sequence[Frame | None] | None,
    ) -> None:
        self._graph = topology
        self._types = types
        if node_frames is None:
            node_frames = [None] * len(topology.node_counts)
        if edge_frames is None:
            edge_frames = [None] * len(topology.relations)
        self._node_frames = [
            Frame(num_rows=count) if frame is None else frame for frame, count in zip(node_frames, topology.node_counts)
        ]
        self._edge_frames = [
            Frame(num_rows=relation.num_edges) if frame is None else frame
            for frame, relation in zip(edge_frames, topology.relations)
        ]
        self._batch_num_nodes = self._batch_num_edges = None
        self._pinned = False

    def _with(
        self: Self,
        topology: Topology,
        node_frames: Sequence[Frame | None] | None = None,
        edge_frames: Sequence[Frame | None] | None = None,
    ) -> Self:
        """A graph of the same types with another topology and features, and no batches."""
        graph = object.__new__(type(self))
        graph._put(topology, self._types, node_frames, edge_frames)
        return graph

    def __copy__(self: Self) -> Self:
        graph = object.__new__(type(self))
        graph.__dict__.update(self.__dict__)
        return graph

    def __getstate__(self) -> dict:
        return self.__dict__.copy()

    def __setstate__(self, state: dict) -> None:
        self.__dict__.update(state)

    def __halfgnn_graph__(self) -> Graph | HeteroGraph:
        """What halfgnn's operators and modules take this graph for. It is made once per topology."""
        if self._types.etypes == ["_E"]:
            return self._graph.relations[0].graph()
        if not self._graph.relations:
            raise DGLError("the graph has no edge type; expected at least one")
        types, counts = self._types, self._graph.node_counts
        return self._graph.heterograph(
            types.canonical_etypes,
            {ntype: counts[i] for ntype, i in types.src.items()},
            {ntype: counts[i] for ntype, i in types.dst.items()},
        )

    # ---- types -------------------------------------------------------------------------------------------------------------------

    @property
    def ntypes(self) -> list[str]:
        """Names of the node types."""
        return self._types.ntypes

    @property
    def etypes(self) -> list[str]:
        """Names of the edge types, which may repeat."""
        return self._types.etypes

    @property
    def canonical_etypes(self) -> list[EdgeType]:
        """The triple (source type, edge type, destination type) of every edge type."""
        return self._types.canonical_etypes

    @property
    def srctypes(self) -> list[str]:
        """Names of the types of source nodes."""
        return list(self._types.src)

    @property
    def dsttypes(self) -> list[str]:
        """Names of the types of destination nodes."""
        return list(self._types.dst)

    @property
    def is_unibipartite(self) -> bool:
        """Whether no type of nodes has both in-edges and out-edges."""
        return self._types.is_unibipartite

    @property
    def is_homogeneous(self) -> bool:
        """Whether there is one type of nodes and one type of edges."""
        return len(self.ntypes) == 1 and len(self.etypes) == 1

    def metagraph(self) -> Any:
        """The networkx.MultiDiGraph of the types: an edge with the key `etype` per edge type."""
        import networkx

        graph = networkx.MultiDiGraph()
        graph.add_nodes_from(self.ntypes)
        graph.add_edges_from((src, dst, etype) for src, etype, dst in self.canonical_etypes)
        return graph

    def to_canonical_etype(self, etype: Any) -> EdgeType:
        """The triple of an edge type. Raises DGLError for none or several."""
        return self._types.canonical_etypes[self._types.etype_id(etype)]

    def get_etype_id(self, etype: Any) -> int:
        """The id of an edge type."""
        return self._types.etype_id(etype)

    def get_ntype_id(self, ntype: str | None) -> int:
        """The id of a node type."""
        return self._types.ntype_id(ntype)

    def get_ntype_id_from_src(self, ntype: str | None) -> int:
        """The id of a type of source nodes."""
        return self._types.src_id(ntype)

    def get_ntype_id_from_dst(self, ntype: str | None) -> int:
        """The id of a type of destination nodes."""
        return self._types.dst_id(ntype)

    def _ends_of(self, etype: Any) -> tuple[int, int, int]:
        """Ids of an edge type and of its types of sources and destinations."""
        etid = self._types.etype_id(etype)
        return etid, *self._graph.metagraph.ends[etid]

    @property
    def _etype2canonical(self) -> dict[str, Any]:
        """{edge type: its triple, or () if several have this name}, which programs read."""
        return {
            etype: self.canonical_etypes[i] if self.etypes.count(etype) == 1 else ()
            for i, etype in enumerate(self.etypes)
        }

    def _relation(self, etype: Any) -> Relation:
        return self._graph.relations[self._types.etype_id(etype)]

    # ---- counts ------------------------------------------------------------------------------------------------------------------

    @property
    def idtype(self) -> torch.dtype:
        """torch.int32 or torch.int64, the dtype of ids."""
        return self._graph.idtype

    @property
    def device(self) -> torch.device:
        """The device of the structure and of all features."""
        return self._graph.device

    def num_nodes(self, ntype: str | None = None) -> int:
        """Number of nodes of one type, or of all."""
        if ntype is None:
            return sum(self._graph.node_counts)
        return self._graph.num_nodes(self.get_ntype_id(ntype))

    def num_src_nodes(self, ntype: str | None = None) -> int:
        """Number of source nodes of one type, or of all."""
        if ntype is None:
            return sum(self._graph.num_nodes(i) for i in self._types.src.values())
        return self._graph.num_nodes(self.get_ntype_id_from_src(ntype))

    def num_dst_nodes(self, ntype: str | None = None) -> int:
        """Number of destination nodes of one type, or of all."""
        if ntype is None:
            return sum(self._graph.num_nodes(i) for i in self._types.dst.values())
        return self._graph.num_nodes(self.get_ntype_id_from_dst(ntype))

    def num_edges(self, etype: Any = None) -> int:
        """Number of edges of one type, or of all."""
        if etype is None:
            return sum(relation.num_edges for relation in self._graph.relations)
        return self._relation(etype).num_edges

    number_of_nodes, number_of_edges = num_nodes, num_edges
    number_of_src_nodes, number_of_dst_nodes = num_src_nodes, num_dst_nodes

    # ---- features ----------------------------------------------------------------------------------------------------------------

    @property
    def ndata(self) -> HeteroNodeDataView:
        """Features of nodes: {name: tensor}, with several node types {name: {type: tensor}}."""
        ntypes = self._types.ntypes
        if len(ntypes) == 1:
            return HeteroNodeDataView(self, ntypes[0], 0)
        return HeteroNodeDataView(self, ntypes, [self.get_ntype_id(ntype) for ntype in ntypes])

    @property
    def srcdata(self) -> HeteroNodeDataView:
        """Features of source nodes, like :attr:`ndata`."""
        return self._node_view(self._types.src)

    @property
    def dstdata(self) -> HeteroNodeDataView:
        """Features of destination nodes, like :attr:`ndata`."""
        return self._node_view(self._types.dst)

    def _node_view(self, ids: dict[str, int]) -> HeteroNodeDataView:
        if len(ids) == 1:
            ((ntype, ntid),) = ids.items()
            return HeteroNodeDataView(self, ntype, ntid)
        return HeteroNodeDataView(self, list(ids), list(ids.values()))

    @property
    def edata(self) -> HeteroEdgeDataView:
        """Features of edges: {name: tensor}, with several edge types {name: {triple: tensor}}."""
        etypes = self._types.canonical_etypes
        if len(etypes) == 1:
            return HeteroEdgeDataView(self, etypes[0], 0)
        return HeteroEdgeDataView(self, etypes, list(range(len(etypes))))

    @property
    def nodes(self) -> HeteroNodeView:
        """``g.nodes(ntype)`` are ids (N,); ``g.nodes[ntype].data`` features."""
        return HeteroNodeView(self, "all")

    @property
    def srcnodes(self) -> HeteroNodeView:
        """Like :attr:`nodes`, of sources."""
        return HeteroNodeView(self, "src")

    @property
    def dstnodes(self) -> HeteroNodeView:
        """Like :attr:`nodes`, of destinations."""
        return HeteroNodeView(self, "dst")

    @property
    def edges(self) -> HeteroEdgeView:
        """``g.edges(form, order, etype)`` are edges, see :meth:`all_edges`; ``g.edges[etype].data`` features."""
        return HeteroEdgeView(self)

    def all_edges(self, form: str = "uv", order: str | None = "eid", etype: Any = None) -> Any:
        """All edges of one type."""
        raise NotImplementedError

    def _edge_id_tensor(self, etid: int, edges: Any) -> Tensor:
        """Ids (E,) of edges, given by ids, by a mask or by the pair of their ends."""
        if isinstance(edges, tuple) and len(edges) == 2:
            edges = self.edge_ids(*edges, etype=self.canonical_etypes[etid])
        ids = id_tensor(edges, self.idtype, self.device, "edges", masks=True)
        check_ids(ids, self._graph.num_edges(etid), "edges", "an edge")
        return ids

    def edge_ids(self, u: Any, v: Any, return_uv: bool = False, etype: Any = None) -> Any:
        """Ids of the edges between u and v."""
        raise NotImplementedError

    def _ids(self, kept: Tensor | None, count: int) -> Tensor:
        if kept is None:
            return torch.arange(count, dtype=self.idtype, device=self.device)
        return kept.to(self.idtype)

    def _node_id_tensor(self, ntid: int, nodes: Any) -> Tensor:
        ids = id_tensor(nodes, self.idtype, self.device, "nodes", masks=True)
        check_ids(ids, self._graph.num_nodes(ntid), "nodes", "a node")
        return ids

    def _set_n_repr(self, ntid: int, nodes: Any, data: Mapping[str, Any]) -> None:
        """Set features of all or some nodes of a type."""
        if is_all(nodes):
            self._set_all(self._node_frames[ntid], data, "node")
        else:
            self._set_some(self._node_frames[ntid], self._node_id_tensor(ntid, nodes), data)

    def _set_e_repr(self, etid: int, edges: Any, data: Mapping[str, Any]) -> None:
        """Set features of all or some edges of a type."""
        if is_all(edges):
            self._set_all(self._edge_frames[etid], data, "edge")
        else:
            self._set_some(self._edge_frames[etid], self._edge_id_tensor(etid, edges), data)

    def _set_all(self, frame: Frame, data: Mapping[str, Any], kind: str) -> None:
        device = self._graph.device
        for name, value in data.items():
            if isinstance(value, (Tensor, Column)) and value.device != device:
                raise DGLError(
                    f"the {kind} feature {name!r} is on {value.device}; expected the graph's device, {device}"
                )
            frame[name] = value

    def _set_some(self, frame: Frame, rows: Tensor, data: Mapping[str, Any]) -> None:
        for name, value in data.items():
            if not isinstance(value, Tensor) or value.dim() == 0 or value.shape[0] != rows.numel():
                shape = tuple(value.shape) if isinstance(value, Tensor) else f"no shape ({type(value).__name__})"
                raise DGLError(f"the feature {name!r} has {shape}; expected {rows.numel()} rows, one per id")
        frame.update_rows(rows, data)

    def _get_node_rows(self, ntid: int, nodes: Any, name: str) -> Any:
        frame = self._node_frames[ntid]
        return frame[name] if is_all(nodes) else frame[name][self._node_id_tensor(ntid, nodes).long()]

    def _get_edge_rows(self, etid: int, edges: Any, name: str) -> Any:
        frame = self._edge_frames[etid]
        return frame[name] if is_all(edges) else frame[name][self._edge_id_tensor(etid, edges).long()]

    def _get_n_repr(self, ntid: int, nodes: Any = ALL) -> Frame:
        """The frame of all nodes of a type, or of some, whose rows are taken when they are read."""
        frame = self._node_frames[ntid]
        return frame if is_all(nodes) else frame.subframe(self._node_id_tensor(ntid, nodes))

    def _get_e_repr(self, etid: int, edges: Any = ALL) -> Frame:
        """The frame of all edges of a type, or of some."""
        frame = self._edge_frames[etid]
        return frame if is_all(edges) else frame.subframe(self._edge_id_tensor(etid, edges))

    def node_attr_schemes(self, ntype: str | None = None) -> dict[str, Scheme]:
        """{feature: (shape of one row, dtype)} of the nodes of one type."""
        return self._node_frames[self.get_ntype_id(ntype)].schemes

    def edge_attr_schemes(self, etype: Any = None) -> dict[str, Scheme]:
        """{feature: (shape of one row, dtype)} of the edges of one type."""
        return self._edge_frames[self.get_etype_id(etype)].schemes

    def set_n_initializer(self, initializer: Initializer, field: str | None = None, ntype: str | None = None) -> None:
        """What gives initial features of new nodes: initializer(shape, dtype, device, range of ids). field: of one feature."""
        self._node_frames[self.get_ntype_id(ntype)].set_initializer(initializer, field)

    def set_e_initializer(self, initializer: Initializer, field: str | None = None, etype: Any = None) -> None:
        """Like :meth:`set_n_initializer`, of new edges."""
        self._edge_frames[self.get_etype_id(etype)].set_initializer(initializer, field)

    def get_node_storage(self, key: str, ntype: str | None = None) -> Column:
        """What a data loader fetches rows of a node feature from."""
        return self._node_frames[self.get_ntype_id(ntype)]._columns[key]

    def get_edge_storage(self, key: str, etype: Any = None) -> Column:
        """What a data loader fetches rows of an edge feature from."""
        return self._edge_frames[self.get_etype_id(etype)]._columns[key]

    # ---- batches -----------------------------------------------------------------------------------------------------------------

    @property
    def batch_size(self) -> int:
        """Number of graphs that are batched in this one."""
        counts = self._batch_num_nodes
        return 1 if not counts else next(iter(counts.values())).shape[0]

    def batch_num_nodes(self, ntype: str | None = None) -> Tensor:
        """Number of nodes of one type in each batched graph, (batch_size,)."""
        name = self.ntypes[self.get_ntype_id(ntype)]
        if self._batch_num_nodes is None:
            return torch.tensor([self.num_nodes(name)], dtype=self.idtype, device=self.device)
        return self._batch_num_nodes[name]

    def batch_num_edges(self, etype: Any = None) -> Tensor:
        """Number of edges of one type in each batched graph, (batch_size,)."""
        etype = self.to_canonical_etype(etype)
        if self._batch_num_edges is None:
            return torch.tensor([self.num_edges(etype)], dtype=self.idtype, device=self.device)
        return self._batch_num_edges[etype]

    def set_batch_num_nodes(self, val: Tensor | Mapping[str, Tensor]) -> None:
        """Set the numbers of nodes in each batched graph: one tensor, or one per node type."""
        if not isinstance(val, Mapping):
            if len(self.ntypes) != 1:
                raise DGLError(
                    f"val is a {type(val).__name__}; expected a dict of node types, of which there are several"
                )
            val = {self.ntypes[0]: val}
        self._batch_num_nodes = {
            ntype: _counts_of(counts, self.num_nodes(ntype), ntype, self.device) for ntype, counts in val.items()
        }

    def set_batch_num_edges(self, val: Tensor | Mapping[Any, Tensor]) -> None:
        """Set the numbers of edges in each batched graph: one tensor, or one per edge type."""
        if not isinstance(val, Mapping):
            if len(self.etypes) != 1:
                raise DGLError(
                    f"val is a {type(val).__name__}; expected a dict of edge types, of which there are several"
                )
            val = {self.canonical_etypes[0]: val}
        self._batch_num_edges = {
            self.to_canonical_etype(etype): _counts_of(counts, self.num_edges(etype), etype, self.device)
            for etype, counts in val.items()
        }

    # ---- copies ------------------------------------------------------------------------------------------------------------------

    def clone(self: Self) -> Self:
        """A graph of the same structure and features. Changes of one do not show in the other; tensors are shared."""
        graph = copy.copy(self)
        graph._node_frames = [frame.clone() for frame in self._node_frames]
        graph._edge_frames = [frame.clone() for frame in self._edge_frames]
        return graph

    def local_var(self: Self) -> Self:
        """A graph for use in a function: features set on it do not show in this one."""
        return self.clone()

    def local_scope(self) -> _LocalScope:
        """A context after which the graph has the features that it has now."""
        return _LocalScope(self)


class _LocalScope:
    def __init__(self, graph: GraphData):
        self._graph = graph

    def __enter__(self) -> None:
        graph = self._graph
        self._frames = graph._node_frames, graph._edge_frames
        graph._node_frames = [frame.clone() for frame in graph._node_frames]
        graph._edge_frames = [frame.clone() for frame in graph._edge_frames]

    def __exit__(self, *exception: Any) -> None:
        self._graph._node_frames, self._graph._edge_frames = self._frames


def _topology_of_edges(edges: Any) -> Topology:
    """Of the one type of a graph that is made as ``DGLGraph()`` or ``DGLGraph((u, v))``."""
    src, dst = (torch.empty(0, dtype=torch.int64),) * 2 if edges is None else edges
    src, dst = (id_tensor(ids, torch.int64, torch.device("cpu"), name) for ids, name in ((src, "u"), (dst, "v")))
    count = int(torch.cat([src, dst]).max()) + 1 if src.numel() else 0
    return Topology(MetaGraph([(0, 0)], 1), [count], [Relation.from_edges(src, dst, count, count)])


def _counts_of(counts: Any, total: int, name: Any, device: torch.device) -> Tensor:
    """Numbers of nodes or edges of batched graphs. Those on the CPU are checked; of others that would wait for the GPU."""
    counts = torch.as_tensor(counts)
    if counts.dim() != 1 or counts.dtype not in (torch.int64, torch.int32):
        raise DGLError(
            f"val[{name!r}] is {counts.dtype} of shape {tuple(counts.shape)}; expected integers (batch_size,)"
        )
    is_read = counts.is_cpu and not torch.compiler.is_compiling()
    if is_read and (int(counts.sum()) != total or bool((counts < 0).any())):
        raise DGLError(f"val[{name!r}] has a negative number or adds up to {int(counts.sum())}; expected {total}")
    return counts.to(device)
