"""Slices: a graph of some of a graph's edge types, as one type."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from .base import EID, ETYPE, NID, NTYPE, SLICE_FULL, DGLError
from .frame import Frame
from .graph_data import GraphData
from .topology import Relation, Topology
from .types import joined


def etypes_matching(graph: GraphData, key: Any) -> list[int]:
    """Ids of the edge types that an index means: a name, or a triple in which ``:`` stands for any."""
    if not isinstance(key, tuple):
        key = (SLICE_FULL, key, SLICE_FULL)
    if len(key) != 3 or any(isinstance(part, slice) and part != SLICE_FULL for part in key):
        raise DGLError(f"the index is {key!r}; expected an edge type, or a triple of names and colons")
    found = [
        i
        for i, etype in enumerate(graph.canonical_etypes)
        if all(isinstance(part, slice) or part == name for part, name in zip(key, etype))
    ]
    if not found:
        raise DGLError(f"there is no edge type {key!r}; expected some of {graph.canonical_etypes}")
    return found


def of_one(graph: GraphData, etid: int) -> Any:
    """The graph of one edge type. It shares structure and frames: features set on one show in the other."""
    src, dst = graph._graph.metagraph.ends[etid]
    frames, names = graph._node_frames, graph.ntypes
    part: Any = type(graph)(
        graph._graph.slice(etid),
        ([names[src]], [names[dst]]) if src != dst else [names[src]],
        [graph.etypes[etid]],
        [frames[src], frames[dst]] if src != dst else [frames[src]],
        [graph._edge_frames[etid]],
    )
    part._batch_num_nodes, part._batch_num_edges = graph._batch_num_nodes, graph._batch_num_edges
    return part


def of_several(graph: GraphData, etids: Sequence[int]) -> Any:
    """Edges of several types as one type, between their types of nodes as one type or two.

    The features ``dgl.NTYPE``, ``dgl.NID``, ``dgl.ETYPE`` and ``dgl.EID`` tell where nodes and edges come from. Other features are
    kept if all types have them.
    """
    ends = graph._graph.metagraph.ends
    src_types, dst_types = (sorted({ends[etid][side] for etid in etids}) for side in (0, 1))
    is_bipartite = src_types != dst_types
    counts = graph._graph.node_counts
    first = [_starts(types, counts) for types in (src_types, dst_types)]
    src, dst = [], []
    for etid in etids:
        u, v = graph._graph.relations[etid].edges()
        src.append(u + first[0][ends[etid][0]])
        dst.append(v + first[1][ends[etid][1]])
    num_src, num_dst = (sum(counts[t] for t in types) for types in (src_types, dst_types))
    relation = Relation.from_edges(torch.cat(src), torch.cat(dst), num_src, num_dst, check=False)
    sides = [src_types, dst_types] if is_bipartite else [src_types]
    names = [joined(graph.ntypes[t] for t in types) for types in sides]
    flat = type(graph)(
        Topology.of_relation(relation, is_bipartite),
        ([names[0]], [names[1]]) if is_bipartite else names,
        [joined(graph.etypes[etid] for etid in etids)],
        [_origin(graph, graph._node_frames, types, counts, NTYPE, NID) for types in sides],
        [
            _origin(
                graph,
                graph._edge_frames,
                etids,
                [relation.num_edges for relation in graph._graph.relations],
                ETYPE,
                EID,
            )
        ],
    )
    return flat


def _starts(types: Sequence[int], counts: Sequence[int]) -> dict[int, int]:
    """The id that the first node of each type gets."""
    starts, total = {}, 0
    for t in types:
        starts[t] = total
        total += counts[t]
    return starts


def _origin(
    graph: GraphData, frames: Sequence[Frame], types: Sequence[int], counts: Sequence[int], type_name: str, id_name: str
) -> Frame:
    frame = combined(frames, types)

    def per_row(value: Callable[[int], Tensor]) -> Tensor:
        return torch.cat([value(t) for t in types])

    frame[type_name] = per_row(lambda t: torch.full((counts[t],), t, dtype=graph.idtype, device=graph.device))
    frame[id_name] = per_row(lambda t: torch.arange(counts[t], dtype=graph.idtype, device=graph.device))
    return frame


def combined(frames: Sequence[Frame], types: Sequence[int], names: Sequence[str] | None = None) -> Frame:
    """Frames of some types one after the other: columns that all of them have, or those named.

    Raises DGLError if a column differs in shape or dtype. A type without rows need not have the columns named.
    """
    chosen = [frames[t] for t in types]
    whole = Frame(num_rows=sum(frame.num_rows for frame in chosen))
    if names is not None:
        chosen = [frame for frame in chosen if frame.num_rows]
    if not chosen:
        return whole
    for name in [name for name in chosen[0] if all(name in frame for frame in chosen)] if names is None else names:
        parts = []
        for frame in chosen:
            if name not in frame:
                raise DGLError(
                    f"a type of nodes or edges has no feature {name!r}; expected it of all types that have any"
                )
            parts.append(frame[name])
            if parts[0].shape[1:] != parts[-1].shape[1:] or parts[0].dtype != parts[-1].dtype:
                raise DGLError(
                    f"the feature {name!r} has rows {tuple(parts[0].shape[1:])}, {parts[0].dtype} and {tuple(parts[-1].shape[1:])},"
                    f" {parts[-1].dtype}; expected one shape and dtype for all types"
                )
        whole[name] = torch.cat(parts)
    return whole
