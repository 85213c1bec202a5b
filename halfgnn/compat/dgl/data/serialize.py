"""Files of graphs and of tensors.

A file of graphs is written by torch.save, holds tensors, numbers and names alone, and is read with ``weights_only=True``, so that
reading one runs no code of it. It is a dict:

* ``"format"``: "halfgnn.compat.dgl", ``"version"``: 1, ``"num_graphs"``, ``"labels"``: {name: tensor}, ``"formats"``: to make.
* ``"groups"``: a list of dicts. Graphs of a group have the same types and features, and are stored as one graph of their union:
  ``"places"`` (G,) in the list of graphs; ``"ntypes"``: names; ``"etypes"``: triples (id of source type, name, id of destination
  type); ``"num_nodes"`` and ``"num_edges"``: per type the numbers (G,) in each graph; ``"edges"``: per type sources and
  destinations; ``"ndata"`` and ``"edata"``: per type {feature: tensor}; ``"allowed"``: formats the graphs are restricted to;
  ``"batches"``: {place: numbers of nodes and of edges, per type, in each graph that is batched in this one}.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ..base import DGLError
from ..batch import batch, unbatch
from ..frame import Frame
from ..heterograph import DGLGraph
from ..topology import FORMATS, MetaGraph, Relation, Topology
from .dgl_files import is_dgl_file, read_dgl_file

__all__ = ["load_graphs", "load_labels", "load_tensors", "save_graphs", "save_tensors"]

_FORMAT, _VERSION = "halfgnn.compat.dgl", 1


def save_graphs(
    filename: str,
    g_list: DGLGraph | Sequence[DGLGraph],
    labels: Mapping[str, Tensor] | None = None,
    formats: str | Sequence[str] | None = None,
) -> None:
    """Write graphs with their features to a file, which :func:`load_graphs` reads. DGL does not read it.

    Args:
        filename: a local path; folders are made.
        g_list: a graph or several. Batched graphs stay batched.
        labels: tensors that belong to the graphs.
        formats: of "coo", "csr" and "csc" those that :func:`load_graphs` makes at once.
    """
    graphs = [g_list] if isinstance(g_list, DGLGraph) else list(g_list)
    wanted = [formats] if isinstance(formats, str) else list(formats or ())
    for i, graph in enumerate(graphs):
        if not isinstance(graph, DGLGraph) or graph.is_block:
            raise DGLError(f"g_list[{i}] is a {type(graph).__name__}; expected a DGLGraph")
        if set(wanted) - set(graph._graph.allowed):
            raise DGLError(
                f"formats is {wanted}; expected some of {graph._graph.allowed}, to which g_list[{i}] is restricted"
            )
    path = _local(filename)
    if os.path.isdir(path):
        raise DGLError(f"filename is {filename!r}, which is a folder; expected a file")
    os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
    content = {
        "format": _FORMAT,
        "version": _VERSION,
        "num_graphs": len(graphs),
        "labels": {name: tensor.detach().cpu().clone() for name, tensor in (labels or {}).items()},
        "formats": wanted,
        "groups": [_group(graphs, places) for places in _alike(graphs)],
    }
    torch.save(content, path)


def load_graphs(filename: str, idx_list: Sequence[int] | None = None) -> tuple[list[DGLGraph], dict[str, Tensor]]:
    """Graphs of a file that :func:`save_graphs` has written, or DGL itself, and the labels.

    idx_list: places of the graphs to return, in this order; by default all.
    """
    path = _existing(filename)
    if is_dgl_file(path):
        graphs, labels = read_dgl_file(path)
    else:
        graphs, labels = _graphs_of(_content(path))
    return [graphs[i] for i in idx_list] if idx_list is not None else graphs, labels


def load_labels(filename: str) -> dict[str, Tensor]:
    """The labels alone."""
    path = _existing(filename)
    return read_dgl_file(path)[1] if is_dgl_file(path) else _content(path)["labels"]


def _local(filename: str) -> str:
    name = os.fspath(filename)
    if "://" in name:
        raise DGLError(f"filename is {name!r}; expected a local path: copy the file")
    return name


def _existing(filename: str) -> str:
    path = _local(filename)
    if not os.path.isfile(path):
        raise DGLError(f"filename is {filename!r}, which is no file")
    return path


def _content(path: str) -> dict:
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        raise DGLError(f"{path} is no file that dgl.save_graphs has written") from error
    if not isinstance(content, dict) or content.get("format") != _FORMAT:
        raise DGLError(f"{path} is no file that dgl.save_graphs has written")
    if content["version"] > _VERSION:
        raise DGLError(
            f"{path} has version {content['version']}; expected at most {_VERSION}: a later halfgnn has written it"
        )
    return content


# ---- groups ----------------------------------------------------------------------------------------------------------------------


def _alike(graphs: Sequence[DGLGraph]) -> list[list[int]]:
    """Places of graphs with the same types and features, in groups."""
    groups: dict[Any, list[int]] = {}
    for place, graph in enumerate(graphs):
        schemes = [tuple(frame.schemes.items()) for frame in (*graph._node_frames, *graph._edge_frames)]
        key = (
            tuple(graph.ntypes),
            tuple(graph.canonical_etypes),
            graph._graph.metagraph.ends,
            graph.idtype,
            graph._graph.allowed,
            tuple(schemes),
        )
        groups.setdefault(key, []).append(place)
    return list(groups.values())


def _group(graphs: Sequence[DGLGraph], places: Sequence[int]) -> dict:
    members = [graphs[place].cpu() for place in places]
    whole = batch(members)
    topology = whole._graph
    return {
        "places": torch.tensor(places),
        "ntypes": list(whole.ntypes),
        "etypes": [(src, name, dst) for name, (src, dst) in zip(whole.etypes, topology.metagraph.ends)],
        "num_nodes": [torch.tensor([g._graph.num_nodes(i) for g in members]) for i in range(len(whole.ntypes))],
        "num_edges": [torch.tensor([g._graph.num_edges(i) for g in members]) for i in range(len(whole.etypes))],
        "edges": [relation.edges() for relation in topology.relations],
        "ndata": [_tensors(frame) for frame in whole._node_frames],
        "edata": [_tensors(frame) for frame in whole._edge_frames],
        "allowed": list(topology.allowed),
        "batches": {place: _batches(graph) for place, graph in zip(places, members) if graph.batch_size > 1},
    }


def _tensors(frame: Frame) -> dict[str, Tensor]:
    return {name: frame[name].detach() for name in frame}


def _batches(graph: DGLGraph) -> tuple[list[Tensor], list[Tensor]]:
    return (
        [graph.batch_num_nodes(ntype) for ntype in graph.ntypes],
        [graph.batch_num_edges(etype) for etype in graph.canonical_etypes],
    )


def _graphs_of(content: dict) -> tuple[list[DGLGraph], dict[str, Tensor]]:
    graphs: list[Any] = [None] * content["num_graphs"]
    for group in content["groups"]:
        for place, graph in zip(group["places"].tolist(), _members(group)):
            graphs[place] = graph
            for relation in graph._graph.relations:
                for form in content["formats"]:
                    relation.create(form)
    return graphs, content["labels"]


def _members(group: dict) -> list[DGLGraph]:
    counts = [int(numbers.sum()) for numbers in group["num_nodes"]]
    ends = [(src, dst) for src, _, dst in group["etypes"]]
    relations = [
        Relation.from_edges(u, v, counts[src], counts[dst]) for (u, v), (src, dst) in zip(group["edges"], ends)
    ]
    whole = DGLGraph(
        Topology(MetaGraph(ends, len(counts)), counts, relations, group["allowed"] or FORMATS),
        group["ntypes"],
        [name for _, name, _ in group["etypes"]],
        [Frame(data, count) for data, count in zip(group["ndata"], counts)],
        [Frame(data, relation.num_edges) for data, relation in zip(group["edata"], relations)],
    )
    num_nodes = dict(zip(whole.ntypes, group["num_nodes"]))
    members = unbatch(whole, num_nodes, dict(zip(whole.canonical_etypes, group["num_edges"])))
    places = {place: graph for place, graph in zip(group["places"].tolist(), members)}
    for place, (nodes, edges) in group["batches"].items():
        places[place].set_batch_num_nodes(dict(zip(whole.ntypes, nodes)))
        places[place].set_batch_num_edges(dict(zip(whole.canonical_etypes, edges)))
    return members


# ---- tensors ---------------------------------------------------------------------------------------------------------------------


def save_tensors(filename: str, tensor_dict: Mapping[str, Tensor]) -> bool:
    """Write named tensors to a file. Returns True."""
    path = _local(filename)
    os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
    torch.save({name: tensor.detach().cpu().clone() for name, tensor in tensor_dict.items()}, path)
    return True


def load_tensors(filename: str, return_dgl_ndarray: bool = False) -> dict[str, Tensor]:
    """The tensors of a file that :func:`save_tensors` has written."""
    if return_dgl_ndarray:
        raise DGLError("return_dgl_ndarray is True; expected False: there are no arrays but tensors")
    return torch.load(_existing(filename), map_location="cpu", weights_only=True)
