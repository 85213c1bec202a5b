"""Samples of neighbours, walks and subgraphs of a graph given by ``(rowptr, col)``, on the CPU.

Random numbers come from PyTorch's default generator. A sample does not depend on the number of threads. Ids are int32 or int64, one
dtype per call. `rowptr`, `col` and weights are trusted where a sample does not read them.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ...common.arguments import check_name, checked_flag, checked_size
from ...common.ids import check_alike, check_ids, check_range
from . import _operators
from ._hops import EdgeType, Hops, sampled_hops

_STRATEGIES = ("uniform", "last")


def neighbor_sample(
    rowptr: Tensor,
    col: Tensor,
    seed: Tensor,
    num_neighbors: Sequence[int],
    node_time: Tensor | None = None,
    edge_time: Tensor | None = None,
    seed_time: Tensor | None = None,
    edge_weight: Tensor | None = None,
    csc: bool = False,
    replace: bool = False,
    directed: bool = True,
    disjoint: bool = False,
    temporal_strategy: str = "uniform",
    return_edge_id: bool = True,
) -> tuple[Tensor, Tensor, Tensor, Tensor | None, list[int], list[int]]:
    """Neighbours of seed nodes, neighbours of those that are new, and so on, for as many hops as num_neighbors has numbers.

    Args:
        rowptr, col: (N + 1,), (E,) neighbours of every node.
        seed: (n,) nodes.
        num_neighbors: neighbours of every node per hop; -1 for all.
        node_time, edge_time: (N,) or (E,) int64. Only neighbours or edges that are not later than the seed are sampled. The edges
            of a node must be in the order of these times. Either needs disjoint=True.
        seed_time: (n,) int64, by default the times of the seeds in node_time.
        edge_weight: (E,) floating-point weights, finite and at least 0. Edges of weight 0 are never sampled.
        csc: the graph is given as (colptr, row): results row and col change places.
        replace: sample with replacement.
        directed: must be True, as in pyg-lib.
        disjoint: every seed has nodes of its own.
        temporal_strategy: "uniform" over what is not too late, or "last": the latest of these.
        return_edge_id: return positions in col too.

    Returns:
        (row, col, node, edge, number of nodes per hop with the seeds first, number of edges per hop). row and col (e,) are places
        in node (m,), which is (m, 2) of [number of the seed, node] if disjoint. edge (e,) is None without return_edge_id.

    Raises:
        TypeError, ValueError, IndexError: other dtypes or shapes, ids out of range, weights that are negative or not finite,
        numbers below -1, times without disjoint. NotImplementedError: directed=False.
    """
    alone = ("", "", "")
    hops = _sampled(
        [""], [alone], {alone: rowptr}, {alone: col}, {"": seed}, {alone: num_neighbors},
        _only("", node_time), _only(alone, edge_time), _only("", seed_time), _only(alone, edge_weight),
        csc, replace, directed, disjoint, temporal_strategy,
    )  # fmt: skip
    row, other = hops.ends(alone)
    edge = hops.edges(alone) if return_edge_id else None
    return row, other, hops.nodes(""), edge, hops.num_nodes(""), hops.num_edges(alone)


def hetero_neighbor_sample(
    rowptr_dict: Mapping[EdgeType, Tensor],
    col_dict: Mapping[EdgeType, Tensor],
    seed_dict: Mapping[str, Tensor],
    num_neighbors_dict: Mapping[EdgeType, Sequence[int]],
    node_time_dict: Mapping[str, Tensor] | None = None,
    edge_time_dict: Mapping[EdgeType, Tensor] | None = None,
    seed_time_dict: Mapping[str, Tensor] | None = None,
    edge_weight_dict: Mapping[EdgeType, Tensor] | None = None,
    csc: bool = False,
    replace: bool = False,
    directed: bool = True,
    disjoint: bool = False,
    temporal_strategy: str = "uniform",
    return_edge_id: bool = True,
) -> tuple[dict, dict, dict, dict | None, dict, dict]:
    """:func:`neighbor_sample` of a graph of several types: arguments and results are dicts by node type or edge type.

    With times, seeds are numbered through all types in the order of seed_dict. Edge types without weights or times are sampled
    uniformly and at any time.
    """
    node_types = list(dict.fromkeys(ntype for etype in rowptr_dict for ntype in (etype[0], etype[2])))
    return _hetero_neighbor_sample(
        node_types, list(rowptr_dict), rowptr_dict, col_dict, seed_dict, num_neighbors_dict, node_time_dict, edge_time_dict,
        seed_time_dict, edge_weight_dict, csc, replace, directed, disjoint, temporal_strategy, return_edge_id,
    )  # fmt: skip


def _hetero_neighbor_sample(
    node_types: Sequence[str], edge_types: Sequence[EdgeType], *arguments: Any
) -> tuple[dict, dict, dict, dict | None, dict, dict]:
    """arguments: those of hetero_neighbor_sample, all of them."""
    *others, return_edge_id = arguments
    hops = _sampled(node_types, edge_types, *others)
    ends = {etype: hops.ends(etype) for etype in edge_types}
    return (
        {etype: row for etype, (row, _) in ends.items()},
        {etype: col for etype, (_, col) in ends.items()},
        {ntype: hops.nodes(ntype) for ntype in node_types},
        {etype: hops.edges(etype) for etype in edge_types} if return_edge_id else None,
        {ntype: hops.num_nodes(ntype) for ntype in node_types},
        {etype: hops.num_edges(etype) for etype in edge_types},
    )


def _sampled(
    node_types: Sequence[str],
    edge_types: Sequence[EdgeType],
    rowptr: Mapping[EdgeType, Tensor],
    col: Mapping[EdgeType, Tensor],
    seeds: Mapping[str, Tensor],
    num_neighbors: Mapping[EdgeType, Sequence[int]],
    node_time: Mapping[str, Tensor] | None,
    edge_time: Mapping[EdgeType, Tensor] | None,
    seed_time: Mapping[str, Tensor] | None,
    edge_weight: Mapping[EdgeType, Tensor] | None,
    csc: bool,
    replace: bool,
    directed: bool,
    disjoint: bool,
    temporal_strategy: str,
) -> Hops:
    check_name(temporal_strategy, "temporal_strategy", _STRATEGIES)
    csc, replace, disjoint = (
        checked_flag(flag, name) for flag, name in ((csc, "csc"), (replace, "replace"), (disjoint, "disjoint"))
    )
    if not directed:
        raise NotImplementedError(
            "directed=False is not supported; subgraph(rowptr, col, nodes) has all edges between nodes"
        )
    if node_time is not None and edge_time is not None:
        raise ValueError("node_time and edge_time are both given; expected one of them")
    if (node_time is not None or edge_time is not None) and not disjoint:
        raise ValueError("disjoint is False; sampling by time needs disjoint=True, a tree of each seed's own")
    if edge_time is not None and seed_time is None:
        raise ValueError("seed_time is None; edge_time needs a time per seed")
    times = None
    if node_time is not None or edge_time is not None:
        times = [_times_of(ntype, ids, seed_time, node_time) for ntype, ids in seeds.items()]
    return sampled_hops(
        node_types, edge_types, rowptr, col, seeds, num_neighbors, node_time or {}, edge_time or {},
        None if times is None else torch.cat(times), edge_weight or {}, csc, replace, disjoint, temporal_strategy == "last",
    )  # fmt: skip


def _times_of(
    ntype: str, seeds: Tensor, seed_time: Mapping[str, Tensor] | None, node_time: Mapping[str, Tensor] | None
) -> Tensor:
    times = node_time if seed_time is None else seed_time
    if times is None or ntype not in times:
        raise ValueError(f"{'node_time' if seed_time is None else 'seed_time'} has no {ntype!r}, a type of seeds")
    if seed_time is not None:
        return times[ntype]
    check_range(seeds, "seed", len(times[ntype]))
    return times[ntype][seeds.long()]


def _only(key: Any, value: Tensor | None) -> dict[Any, Tensor] | None:
    return None if value is None else {key: value}


def subgraph(
    rowptr: Tensor, col: Tensor, nodes: Tensor, return_edge_id: bool = True
) -> tuple[Tensor, Tensor, Tensor | None]:
    """All edges between `nodes` (n,): (rowptr (n + 1,), col (e,), edge (e,) or None), where col has places in nodes.

    Raises TypeError, ValueError or IndexError for other dtypes or shapes, ids out of range, and nodes that repeat.
    """
    num_nodes = _checked_nodes(rowptr, col, nodes, "nodes")
    places = rowptr.new_full((num_nodes,), -1)
    order = torch.arange(len(nodes), dtype=rowptr.dtype)
    places[nodes.long()] = order
    repeated = (places[nodes.long()] != order).nonzero()
    if len(repeated):
        raise ValueError(f"nodes holds {int(nodes[repeated[0]])} more than once; expected different nodes")
    begin, end = _rows(rowptr, col, nodes)
    degree = end - begin
    row = torch.repeat_interleave(torch.arange(len(nodes)), degree)
    before = torch.cumsum(degree, 0) - degree
    edge = torch.arange(len(row), dtype=rowptr.dtype) + (begin - before)[row]
    columns = col[edge.long()].long()
    check_range(columns, "col", num_nodes)
    other = places[columns]
    is_inside = other >= 0
    out_rowptr = rowptr.new_zeros(len(nodes) + 1)
    out_rowptr[1:] = row[is_inside].bincount(minlength=len(nodes)).cumsum(0)
    return out_rowptr, other[is_inside], edge[is_inside] if return_edge_id else None


def random_walk(rowptr: Tensor, col: Tensor, seed: Tensor, walk_length: int, p: float = 1.0, q: float = 1.0) -> Tensor:
    """Walks (n, walk_length + 1) from `seed` (n,). Each step is to a neighbour drawn uniformly. A node without neighbours is kept.

    Raises NotImplementedError for p or q other than 1; TypeError, ValueError or IndexError for other dtypes or shapes, ids out of
    range and negative lengths.
    """
    if p != 1 or q != 1:
        raise NotImplementedError(f"p is {p} and q is {q}; random_walk is uniform only, with p = q = 1")
    num_nodes = _checked_nodes(rowptr, col, seed, "seed")
    walk = [seed]
    for _ in range(checked_size(walk_length, "walk_length")):
        begin, end = _rows(rowptr, col, walk[-1])
        here = walk[-1]
        step = (torch.rand(len(here), dtype=torch.float64) * (end - begin)).long()
        can_move = end > begin
        there = here.clone()
        there[can_move] = col[(begin + step)[can_move].long()]
        check_range(there, "col", num_nodes)
        walk.append(there)
    return torch.stack(walk, 1)


def _checked_nodes(rowptr: Tensor, col: Tensor, nodes: Tensor, name: str) -> int:
    """The number of nodes. Raises unless rowptr, col and nodes are ids of one dtype, and nodes are in range."""
    for ids, ids_name in ((rowptr, "rowptr"), (col, "col"), (nodes, name)):
        check_ids(ids, ids_name)
        check_alike(ids, ids_name, rowptr, "rowptr")
    if len(rowptr) == 0:
        raise ValueError("rowptr has shape (0,); expected (N + 1,)")
    check_range(nodes, name, len(rowptr) - 1)
    return len(rowptr) - 1


def _rows(rowptr: Tensor, col: Tensor, nodes: Tensor) -> tuple[Tensor, Tensor]:
    """Where the neighbours of nodes begin and end in col. Only these rows are looked at."""
    begin, end = rowptr[nodes.long()], rowptr[nodes.long() + 1]
    wrong = ((begin < 0) | (end < begin) | (end > len(col))).nonzero()
    if len(wrong):
        raise IndexError(f"row {int(nodes[wrong[0]])} of rowptr falls or leaves col, of shape {tuple(col.shape)}")
    return begin, end


_HETERO = inspect.signature(hetero_neighbor_sample)


def _hetero_by_name(node_types: list[str], edge_types: list[EdgeType], *arguments: Any) -> tuple:
    """torch.ops.pyg.hetero_neighbor_sample, whose dicts name an edge type "source__relation__destination"."""
    of_name = {"__".join(etype): tuple(etype) for etype in edge_types}

    def with_types(argument: Any) -> Any:
        if not isinstance(argument, Mapping):
            return argument
        return {of_name.get(key, key): value for key, value in argument.items()}

    def with_names(result: dict | None) -> dict | None:
        return result and {"__".join(key) if isinstance(key, tuple) else key: x for key, x in result.items()}

    bound = _HETERO.bind(*(with_types(argument) for argument in arguments))
    bound.apply_defaults()
    results = _hetero_neighbor_sample(node_types, list(of_name.values()), *bound.args)  # type: ignore[arg-type]
    return tuple(with_names(result) for result in results)


_operators.register(
    neighbor_sample=neighbor_sample,
    hetero_neighbor_sample=_hetero_by_name,
    subgraph=subgraph,
    random_walk=random_walk,
)

__all__ = ["hetero_neighbor_sample", "neighbor_sample", "random_walk", "subgraph"]
