"""DistHeteroGraph: the part of a heterograph that a process owns, and the rows of its sources that others own."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..common.caching import ordinary_tensors
from ..dataloading import FeatureStore
from ..graph import Graph
from ..heterograph import EdgeType, HeteroGraph
from .dist_graph import check_own, load_part, share_graph
from .exchange import Exchange, Rows
from .features import open_features
from .halo import halo
from .union import Kind, Union


class DistHeteroGraph:
    """The nodes of all types that this process owns, with all of their in-edges. See :class:`DistGraph`.

        g = DistHeteroGraph.load("parts")
        x = {ntype: g.features("x", of=ntype).data for ntype in g.nodes}
        rows = g.halo(x)
        h = conv(g.graph, (rows, x))  # halfgnn.nn.HeteroGraphConv, RelGraphConv, ...
        pairs = {etype: (rows[etype[0]], x[etype[2]]) for etype in g.edge_index_dict}
        h = conv(pairs, g.edge_index_dict)  # torch_geometric.nn.HeteroConv

    Attributes:
        graph: a :class:`halfgnn.HeteroGraph`. The sources of a type are this process's nodes, followed by its ghosts.
        edge_index_dict: the same as {edge type: (2, E)}, int64, in the order of destinations.
        nodes: {node type: (num_own,)}, the ids that the nodes of this process have in the whole graph.
        edge_ids: {edge type: (E,)}, those of its edges.
        num_own, num_ghosts: {node type: number}.
        num_nodes, num_edges: those of the whole graph, by type.
        rank, world_size: this process, and how many there are.
    """

    def __init__(self, folder: Path, description: dict[str, Any], part: dict[str, Tensor], exchange: Exchange) -> None:
        union = Union.read(description)
        assert union is not None
        self._folder, self._description, self._exchange = folder, description, exchange
        self.rank, self.world_size = exchange.rank, exchange.world_size
        self.num_nodes = {ntype: kind.size for ntype, kind in union.nodes.items()}
        self.num_edges = {etype: kind.size for etype, kind in union.edges.items()}
        of_types = _TypedPart(part, union)
        self._types = list(union.nodes)
        exchange.rows = [of_types.rows(ntype) for ntype in self._types]
        self.nodes, self.num_own = of_types.nodes, of_types.num_own
        self.num_ghosts = {ntype: ids.shape[0] for ntype, ids in of_types.ghosts.items()}
        self.edge_ids: dict[EdgeType, Tensor] = {}
        relations: dict[EdgeType, Graph] = {}
        for etype in union.edges:
            relations[etype], self.edge_ids[etype] = of_types.relation(etype)
        num_src = {ntype: count + self.num_ghosts[ntype] for ntype, count in self.num_own.items()}
        self.graph = HeteroGraph(relations, num_src=num_src, num_dst=self.num_own)
        with ordinary_tensors():
            self.edge_index_dict = {etype: torch.stack(g.edges()).long() for etype, g in relations.items()}
        for etype, edge_index in self.edge_index_dict.items():
            share_graph(edge_index, relations[etype])

    @classmethod
    def load(cls, folder: Any, *, group: Any = None, device: Any = "cpu", check: bool | None = None) -> DistHeteroGraph:
        """This process's part of a partition of a heterograph. Arguments and errors as of :meth:`DistGraph.load`."""
        path, description, part, exchange = load_part(folder, group, device, check)
        if "node_types" not in description:
            raise ValueError(f"{folder} holds a graph of one node type, which DistGraph.load reads")
        return cls(path, description, part, exchange)

    @property
    def device(self) -> torch.device:
        return self.graph.device

    @property
    def bytes_sent(self) -> int:
        """By this process for rows and gradients of ghosts, since the graph was loaded."""
        return self._exchange.bytes_sent

    def halo(self, x: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The rows of all sources of some node types: this process's own, followed by its ghosts', which their owners send.

        All processes call it together, with the same types. One message per process has the rows of all of them. See
        :meth:`DistGraph.halo`.

        Args:
            x: {node type: (num_own, *)}, of any dtypes.

        Returns:
            {node type: (num_own + num_ghosts, *)}.

        Raises:
            TypeError, ValueError, RuntimeError: see :meth:`DistGraph.halo`; and for an unknown type, or none.
        """
        with self._exchange.told_to_others():
            if not isinstance(x, Mapping):
                raise TypeError(f"x is a {type(x).__name__}; expected {{node type: rows}}")
            unknown = [ntype for ntype in x if ntype not in self.num_own]
            if unknown or not x:
                raise ValueError(f"x has {unknown or 'no type'}; expected one or more of {self._types}")
            for ntype, own in x.items():
                check_own(own, f"x[{ntype!r}]", self.num_own[ntype], self.device)
        names = [ntype for ntype in self._types if ntype in x]
        self._exchange.check_alike(*((f"x[{ntype!r}]", x[ntype]) for ntype in names))
        rows = halo(self._exchange, [self._types.index(ntype) for ntype in names], [x[ntype] for ntype in names])
        return dict(zip(names, rows))

    def in_degrees(self, etype: EdgeType | str) -> Tensor:
        """(num_own,): how many in-edges of an edge type this process's nodes of its destination type have, int64."""
        return self.graph[etype].in_degrees().long()

    def out_degrees(self, etype: EdgeType | str) -> Tensor:
        """(num_own,): the out-degrees in the whole graph of this process's nodes of the type of sources, int64.

        All processes call it together.
        """
        number = self._types.index(self.graph.to_canonical_etype(etype)[0])
        (degrees,) = self._exchange.returned([number], [self.graph[etype].out_degrees().long().unsqueeze(1)])
        return degrees.squeeze(1)

    def features(self, name: str, *, of: str | EdgeType) -> FeatureStore:
        """The rows of this process's nodes of a type, or edges of a type, from the file of :func:`cut_features`.

        Raises:
            FileNotFoundError: there are none of this name. ValueError: there is no such type, or they are of another partition.
        """
        return open_features(self._folder, self._description, self.rank, name, of)

    def __repr__(self) -> str:
        return (
            f"DistHeteroGraph(process {self.rank} of {self.world_size}, num_own={self.num_own}, "
            f"num_ghosts={self.num_ghosts}, device='{self.device}')"
        )


class _TypedPart:
    """A part of the union of all types, type by type. Its nodes are in the order of the union, its ghosts by owner."""

    def __init__(self, part: dict[str, Tensor], union: Union) -> None:
        self._part, self._union = part, union
        nodes, ghosts = part["nodes"].long(), part["ghosts"].long()
        self.nodes, self.ghosts, self.num_own = {}, {}, {}
        self._own: dict[str, Kind] = {}  # which of the part's nodes
        first = 0
        for ntype, kind in union.nodes.items():
            self.nodes[ntype] = nodes[kind.has(nodes)] - kind.first
            self.ghosts[ntype] = kind.has(ghosts).nonzero().view(-1)  # which of the part's ghosts
            self.num_own[ntype] = self.nodes[ntype].shape[0]
            self._own[ntype] = Kind(first, self.num_own[ntype])
            first += self.num_own[ntype]
        self._indptr, self._indices = part["indptr"].long(), part["indices"].long()
        self._dst = torch.repeat_interleave(torch.arange(nodes.shape[0], device=nodes.device), self._indptr.diff())

    def rows(self, ntype: str) -> Rows:
        own, sends = self._own[ntype], self._part["sends"]
        are_sent = own.has(sends)
        send_counts = [int(of_process.sum()) for of_process in are_sent.split(self._part["send_counts"].tolist())]
        is_ghost = torch.zeros(self._part["ghosts"].shape[0], dtype=torch.bool, device=sends.device)
        is_ghost[self.ghosts[ntype]] = True
        ghost_counts = [int(of_process.sum()) for of_process in is_ghost.split(self._part["ghost_counts"].tolist())]
        return Rows(sends[are_sent] - own.first, send_counts, ghost_counts, own.size)

    def relation(self, etype: EdgeType) -> tuple[Graph, Tensor]:
        """Its Graph, whose edges are in the order of destinations, and their ids in the whole graph."""
        ids = self._part["edge_ids"].long()
        kind, (source, _, target) = self._union.edges[etype], etype
        edges = kind.has(ids).nonzero().view(-1)
        place = torch.empty(self._num_src, dtype=torch.int64, device=ids.device)  # among the sources of the type
        own = self._own[source]
        place[own.first : own.end] = torch.arange(own.size, device=ids.device)
        num_ghosts = self.ghosts[source].shape[0]
        place[self._num_own + self.ghosts[source]] = own.size + torch.arange(num_ghosts, device=ids.device)
        dtype = self._part["indices"].dtype
        src, dst = place[self._indices[edges]], self._dst[edges] - self._own[target].first
        graph = Graph.from_edges(
            src.to(dtype),
            dst.to(dtype),
            num_src=own.size + num_ghosts,
            num_dst=self._own[target].size,
            is_sorted=True,
        )
        return graph, ids[edges] - kind.first

    @property
    def _num_own(self) -> int:
        return self._part["nodes"].shape[0]

    @property
    def _num_src(self) -> int:
        return self._num_own + self._part["ghosts"].shape[0]
