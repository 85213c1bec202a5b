"""Neighbours of nodes: a random sample of them, or those of the largest weights. halfgnn's neighbour sampler takes the sample."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ....common.arguments import checked_fanout
from ....dataloading import NeighborSampler
from ..base import EID, DGLError, check_ids, id_tensor
from ..heterograph import DGLGraph
from ..parts import by_type, rows_of_frames
from ..random import generator
from ..subgraph import in_subgraph, out_subgraph
from ..topology import Relation, Topology

__all__ = ["sample_neighbors", "select_topk"]


def sample_neighbors(
    g: DGLGraph,
    nodes: Any,
    fanout: Any,
    edge_dir: str = "in",
    prob: str | None = None,
    replace: bool = False,
    copy_ndata: bool = True,
    copy_edata: bool = True,
    _dist_training: bool = False,
    exclude_edges: Any = None,
    output_device: Any = None,
) -> DGLGraph:
    """The subgraph of up to `fanout` in-edges of each node and edge type, drawn at random. All nodes remain.

    Args:
        nodes: ids, or {node type: ids}. A node that is repeated counts once.
        fanout: a number, or {edge type: number}; -1 for all edges.
        edge_dir: "in", or "out" for out-edges.
        prob: the edge feature with weights, or booleans that say which edges may be drawn; types without it are sampled uniformly.
        replace: draw with replacement.
        copy_ndata: keep features of nodes. copy_edata: keep those of edges, and their former ids in ``dgl.EID``.
        exclude_edges: ids of edges that are left out of the sample, or {edge type: ids}.
        output_device: of the result.

    The sample is the same for the same random numbers, whatever the number of threads is. ``dgl.seed`` and ``torch.manual_seed``
    decide them.
    """
    sampler = sampler_of(g, [fanout], edge_dir, prob, replace)
    seeds = {ntype: _once(ids.cpu()) for ntype, ids in zip(g.ntypes, by_type(g, nodes, "nodes"))}
    found = sampler.sample(seeds, seed=new_seed()).blocks[0].edata[EID]
    edges = [found[etype].to(g.idtype) for etype in _directed(g.canonical_etypes, edge_dir)]
    if exclude_edges is not None:
        edges = [_without(ids, excluded) for ids, excluded in zip(edges, excluded_per_type(g, exclude_edges))]
    kept = [ids.to(g.device) for ids in edges]
    part = _with_edges(g, kept)
    if copy_ndata:
        part._node_frames = [frame.clone() for frame in g._node_frames]
    if copy_edata:
        part._edge_frames = rows_of_frames(g._edge_frames, kept, EID)
    return part if output_device is None else part.to(output_device)


def _once(ids: Tensor) -> Tensor:
    different = ids.unique()
    return ids if different.numel() == ids.numel() else different


def _with_edges(g: DGLGraph, edges: Sequence[Tensor]) -> DGLGraph:
    relations = []
    for relation, ids in zip(g._graph.relations, edges):
        src, dst = (end[ids.long()] for end in relation.edges())
        relations.append(Relation.from_edges(src, dst, relation.num_src, relation.num_dst, check=False))
    return g._with(Topology(g._graph.metagraph, g._graph.node_counts, relations))


def _without(ids: Tensor, excluded: Tensor) -> Tensor:
    return ids[~torch.isin(ids, excluded)]


def excluded_per_type(g: DGLGraph, edges: Any) -> list[Tensor]:
    """Ids of edges per edge type on the CPU, given by ids of the only type or by a dict of types."""
    if not isinstance(edges, Mapping):
        edges = {g.canonical_etypes[g.get_etype_id(None)]: edges}
    of_type = {g.get_etype_id(etype): ids for etype, ids in edges.items()}
    cpu = torch.device("cpu")
    excluded = []
    for etid, relation in enumerate(g._graph.relations):
        ids = of_type.get(etid, [])
        ids = id_tensor(ids.cpu() if isinstance(ids, Tensor) else ids, g.idtype, cpu, "exclude_edges")
        check_ids(ids, relation.num_edges, "exclude_edges", "an edge")
        excluded.append(ids)
    return excluded


def new_seed() -> int:
    """A random number that decides one sample."""
    return int(torch.randint(2**62, (), generator=generator()))


def _directed(etypes: Sequence[Any], edge_dir: str) -> list[Any]:
    if edge_dir not in ("in", "out"):
        raise DGLError(f"edge_dir is {edge_dir!r}; expected 'in' or 'out'")
    return [etype if edge_dir == "in" else etype[::-1] for etype in etypes]


def sampler_of(g: DGLGraph, fanouts: Sequence[Any], edge_dir: str, prob: str | None, replace: bool) -> NeighborSampler:
    """halfgnn's sampler for a graph, which it reads on the CPU. Its types are triples, reversed for out-edges."""
    etypes = _directed(g.canonical_etypes, edge_dir)
    topology = g._graph if g.device.type == "cpu" else g._graph.to("cpu")
    topology = topology if edge_dir == "in" else topology.reverse()
    counts = dict(zip(g.ntypes, topology.node_counts))
    whole = topology.heterograph(etypes, counts, counts)
    weights = None
    if prob is not None:
        weights = {
            etype: frame[prob].cpu() for etype, frame in zip(etypes, g._edge_frames) if prob in frame and frame.num_rows
        }
        weights = {etype: w if w.is_floating_point() else w.float() for etype, w in weights.items()}
    per_layer = [_fanout(g, fanout, etypes) for fanout in fanouts]
    return NeighborSampler(whole, per_layer, replace=replace, edge_weight=weights)


def _fanout(g: DGLGraph, fanout: Any, etypes: Sequence[Any]) -> Any:
    if isinstance(fanout, Tensor):
        fanout = fanout.tolist()
    if not isinstance(fanout, Mapping):
        return fanout
    of_type = {g.get_etype_id(etype): number for etype, number in fanout.items()}
    missing = [etype for i, etype in enumerate(g.canonical_etypes) if i not in of_type]
    if missing:
        raise DGLError(f"fanout has no number for {missing}; expected one for every edge type, 0 for none of its edges")
    return {etype: of_type[i] for i, etype in enumerate(etypes)}


def select_topk(
    g: DGLGraph,
    k: Any,
    weight: str,
    nodes: Any = None,
    edge_dir: str = "in",
    ascending: bool = False,
    copy_ndata: bool = True,
    copy_edata: bool = True,
    output_device: Any = None,
) -> DGLGraph:
    """The subgraph of the k in-edges of each node and edge type whose weights are the largest. All nodes remain.

    Args:
        k: a number, or {edge type: number}; -1 for all edges.
        weight: the edge feature (E,) with numbers, none of them nan.
        nodes: ids, or {node type: ids}; by default all.
        edge_dir: "in", or "out" for out-edges.
        ascending: the smallest in place of the largest.
        copy_ndata, copy_edata, output_device: see :func:`sample_neighbors`.
    """
    _directed([], edge_dir)
    if nodes is None:
        nodes = {ntype: g.nodes(ntype) for ntype in g.ntypes}
    around = (in_subgraph if edge_dir == "in" else out_subgraph)(g, nodes)
    numbers = _fanout(g, k, g.canonical_etypes)
    kept = []
    for i, etype in enumerate(g.canonical_etypes):
        ends = around.all_edges(etype=etype)[edge_dir == "in"].long()
        weights = around._edge_frames[i][weight]
        if weights.dim() != 1 or bool(weights.isnan().any()):
            raise DGLError(
                f"the feature {weight!r} has shape {tuple(weights.shape)}; expected one number per edge, (E,), not nan"
            )
        order = weights.argsort(descending=not ascending, stable=True)
        order = order[ends[order].argsort(stable=True)]
        number = checked_fanout(numbers[etype] if isinstance(numbers, Mapping) else numbers, "k")
        kept.append(around._edge_frames[i][EID][order if number < 0 else order[_places_in_runs(ends[order]) < number]])
    part = _with_edges(g, kept)
    part._node_frames = [frame.clone() for frame in g._node_frames] if copy_ndata else part._node_frames
    part._edge_frames = rows_of_frames(g._edge_frames, kept, EID) if copy_edata else part._edge_frames
    return part if output_device is None else part.to(output_device)


def _places_in_runs(values: Tensor) -> Tensor:
    """The place of each value among its equals, which stand side by side."""
    _, counts = torch.unique_consecutive(values, return_counts=True)
    starts = (counts.cumsum(0) - counts).repeat_interleave(counts)
    return torch.arange(values.numel(), device=values.device) - starts
