"""Mutations: nodes and edges added to a graph, or removed from it. The graph gets a new topology."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ...common.arguments import checked_integer
from .base import EID, NID, DGLError, check_ids, id_tensor
from .queries import Queries
from .topology import Relation


class Mutations(Queries):
    """Nodes and edges are added and removed in place. Graphs that share the structure stay as they are."""

    def add_nodes(self, num: int, data: Mapping[str, Tensor] | None = None, ntype: str | None = None) -> None:
        """Add `num` nodes of one type. data: their features; others are initial ones, by default zeros."""
        ntid = self.get_ntype_id(ntype)
        if checked_integer(num, "num", "a number of nodes") < 0:
            raise DGLError(f"num is {num}; expected a number of nodes")
        if num == 0:
            return
        counts = list(self._graph.node_counts)
        counts[ntid] += num
        ends = self._graph.metagraph.ends
        relations = [
            relation.resized(counts[src], counts[dst]) for relation, (src, dst) in zip(self._graph.relations, ends)
        ]
        self._graph = self._graph.with_relations(relations, counts)
        self._node_frames[ntid].append_rows(num, data, self.device)
        self._batch_num_nodes = self._batch_num_edges = None

    def add_edges(self, u: Any, v: Any, data: Mapping[str, Tensor] | None = None, etype: Any = None) -> None:
        """Add edges from u to v, and the nodes that they name and that do not exist. data: features of the edges."""
        etid, src_type, dst_type = self._ends_of(etype)
        src, dst = (id_tensor(ids, self.idtype, self.device, name) for ids, name in ((u, "u"), (v, "v")))
        if src.numel() == 0 or dst.numel() == 0:
            return
        if src.numel() != dst.numel() and 1 not in (src.numel(), dst.numel()):
            raise DGLError(f"u has {src.numel()} ids and v {dst.numel()}; expected equally many, or one")
        src, dst = torch.broadcast_tensors(src, dst)
        for ids, ntid, name in ((src, src_type, "u"), (dst, dst_type, "v")):
            check_ids(ids, 2**62, name, "a node")
            self._add_up_to(ntid, int(ids.max()) + 1)
        relation = self._graph.relations[etid]
        old_src, old_dst = relation.edges()
        all_src, all_dst = torch.cat([old_src, src]), torch.cat([old_dst, dst])
        self._replace(etid, Relation.from_edges(all_src, all_dst, relation.num_src, relation.num_dst, check=False))
        self._edge_frames[etid].append_rows(src.numel(), data, self.device)
        self._batch_num_nodes = self._batch_num_edges = None

    def _add_up_to(self, ntid: int, count: int) -> None:
        missing = count - self._graph.num_nodes(ntid)
        if missing > 0:
            side = "SRC/" if ntid in self._types.src.values() else "DST/"
            name = self.ntypes[ntid]
            self.add_nodes(missing, ntype=f"{side}{name}" if self.is_unibipartite else name)

    def _replace(self, etid: int, relation: Relation) -> None:
        relations = list(self._graph.relations)
        relations[etid] = relation
        self._graph = self._graph.with_relations(relations)

    def remove_edges(self, eids: Any, etype: Any = None, store_ids: bool = False) -> None:
        """Remove edges by id. The others move up. store_ids: keep the ids that they had, in the feature ``dgl.EID``."""
        etid = self.get_etype_id(etype)
        removed = id_tensor(eids, self.idtype, self.device, "eids")
        relation = self._graph.relations[etid]
        check_ids(removed, relation.num_edges, "eids", "an edge")
        if removed.numel() == 0:
            return
        self._keep_edges({etid: _complement(removed, relation.num_edges)}, store_ids)

    def remove_nodes(self, nids: Any, ntype: str | None = None, store_ids: bool = False) -> None:
        """Remove nodes and their edges. The others move up, and all edges are sorted by source.

        store_ids: keep the ids that they had, in the features ``dgl.NID`` and ``dgl.EID``.
        """
        ntid = self.get_ntype_id(ntype)
        count = self._graph.num_nodes(ntid)
        removed = id_tensor(nids, self.idtype, self.device, "nids")
        check_ids(removed, count, "nids", "a node")
        if removed.numel() == 0:
            return
        kept = _complement(removed, count)
        stays, new_ids = _marks(kept, count, self.idtype)
        kept_edges, relations = {}, []
        for etid, relation in enumerate(self._graph.relations):
            ends, counts = list(relation.edges()), [relation.num_src, relation.num_dst]
            at_type = [side for side in (0, 1) if self._graph.metagraph.ends[etid][side] == ntid]
            edges = ends[0].argsort(stable=True)
            for side in at_type:
                edges = edges[stays[ends[side][edges].long()]]
            kept_edges[etid] = edges
            ends = [end[edges] for end in ends]
            for side in at_type:
                ends[side], counts[side] = new_ids[ends[side].long()], kept.numel()
            relations.append(Relation.from_edges(ends[0], ends[1], counts[0], counts[1], check=False))
        node_counts = list(self._graph.node_counts)
        node_counts[ntid] = kept.numel()
        self._count_nodes(ntid, stays)
        self._count_edges(kept_edges)
        self._graph = self._graph.with_relations(relations, node_counts)
        rows = {i: kept if i == ntid else None for i in range(len(node_counts))}
        self._node_frames = _rows_of(self._node_frames, rows)
        self._edge_frames = _rows_of(self._edge_frames, kept_edges)
        if store_ids:
            self._store_ids(rows, kept_edges)

    def _keep_edges(self, kept_edges: dict[int, Tensor], store_ids: bool) -> None:
        """Drop all other edges of these types. Nodes stay."""
        self._count_edges(kept_edges)
        for etid, kept in kept_edges.items():
            relation = self._graph.relations[etid]
            src, dst = (end[kept] for end in relation.edges())
            self._replace(etid, Relation.from_edges(src, dst, relation.num_src, relation.num_dst, check=False))
        self._edge_frames = _rows_of(self._edge_frames, kept_edges)
        if store_ids:
            self._store_ids({}, kept_edges)

    def _store_ids(self, nodes: dict[int, Tensor | None], edges: dict[int, Tensor]) -> None:
        for ntid, kept in nodes.items():
            self._node_frames[ntid][NID] = self._ids(kept, self._graph.num_nodes(ntid))
        for etid in range(len(self._edge_frames)):
            self._edge_frames[etid][EID] = self._ids(edges.get(etid), self._graph.num_edges(etid))

    def _count_nodes(self, ntid: int, stays: Tensor) -> None:
        if self._batch_num_nodes is not None:
            name = self.ntypes[ntid]
            self._batch_num_nodes = {
                **self._batch_num_nodes,
                name: _number_in_segments(stays, self._batch_num_nodes[name]),
            }

    def _count_edges(self, kept_edges: dict[int, Tensor]) -> None:
        if self._batch_num_edges is not None:
            counts = dict(self._batch_num_edges)
            for etid, kept in kept_edges.items():
                etype = self.canonical_etypes[etid]
                stays, _ = _marks(kept, self._graph.num_edges(etid), self.idtype)
                counts[etype] = _number_in_segments(stays, counts[etype])
            self._batch_num_edges = counts


def _complement(ids: Tensor, count: int) -> Tensor:
    """The other ids in [0, count), rising."""
    stays = torch.ones(count, dtype=torch.bool, device=ids.device)
    stays[ids.long()] = False
    return stays.nonzero().squeeze(1)


def _marks(kept: Tensor, count: int, idtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Per id in [0, count): whether it is kept, and its new id if so."""
    stays = torch.zeros(count, dtype=torch.bool, device=kept.device)
    stays[kept] = True
    return stays, (stays.cumsum(0) - 1).to(idtype)


def _number_in_segments(stays: Tensor, lengths: Tensor) -> Tensor:
    """Number of true values in each segment of `stays`."""
    ends = lengths.cumsum(0).long()
    total = torch.nn.functional.pad(stays.long().cumsum(0), (1, 0))
    return (total[ends] - total[ends - lengths.long()]).to(lengths.dtype)


def _rows_of(frames: list, rows: Mapping[int, Tensor | None]) -> list:
    chosen = [rows.get(i) for i in range(len(frames))]
    return [frame if kept is None else frame.subframe(kept) for frame, kept in zip(frames, chosen)]
