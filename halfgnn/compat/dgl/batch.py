"""Batches: several graphs as one graph of their disjoint union, and back."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from .base import ALL, EID, NID, DGLError, EdgeType, is_all
from .frame import Column, Frame
from .heterograph import DGLGraph
from .topology import Relation, Topology

__all__ = ["batch", "slice_batch", "unbatch"]

Counts = dict[Any, list[int]]  # per type the number of nodes or edges in each graph
T = TypeVar("T")


def batch(
    graphs: Sequence[DGLGraph], ndata: str | Sequence[str] | None = ALL, edata: str | Sequence[str] | None = ALL
) -> DGLGraph:
    """The disjoint union of graphs, which remembers how many nodes and edges each of them has.

    Args:
        graphs: of the same types, dtype of ids and device. Batched graphs count as the graphs that they are made of.
        ndata, edata: features to keep: ``dgl.ALL``, which all graphs must have then, a list of names, or None.

    Raises:
        DGLError: no graphs, blocks, or graphs that differ in types, devices, dtypes or features.
    """
    graphs = list(graphs)
    _check(graphs, {"ndata": ndata, "edata": edata})
    first = graphs[0]
    parts = [graph._graph for graph in graphs]
    num_nodes = _numbers(first, zip(*(part.node_counts for part in parts)))
    num_edges = _numbers(first, zip(*([relation.num_edges for relation in part.relations] for part in parts)))
    whole = DGLGraph(_union(parts, num_nodes, num_edges), first.ntypes, first.etypes)
    _put_counts(whole, graphs, num_nodes, num_edges)
    for i, ntype in enumerate(first.ntypes):
        _join(whole._node_frames[i], [graph._node_frames[i] for graph in graphs], ndata, f"nodes of type {ntype!r}")
    for i, etype in enumerate(first.canonical_etypes):
        _join(whole._edge_frames[i], [graph._edge_frames[i] for graph in graphs], edata, f"edges of type {etype}")
    return whole


def _numbers(graph: DGLGraph, per_type: Iterable[Sequence[int]]) -> list[Tensor]:
    """Numbers of nodes or edges of each type, one per graph that is batched."""
    return [torch.tensor(counts, dtype=graph.idtype, device=graph.device) for counts in per_type]


def _put_counts(
    whole: DGLGraph, graphs: Sequence[DGLGraph], num_nodes: Sequence[Tensor], num_edges: Sequence[Tensor]
) -> None:
    if all(graph._batch_num_nodes is None and graph._batch_num_edges is None for graph in graphs):
        # Without the checks of set_batch_num_nodes, which read the tensors.
        whole._batch_num_nodes = dict(zip(whole.ntypes, num_nodes))
        whole._batch_num_edges = dict(zip(whole.canonical_etypes, num_edges))
        return
    whole.set_batch_num_nodes({t: torch.cat([graph.batch_num_nodes(t) for graph in graphs]) for t in whole.ntypes})
    whole.set_batch_num_edges(
        {etype: torch.cat([graph.batch_num_edges(etype) for graph in graphs]) for etype in whole.canonical_etypes}
    )


def _check(graphs: Sequence[DGLGraph], features: Mapping[str, Any]) -> None:
    if not graphs:
        raise DGLError("graphs is empty; expected at least one graph")
    for name, wanted in features.items():
        if not (wanted is None or is_all(wanted) or isinstance(wanted, (list, tuple))):
            raise DGLError(f"{name} is {wanted!r}; expected dgl.ALL, a list of names, or None")
    if any(graph.is_block for graph in graphs):
        raise DGLError("graphs has a block; expected graphs: blocks cannot be batched")
    first = graphs[0]
    types, idtype, device = first._types, first.idtype, first.device
    for i, graph in enumerate(graphs):
        topology = graph._graph
        if graph._types is types and topology.idtype is idtype and topology.device == device:
            continue
        for attribute in ("ntypes", "canonical_etypes", "idtype", "device"):
            expected, found = getattr(first, attribute), getattr(graph, attribute)
            if found != expected:
                raise DGLError(f"graphs[{i}].{attribute} is {found}; expected that of graphs[0], {expected}")


def _union(parts: Sequence[Topology], num_nodes: Sequence[Tensor], num_edges: Sequence[Tensor]) -> Topology:
    """num_nodes, num_edges: per type the number in each part."""
    first = parts[0]
    totals = [sum(counts) for counts in zip(*(part.node_counts for part in parts))]
    if first.idtype == torch.int32 and any(total > 2**31 - 1 for total in totals):
        raise DGLError("graphs have more than 2**31 - 1 nodes of one type together; expected int64 ids: g.long()")
    relations = []
    for i, (src_type, dst_type) in enumerate(first.metagraph.ends):
        sides = [torch.cat(side) for side in zip(*[part.relations[i].edges() for part in parts])]
        starts = _starts_per_edge(num_nodes[src_type], num_nodes[dst_type], num_edges[i], sides[0].numel())
        src, dst = (side.add_(start) for side, start in zip(sides, starts))
        relations.append(Relation.from_edges(src, dst, totals[src_type], totals[dst_type], check=False))
    every_allowed = {part.allowed for part in parts}
    allowed = [form for form in first.allowed if all(form in allowed for allowed in every_allowed)]
    return Topology(first.metagraph, totals, relations, allowed or first.allowed)


def _starts_per_edge(num_src: Tensor, num_dst: Tensor, num_edges: Tensor, total: int) -> tuple[Tensor, Tensor]:
    """How many sources, and destinations, precede an edge's graph. The numbers are those of each graph; total: of all edges."""
    src = _repeated(num_src.cumsum(0, dtype=num_src.dtype) - num_src, num_edges, total)
    if num_dst is num_src:
        return src, src
    return src, _repeated(num_dst.cumsum(0, dtype=num_dst.dtype) - num_dst, num_edges, total)


def _repeated(values: Tensor, repeats: Tensor, total: int) -> Tensor:
    """values.repeat_interleave(repeats), which takes PyTorch three times as long as NumPy on a CPU. total: the sum of repeats."""
    if values.is_cpu:
        return torch.from_numpy(np.repeat(values.numpy(), repeats.numpy()))
    return values.repeat_interleave(repeats, output_size=total)


def _join(whole: Frame, frames: Sequence[Frame], names: Any, what: str) -> None:
    """Put features of all frames into `whole`. Frames without rows need not have them."""
    is_every = is_all(names)
    if names is None or (is_every and not any(frame._columns for frame in frames)):
        return
    filled = [frame for frame in frames if frame.num_rows] or list(frames)
    wanted = list(filled[0]) if is_every else list(names)
    for frame in filled:
        lacking = [name for name in wanted if name not in frame]
        if lacking or (is_every and len(frame) != len(wanted)):
            raise _different(what, filled[0], frame)
    for name in wanted:
        parts = [frame[name] for frame in filled]
        first = parts[0]
        for part, frame in zip(parts, filled):
            if part.shape[1:] != first.shape[1:] or part.dtype != first.dtype:
                raise _different(what, filled[0], frame)
        whole[name] = torch.cat(parts)


def _different(what: str, one: Frame, other: Frame) -> DGLError:
    return DGLError(
        f"graphs have different features of {what}: {one.schemes} and {other.schemes}; expected the same names, shapes, dtypes,"
        " or that ndata and edata name those that all have"
    )


# ---- and back --------------------------------------------------------------------------------------------------------------------


def unbatch(
    g: DGLGraph,
    node_split: Tensor | Mapping[str, Tensor] | None = None,
    edge_split: Tensor | Mapping[EdgeType, Tensor] | None = None,
) -> list[DGLGraph]:
    """The graphs that a batch is made of. Features are views of the batch's features.

    Args:
        node_split, edge_split: number of nodes or edges in each graph, one tensor or one per type; by default those of the batch.

    Raises:
        DGLError: types without numbers, numbers of graphs that differ, or numbers that do not add up.
    """
    num_nodes = _split_of(node_split, g.ntypes, g.ntypes, g.batch_num_nodes, g.num_nodes, "node_split")
    etypes = g.canonical_etypes
    num_edges = _split_of(edge_split, etypes, g.etypes, g.batch_num_edges, g.num_edges, "edge_split")
    lengths = {len(counts) for counts in (*num_nodes.values(), *num_edges.values())}
    if len(lengths) != 1:
        raise DGLError(f"node_split and edge_split are for {sorted(lengths)} graphs; expected one number of graphs")
    relations = []
    for (src_type, _, dst_type), relation in zip(etypes, g._graph.relations):
        counts = num_edges[src_type, _, dst_type]
        relations.append(_parts_of(relation, num_nodes[src_type], num_nodes[dst_type], counts))
    node_frames = [_frame_parts(frame, num_nodes[t]) for t, frame in zip(g.ntypes, g._node_frames)]
    edge_frames = [_frame_parts(frame, num_edges[etype]) for etype, frame in zip(etypes, g._edge_frames)]
    return [
        g._with(
            g._graph.with_relations([parts[i] for parts in relations], [num_nodes[t][i] for t in g.ntypes]),
            [parts[i] for parts in node_frames],
            [parts[i] for parts in edge_frames],
        )
        for i in range(lengths.pop())
    ]


def _split_of(
    split: Any, types: Sequence[T], names: Sequence[str], counts: Callable, total: Callable, argument: str
) -> Counts:
    """Number of nodes or edges of each type in each graph. Reads tensors, and so waits for a GPU."""
    if split is None:
        split = {t: counts(t) for t in types}
    elif not isinstance(split, Mapping):
        if len(types) != 1:
            raise DGLError(f"{argument} is a {type(split).__name__}; expected a dict with numbers for each of {types}")
        split = {types[0]: split}
    of_type = {t: split.get(t, split.get(name)) for t, name in zip(types, names)}
    missing = [t for t, values in of_type.items() if values is None]
    if missing:
        raise DGLError(f"{argument} has no numbers for {missing}; expected them for each of {types}")
    lists = {t: [int(n) for n in torch.as_tensor(values).tolist()] for t, values in of_type.items()}
    for t, values in lists.items():
        if sum(values) != total(t) or any(n < 0 for n in values):
            raise DGLError(
                f"{argument} of {t} adds up to {sum(values)}; expected {total(t)}, the number that there are"
            )
    return lists


def _parts_of(
    relation: Relation, num_src: Sequence[int], num_dst: Sequence[int], num_edges: Sequence[int]
) -> list[Relation]:
    sources, edges = (torch.tensor(counts).to(relation.edges()[0]) for counts in (num_src, num_edges))
    destinations = sources if num_dst is num_src else torch.tensor(num_dst).to(sources)
    starts = _starts_per_edge(sources, destinations, edges, relation.num_edges)
    src, dst = ((end - start).split(list(num_edges)) for end, start in zip(relation.edges(), starts))
    return [Relation.from_edges(u, v, rows, cols, check=False) for u, v, rows, cols in zip(src, dst, num_src, num_dst)]


def _frame_parts(frame: Frame, counts: Sequence[int]) -> list[Frame]:
    columns = {name: frame[name].split(list(counts)) for name in frame.schemes}
    return [Frame({name: parts[i] for name, parts in columns.items()}, count) for i, count in enumerate(counts)]


def slice_batch(g: DGLGraph, gid: int, store_ids: bool = False) -> DGLGraph:
    """One graph of a batch. Features are views of the batch's features.

    gid: its place. store_ids: keep the ids that nodes and edges have in the batch, in ``dgl.NID`` and ``dgl.EID``.
    """
    if not 0 <= gid < g.batch_size:
        raise DGLError(f"gid is {gid}; expected a place in [0, {g.batch_size})")
    nodes = {t: _range_of(g.batch_num_nodes(t), gid) for t in g.ntypes}
    edges = {etype: _range_of(g.batch_num_edges(etype), gid) for etype in g.canonical_etypes}
    relations = []
    for etype, relation in zip(g.canonical_etypes, g._graph.relations):
        (src_start, src_end), (dst_start, dst_end) = nodes[etype[0]], nodes[etype[2]]
        u, v = (end[slice(*edges[etype])] for end in relation.edges())
        counts = src_end - src_start, dst_end - dst_start
        relations.append(Relation.from_edges(u - src_start, v - dst_start, *counts, check=False))
    part = g._with(
        g._graph.with_relations(relations, [end - start for start, end in nodes.values()]),
        [_rows(frame, *nodes[t]) for t, frame in zip(g.ntypes, g._node_frames)],
        [_rows(frame, *edges[etype]) for etype, frame in zip(g.canonical_etypes, g._edge_frames)],
    )
    if store_ids:
        for frames, ranges, name in ((part._node_frames, nodes, NID), (part._edge_frames, edges, EID)):
            for frame, (start, end) in zip(frames, ranges.values()):
                frame[name] = torch.arange(start, end, dtype=g.idtype, device=g.device)
    return part


def _range_of(counts: Tensor, gid: int) -> tuple[int, int]:
    start, count = torch.stack([counts[:gid].sum(), counts[gid].long()]).tolist()
    return start, start + count


def _rows(frame: Frame, start: int, end: int) -> Frame:
    return Frame({name: Column(frame[name][start:end]) for name in frame.schemes}, end - start)
