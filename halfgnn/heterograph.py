"""HeteroGraph: several relations among typed nodes, and a stack of them in one Graph."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from . import dgl_index
from .adjacency import Adjacency
from .common.caching import may_cache, ordinary, ordinary_tensors
from .common.ids import check_count, check_fits
from .graph import Graph

EdgeType = tuple[str, str, str]  # (type of the sources, relation, type of the destinations)
_HETEROGRAPHS = "_halfgnn_heterographs"  # kept on a DGL graph index: canonical edge types -> HeteroGraph


class Stack(NamedTuple):
    """Relations side by side in one block-diagonal Graph: no edge leads from one relation to another.

    Rows of sources, destinations and edges are in the order of the relations. Relations of one destination type are neighbours. A
    relation without edges has no source rows, because nothing would read them. A compact stack has rows only for the sources that
    a relation reads. In a block most sources of a type belong to one relation, so a compact stack has far fewer rows to project.
    """

    graph: Graph
    etypes: tuple[EdgeType, ...]
    num_src: tuple[int, ...]  # source rows of each relation
    num_dst: tuple[int, ...]
    num_edges: tuple[int, ...]
    src_ids: tuple[
        Tensor | None, ...
    ]  # (num_src,) the source node of each row of a relation; None: the first num_src nodes


class HeteroGraph:
    """Typed nodes and a bipartite :class:`halfgnn.Graph` for each edge type: a heterograph, or a sampled block of one.

    In a heterograph the sources and destinations of one node type are the same nodes. In a block the destinations are the first of
    the sources. A HeteroGraph is immutable, like a Graph, and is on one device, with one dtype of ids.

    Args:
        relations: {(source type, relation, destination type): Graph}.
        num_src: {node type: number of source nodes}; by default those of the relations. Needed for types without a relation.
        num_dst: the same for destination nodes.

    Raises:
        TypeError: a key that is no triple of strings, a value that is no Graph, ids of several dtypes.
        ValueError: no relation, numbers of nodes that disagree, graphs on several devices.
    """

    num_src: dict[str, int]
    num_dst: dict[str, int]
    canonical_etypes: tuple[EdgeType, ...]
    _relations: dict[EdgeType, Graph]
    _stacks: dict[tuple[EdgeType, ...], Stack]

    def __init__(
        self,
        relations: Mapping[EdgeType, Graph],
        *,
        num_src: Mapping[str, int] | None = None,
        num_dst: Mapping[str, int] | None = None,
    ):
        if not isinstance(relations, Mapping) or not relations:
            raise ValueError(f"relations is {relations!r}; expected a mapping of edge types to Graphs, at least one")
        for etype, graph in relations.items():
            check_etype(etype)
            if not isinstance(graph, Graph):
                raise TypeError(f"relations[{etype}] is a {type(graph).__name__}; expected a halfgnn.Graph")
        _check_alike(relations)
        self._put(
            canonical_etypes=tuple(relations),
            num_src=_counts(relations, num_src, "num_src", 0),
            num_dst=_counts(relations, num_dst, "num_dst", 2),
            _relations=dict(relations),
            _stacks={},
        )

    def _put(self, **attributes: Any) -> None:
        for name, value in attributes.items():
            object.__setattr__(self, name, value)

    def __setattr__(self, name, value):
        raise AttributeError(f"a HeteroGraph is immutable: cannot set {name!r}")

    def __delattr__(self, name):
        raise AttributeError(f"a HeteroGraph is immutable: cannot delete {name!r}")

    def __reduce__(self):
        return _rebuilt, (self.canonical_etypes, self.num_src, self.num_dst, self._relations, self._stacks)

    def __copy__(self) -> HeteroGraph:
        return self

    # ---- constructors ------------------------------------------------------------------------------------------------------------

    @classmethod
    def from_dgl(cls, g) -> HeteroGraph:
        """From a DGLGraph or block of any number of edge types. CSC and CSR are not copied. Edge data keeps its order."""
        stood_for = dgl_index.stood_for(g)
        if stood_for is not None:
            return stood_for if isinstance(stood_for, cls) else cls({("_N", "_E", "_N"): stood_for})
        gidx = dgl_index.index_of(g)
        known = gidx.__dict__.setdefault(_HETEROGRAPHS, {})
        etypes = tuple(g.canonical_etypes)  # the graph has the names, not the index
        heterograph = known.get(etypes)
        if heterograph is None:
            heterograph = cls(
                {etype: Graph._from_dgl_index(gidx, g.get_etype_id(etype)) for etype in etypes},
                num_src={ntype: g.num_src_nodes(ntype) for ntype in g.srctypes},
                num_dst={ntype: g.num_dst_nodes(ntype) for ntype in g.dsttypes},
            )
            if may_cache(heterograph.device):
                known[etypes] = heterograph
        return heterograph

    @classmethod
    def from_edge_index_dict(
        cls, edge_index_dict: Mapping[EdgeType, Tensor], num_nodes: Mapping[str, int], *, check: bool = True
    ) -> HeteroGraph:
        """From PyG's edge_index_dict, {edge type: (2, E)}, and the number of nodes of every type.

        Edge data keeps its order. check: verify that ids are in range (a device synchronisation).
        """
        relations = {}
        for etype, edge_index in edge_index_dict.items():
            check_etype(etype)
            for ntype in (etype[0], etype[2]):
                if ntype not in num_nodes:
                    raise ValueError(f"num_nodes has no {ntype!r}, a node type of {etype}")
            num_src, num_dst = num_nodes[etype[0]], num_nodes[etype[2]]
            relations[etype] = Graph.from_edge_index(edge_index, num_src=num_src, num_dst=num_dst, check=check)
        return cls(relations, num_src=num_nodes, num_dst=num_nodes)

    # ---- relations ---------------------------------------------------------------------------------------------------------------

    def __getitem__(self, etype: EdgeType | str) -> Graph:
        """The Graph of an edge type, named by its triple, or by its relation if only one edge type has that relation."""
        return self._relation(self.to_canonical_etype(etype))

    def only_relation(self, name: str = "g") -> Graph:
        """The Graph of the only edge type. Raises ValueError, which calls this graph `name`, if there are several."""
        if len(self) > 1:
            raise ValueError(f"{name} has {len(self)} edge types; expected one: pass {name}[edge type]")
        return self._relation(self.canonical_etypes[0])

    def to_canonical_etype(self, etype: EdgeType | str) -> EdgeType:
        """The triple of an edge type. Raises KeyError unless exactly one edge type has that name."""
        if etype in self.canonical_etypes:
            return etype  # type: ignore[return-value]
        matches = [known for known in self.canonical_etypes if known[1] == etype]
        if len(matches) != 1:
            what = "names several edge types" if matches else "is no edge type"
            raise KeyError(f"{etype!r} {what}; expected one of {list(self.canonical_etypes)}")
        return matches[0]

    def _relation(self, etype: EdgeType) -> Graph:
        graph = self._relations.get(etype)
        if graph is None:
            graph = self._unstacked(etype)
            if may_cache(graph.device):
                self._relations[etype] = graph._for_all_streams()
        return graph

    def _unstacked(self, etype: EdgeType) -> Graph:
        """A relation cut out of the stack of all relations, which is all that a moved graph holds."""
        stack = self._stacks[self._all]
        at = stack.etypes.index(etype)
        first_src, first_dst, first_edge = (
            sum(sizes[:at]) for sizes in (stack.num_src, stack.num_dst, stack.num_edges)
        )
        edges = slice(first_edge, first_edge + stack.num_edges[at])
        with ordinary_tensors():
            indptr, indices, edge_ids = stack.graph.csc()
            src, ids = indices[edges] - first_src, stack.src_ids[at]
            csc = Adjacency(
                indptr[first_dst : first_dst + stack.num_dst[at] + 1] - first_edge,
                src if ids is None else ids[src],
                None if edge_ids is None else edge_ids[edges] - first_edge,
            )
        # Each row of the relation is a row of the stack.
        bounds = stack.graph._max_in_degree, stack.graph._max_out_degree
        return Graph(self.num_src[etype[0]], self.num_dst[etype[2]], csc, None, *bounds)

    def num_edges(self, etype: EdgeType | str) -> int:
        """Number of edges of one edge type."""
        etype = self.to_canonical_etype(etype)
        if etype in self._relations:
            return self._relations[etype].num_edges
        stack = self._stacks[self._all]
        return stack.num_edges[stack.etypes.index(etype)]

    # ---- the stack ---------------------------------------------------------------------------------------------------------------

    @property
    def _all(self) -> tuple[EdgeType, ...]:
        return _ordered(self.canonical_etypes)

    def stack(self, etypes: tuple[EdgeType, ...] | None = None) -> Stack:
        """The relations of `etypes`, by default all, in one Graph. It is built at its first use and cached.

        A stack that is made on the CPU is compact. On a GPU it is not, because the device would have to be asked how many sources a
        relation reads.
        """
        key = self._all if etypes is None else _ordered(tuple(self.to_canonical_etype(etype) for etype in etypes))
        stack = self._stacks.get(key)
        if stack is None:
            whole = self._stacks.get(self._all)
            stack = None if whole is None else _without_empty(whole, key)
            if stack is not None:
                self._stacks[key] = stack
        if stack is None:
            graphs = [self._relation(etype) for etype in key]
            with ordinary_tensors(graphs[0].csc().indices):
                stack = _stacked(key, graphs)
            if may_cache(self.device):
                if len(key) > 1:  # otherwise it is the relation's own graph
                    stack.graph._for_all_streams()
                self._stacks[key] = stack
        return stack

    # ---- properties --------------------------------------------------------------------------------------------------------------

    @property
    def _any(self) -> Graph:
        return next(iter(self._relations.values())) if self._relations else self._stacks[self._all].graph

    @property
    def device(self) -> torch.device:
        """The device of all relations."""
        return self._any.device

    @property
    def idtype(self) -> torch.dtype:
        """torch.int32 or torch.int64."""
        return self._any.idtype

    @property
    def srctypes(self) -> list[str]:
        """The types of source nodes."""
        return list(self.num_src)

    @property
    def dsttypes(self) -> list[str]:
        """The types of destination nodes."""
        return list(self.num_dst)

    def __iter__(self) -> Iterator[EdgeType]:
        return iter(self.canonical_etypes)

    def __len__(self) -> int:
        return len(self.canonical_etypes)

    def __repr__(self) -> str:
        edges = {etype: self.num_edges(etype) for etype in self.canonical_etypes}
        return f"HeteroGraph(num_src={self.num_src}, num_dst={self.num_dst}, num_edges={edges}, device='{self.device}')"

    # ---- other forms of the same graph -------------------------------------------------------------------------------------------

    def _map(self, fn: Callable[[Tensor], Tensor]) -> HeteroGraph:
        """With fn(tensor) in place of every tensor. Only the stack of all relations is mapped if it exists: it holds them all."""
        whole = self._stacks.get(self._all)
        if whole is None:
            relations = {etype: graph._map(fn) for etype, graph in self._relations.items()}
            return _rebuilt(self.canonical_etypes, self.num_src, self.num_dst, relations, {})
        src_ids = tuple(None if ids is None else fn(ids) for ids in whole.src_ids)
        stacks = {self._all: whole._replace(graph=whole.graph._map(fn), src_ids=src_ids)}
        return _rebuilt(self.canonical_etypes, self.num_src, self.num_dst, {}, stacks)

    def to(self, device, non_blocking: bool = False) -> HeteroGraph:
        """The graph on `device`. Itself if it is already there."""
        here, there = self.device, torch.device(device)
        if there == here or (there.index is None and there.type == here.type == "cpu"):
            return self
        return self._map(lambda t: t.to(device, non_blocking=non_blocking))

    def pin_memory(self) -> HeteroGraph:
        """The graph in page-locked memory, from which `to("cuda", non_blocking=True)` is asynchronous."""
        return self._map(lambda t: t.pin_memory())

    def int(self) -> HeteroGraph:
        """With int32 ids. Raises ValueError if a count does not fit."""
        if self.idtype == torch.int32:
            return self
        for etype in self.canonical_etypes:
            sizes = {"num_src": self.num_src[etype[0]], "num_dst": self.num_dst[etype[2]]}
            check_fits(torch.int32, **sizes, num_edges=self.num_edges(etype))
        for stack in self._stacks.values():
            whole = stack.graph
            check_fits(torch.int32, num_src=whole.num_src, num_dst=whole.num_dst, num_edges=whole.num_edges)
        return self._map(lambda t: t.to(torch.int32))

    def long(self) -> HeteroGraph:
        """With int64 ids."""
        return self if self.idtype == torch.int64 else self._map(lambda t: t.to(torch.int64))


@dataclass(repr=False)
class Block:
    """A DGL block or graph with its data, but without DGL. :class:`halfgnn.dataloading.Prefetcher` makes Blocks.

    Operators and modules of halfgnn take a Block wherever they take its graph. Those of dgl.nn do not.

    Attributes:
        topology: a Graph or a HeteroGraph.
        srcdata, dstdata, edata: {name: tensor}; with several types of nodes or edges {name: {type: tensor}}, as in DGL.
    """

    topology: Graph | HeteroGraph
    srcdata: dict[str, Any] = field(default_factory=dict)
    dstdata: dict[str, Any] = field(default_factory=dict)
    edata: dict[str, Any] = field(default_factory=dict)

    @property
    def graph(self) -> Graph | HeteroGraph:
        """A Graph if there is one edge type, otherwise a HeteroGraph."""
        if isinstance(self.topology, HeteroGraph) and len(self.topology) == 1:
            return self.topology[self.topology.canonical_etypes[0]]
        return self.topology

    def __halfgnn_graph__(self) -> Graph | HeteroGraph:
        return self.topology

    def num_src_nodes(self, ntype: str | None = None) -> int:
        """Number of source nodes of one type, or of all types together."""
        return _count(self.topology.num_src, ntype)

    def num_dst_nodes(self, ntype: str | None = None) -> int:
        """Number of destination nodes of one type, or of all types together."""
        return _count(self.topology.num_dst, ntype)

    def num_edges(self, etype: EdgeType | str | None = None) -> int:
        """Number of edges of one type, or of all types together."""
        if isinstance(self.topology, Graph):
            return self.topology.num_edges
        etypes = self.topology.canonical_etypes if etype is None else [etype]
        return sum(self.topology.num_edges(name) for name in etypes)

    @property
    def device(self) -> torch.device:
        return self.topology.device

    def __repr__(self) -> str:
        names = {"srcdata": list(self.srcdata), "dstdata": list(self.dstdata), "edata": list(self.edata)}
        return f"Block({self.topology}, {', '.join(f'{side}={keys}' for side, keys in names.items())})"


def _count(counts: Any, ntype: str | None) -> int:
    if isinstance(counts, int):
        return counts
    return sum(counts.values()) if ntype is None else counts[ntype]


def _rebuilt(etypes, num_src, num_dst, relations, stacks) -> HeteroGraph:
    graph = HeteroGraph.__new__(HeteroGraph)
    stacks = {
        key: stack._replace(src_ids=tuple(None if ids is None else ordinary(ids) for ids in stack.src_ids))
        for key, stack in stacks.items()
    }
    graph._put(canonical_etypes=etypes, num_src=num_src, num_dst=num_dst, _relations=relations, _stacks=stacks)
    return graph


def check_etype(etype: Any) -> None:
    if not isinstance(etype, tuple) or len(etype) != 3 or not all(isinstance(part, str) for part in etype):
        raise TypeError(f"{etype!r} is no edge type; expected a triple (source type, relation, destination type)")


def _check_alike(relations: Mapping[EdgeType, Graph]) -> None:
    first = next(iter(relations))
    for etype, graph in relations.items():
        if graph.idtype != relations[first].idtype:
            raise TypeError(f"{etype} has {graph.idtype} ids and {first} {relations[first].idtype}; expected one dtype")
        if graph.device != relations[first].device:
            raise ValueError(f"{etype} is on {graph.device} and {first} on {relations[first].device}; expected one")


def _counts(
    relations: Mapping[EdgeType, Graph], node_counts: Mapping[str, int] | None, name: str, end: int
) -> dict[str, int]:
    """Number of nodes of every type in node_counts or at `end` of a relation. name: of the argument and of Graph's attribute."""
    counts = {ntype: check_count(count, f"{name}[{ntype!r}]") for ntype, count in (node_counts or {}).items()}
    for etype, graph in relations.items():
        count = getattr(graph, name)
        if counts.setdefault(etype[end], count) != count:
            raise ValueError(
                f"{etype} has {name} {count}, but there are {counts[etype[end]]} nodes of type {etype[end]!r}"
            )
    return counts


def _ordered(etypes: tuple[EdgeType, ...]) -> tuple[EdgeType, ...]:
    """Sorted by destination type; types are in the order of their first relation."""
    dsttypes = list(dict.fromkeys(etype[2] for etype in etypes))
    return tuple(sorted(etypes, key=lambda etype: dsttypes.index(etype[2])))


def _stacked(etypes: tuple[EdgeType, ...], graphs: list[Graph]) -> Stack:
    sides = [_compact(graph) for graph in graphs]
    num_src = tuple(rows for _, rows, _ in sides)
    num_dst = tuple(graph.num_dst for graph in graphs)
    num_edges = tuple(graph.num_edges for graph in graphs)
    rest = (etypes, num_src, num_dst, num_edges, tuple(ids for _, _, ids in sides))
    if len(graphs) == 1 and sides[0][0] is graphs[0].csc().indices:
        return Stack(graphs[0], *rest)
    if graphs[0].idtype == torch.int32:
        check_fits(torch.int32, num_src=sum(num_src), num_dst=sum(num_dst), num_edges=sum(num_edges))
    has_ids = any(graph.csc().edge_ids is not None for graph in graphs)
    pointers, indices, edge_ids = [graphs[0].csc().indptr[:1]], [], []
    first_src = first_edge = 0
    for graph, (src, rows, _) in zip(graphs, sides):
        csc = graph.csc()
        pointers.append(csc.indptr[1:] + first_edge if first_edge else csc.indptr[1:])
        indices.append(src + first_src if first_src else src)
        if has_ids:
            edge_ids.append(_ids_from(csc, first_edge))
        first_src, first_edge = first_src + rows, first_edge + graph.num_edges
    csc = Adjacency(torch.cat(pointers), torch.cat(indices), torch.cat(edge_ids) if has_ids else None)
    # No row belongs to two relations, neither of destinations nor of sources.
    bounds = (_largest(graph._max_in_degree for graph in graphs), _largest(graph._max_out_degree for graph in graphs))
    return Stack(Graph(first_src, sum(num_dst), csc, None, *bounds), *rest)


def _largest(bounds: Iterable[int | None]) -> int | None:
    """None if one of the bounds is not known."""
    known = list(bounds)
    return None if None in known else max(known)  # type: ignore[type-var]


_COMPACT = 0.75  # a relation is made compact if it reads at most this share of the sources


def _compact(graph: Graph) -> tuple[Tensor, int, Tensor | None]:
    """Of a relation in a stack: the source row of each edge, the number of source rows, and the source node of each row or None."""
    indices, num_src = graph.csc().indices, graph.num_src
    if not graph.num_edges:
        return indices, 0, None
    if graph.device.type != "cpu" or torch.compiler.is_compiling():
        return indices, num_src, None
    is_read = torch.zeros(num_src, dtype=torch.bool, device=graph.device)
    is_read[indices] = True
    ids = is_read.nonzero().squeeze(1).to(indices.dtype)
    if len(ids) > _COMPACT * num_src:
        return indices, num_src, None
    rows = indices.new_empty(num_src)
    rows[ids] = torch.arange(len(ids), dtype=indices.dtype, device=indices.device)
    return rows[indices], len(ids), ids


def _without_empty(stack: Stack, etypes: tuple[EdgeType, ...]) -> Stack | None:
    """The stack of `etypes`, or None unless all others in `stack` have neither edges nor destinations."""
    columns = list(zip(stack.etypes, stack.num_src, stack.num_dst, stack.num_edges, stack.src_ids))
    if any(etype not in etypes and (edges or num_dst) for etype, _, num_dst, edges, _ in columns):
        return None
    remaining = [column for column in columns if column[0] in etypes]
    return Stack(stack.graph, *zip(*remaining))  # type: ignore[arg-type]


def _ids_from(csc: Adjacency, first: int) -> Tensor:
    if csc.edge_ids is not None:
        return csc.edge_ids + first
    return torch.arange(first, first + csc.indices.numel(), dtype=csc.indices.dtype, device=csc.indices.device)


# torch.save of a graph can be loaded with weights_only=True.
torch.serialization.add_safe_globals([Stack, _rebuilt])
