"""Graphs derived from the structure of others: line graphs, paths, metapaths, nodes that have edges, sums and products."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ....common.arguments import checked_size
from ..base import NID, DGLError, EdgeType
from ..convert import graph, heterograph
from ..heterograph import DGLGraph
from ..parts import by_type, copy_features, ends_by_type, no_nodes, numberings, rows_of_frames
from ..topology import Relation
from .edges import to_simple

__all__ = [
    "adj_product_graph",
    "adj_sum_graph",
    "compact_graphs",
    "khop_adj",
    "khop_graph",
    "line_graph",
    "metapath_reachable_graph",
]


def line_graph(g: DGLGraph, backtracking: bool = True, shared: bool = False) -> DGLGraph:
    """A graph whose nodes are the edges of g, with an edge from (u, v) to each (v, w), sorted by source.

    Args:
        backtracking: False leaves out the edges from (u, v) to (v, u).
        shared: nodes get the features of g's edges.
    """
    _check_homogeneous(g)
    src, dst = g.all_edges()
    before, after = _successions(g, g)
    kept = before != after
    if not backtracking:
        kept &= dst[after.long()] != src[before.long()]
    made = graph((before[kept], after[kept]), num_nodes=g.num_edges(), idtype=g.idtype, device=g.device)
    if shared:
        made._node_frames = [g._edge_frames[0].clone()]
    return made


def _successions(a: DGLGraph, b: DGLGraph) -> tuple[Tensor, Tensor]:
    """Ids of all pairs of an edge of a and an edge of b that begins where it ends, by the first, then by the second."""
    _, middle = a.all_edges()
    first = torch.arange(a.num_edges(), dtype=a.idtype, device=a.device)
    degrees = b._graph.relations[0].graph().out_degrees()
    return first.repeat_interleave(degrees[middle.long()]), b.out_edges(middle, form="eid")


def khop_adj(g: DGLGraph, k: int) -> Tensor:
    """The k-th power of the adjacency matrix, (N, N) fp32: how many paths of k edges lead from each row's node to each column's."""
    _check_homogeneous(g)
    power = g.adj_external(scipy_fmt="csr") ** k
    return torch.from_numpy(np.asarray(power.todense(), dtype=np.float32))


def khop_graph(g: DGLGraph, k: int, copy_ndata: bool = True) -> DGLGraph:
    """A graph with an edge from u to v per path of k edges. copy_ndata: keep features of nodes."""
    _check_homogeneous(g)
    power = (g.adj_external(scipy_fmt="csr") ** checked_size(k, "k")).tocoo()
    ends = np.repeat(power.row, power.data), np.repeat(power.col, power.data)
    made = graph(ends, num_nodes=g.num_nodes(), idtype=g.idtype, device=g.device)
    return copy_features(made, g, copy_ndata, edata=False)


def _check_homogeneous(g: DGLGraph) -> None:
    if not g.is_homogeneous:
        raise DGLError(f"g has the types {g.ntypes} and {g.etypes}; expected one of nodes and one of edges")


def metapath_reachable_graph(g: DGLGraph, metapath: Sequence[Any]) -> DGLGraph:
    """A graph with an edge from u to v if edges of the types in `metapath`, one after the other, lead from u to v."""
    reached = None
    for etype in metapath:
        adjacency = g.adj_external(scipy_fmt="csr", etype=etype)
        reached = adjacency if reached is None else reached * adjacency
    if reached is None:
        raise DGLError("metapath is empty; expected at least one edge type")
    src_type, dst_type = g.to_canonical_etype(metapath[0])[0], g.to_canonical_etype(metapath[-1])[2]
    made = heterograph(
        {(src_type, "_E", dst_type): (reached != 0).tocsr().nonzero()},
        {src_type: reached.shape[0], dst_type: reached.shape[1]},
        idtype=g.idtype,
        device=g.device,
    )
    for ntype in {src_type, dst_type}:
        made._node_frames[made.get_ntype_id(ntype)] = g._node_frames[g.get_ntype_id(ntype)].clone()
    return made


def compact_graphs(graphs: Any, always_preserve: Any = None, copy_ndata: bool = True, copy_edata: bool = True) -> Any:
    """Graphs without the nodes that have no edge in any of them. The nodes that remain are numbered alike in all graphs.

    Args:
        graphs: a graph, or several with the same node types, dtype of ids and device.
        always_preserve: ids of nodes to keep in any case, which come first; a dict of ids per node type if there are several.
        copy_ndata: keep features of nodes, and their former ids in ``dgl.NID``.
        copy_edata: keep features of edges.

    Returns:
        A graph for one, a list for several.
    """
    if not isinstance(graphs, Iterable):
        return compact_graphs([graphs], always_preserve, copy_ndata, copy_edata)[0]
    graphs = list(graphs)
    if not graphs:
        return []
    first = graphs[0]
    for i, g in enumerate(graphs):
        if g.is_block:
            raise DGLError(f"graphs[{i}] is a block; expected a graph")
        if (g.ntypes, g.idtype, g.device) != (first.ntypes, first.idtype, first.device):
            raise DGLError(
                f"graphs[{i}] differs from graphs[0] in node types, dtype of ids or device; expected them to be alike"
            )
    preserved = no_nodes(first) if always_preserve is None else by_type(first, always_preserve, "always_preserve")
    named = [pair for g in graphs for pair in ends_by_type(g, [relation.edges() for relation in g._graph.relations])]
    numbered = numberings(preserved, named)
    nodes = [numbering.nodes for numbering in numbered]
    counts = [ids.numel() for ids in nodes]
    compact = []
    for g in graphs:
        relations = []
        for (src_type, dst_type), relation in zip(g._graph.metagraph.ends, g._graph.relations):
            src, dst = relation.edges()
            ends = numbered[src_type].new_ids(src), numbered[dst_type].new_ids(dst)
            relations.append(Relation.from_edges(*ends, counts[src_type], counts[dst_type], check=False))
        made = copy_features(g._with(g._graph.with_relations(relations, counts)), g, False, copy_edata)
        if copy_ndata:
            made._node_frames = rows_of_frames(g._node_frames, nodes, NID)
        compact.append(made)
    return compact


# ---- weighted adjacency matrices -------------------------------------------------------------------------------------------------


def adj_product_graph(A: DGLGraph, B: DGLGraph, weight_name: str, etype: str = "_E") -> DGLGraph:
    """The graph of the product of two weighted adjacency matrices. Gradients flow to the weights.

    Args:
        A, B: of one edge type each; A's destinations are B's sources.
        weight_name: the edge feature (E,) that has the weights, in the result too.
        etype: the name of its edge type.
    """
    src_type, dst_type = A.canonical_etypes[0][0], B.canonical_etypes[0][2]
    if A.num_dst_nodes() != B.num_src_nodes():
        raise DGLError(
            f"B has {B.num_src_nodes()} source nodes; expected {A.num_dst_nodes()}, as A has destination nodes"
        )
    first, second = (ids.long() for ids in _successions(A, B))
    ends = A.all_edges()[0][first], B.all_edges()[1][second]
    weights = A.edata[weight_name][first] * B.edata[weight_name][second]
    counts = {src_type: A.num_src_nodes(), dst_type: B.num_dst_nodes()}
    return _summed(ends, weights, (src_type, etype, dst_type), counts, weight_name, A)


def adj_sum_graph(graphs: Sequence[DGLGraph], weight_name: str) -> DGLGraph:
    """The graph of the sum of weighted adjacency matrices. Gradients flow to the weights.

    graphs: of one edge type each, with the same nodes. weight_name: the edge feature (E,) that has the weights, in the result too.
    """
    graphs = list(graphs)
    if not graphs:
        raise DGLError("graphs is empty; expected at least one graph")
    first = graphs[0]
    for i, g in enumerate(graphs):
        if (g.canonical_etypes, g._graph.node_counts) != (first.canonical_etypes, first._graph.node_counts):
            raise DGLError(f"graphs[{i}] has other types or numbers of nodes than graphs[0]; expected them to be alike")
    src, dst = (torch.cat([g.all_edges()[side] for g in graphs]) for side in (0, 1))
    weights = torch.cat([g.edata[weight_name] for g in graphs])
    counts = dict(zip(first.ntypes, first._graph.node_counts))
    return _summed((src, dst), weights, first.canonical_etypes[0], counts, weight_name, first)


def _summed(
    ends: tuple[Tensor, Tensor], weights: Tensor, etype: EdgeType, counts: dict[str, int], name: str, like: DGLGraph
) -> DGLGraph:
    """The graph of entries of a matrix, of which those with the same ends are summed."""
    entries = heterograph({etype: ends}, counts, idtype=like.idtype, device=like.device)
    entries.edata[name] = weights
    return to_simple(entries, return_counts=None, copy_edata=True, aggregator="sum")
