"""Topology: the immutable structure behind a graph. Graphs that differ in features or in names of types only share it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from ...adjacency import Adjacency
from ...common.caching import Cached, cacheable, may_cache, ordinary, ordinary_tensors, read_cached
from ...common.ids import INT32_MAX
from ...graph import Graph
from ...heterograph import EdgeType, HeteroGraph
from .base import DGLError, check_ids

FORMATS = ("coo", "csr", "csc")
Edges = tuple[Tensor, Tensor]


class Relation:
    """The edges of one type. Their ends in the order of edge ids, and a :class:`halfgnn.Graph`, are each made from the other.

    Attributes:
        num_src, num_dst, num_edges: counts.
        created: the formats that exist, of FORMATS.
        is_turned: whether `graph` is that of the reversed edges turned around, whose csc is made of csr: rows are by source then.
    """

    def __init__(
        self,
        num_src: int,
        num_dst: int,
        edges: Edges | None = None,
        graph: Graph | None = None,
        created: Iterable[str] = (),
        is_turned: bool = False,
    ):
        self.num_src, self.num_dst = num_src, num_dst
        self._edges: Edges | Cached[Edges] | None = None if edges is None else (ordinary(edges[0]), ordinary(edges[1]))
        self._graph: Graph | Cached[Graph] | None = graph
        self._pairs: tuple[Tensor, Tensor] | Cached | None = None
        self._by_source: Adjacency | Cached[Adjacency] | None = None
        self._reversed: Relation | None = None
        if edges is not None:
            self.num_edges, self.idtype, self.device = edges[0].shape[0], edges[0].dtype, edges[0].device
        elif graph is not None:
            self.num_edges, self.idtype, self.device = graph.num_edges, graph.idtype, graph.device
        self.created, self.is_turned = set(created), is_turned

    # ---- constructors ------------------------------------------------------------------------------------------------------------

    @classmethod
    def from_edges(cls, src: Tensor, dst: Tensor, num_src: int, num_dst: int, check: bool = True) -> Relation:
        """From the ends (E,) of edges. check: that ids are in range, which waits for a GPU."""
        if src.shape != dst.shape:
            raise DGLError(
                f"there are {src.numel()} sources and {dst.numel()} destinations; expected two per edge, one of each"
            )
        if check:
            check_ids(src, num_src, "the edges' sources", "a node")
            check_ids(dst, num_dst, "the edges' destinations", "a node")
        return cls(num_src, num_dst, (src, dst), None, ["coo"])

    @classmethod
    def from_graph(cls, graph: Graph, side: str) -> Relation:
        """From a Graph that was made of its `side`, csc or csr."""
        return cls(graph.num_src, graph.num_dst, None, graph, [side])

    @classmethod
    def from_compressed(
        cls, side: str, indptr: Tensor, indices: Tensor, edge_ids: Tensor | None, num_other: int, check: bool = True
    ) -> Relation:
        """From csc or csr. num_other: number of nodes that indices name. edge_ids None or empty: edges are in this order."""
        edge_ids = None if edge_ids is None or (edge_ids.numel() == 0 and indices.numel()) else edge_ids
        make, other = (Graph.from_csc, "num_src") if side == "csc" else (Graph.from_csr, "num_dst")
        try:
            graph = make(indptr, indices, edge_ids, **{other: num_other}, check=check)
        except (ValueError, TypeError) as error:
            raise DGLError(str(error)) from error
        return cls.from_graph(graph, side)

    # ---- forms -------------------------------------------------------------------------------------------------------------------

    def edges(self) -> Edges:
        """Sources and destinations (E,), by edge id."""
        if self._edges is None:
            with ordinary_tensors():
                src, dst = self.graph().edges()
            if not may_cache(self.device):
                return src, dst
            self._edges = cacheable((src, dst), (src, dst))
            self.created.add("coo")
        return read_cached(self._edges)

    def graph(self) -> Graph:
        """The Graph. Its csc is made at the first call, and its csr when an operator needs it."""
        graph = self._graph
        if type(graph) is Graph:
            return graph
        if graph is not None:
            return read_cached(graph)
        src, dst = self.edges()
        made = _graph_of(src, dst, self.num_src, self.num_dst)
        if may_cache(self.device):
            self._graph = cacheable(made, made.csc())
            self.created.add("csc")
        return made

    def by_source(self) -> Adjacency:
        """The out-edges of each source by rising id, in int32 if that holds them; made once.

        Rows of the Graph's csr are by destination if csc was first.
        """
        if self._by_source is None:
            src, dst = self.edges()
            if max(self.num_src, self.num_dst, self.num_edges) <= INT32_MAX:
                src, dst = src.int(), dst.int()  # queries move many of them through the caches
            made = _graph_of(dst, src, self.num_dst, self.num_src).csc()
            if not may_cache(self.device):
                return made
            self._by_source = cacheable(made, made)
        return read_cached(self._by_source)

    def by_destination(self) -> Adjacency:
        """The in-edges of each destination by rising id, or in the order of the csc that the relation was made of."""
        if not self.is_turned:
            return self.graph().csc()
        if self._reversed is None:
            self._reversed = Relation(self.num_dst, self.num_src, self.edges()[::-1])
        return self._reversed.by_source()

    def create(self, form: str) -> None:
        """Make a format now."""
        if form == "coo":
            self.edges()
        else:
            getattr(self.graph(), form)()
            self.created.add(form)

    def pairs(self) -> tuple[Tensor, Tensor]:
        """Keys of all edges in rising order, and the ids of those edges, which rise among equal keys. Made once."""
        if self._pairs is None:
            with ordinary_tensors():
                keys, order = torch.sort(self.key(*self.edges()), stable=True)
            if not may_cache(self.device):
                return keys, order
            self._pairs = cacheable((keys, order), (keys, order))
        return read_cached(self._pairs)  # type: ignore[arg-type]

    def key(self, src: Tensor, dst: Tensor) -> Tensor:
        """One number per pair of ends, which rises by source, then by destination."""
        if self.num_src * self.num_dst >= 2**63:
            raise DGLError(
                f"the graph has {self.num_src} source and {self.num_dst} destination nodes; expected fewer than 2**63 pairs of them"
            )
        return src.long() * self.num_dst + dst

    # ---- the same edges otherwise ------------------------------------------------------------------------------------------------

    def _with(self, edges: Edges | None, graph: Graph | None, created: Iterable[str]) -> Relation:
        return Relation(self.num_src, self.num_dst, edges, graph, created, self.is_turned and graph is not None)

    def map(self, edges: Callable[[Tensor], Tensor], graph: Callable[[Graph], Graph]) -> Relation:
        """With edges(tensor) and graph(graph) in place of what exists."""
        src_and_dst = None if self._edges is None else self.edges()
        ends = None if src_and_dst is None else (edges(src_and_dst[0]), edges(src_and_dst[1]))
        made = None if self._graph is None else graph(read_cached(self._graph))
        return self._with(ends, made, self.created)

    def reverse(self) -> Relation:
        """With every edge reversed. Shares all tensors."""
        edges = None if self._edges is None else self.edges()[::-1]
        graph = None if self._graph is None else read_cached(self._graph).reverse()
        turned = {"csc": "csr", "csr": "csc"}
        created = [turned.get(form, form) for form in self.created]
        is_turned = graph is not None and edges is not None and not self.is_turned
        return Relation(self.num_dst, self.num_src, edges, graph, created, is_turned)

    def resized(self, num_src: int, num_dst: int) -> Relation:
        """With other numbers of nodes, which must be large enough."""
        if (num_src, num_dst) == (self.num_src, self.num_dst):
            return self
        return Relation(num_src, num_dst, self.edges(), None, ["coo"])

    def limited(self, forms: Sequence[str]) -> Relation:
        """With these formats alone; if none of them exists, the first is made."""
        present = [form for form in forms if form in self.created]
        if not present:
            self.create(forms[0])
            present = [forms[0]]
        edges = self.edges() if "coo" in present else None
        graph = self.graph() if "csc" in present or "csr" in present else None
        return self._with(edges, graph, present)

    def tensors(self) -> list[Tensor]:
        """All tensors that exist."""
        found = [] if self._edges is None else list(self.edges())
        graph = self.graph() if self._graph is not None else None
        for form in ("csc", "csr"):
            if graph is not None and form in self.created:
                found += [tensor for tensor in getattr(graph, form)() if tensor is not None]
        return found

    def __getstate__(self) -> tuple:
        edges, graph = (None if part is None else read_cached(part) for part in (self._edges, self._graph))
        return self.num_src, self.num_dst, edges, graph, sorted(self.created), self.is_turned

    def __setstate__(self, state: tuple) -> None:
        self.__init__(*state)  # type: ignore[misc]


def _graph_of(src: Tensor, dst: Tensor, num_src: int, num_dst: int) -> Graph:
    # Programs may have modified the ids in place since. On a GPU the check would wait.
    check = src.is_cpu and not torch.compiler.is_compiling()
    try:
        return Graph.from_edges(src, dst, num_src=num_src, num_dst=num_dst, check=check)
    except (ValueError, TypeError) as error:
        raise DGLError(str(error)) from error


class MetaGraph:
    """Which types of nodes each type of edge leads from and to."""

    def __init__(self, ends: Sequence[tuple[int, int]], num_ntypes: int):
        self.ends = tuple(ends)
        self.num_ntypes = num_ntypes

    def find_edge(self, etype: int) -> tuple[int, int]:
        """Ids of the types of its sources and destinations."""
        return self.ends[etype]

    def num_nodes(self) -> int:
        """Number of node types."""
        return self.num_ntypes

    def num_edges(self) -> int:
        """Number of edge types."""
        return len(self.ends)

    def sources_and_destinations(self) -> tuple[list[int], list[int]] | None:
        """Ids of the types that edges come from, or that have none, and of those they lead to; None if a type is both."""
        src, dst = {u for u, _ in self.ends}, {v for _, v in self.ends}
        if not self.ends or src & dst:
            return None
        return [t for t in range(self.num_ntypes) if t not in dst], [t for t in range(self.num_ntypes) if t in dst]


class Topology:
    """Numbers of nodes per type, and a :class:`Relation` per type of edges. Types have ids here; graphs give them names.

    Args:
        metagraph: the types.
        node_counts: number of nodes per type.
        relations: one per edge type, on one device, with one dtype of ids.
        allowed: the formats that the graph is said to be restricted to.
    """

    def __init__(
        self,
        metagraph: MetaGraph,
        node_counts: Sequence[int],
        relations: Sequence[Relation],
        allowed: Sequence[str] = FORMATS,
    ):
        self.metagraph = metagraph
        self.node_counts = tuple(node_counts)
        self.relations = tuple(relations)
        self.allowed = tuple(form for form in FORMATS if form in allowed)
        self.idtype = relations[0].idtype if relations else torch.int64
        self.device = relations[0].device if relations else torch.device("cpu")
        self.is_unibipartite = metagraph.sources_and_destinations() is not None
        self._slices: dict[int, Topology] = {}
        self._heterographs: dict[Any, HeteroGraph] = {}

    @classmethod
    def of_relation(cls, relation: Relation, is_bipartite: bool, allowed: Sequence[str] = FORMATS) -> Topology:
        """Of one type of edges, between two types of nodes or within one."""
        if is_bipartite:
            return cls(MetaGraph([(0, 1)], 2), (relation.num_src, relation.num_dst), [relation], allowed)
        return cls(MetaGraph([(0, 0)], 1), (relation.num_src,), [relation], allowed)

    # ---- what there is -----------------------------------------------------------------------------------------------------------

    def num_nodes(self, ntype: int) -> int:
        """Number of nodes of one type."""
        return self.node_counts[ntype]

    def num_edges(self, etype: int) -> int:
        """Number of edges of one type."""
        return self.relations[etype].num_edges

    def number_of_etypes(self) -> int:
        """Number of edge types."""
        return len(self.relations)

    def number_of_ntypes(self) -> int:
        """Number of node types."""
        return len(self.node_counts)

    def is_metagraph_unibipartite(self) -> bool:
        """Whether no type of nodes has both in-edges and out-edges."""
        return self.is_unibipartite

    def edges(self, etype: int) -> tuple[Tensor, Tensor, Tensor]:
        """Sources, destinations and ids of the edges of one type, by id."""
        src, dst = self.relations[etype].edges()
        return src, dst, torch.arange(src.numel(), dtype=self.idtype, device=self.device)

    # ---- parts and wholes --------------------------------------------------------------------------------------------------------

    def slice(self, etype: int) -> Topology:
        """Of one edge type and its types of nodes. Made once."""
        if len(self.relations) == 1 and len(self.node_counts) == len(set(self.metagraph.ends[0])):
            return self
        part = self._slices.get(etype)
        if part is None:
            src, dst = self.metagraph.ends[etype]
            part = self._slices[etype] = Topology.of_relation(self.relations[etype], src != dst, self.allowed)
        return part

    def heterograph(self, etypes: Sequence[EdgeType], num_src: dict[str, int], num_dst: dict[str, int]) -> HeteroGraph:
        """The HeteroGraph of all relations under these names. Made once."""
        key = tuple(etypes)
        whole = self._heterographs.get(key)
        if whole is None or self.device.type == "cuda":  # there a stream waits for each relation that another has made
            graphs = {etype: relation.graph() for etype, relation in zip(etypes, self.relations)}
        if whole is None:
            whole = HeteroGraph(graphs, num_src=num_src, num_dst=num_dst)
            if may_cache(self.device):
                self._heterographs[key] = whole
        return whole

    # ---- the same graph otherwise ------------------------------------------------------------------------------------------------

    def with_relations(self, relations: Sequence[Relation], node_counts: Sequence[int] | None = None) -> Topology:
        """With other edges of the same types."""
        counts = self.node_counts if node_counts is None else node_counts
        return Topology(self.metagraph, counts, relations, self.allowed)

    def reverse(self) -> Topology:
        """With every edge reversed. Shares all tensors."""
        metagraph = MetaGraph([(dst, src) for src, dst in self.metagraph.ends], self.metagraph.num_ntypes)
        return Topology(metagraph, self.node_counts, [relation.reverse() for relation in self.relations])

    def to(self, device: Any, non_blocking: bool = False) -> Topology:
        """On another device."""
        return self._map(
            lambda t: t.to(device, non_blocking=non_blocking), lambda g: g.to(device, non_blocking=non_blocking)
        )

    def astype(self, idtype: torch.dtype) -> Topology:
        """With ids of another dtype. Raises DGLError if a count does not fit."""
        if idtype == self.idtype:
            return self
        if idtype == torch.int32:
            for count in (*self.node_counts, *(relation.num_edges for relation in self.relations)):
                if count > 2**31 - 1:
                    raise DGLError(
                        f"the graph has {count} nodes or edges of one type; expected less than 2**31 for int32"
                    )
            return self._map(lambda t: t.to(idtype), Graph.int)
        return self._map(lambda t: t.to(idtype), Graph.long)

    def pin_memory(self) -> Topology:
        """In page-locked memory."""
        return self._map(lambda t: t.pin_memory(), Graph.pin_memory)

    def unpin_memory(self) -> Topology:
        """In ordinary memory: edges are copied, and adjacencies are recomputed when they are needed."""
        return self.with_relations(
            [
                Relation(relation.num_src, relation.num_dst, (src.clone(), dst.clone()), None, ["coo"])
                for relation in self.relations
                for src, dst in [relation.edges()]
            ]
        )

    def _map(self, edges: Callable[[Tensor], Tensor], graph: Callable[[Graph], Graph]) -> Topology:
        return self.with_relations([relation.map(edges, graph) for relation in self.relations])

    # ---- formats -----------------------------------------------------------------------------------------------------------------

    def formats(self, formats: str | Sequence[str] | None = None) -> Any:
        """The formats that exist and those that may be made; with an argument, the graph restricted to these."""
        if formats is None:
            created = [f for f in FORMATS if all(f in relation.created for relation in self.relations)]
            created = [f for f in created if f in self.allowed]
            return {"created": created, "not created": [f for f in self.allowed if f not in created]}
        wanted = [formats] if isinstance(formats, str) else list(formats)
        if not wanted or set(wanted) - set(FORMATS):
            raise DGLError(f"formats is {formats!r}; expected some of {list(FORMATS)}")
        forms = [form for form in FORMATS if form in wanted]
        relations = [relation.limited(forms) for relation in self.relations]
        return Topology(self.metagraph, self.node_counts, relations, forms)

    def check_allowed(self, form: str, what: str) -> None:
        """Raises DGLError if the graph is restricted to the format that `what` does not read."""
        if form not in self.allowed and "coo" not in self.allowed:
            raise DGLError(f"the graph is restricted to {list(self.allowed)}; expected {form!r} or 'coo' for {what}")

    def create_formats(self) -> None:
        """Make all that is allowed."""
        for relation in self.relations:
            for form in self.allowed:
                relation.create(form)

    def __getstate__(self) -> tuple:
        return self.metagraph, self.node_counts, self.relations, self.allowed

    def __setstate__(self, state: tuple) -> None:
        self.__init__(*state)  # type: ignore[misc]
