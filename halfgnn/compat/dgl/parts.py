"""What graphs made of parts of a graph have in common: new ids, rows of features, and where these come from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from .base import EID, NID, DGLError, check_ids, id_tensor
from .frame import Frame
from .heterograph import DGLGraph

Rows = Sequence[Tensor | None]  # per type the ids that are kept; None for all, of which no ids are stored


def by_type(graph: DGLGraph, ids: Any, name: str) -> list[Tensor]:
    """Ids of nodes per node type, given by ids or masks of the only type, or by a dict of types. None of the types left out.

    Raises:
        DGLError: ids out of range, types that the graph does not have, no dict for several types.
    """
    if not isinstance(ids, Mapping):
        if len(graph.ntypes) != 1:
            raise DGLError(
                f"{name} is a {type(ids).__name__}; expected a dict with some of the node types {graph.ntypes}"
            )
        ids = {graph.ntypes[0]: ids}
    given = {graph.get_ntype_id(ntype): (ntype, of_type) for ntype, of_type in ids.items()}
    nodes = [torch.empty(0, dtype=graph.idtype, device=graph.device) for _ in graph.ntypes]
    for i, (ntype, of_type) in given.items():
        nodes[i] = id_tensor(of_type, graph.idtype, graph.device, f"{name}[{ntype!r}]", masks=True)
        check_ids(nodes[i], graph._graph.num_nodes(i), f"{name}[{ntype!r}]", "a node")
    return nodes


def rows_of_frames(frames: Iterable[Frame], rows: Rows, id_name: str, store_ids: bool = True) -> list[Frame]:
    """These rows of the features, and their ids in the column `id_name`."""
    chosen = []
    for frame, kept in zip(frames, rows):
        part = frame.clone() if kept is None else frame.subframe(kept)
        if kept is not None and store_ids:
            part[id_name] = kept
        chosen.append(part)
    return chosen


def put_rows(part: DGLGraph, parent: DGLGraph, nodes: Rows, edges: Rows, store_ids: bool = True) -> DGLGraph:
    """Give `part` rows of its parent's features, and their ids in ``dgl.NID`` and ``dgl.EID``."""
    part._node_frames = rows_of_frames(parent._node_frames, nodes, NID, store_ids)
    part._edge_frames = rows_of_frames(parent._edge_frames, edges, EID, store_ids)
    return part


def copy_features(made: DGLGraph, parent: DGLGraph, ndata: bool, edata: bool) -> DGLGraph:
    """Give `made`, which has the nodes or the edges of its parent, their features."""
    if ndata:
        made._node_frames = [frame.clone() for frame in parent._node_frames]
    if edata:
        made._edge_frames = [frame.clone() for frame in parent._edge_frames]
    return made


class Numbering:
    """New ids of the nodes of one type, in the order in which nodes are named first.

    Attributes:
        nodes: (n,) the former ids by new id.
    """

    def __init__(self, named: Sequence[Tensor]):
        ids = torch.cat(list(named))
        unique, place = torch.unique(ids, return_inverse=True)
        first = torch.full_like(unique, ids.numel())
        positions = torch.arange(ids.numel(), dtype=ids.dtype, device=ids.device)
        order = first.scatter_reduce(0, place, positions, "amin").argsort()
        self.nodes = unique[order]
        self._sorted = unique
        self._new = torch.empty_like(unique)
        self._new[order] = torch.arange(unique.numel(), dtype=ids.dtype, device=ids.device)

    def new_ids(self, nodes: Tensor) -> Tensor:
        """New ids of nodes, all of which have been named; any ids for others, if there are any ids."""
        return self._new[torch.searchsorted(self._sorted, nodes).clamp(max=max(self._new.numel() - 1, 0))]


def numberings(first: Sequence[Tensor], named: Iterable[tuple[int, Tensor]]) -> list[Numbering]:
    """Per node type the Numbering of the nodes `first`, then of those in `named`, which has pairs (node type, ids)."""
    per_type = [[nodes] for nodes in first]
    for ntype, nodes in named:
        per_type[ntype].append(nodes)
    return [Numbering(nodes) for nodes in per_type]


def ends_by_type(graph: DGLGraph, edges: Sequence[tuple[Tensor, Tensor]]) -> list[tuple[int, Tensor]]:
    """Pairs (node type, ids) of the ends of edges: of each edge type sources, then destinations."""
    ends = zip(graph._graph.metagraph.ends, edges)
    return [pair for (src_type, dst_type), (src, dst) in ends for pair in ((src_type, src), (dst_type, dst))]


def no_nodes(graph: DGLGraph) -> list[Tensor]:
    """No ids for any node type."""
    return [torch.empty(0, dtype=graph.idtype, device=graph.device) for _ in graph.ntypes]
