"""Blocks: the bipartite graph of input nodes and output nodes that one layer computes on."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..base import EID, NID, DGLError
from ..heterograph import DGLBlock, DGLGraph
from ..parts import Numbering, by_type, ends_by_type, no_nodes, numberings, rows_of_frames
from ..topology import MetaGraph, Relation, Topology

__all__ = ["to_block"]


def to_block(g: DGLGraph, dst_nodes: Any = None, include_dst_in_src: bool = True, src_nodes: Any = None) -> DGLBlock:
    """The edges of a graph as a block.

    Args:
        dst_nodes: ids of the output nodes, in this order, or a dict of ids per node type. They must include the destinations of all
            edges; of types without any, edges are left out. By default they are the destinations, by rising id.
        include_dst_in_src: input nodes begin with the output nodes. Otherwise they are the sources of edges alone.
        src_nodes: ids of the input nodes, in this order, likewise; by default sources follow in the order in which edges name them.

    Returns:
        The block. Former ids are in ``dgl.NID`` of input and output nodes and in ``dgl.EID``; features are taken when read.

    Raises:
        DGLError: edges that lead to or from other nodes than those given.
    """
    edges = [relation.edges() for relation in g._graph.relations]
    outputs = _distinct(g, ends_by_type(g, edges)[1::2]) if dst_nodes is None else by_type(g, dst_nodes, "dst_nodes")
    if dst_nodes is not None:
        edges = [
            ends if outputs[dst_type].numel() else (ends[0][:0], ends[1][:0])
            for ends, (_, dst_type) in zip(edges, g._graph.metagraph.ends)
        ]
    dst_numbers = [_without_repetitions(nodes, "dst_nodes") for nodes in outputs]
    if src_nodes is None:
        src_numbers = numberings(outputs if include_dst_in_src else no_nodes(g), ends_by_type(g, edges)[::2])
    else:
        src_numbers = [_without_repetitions(nodes, "src_nodes") for nodes in by_type(g, src_nodes, "src_nodes")]
    num_types = len(g.ntypes)
    num_src, num_dst = ([numbers.nodes.numel() for numbers in of_side] for of_side in (src_numbers, dst_numbers))
    relations = []
    for (src_type, dst_type), (src, dst), etype in zip(g._graph.metagraph.ends, edges, g.canonical_etypes):
        u = _new_ids(src_numbers[src_type], src, "src_nodes", etype)
        v = _new_ids(dst_numbers[dst_type], dst, "dst_nodes", etype)
        relations.append(Relation.from_edges(u, v, num_src[src_type], num_dst[dst_type], check=False))
    metagraph = MetaGraph([(src, dst + num_types) for src, dst in g._graph.metagraph.ends], 2 * num_types)
    inputs = [numbers.nodes for numbers in src_numbers]
    outputs = [numbers.nodes for numbers in dst_numbers]
    edge_ids = [torch.arange(relation.num_edges, dtype=g.idtype, device=g.device) for relation in relations]
    return DGLBlock(
        Topology(metagraph, [*num_src, *num_dst], relations),
        (g.ntypes, g.ntypes),
        g.etypes,
        [frame for nodes in (inputs, outputs) for frame in rows_of_frames(g._node_frames, nodes, NID)],
        rows_of_frames(g._edge_frames, edge_ids, EID),
    )


def _distinct(g: DGLGraph, named: list[tuple[int, Tensor]]) -> list[Tensor]:
    return [
        torch.unique(torch.cat([none, *(nodes for of_type, nodes in named if of_type == ntype)]))
        for ntype, none in enumerate(no_nodes(g))
    ]


def _without_repetitions(nodes: Tensor, name: str) -> Numbering:
    numbers = Numbering([nodes])
    if numbers.nodes.numel() != nodes.numel():
        raise DGLError(f"{name} repeats a node; expected every node once")
    return numbers


def _new_ids(numbers: Numbering, nodes: Tensor, name: str, etype: Any) -> Tensor:
    if not numbers.nodes.numel():
        new_ids, is_known = nodes, nodes != nodes
    else:
        new_ids = numbers.new_ids(nodes)
        is_known = numbers.nodes[new_ids.long()] == nodes
    if not bool(is_known.all()):
        raise DGLError(f"{name} lacks a node at the end of an edge of type {etype}; expected it to have all of them")
    return new_ids
