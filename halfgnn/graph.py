"""Graph: the immutable topology that every operator takes."""

from __future__ import annotations

from typing import Any, Literal, overload

import torch
from torch import Tensor

from . import _library, adjacency, dgl_index
from .adjacency import Adjacency, Bound
from .common.caching import Cached, Caching, cacheable, may_cache, ordinary_tensors, read_cached
from .common.ids import check_count, check_edge_index, check_fits, num_nodes_of
from .common.operands import check_tensor

_GRAPH = "_halfgnn_graph"  # kept on a DGL graph index: the Graph of its only relation


_Count = int | None  # a number of nodes; None: one more than the largest id

# A row of so many edges may be cut into pieces on CUDA, whose results a second kernel combines (csrc/cuda/kernels/core/rows.cuh).
LONG_ROW_EDGES = 512


class Graph(Caching):
    """A bipartite topology: edges from `num_src` source to `num_dst` destination nodes, which need not be different nodes.

    Holds in-edges (CSC) and out-edges (CSR), int32 or int64, on any device. Either side is made from the other at its first use and
    kept, on a GPU for every stream. A side whose first use is in the capture of a CUDA graph is made in the capture and not kept,
    so use it before. Edge data has one row per edge, in the order of the constructor's edges. `edge_ids is None` on a side means
    that this is the side's own order, which is faster. Duplicate edges, self-loops and nodes without edges are allowed.

    If a graph on a GPU knows that no node has many edges, operators launch fewer kernels: see `max_in_degree` and `max_out_degree`.

    A graph is immutable: do not write to the tensors that were passed in or that it returns.
    """

    num_src: int
    num_dst: int
    num_edges: int
    device: torch.device
    short_csc: bool  # whether all rows of csc() are known to have fewer than LONG_ROW_EDGES edges
    short_csr: bool
    _csc: Adjacency | Cached[Adjacency] | None
    _csr: Adjacency | Cached[Adjacency] | None
    _max_in_degree: Bound
    _max_out_degree: Bound

    def __init__(
        self,
        num_src: int,
        num_dst: int,
        csc=None,
        csr=None,
        max_in_degree: Bound = None,
        max_out_degree: Bound = None,
    ):
        """From adjacencies (indptr, indices, edge_ids or None) that are known to be valid. Nothing is checked.

        Use the `from_*` constructors for data that may be wrong. All constructors copy tensors of inference mode, so that one can
        train on a graph that was made while a model was evaluated.
        """
        if csc is None and csr is None:
            if isinstance(num_src, Tensor):
                raise TypeError(
                    "num_src is a Tensor; expected a number: halfgnn.Graph.from_edges(src, dst) makes a Graph of edges"
                )
            raise ValueError(
                "csc and csr are both None; expected at least one. Graph.from_edges makes a Graph of edges"
            )
        put = object.__setattr__
        put(self, "num_src", num_src)
        put(self, "num_dst", num_dst)
        put(self, "_csc", adjacency.adjacency_of(csc))
        put(self, "_csr", adjacency.adjacency_of(csr))
        indptr, indices, _ = csc if csc is not None else csr
        put(self, "num_edges", indices.shape[0])
        put(self, "device", indptr.device)
        if indptr.is_cuda:
            _library.check_device(indptr.device)
        self._put_bounds(max_in_degree, max_out_degree)

    def _put_bounds(self, max_in_degree: Bound, max_out_degree: Bound) -> None:
        put = object.__setattr__
        put(self, "_max_in_degree", max_in_degree)
        put(self, "_max_out_degree", max_out_degree)
        # Operators read these: a truth value, so that code is not compiled again for every degree.
        put(self, "short_csc", max_in_degree is not None and max_in_degree < LONG_ROW_EDGES)
        put(self, "short_csr", max_out_degree is not None and max_out_degree < LONG_ROW_EDGES)

    def __setattr__(self, name, value):
        raise AttributeError(f"a Graph is immutable: cannot set {name!r}")

    def __delattr__(self, name):
        raise AttributeError(f"a Graph is immutable: cannot delete {name!r}")

    def __reduce__(self):
        bounds = self._max_in_degree, self._max_out_degree
        return Graph, (self.num_src, self.num_dst, read_cached(self._csc), read_cached(self._csr), *bounds)

    def __copy__(self) -> Graph:
        return self

    # ---- constructors ------------------------------------------------------------------------------------------------------------

    @overload
    @classmethod
    def from_edges(
        cls, src: Tensor, dst: Tensor, *, num_src: _Count = ..., num_dst: _Count = ..., sort: Literal[False] = ...,
        is_sorted: bool = ..., max_in_degree: Bound = ..., max_out_degree: Bound = ..., check: bool = ...,
    ) -> Graph: ...  # fmt: skip
    @overload
    @classmethod
    def from_edges(
        cls, src: Tensor, dst: Tensor, *, num_src: _Count = ..., num_dst: _Count = ..., sort: Literal[True],
        is_sorted: bool = ..., max_in_degree: Bound = ..., max_out_degree: Bound = ..., check: bool = ...,
    ) -> tuple[Graph, Tensor]: ...  # fmt: skip
    @overload
    @classmethod
    def from_edges(
        cls, src: Tensor, dst: Tensor, *, num_src: _Count = ..., num_dst: _Count = ..., sort: bool,
        is_sorted: bool = ..., max_in_degree: Bound = ..., max_out_degree: Bound = ..., check: bool = ...,
    ) -> Graph | tuple[Graph, Tensor]: ...  # fmt: skip
    @classmethod
    def from_edges(
        cls,
        src: Tensor,
        dst: Tensor,
        *,
        num_src: _Count = None,
        num_dst: _Count = None,
        sort: bool = False,
        is_sorted: bool = False,
        max_in_degree: Bound = None,
        max_out_degree: Bound = None,
        check: bool = True,
    ) -> Graph | tuple[Graph, Tensor]:
        """From an edge list.

        Args:
            src, dst: (E,) int32 or int64, the ends of every edge.
            num_src, num_dst: numbers of nodes; by default one more than the largest id (a device synchronisation).
            sort: store edges in CSC order, which makes every operator faster. Edge data must then follow: `efeat[perm]`.
            is_sorted: edges are already stored by destination, as samplers store them. They are neither sorted nor copied, except
                for tensors of inference mode, which are copied.
            max_in_degree, max_out_degree: the most in-edges of a destination and out-edges of a source, for example a fan-out,
                or a larger number. If it is below 512, operators on a GPU launch fewer kernels. It is not checked. If it is wrong,
                results are right and come later. A graph on the CPU finds both by itself when it is moved.
            check: verify that ids are in range, and sorted if is_sorted (a device synchronisation).

        Returns:
            A Graph; with `sort=True` the pair (Graph, perm) with perm (E,).

        Raises:
            TypeError, ValueError: other dtypes, unequal shapes, ids out of range, counts too large for int32 ids, or more than
                2**32 - 2 edges on CUDA.
        """
        edges = adjacency.checked_edges(src, dst, num_src, num_dst, check)
        bounds = adjacency.checked_bounds(max_in_degree, max_out_degree)
        return cls._of_edges(*edges, sort, is_sorted, bounds, check)

    @classmethod
    def _of_edges(cls, src, dst, num_src, num_dst, sort, is_sorted, bounds, check) -> Graph | tuple[Graph, Tensor]:
        """See :meth:`from_edges`. check: that edges are sorted, if they are said to be."""
        if is_sorted:
            if sort:
                raise ValueError("sort and is_sorted are both True; expected one of them")
            return cls(num_src, num_dst, (adjacency.indptr_of_sorted(dst, num_dst, check), src, None), None, *bounds)
        with ordinary_tensors(src):
            indptr, indices, edge_ids = torch.ops.halfgnn.coo_to_csr.default(dst, src, num_dst)
        if sort:
            return cls(num_src, num_dst, (indptr, indices, None), None, *bounds), edge_ids
        return cls(num_src, num_dst, (indptr, indices, edge_ids), None, *bounds)

    @classmethod
    def from_csc(
        cls,
        indptr: Tensor,
        indices: Tensor,
        edge_ids: Tensor | None = None,
        *,
        num_src: int | None = None,
        max_in_degree: Bound = None,
        max_out_degree: Bound = None,
        check: bool = True,
    ) -> Graph:
        """From in-edges: row v of indptr (num_dst + 1,) delimits v's sources in indices (E,).

        edge_ids (E,) gives the row of edge data for each position; None means that edge data is in this order. Nothing is copied,
        except tensors of inference mode. max_in_degree, max_out_degree: see :meth:`from_edges`.

        Raises:
            TypeError, ValueError: see :meth:`from_edges`; also if indptr falls or does not run from 0 to E, or edge_ids is no
                permutation.
        """
        csc, num_src = adjacency.compressed("csc", indptr, indices, edge_ids, num_src, check)
        bounds = adjacency.checked_bounds(max_in_degree, max_out_degree)
        return cls(num_src, csc.indptr.numel() - 1, csc, None, *bounds)

    @classmethod
    def from_csr(
        cls,
        indptr: Tensor,
        indices: Tensor,
        edge_ids: Tensor | None = None,
        *,
        num_dst: int | None = None,
        max_in_degree: Bound = None,
        max_out_degree: Bound = None,
        check: bool = True,
    ) -> Graph:
        """From out-edges: row u of indptr (num_src + 1,) delimits u's destinations in indices (E,).

        Otherwise like :meth:`from_csc`.
        """
        csr, num_dst = adjacency.compressed("csr", indptr, indices, edge_ids, num_dst, check)
        bounds = adjacency.checked_bounds(max_in_degree, max_out_degree)
        return cls(csr.indptr.numel() - 1, num_dst, None, csr, *bounds)

    @classmethod
    def from_dgl(cls, g, etype=None, *, max_in_degree: Bound = None, max_out_degree: Bound = None) -> Graph:
        """From a DGLGraph, a block, or one edge type of a heterograph. CSC and CSR are not copied. Edge data keeps its order.

        The Graph is cached with g: the same one is returned again. Hints hold for it from then on (see :meth:`from_edges`).
        """
        graph = cls._of_dgl(g, etype)
        if max_in_degree is not None or max_out_degree is not None:
            in_bound, out_bound = adjacency.checked_bounds(max_in_degree, max_out_degree)
            graph._put_bounds(
                graph._max_in_degree if in_bound is None else in_bound,
                graph._max_out_degree if out_bound is None else out_bound,
            )
        return graph

    @classmethod
    def _of_dgl(cls, g, etype) -> Graph:
        stood_for = dgl_index.stood_for(g, etype)
        if stood_for is not None:
            return stood_for if isinstance(stood_for, cls) else stood_for.only_relation()
        gidx = dgl_index.index_of(g)
        if etype is not None:
            return cls._from_dgl_index(gidx, g.get_etype_id(etype))
        graph = gidx.__dict__.get(_GRAPH)
        if graph is None:
            if gidx.number_of_etypes() != 1:
                raise ValueError(
                    f"g has {gidx.number_of_etypes()} edge types; expected one: pass g[edge type], or etype to Graph.from_dgl:"
                    f" {g.canonical_etypes}"
                )
            graph = cls._from_dgl_index(gidx, 0)
            if may_cache(graph.device):
                gidx.__dict__[_GRAPH] = graph
        return graph

    @classmethod
    def _from_dgl_index(cls, gidx: Any, etype: int) -> Graph:
        """From one relation of a DGL graph index. It is computed once and cached with that relation's own index."""
        relation = dgl_index.relation_index(gidx, etype)
        graph = relation.__dict__.get(_GRAPH)
        if graph is None:
            with ordinary_tensors():
                graph = _of_adjacencies(dgl_index.adjacencies_of(relation))
            if may_cache(graph.device):
                relation.__dict__[_GRAPH] = graph._for_all_streams()
        return graph

    @overload
    @classmethod
    def from_edge_index(
        cls, edge_index: Tensor, *, num_src: _Count = ..., num_dst: _Count = ..., num_nodes: _Count = ...,
        sort: Literal[False] = ..., is_sorted: bool = ..., max_in_degree: Bound = ..., max_out_degree: Bound = ...,
        check: bool = ...,
    ) -> Graph: ...  # fmt: skip
    @overload
    @classmethod
    def from_edge_index(
        cls, edge_index: Tensor, *, num_src: _Count = ..., num_dst: _Count = ..., num_nodes: _Count = ...,
        sort: Literal[True], is_sorted: bool = ..., max_in_degree: Bound = ..., max_out_degree: Bound = ...,
        check: bool = ...,
    ) -> tuple[Graph, Tensor]: ...  # fmt: skip
    @overload
    @classmethod
    def from_edge_index(
        cls, edge_index: Tensor, *, num_src: _Count = ..., num_dst: _Count = ..., num_nodes: _Count = ...,
        sort: bool, is_sorted: bool = ..., max_in_degree: Bound = ..., max_out_degree: Bound = ...,
        check: bool = ...,
    ) -> Graph | tuple[Graph, Tensor]: ...  # fmt: skip
    @classmethod
    def from_edge_index(
        cls,
        edge_index: Tensor,
        *,
        num_src: _Count = None,
        num_dst: _Count = None,
        num_nodes: _Count = None,
        sort: bool = False,
        is_sorted: bool = False,
        max_in_degree: Bound = None,
        max_out_degree: Bound = None,
        check: bool = True,
    ) -> Graph | tuple[Graph, Tensor]:
        """From PyG's edge_index (2, E): row 0 has the sources, row 1 the destinations. num_nodes sets both sides.

        By default both sides have one node more than the largest id in either row. Otherwise like :meth:`from_edges`.
        """
        check_edge_index(edge_index)
        origins = [
            "num_nodes" if count is None else name for count, name in ((num_src, "num_src"), (num_dst, "num_dst"))
        ]
        if num_nodes is None and "num_nodes" in origins:
            num_nodes = num_nodes_of(edge_index.flatten(), "edge_index")
        elif num_nodes is not None:
            num_nodes = check_count(num_nodes, "num_nodes")
        num_src = num_nodes if num_src is None else num_src
        num_dst = num_nodes if num_dst is None else num_dst
        names = "edge_index[0]", "edge_index[1]"
        src, dst = edge_index[0], edge_index[1]
        edges = adjacency.checked_edges(src, dst, num_src, num_dst, check, names, origins)
        bounds = adjacency.checked_bounds(max_in_degree, max_out_degree)
        return cls._of_edges(*edges, sort, is_sorted, bounds, check)

    @classmethod
    def from_scipy(cls, matrix) -> Graph:
        """From a scipy sparse matrix whose rows are destinations and columns sources, so that `A @ x` aggregates.

        Stored zeros are edges. Values are not kept. Edge data is in the order of the CSR form, or of the COO form.
        """
        constructor, tensors, counts = adjacency.read_scipy(matrix)
        return getattr(cls, constructor)(*tensors, **counts)

    @classmethod
    def from_torch_sparse(cls, tensor: Tensor) -> Graph:
        """From a torch sparse matrix (CSR, CSC or COO) whose rows are destinations and columns sources.

        Values are not kept. Edge data is in the order of the tensor's values.
        """
        check_tensor(tensor, "tensor")
        if tensor.dim() != 2:
            raise ValueError(f"tensor has shape {tuple(tensor.shape)}; expected two dimensions")
        num_dst, num_src = tensor.shape
        if tensor.layout == torch.sparse_csr:
            return cls.from_csc(tensor.crow_indices(), tensor.col_indices(), num_src=num_src)
        if tensor.layout == torch.sparse_csc:
            return cls.from_csr(tensor.ccol_indices(), tensor.row_indices(), num_dst=num_dst)
        if tensor.layout == torch.sparse_coo:
            # Not coalesced, because that would merge duplicate edges.
            dst, src = tensor._indices()
            return cls.from_edges(src, dst, num_src=num_src, num_dst=num_dst)
        raise TypeError(f"tensor has layout {tensor.layout}; expected sparse_csr, sparse_csc or sparse_coo")

    # ---- the two sides -----------------------------------------------------------------------------------------------------------

    def csc(self) -> Adjacency:
        """In-edges: indptr (num_dst + 1,), indices (E,) = sources, edge_ids (E,) or None. Made from CSR at its first use."""
        side = self._csc
        return side if type(side) is Adjacency else self._side("_csc", "_csr", self.num_dst)

    def csr(self) -> Adjacency:
        """Out-edges: indptr (num_src + 1,), indices (E,) = destinations, edge_ids (E,) or None. Made from CSC at its first use."""
        side = self._csr
        return side if type(side) is Adjacency else self._side("_csr", "_csc", self.num_src)

    def _side(self, name: str, other: str, num_rows: int) -> Adjacency:
        side = getattr(self, name)
        if side is not None:
            return read_cached(side)
        source = read_cached(getattr(self, other))
        with ordinary_tensors(source.indptr):
            side = Adjacency(*torch.ops.halfgnn.transpose.default(*source, num_rows))
        if may_cache(side.indptr.device):
            object.__setattr__(self, name, cacheable(side, side))
        return side

    def _for_all_streams(self) -> Graph:
        """Itself, just made on the current stream and about to be kept. Other streams will wait for its sides."""
        for name in ("_csc", "_csr"):
            side = getattr(self, name)
            if type(side) is Adjacency:
                object.__setattr__(self, name, cacheable(side, side))
        return self

    def edges(self) -> tuple[Tensor, Tensor]:
        """Sources and destinations, (E,) each, in the order of edge data."""
        if self._csc is None:
            return adjacency.edges_of(self.csr())
        dst, src = adjacency.edges_of(self.csc())
        return src, dst

    # ---- properties --------------------------------------------------------------------------------------------------------------

    @property
    def _any(self) -> Adjacency:
        """Either side, for what the host can read without the device."""
        side = self._csc
        if type(side) is Adjacency:
            return side
        side = self._csr if side is None else side
        assert side is not None
        return side.value if isinstance(side, Cached) else side

    @property
    def idtype(self) -> torch.dtype:
        """torch.int32 or torch.int64."""
        return self._any.indptr.dtype

    @property
    def max_in_degree(self) -> int | None:
        """The largest in-degree, or what the constructor was told. None if it is not known: a GPU is not asked."""
        if self._max_in_degree is None and self.device.type == "cpu":
            self.csc()
            self._find_bounds()
        return self._max_in_degree

    @property
    def max_out_degree(self) -> int | None:
        """The largest out-degree, like `max_in_degree`."""
        if self._max_out_degree is None and self.device.type == "cpu":
            self.csr()
            self._find_bounds()
        return self._max_out_degree

    def _find_bounds(self) -> None:
        """Finds the largest degrees that are not known of the sides that exist, if they are on the CPU."""
        bounds = [self._max_in_degree, self._max_out_degree]
        for i, side in enumerate((self._csc, self._csr)):
            if bounds[i] is None and type(side) is Adjacency:
                bounds[i] = adjacency.largest_degree(side.indptr)
                self._put_bounds(*bounds)

    def in_degrees(self) -> Tensor:
        """(num_dst,) in the graph's idtype."""
        return adjacency.row_sizes(self.csc().indptr)

    def out_degrees(self) -> Tensor:
        """(num_src,) in the graph's idtype."""
        return adjacency.row_sizes(self.csr().indptr)

    def __repr__(self) -> str:
        return (
            f"Graph(num_src={self.num_src}, num_dst={self.num_dst}, num_edges={self.num_edges}, "
            f"idtype={self.idtype}, device='{self.device}')"
        )

    # ---- other forms of the same graph -------------------------------------------------------------------------------------------

    def _map(self, fn) -> Graph:
        def convert(side: Adjacency | Cached[Adjacency] | None) -> Adjacency | None:
            if side is None:
                return None
            indptr, indices, edge_ids = read_cached(side)
            with ordinary_tensors(indptr):
                return Adjacency(fn(indptr), fn(indices), None if edge_ids is None else fn(edge_ids))

        self._find_bounds()  # here, because the copy may be on a device that must not be asked
        bounds = self._max_in_degree, self._max_out_degree
        return Graph(self.num_src, self.num_dst, convert(self._csc), convert(self._csr), *bounds)

    def to(self, device, non_blocking: bool = False) -> Graph:
        """The graph on `device`, with the sides that exist so far. Itself if it is already there."""
        device = torch.device(device)
        if device == self.device or (device.index is None and device.type == self.device.type and device.type == "cpu"):
            return self
        return self._map(lambda t: t.to(device, non_blocking=non_blocking))

    def pin_memory(self) -> Graph:
        """The graph in page-locked memory, from which `to("cuda", non_blocking=True)` is asynchronous."""
        return self._map(lambda t: t.pin_memory())

    def int(self) -> Graph:
        """With int32 ids. Raises ValueError if a count does not fit."""
        if self.idtype == torch.int32:
            return self
        check_fits(torch.int32, num_src=self.num_src, num_dst=self.num_dst, num_edges=self.num_edges)
        return self._map(lambda t: t.to(torch.int32))

    def long(self) -> Graph:
        """With int64 ids."""
        return self if self.idtype == torch.int64 else self._map(lambda t: t.to(torch.int64))

    def reverse(self) -> Graph:
        """With every edge reversed. Shares all tensors."""
        csc, csr = self._csc, self._csr
        turned = Graph(self.num_dst, self.num_src, csc=self._any)
        object.__setattr__(turned, "_csc", csr)
        object.__setattr__(turned, "_csr", csc)
        turned._put_bounds(self._max_out_degree, self._max_in_degree)
        return turned


def _of_adjacencies(relation: dgl_index.Adjacencies) -> Graph:
    num_src, num_dst, csc, csr, edges = relation
    if edges is not None:
        return Graph.from_edges(*edges, num_src=num_src, num_dst=num_dst, check=False)
    return Graph(num_src, num_dst, csc=csc, csr=csr)


# torch.save of a graph can be loaded with weights_only=True.
torch.serialization.add_safe_globals([Graph, Adjacency])
