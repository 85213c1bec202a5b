"""Mini-batches of any kind: the tensors, rows and graphs in them, and copies with others in their place."""

from __future__ import annotations

import copy
import dataclasses
import functools
import sys
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from ..dgl_index import is_dgl_graph
from ..graph import Graph
from ..heterograph import Block, HeteroGraph
from .feature_store import Rows

Leaf = Callable[[Any], Any]  # of a Tensor, Rows or a DGLGraph


def mapped(batch: Any, leaf: Leaf) -> Any:
    """`batch` with leaf(x) in place of every tensor, :class:`Rows` and DGL graph in it, and of the tensors of graphs.

    Containers are tuples, named tuples, PackedSequences, lists, mappings, dataclasses, Graphs, HeteroGraphs, Blocks and
    torch_geometric's data. Other objects stay as they are.
    """
    if isinstance(batch, (Tensor, Rows)) or moves_with_features(batch):
        return leaf(batch)
    if isinstance(batch, (Graph, HeteroGraph)):
        return batch._map(leaf)
    if isinstance(batch, PackedSequence):  # batch_sizes stays on the CPU
        parts = {name: mapped(getattr(batch, name), leaf) for name in ("data", "sorted_indices", "unsorted_indices")}
        return batch._replace(**parts)
    if isinstance(batch, tuple):
        return _tuple(batch, [mapped(part, leaf) for part in batch])
    if isinstance(batch, list):
        return [mapped(part, leaf) for part in batch]
    if isinstance(batch, Mapping):
        return _mapping(batch, {key: mapped(part, leaf) for key, part in batch.items()})
    if dataclasses.is_dataclass(batch) and not isinstance(batch, type):
        return _dataclass(batch, leaf)
    if is_pyg(batch):
        return copy.copy(batch).apply(lambda part: mapped(part, leaf))
    return batch


def moves_with_features(x: Any) -> bool:
    """Whether it is a DGLGraph, of DGL's own or of halfgnn.compat: its method `to` moves structure and features."""
    return is_dgl_graph(x) or (hasattr(x, "__halfgnn_graph__") and hasattr(x, "record_stream"))


def _tuple(batch: tuple, parts: list) -> tuple:
    if all(part is before for part, before in zip(parts, batch)):
        return batch  # a torch.Size, for example, which takes integers only
    if hasattr(batch, "_make"):
        return type(batch)._make(parts)
    if hasattr(batch, "n_sequence_fields"):  # a result of torch.max, for example
        return type(batch)(parts)  # type: ignore[call-arg]
    return tuple(parts) if type(batch) is tuple else tuple.__new__(type(batch), parts)


def _mapping(batch: Mapping, parts: dict) -> Any:
    if type(batch) is dict:
        return parts
    try:
        again: Any = copy.copy(batch)
        for key, part in parts.items():
            again[key] = part
        return again
    except (AttributeError, TypeError):
        return parts


def _dataclass(batch: Any, leaf: Leaf) -> Any:
    again = copy.copy(batch)
    for field in dataclasses.fields(batch):
        if hasattr(batch, field.name):
            object.__setattr__(again, field.name, mapped(getattr(batch, field.name), leaf))
    return again


def is_pyg(batch: Any) -> bool:
    """Whether it is a Data, HeteroData or batch of torch_geometric."""
    data = sys.modules.get("torch_geometric.data.data")
    return data is not None and isinstance(batch, data.BaseData)


# ---- DGL ---------------------------------------------------------------------------------------------------------------------


@functools.cache
def dgl_has(device_type: str) -> bool:
    """Whether this DGL can hold a graph on such a device. Its wheels on PyPI cannot hold one on a GPU."""
    import dgl

    try:
        dgl.graph(([0], [0])).to(torch.device(device_type))
    except Exception:
        return False
    return True


def without_dgl(batch: Any) -> Any:
    """`batch` with a :class:`Block` in place of every DGL graph.

    Ids are int32 if they fit. Both adjacencies and the stack of relations are made here, so that none is made on the GPU.
    """
    return mapped(batch, lambda x: _block(x) if is_dgl_graph(x) else x)


def _block(g: Any) -> Block:
    return Block(_topology(g), *(_data(view) for view in (g.srcdata, g.dstdata, g.edata)))


def _topology(g: Any) -> HeteroGraph:
    whole = HeteroGraph.from_dgl(g)
    if len(whole) > 1:
        whole.stack()
    whole = _narrow(whole)
    (whole.stack().graph if len(whole) > 1 else whole[whole.canonical_etypes[0]]).csr()
    return whole


def _narrow(graph: Any) -> Any:
    try:
        return graph.int()
    except ValueError:  # too many nodes or edges
        return graph


def _data(view: Any) -> dict[str, Any]:
    return {name: dict(data) if isinstance(data, Mapping) else data for name, data in view.items()}
