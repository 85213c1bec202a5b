"""The tensors of a DGLGraph's adjacencies, and where what is derived from them is kept. DGL is not imported.

A graph index (``DGLGraph._graph``) is immutable: whatever changes a DGLGraph gives it a new index. So what is derived from an index
is kept on the index itself, where it lives as long and cannot become stale. It is kept in the ``__dict__``, because an index cannot
be hashed, and raises if it is asked for an attribute that it lacks.
"""

from __future__ import annotations

import sys
from typing import Any, NamedTuple

import torch
from torch import Tensor

_RELATIONS = "_halfgnn_relations"  # edge type id -> index of that relation alone
_IS_RELATION = "_halfgnn_is_relation"  # set on those indices

Side = tuple[Tensor, Tensor, "Tensor | None"]  # indptr, indices, edge ids or None


class Adjacencies(NamedTuple):
    """One relation in the formats that DGL holds or may make, not copied. At least one of the last three is there."""

    num_src: int
    num_dst: int
    csc: Side | None
    csr: Side | None
    edges: tuple[Tensor, Tensor] | None  # sources and destinations, if the graph allows neither CSC nor CSR


def is_dgl_graph(value: Any) -> bool:
    """Whether value is a DGLGraph of DGL's own. A program that has one has imported DGL."""
    dgl = sys.modules.get("dgl")  # it may be halfgnn.compat.dgl, whose graphs have no graph index
    return dgl is not None and isinstance(value, dgl.DGLGraph) and not hasattr(value, "__halfgnn_graph__")


def index_of(g: Any) -> Any:
    """The graph index of a DGLGraph. Raises TypeError for anything else."""
    gidx = getattr(g, "_graph", None)
    if gidx is None:
        raise TypeError(f"g is a {type(g).__name__}; expected a DGLGraph")
    return gidx


def stood_for(g: Any, etype: Any = None) -> Any:
    """The Graph or HeteroGraph that g, or one of its edge types, stands for (graph_argument.py); None for DGL's own graphs."""
    if not hasattr(g, "__halfgnn_graph__"):
        return None
    return (g if etype is None else g[etype]).__halfgnn_graph__()


def relation_index(gidx: Any, etype: int) -> Any:
    """``HeteroGraphIndex.get_relation_graph``, but the same object at every call.

    So what is kept on it lasts from one ``update_all`` to the next.
    """
    attributes = gidx.__dict__
    if _IS_RELATION in attributes:
        return gidx
    relations = attributes.get(_RELATIONS)
    if relations is None:
        relations = attributes[_RELATIONS] = {}
    relation = relations.get(etype)
    if relation is None:
        relation = relations[etype] = _make_relation(gidx, int(etype))
        relation.__dict__[_IS_RELATION] = True
    return relation


def _make_relation(gidx: Any, etype: int) -> Any:
    # The body of get_relation_graph, because patch() replaces that method by relation_index.
    return sys.modules[type(gidx).__module__]._CAPI_DGLHeteroGetRelationGraph(gidx, etype)


def adjacencies_of(relation: Any) -> Adjacencies:
    """The sparse formats of the index of one relation. COO is taken only if the graph allows no other."""
    formats = relation.formats()
    created, allowed = formats["created"], formats["created"] + formats["not created"]
    if "csc" not in allowed and "csr" not in allowed:
        source, destination = relation.metagraph.find_edge(0)
        src, dst, _ = relation.edges(0, "eid")
        return Adjacencies(relation.num_nodes(source), relation.num_nodes(destination), None, None, (src, dst))
    csc = csr = None
    if "csc" in allowed:
        num_dst, num_src, indptr, indices, ids = relation.adjacency_matrix_tensors(0, True, "csr")
        _check_sampled(indices, num_src)
        csc = (indptr, indices, _edge_ids(ids))
    if csc is None or "csr" in created:
        num_src, num_dst, indptr, indices, ids = relation.adjacency_matrix_tensors(0, False, "csr")
        csr = (indptr, indices, _edge_ids(ids))
    return Adjacencies(num_src, num_dst, csc, csr, None)


def _edge_ids(ids: Tensor) -> Tensor | None:
    """DGL's edge ids of a sparse format, or None if they are 0, 1, 2, ..., which is faster."""
    if ids.numel() == 0:
        return None
    # Read on the CPU only, where it needs no synchronisation. The first and last id tell most other orders apart.
    ordered = ids.device.type == "cpu" and int(ids[0]) == 0 and int(ids[-1]) == ids.numel() - 1
    if ordered and torch.equal(ids, torch.arange(ids.numel(), dtype=ids.dtype, device=ids.device)):
        return None
    return ids


def _check_sampled(indices: Tensor, num_src: int) -> None:
    """Raises for sources that do not exist, which the samplers of dgl 1.1.3 make of graphs with int32 ids on the CPU."""
    if indices.dtype == torch.int32 and indices.device.type == "cpu" and indices.numel():
        low, high = (int(x) for x in torch.aminmax(indices))
        if low < 0 or high >= num_src:
            raise ValueError(
                f"g has a source node {high if high >= num_src else low}, but {num_src} source nodes; if it is a block, sample it "
                "from g.long(): DGL's samplers on the CPU go wrong on int32 ids"
            )
