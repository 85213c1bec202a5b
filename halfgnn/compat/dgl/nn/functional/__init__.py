"""Functions of modules."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from halfgnn import ops
from halfgnn.common.arguments import check_name
from halfgnn.common.operands import check_operand, check_tensor
from halfgnn.compat.dgl.base import DGLError, is_all
from halfgnn.graph import Graph
from halfgnn.graph_argument import as_graph, as_heterograph
from halfgnn.heterograph import EdgeType, HeteroGraph

__all__ = ["edge_softmax"]


def edge_softmax(graph: Any, logits: Any, eids: Any = "__ALL__", norm_by: str = "dst") -> Any:
    """The softmax of logits over the edges that share a destination, or a source, column by column, in fp32 inside.

    Args:
        graph: a graph. If it has several edge types, edges of all types that share a node are normalised together.
        logits: (E, *); with several edge types {edge type: (E, *)}.
        eids: ids (n,) of the edges to which logits (n, *) belong, on a graph of one edge type; by default all edges.
        norm_by: "dst" or "src".

    Returns:
        Like logits; keys are triples.

    Raises:
        DGLError: eids with several edge types. ValueError, TypeError: wrong shapes, dtypes, edge types or norm_by.
    """
    if isinstance(logits, Mapping):
        if not is_all(eids):
            raise DGLError(
                f"eids is a {type(eids).__name__}; expected all edges, since logits are of several edge types"
            )
        return _of_types(as_heterograph(graph, "graph"), logits, norm_by)
    g = as_graph(graph, "graph")
    return ops.edge_softmax(g if is_all(eids) else _of_edges(g, eids), logits, norm_by)


def _of_edges(g: Graph, eids: Any) -> Graph:
    """g with the edges `eids` alone, in that order."""
    check_tensor(eids, "eids")
    src, dst = g.edges()
    ids = eids.long()
    return Graph.from_edges(src[ids], dst[ids], num_src=g.num_src, num_dst=g.num_dst, check=False)


def _of_types(g: HeteroGraph, logits: Mapping[Any, Tensor], norm_by: str) -> dict[EdgeType, Tensor]:
    check_name(norm_by, "norm_by", ("dst", "src"))
    given = {g.to_canonical_etype(etype): x for etype, x in logits.items()}
    out: dict[EdgeType, Tensor] = {}
    end, side = (2, "num_dst") if norm_by == "dst" else (0, "num_src")
    for ntype, num_nodes in getattr(g, side).items():
        etypes = [etype for etype in g.canonical_etypes if etype in given and etype[end] == ntype]
        if not etypes:
            continue
        for etype in etypes:
            check_operand(given[etype], f"logits[{etype}]", g[etype], "e")
        nodes = torch.cat([g[etype].edges()[1 if norm_by == "dst" else 0] for etype in etypes])
        together = Graph.from_edges(nodes, nodes, num_src=num_nodes, num_dst=num_nodes, check=False)
        scores = ops.edge_softmax(together, torch.cat([given[etype] for etype in etypes]))
        out.update(zip(etypes, scores.split([g[etype].num_edges for etype in etypes])))
    return {etype: out[etype] for etype in g.canonical_etypes if etype in out}
