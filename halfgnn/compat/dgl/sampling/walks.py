"""Random walks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ....common.arguments import check_probability, checked_size
from ..base import DGLError, check_ids, check_weights, id_tensor
from ..heterograph import DGLGraph
from ..random import generator

__all__ = ["pack_traces", "random_walk"]


def random_walk(
    g: DGLGraph,
    nodes: Any,
    *,
    metapath: Sequence[Any] | None = None,
    length: int | None = None,
    prob: str | None = None,
    restart_prob: float | Tensor | None = None,
    return_eids: bool = False,
) -> Any:
    """Random walks along out-edges, one from each node.

    Args:
        nodes: ids (n,), with repetitions for several walks from a node.
        metapath: the edge type of each step.
        length: the number of steps, in place of that on a graph of one edge type.
        prob: the edge feature (E,) with weights; by default all out-edges of a node are as likely.
        restart_prob: the probability that a walk ends before a step, or one probability per step.
        return_eids: also return the edges.

    Returns:
        (traces, types): the nodes (n, steps + 1) of each walk, -1 after its end, and the ids (steps + 1,) of their types. With
        return_eids (traces, edges (n, steps), types).
    """
    if metapath is None:
        if not g.is_homogeneous:
            raise DGLError(f"metapath is None; expected edge types, as the graph has {g.canonical_etypes}")
        if length is None:
            raise DGLError("metapath and length are None; expected one of them")
        steps = [0] * checked_size(length, "length")
    else:
        steps = [g.get_etype_id(etype) for etype in metapath]
    ends = g._graph.metagraph.ends
    types = [ends[steps[0]][0] if steps else 0, *(ends[step][1] for step in steps)]
    for i, step in enumerate(steps):
        if ends[step][0] != types[i]:
            raise DGLError(
                f"metapath[{i}] is {g.canonical_etypes[step]}; expected a type of edges from {g.ntypes[types[i]]!r}"
            )
    for etid in set(steps):
        _check_weights(g, etid, prob)
    start = id_tensor(nodes, g.idtype, g.device, "nodes")
    check_ids(start, g._graph.num_nodes(types[0]), "nodes", "a node")
    traces, edges = [start], []
    stops = _per_step(restart_prob, len(steps))
    for step, stop in zip(steps, stops):
        node, edge = _step(g, step, traces[-1], prob, stop)
        traces.append(node)
        edges.append(edge)
    walks = torch.stack(traces, 1)
    of_type = torch.tensor(types, dtype=g.idtype, device=g.device)
    if not return_eids:
        return walks, of_type
    return walks, torch.stack(edges, 1) if edges else start.new_empty(start.numel(), 0), of_type


def _check_weights(g: DGLGraph, etid: int, prob: str | None) -> None:
    if prob is None or prob not in g._edge_frames[etid]:
        return
    frame = g._edge_frames[etid]
    check_weights(frame[prob], frame.num_rows, f"the feature {prob!r}")


def _per_step(restart_prob: float | Tensor | None, count: int) -> list[float]:
    if not isinstance(restart_prob, Tensor):
        return [0.0 if restart_prob is None else check_probability(restart_prob, "restart_prob")] * count
    if restart_prob.shape != (count,):
        raise DGLError(f"restart_prob has shape {tuple(restart_prob.shape)}; expected ({count},), one per step")
    return [check_probability(stop, f"restart_prob[{step}]") for step, stop in enumerate(restart_prob.tolist())]


def _step(g: DGLGraph, etid: int, nodes: Tensor, prob: str | None, stop: float) -> tuple[Tensor, Tensor]:
    """The next node of each walk and the edge to it, -1 for walks that have ended."""
    side = g._graph.relations[etid].graph().csr()
    at = nodes.clamp(min=0).long()
    first, last = side.indptr[at].long(), side.indptr[at + 1].long()
    draw = torch.rand(nodes.numel(), dtype=torch.float64, generator=generator()).to(g.device)
    goes = (nodes >= 0) & (last > first)
    if prob is not None and prob in g._edge_frames[etid]:
        weights = g._edge_frames[etid][prob].double()
        bounds = torch.nn.functional.pad(
            (weights if side.edge_ids is None else weights[side.edge_ids.long()]).cumsum(0), (1, 0)
        )
        low, high = bounds[first], bounds[last]
        goes &= high > low
        place = torch.searchsorted(bounds, low + draw * (high - low), right=True) - 1
        place = torch.minimum(torch.maximum(place, first), last - 1)
    else:
        place = first + (draw * (last - first)).long()
    if stop:
        goes &= (torch.rand(nodes.numel(), generator=generator()) >= stop).to(g.device)
    place = torch.where(goes, place, 0)
    if not side.indices.numel():
        return torch.full_like(nodes, -1), torch.full_like(nodes, -1)
    edge = place.to(g.idtype) if side.edge_ids is None else side.edge_ids[place]
    return side.indices[place].masked_fill(~goes, -1), edge.masked_fill(~goes, -1)


def pack_traces(traces: Tensor, types: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Walks without the places after their ends: their nodes one after the other, the nodes' types, and walks' lengths and starts.

    traces, types: see :func:`random_walk`.
    """
    is_node = traces >= 0
    lengths = is_node.sum(1).to(traces.dtype)
    return traces[is_node], types.expand_as(traces)[is_node], lengths, lengths.cumsum(0, dtype=traces.dtype) - lengths
