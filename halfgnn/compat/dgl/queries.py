"""Queries: what a graph answers about its edges."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ...adjacency import Adjacency
from .base import ALL, DGLError, check_ids, id_tensor, is_all, is_number, numbered_ranges, ranges
from .graph_data import GraphData
from .sparse import SparseMatrix, spmatrix
from .topology import Relation


class Queries(GraphData):
    """Queries of nodes, edges, degrees and matrices. One id gives a number, several give a tensor."""

    # ---- nodes -------------------------------------------------------------------------------------------------------------------

    def has_nodes(self, vid: Any, ntype: str | None = None) -> Any:
        """Whether nodes exist: bool for one id, (n,) for several."""
        ids = id_tensor(vid, torch.int64, self.device, "vid")
        exist = (ids >= 0) & (ids < self._graph.num_nodes(self.get_ntype_id(ntype)))
        return bool(exist) if is_number(vid) else exist

    def _nodes(self, ids: Any, ntid: int, name: str) -> Tensor:
        """Ids of existing nodes. Raises DGLError for others."""
        tensor = id_tensor(ids, self.idtype, self.device, name)
        check_ids(tensor, self._graph.num_nodes(ntid), name, "a node")
        return tensor

    def predecessors(self, v: int, etype: Any = None) -> Tensor:
        """Sources of the in-edges of one node."""
        _, _, dst = self._ends_of(etype)
        return self.in_edges(_one(self._nodes(v, dst, "v")), etype=etype)[0]

    def successors(self, v: int, etype: Any = None) -> Tensor:
        """Destinations of the out-edges of one node."""
        _, src, _ = self._ends_of(etype)
        return self.out_edges(_one(self._nodes(v, src, "v")), etype=etype)[1]

    # ---- edges by their ends -----------------------------------------------------------------------------------------------------

    def has_edges_between(self, u: Any, v: Any, etype: Any = None) -> Any:
        """Whether edges lead from u to v: bool for one pair, (n,) for several."""
        relation, src, dst = self._pairs_of(u, v, etype)
        first, last = _places(relation, src, dst)
        exist = last > first
        return bool(exist) if is_number(u) and is_number(v) else exist

    def edge_ids(self, u: Any, v: Any, return_uv: bool = False, etype: Any = None) -> Any:
        """The id of an edge from u to v, the smallest if there are several; a number for one pair, (n,) for several.

        return_uv: all edges between them, as (sources, destinations, ids). Raises DGLError if there is none and return_uv is False.
        """
        relation, src, dst = self._pairs_of(u, v, etype)
        first, last = _places(relation, src, dst)
        order = relation.pairs()[1]
        if return_uv:
            places, counts = ranges(first, last)
            return src.repeat_interleave(counts), dst.repeat_interleave(counts), order[places].to(self.idtype)
        missing = last == first
        if bool(missing.any()):
            at = int(missing.int().argmax())
            raise DGLError(f"there is no edge from {int(src[at])} to {int(dst[at])}")
        ids = order[first].to(self.idtype)
        return int(ids) if is_number(u) and is_number(v) else ids

    def _pairs_of(self, u: Any, v: Any, etype: Any) -> tuple[Relation, Tensor, Tensor]:
        etid, src_type, dst_type = self._ends_of(etype)
        src, dst = self._nodes(u, src_type, "u"), self._nodes(v, dst_type, "v")
        if src.numel() != dst.numel():
            if 1 not in (src.numel(), dst.numel()):
                raise DGLError(f"u has {src.numel()} ids and v {dst.numel()}; expected equally many, or one")
            src, dst = torch.broadcast_tensors(src, dst)
        return self._graph.relations[etid], src, dst

    # ---- edges by id, by node, and all -------------------------------------------------------------------------------------------

    def find_edges(self, eid: Any, etype: Any = None) -> tuple[Tensor, Tensor]:
        """Sources and destinations (n,) of edges by id."""
        relation = self._relation(etype)
        ids = id_tensor(eid, self.idtype, self.device, "eid")
        check_ids(ids, relation.num_edges, "eid", "an edge")
        src, dst = relation.edges()
        return src[ids.long()], dst[ids.long()]

    def in_edges(self, v: Any, form: str = "uv", etype: Any = None) -> Any:
        """In-edges of nodes: (sources, destinations) for form "uv", with ids for "all", ids for "eid". By node, then by id."""
        etid, _, dst = self._ends_of(etype)
        nodes = self._nodes(v, dst, "v")
        rows, cols, ids = _edges_of_rows(self._graph.relations[etid].by_destination(), nodes)
        return _in_form(form, cols, rows, ids)

    def out_edges(self, u: Any, form: str = "uv", etype: Any = None) -> Any:
        """Out-edges of nodes, like :meth:`in_edges`."""
        etid, src, _ = self._ends_of(etype)
        nodes = self._nodes(u, src, "u")
        rows, cols, ids = _edges_of_rows(self._graph.relations[etid].by_source(), nodes)
        return _in_form(form, rows, cols, ids)

    def all_edges(self, form: str = "uv", order: str | None = "eid", etype: Any = None) -> Any:
        """All edges: (sources, destinations) for form "uv", with ids for "all", ids for "eid".

        order: "eid" by id, "srcdst" by source, then destination, then id; None is any.
        """
        if order not in ("eid", "srcdst", None):
            raise DGLError(f"order is {order!r}; expected 'eid', 'srcdst' or None")
        relation = self._relation(etype)
        ids = torch.arange(relation.num_edges, dtype=self.idtype, device=self.device)
        if form == "eid" and order != "srcdst":
            return ids
        src, dst = relation.edges()
        if order == "srcdst":
            by_pair = relation.pairs()[1]
            return _in_form(form, src[by_pair], dst[by_pair], ids[by_pair])
        return _in_form(form, src.clone(), dst.clone(), ids)  # programs write to them, for example to shift ids

    # ---- degrees -----------------------------------------------------------------------------------------------------------------

    def in_degrees(self, v: Any = ALL, etype: Any = None) -> Any:
        """Number of in-edges of nodes, by default all."""
        etid, _, dst = self._ends_of(etype)
        self._graph.check_allowed("csc", "in_degrees")
        return self._degrees(self._graph.relations[etid].graph().csc(), v, dst, "v")

    def out_degrees(self, u: Any = ALL, etype: Any = None) -> Any:
        """Number of out-edges of nodes, by default all."""
        etid, src, _ = self._ends_of(etype)
        self._graph.check_allowed("csr", "out_degrees")
        return self._degrees(self._graph.relations[etid].graph().csr(), u, src, "u")

    def _degrees(self, side: Adjacency, nodes: Any, ntid: int, name: str) -> Any:
        degrees = side.indptr.diff()
        if is_all(nodes):
            return degrees
        chosen = degrees[self._nodes(nodes, ntid, name).long()]
        return int(chosen) if is_number(nodes) else chosen

    def in_degree(self, v: Any, etype: Any = None) -> Any:
        """Number of in-edges of one node."""
        return self.in_degrees(v, etype)

    def out_degree(self, u: Any, etype: Any = None) -> Any:
        """Number of out-edges of one node."""
        return self.out_degrees(u, etype)

    @property
    def is_multigraph(self) -> bool:
        """Whether two edges of one type have the same ends."""
        keys = [relation.pairs()[0] for relation in self._graph.relations]
        return any(bool((key[1:] == key[:-1]).any()) for key in keys)

    @property
    def is_readonly(self) -> bool:
        """False: nodes and edges can be added to every graph."""
        return False

    # ---- matrices ----------------------------------------------------------------------------------------------------------------

    def adj(self, etype: Any = None, eweight_name: str | None = None) -> SparseMatrix:
        """The adjacency matrix, whose rows are sources, as a ``dgl.sparse.SparseMatrix`` of ones or of an edge feature."""
        etid = self.get_etype_id(etype)
        relation = self._graph.relations[etid]
        val = None if eweight_name is None else self._edge_frames[etid][eweight_name]
        return spmatrix(relation.edges(), val, (relation.num_src, relation.num_dst))

    def adjacency_matrix(self, etype: Any = None) -> SparseMatrix:
        """:meth:`adj` of ones."""
        return self.adj(etype)

    def adj_tensors(self, fmt: str, etype: Any = None) -> tuple[Tensor, ...]:
        """The adjacency matrix, whose rows are sources: (rows, columns) for "coo", (indptr, indices, edge ids) for "csr" and "csc".

        Edge ids are empty if edges are in this order.
        """
        relation = self._relation(etype)
        if fmt == "coo":
            return tuple(end.clone() for end in relation.edges())
        if fmt not in ("csr", "csc"):
            raise DGLError(f"fmt is {fmt!r}; expected 'coo', 'csr' or 'csc'")
        relation.create(fmt)
        side = relation.graph().csr() if fmt == "csr" else relation.graph().csc()
        edge_ids = side.indices.new_empty(0) if side.edge_ids is None else side.edge_ids
        return side.indptr.clone(), side.indices.clone(), edge_ids.clone()

    def adj_external(
        self, transpose: bool = False, ctx: Any = None, scipy_fmt: str | None = None, etype: Any = None
    ) -> Any:
        """The adjacency matrix of ones, whose rows are sources, or destinations if transpose.

        It is a torch sparse tensor of fp32 on the device ctx (by default the CPU), or a scipy matrix of the format scipy_fmt.
        """
        relation = self._relation(etype)
        rows, cols = relation.edges()
        shape = relation.num_src, relation.num_dst
        if transpose:
            rows, cols, shape = cols, rows, shape[::-1]
        if scipy_fmt is None:
            ends = torch.stack([rows, cols]).long()
            ones = torch.ones(rows.numel(), device=self.device)
            return torch.sparse_coo_tensor(ends, ones, shape).to(ctx or "cpu")
        if scipy_fmt not in ("coo", "csr"):
            raise DGLError(f"scipy_fmt is {scipy_fmt!r}; expected 'coo' or 'csr'")
        import scipy.sparse

        values = torch.ones(rows.numel(), dtype=self.idtype).numpy()
        matrix = scipy.sparse.coo_matrix((values, (rows.cpu().numpy(), cols.cpu().numpy())), shape=shape)
        return matrix if scipy_fmt == "coo" else matrix.tocsr()

    def incidence_matrix(self, typestr: str, ctx: Any = None, etype: Any = None) -> Tensor:
        """:meth:`inc` by its older name."""
        return self.inc(typestr, ctx, etype)

    def inc(self, typestr: str, ctx: Any = None, etype: Any = None) -> Tensor:
        """The incidence matrix (N, E) as a torch sparse tensor of fp32 on the device ctx (by default the CPU).

        typestr: "in" has 1 at each edge's destination, "out" 1 at its source, "both" 1 at the destination and -1 at the source,
        and nothing for self-loops.
        """
        src, dst, ids = self.all_edges("all", etype=etype)
        relation = self._relation(etype)
        if typestr not in ("in", "out", "both"):
            raise DGLError(f"typestr is {typestr!r}; expected 'in', 'out' or 'both'")
        if typestr == "both":
            open_ends = src != dst
            ids = ids[open_ends].repeat(2)
            rows = torch.cat([src[open_ends], dst[open_ends]])
            values = torch.ones(rows.numel(), device=self.device)
            values[: rows.numel() // 2] = -1
        else:
            rows, values = dst if typestr == "in" else src, torch.ones(relation.num_edges, device=self.device)
        num_rows = relation.num_src if typestr == "out" else relation.num_dst
        ends = torch.stack([rows, ids]).long()
        return torch.sparse_coo_tensor(ends, values, (num_rows, relation.num_edges)).to(ctx or "cpu")


def _in_form(form: str, src: Tensor, dst: Tensor, ids: Tensor) -> Any:
    forms = {"uv": (src, dst), "all": (src, dst, ids), "eid": ids}
    if form not in forms:
        raise DGLError(f"form is {form!r}; expected 'uv', 'eid' or 'all'")
    return forms[form]


def _one(node: Tensor) -> Tensor:
    if node.numel() != 1:
        raise DGLError(f"v has {node.numel()} ids; expected one")
    return node


def _edges_of_rows(side: Adjacency, nodes: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Rows, columns and ids of the edges in these rows of an adjacency, row after row."""
    places, rows = places_in_rows(side, nodes)
    ids = places if side.edge_ids is None else side.edge_ids.index_select(0, places)
    columns = side.indices.index_select(0, places)
    return nodes.index_select(0, rows), columns.to(nodes.dtype), ids.to(nodes.dtype)


def places_in_rows(side: Adjacency, nodes: Tensor) -> tuple[Tensor, Tensor]:
    """Where the edges of rows `nodes` are in an adjacency, row after row, and the place of the edge's row in `nodes`."""
    first, last = (offsets.index_select(0, nodes) for offsets in (side.indptr[:-1], side.indptr[1:]))
    places, rows, _ = numbered_ranges(first, last)
    return places, rows


def _places(relation: Relation, src: Tensor, dst: Tensor) -> tuple[Tensor, Tensor]:
    """For each pair of ends the range of its edges in relation.pairs()."""
    keys, wanted = relation.pairs()[0], relation.key(src, dst)
    return torch.searchsorted(keys, wanted), torch.searchsorted(keys, wanted, right=True)
