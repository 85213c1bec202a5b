"""What torch_geometric makes of an edge_index alone, in compiled code: operators, because it asks how many self-loops there are, at
which torch.compile breaks its graph. They find what is cached with the edge_index when the code runs.

They have a result `key`, the same edge_index for operators of halfgnn alone: code of Inductor may have modified what it reads in
place, of which nothing is known any more.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch_geometric import utils

from ....common.caching import is_captured
from ....common.fake import register_fake, unknown_size
from ....graphs_by_tensor.made_once import copies_made_once, shared_copy
from ....graphs_by_tensor.new_ids import copy_new, library
from ....graphs_by_tensor.store import Topology, share_graphs, topology_of

Original = Callable[..., Any]
_HOW = ("remove_self_loops", "add_self_loops", "add_remaining_self_loops")

library.define(
    "self_loops(Tensor edge_index, str how, SymInt num_nodes) -> "
    "(Tensor edge_index, Tensor kept_rows, Tensor loop_rows, Tensor key)"
)
library.define(
    "gcn_norm(Tensor edge_index, SymInt num_nodes, bool improved, bool add_self_loops, str flow, ScalarType dtype) -> "
    "(Tensor edge_index, Tensor edge_weight, SymInt num_kept, Tensor key)"
)


# ---- self-loops --------------------------------------------------------------------------------------------------------------


def self_loops(
    original: Original, edge_index: Any, edge_attr: Any = None, fill_value: Any = None, num_nodes: Any = None
) -> Any:
    """``remove_self_loops``, ``add_self_loops`` and ``add_remaining_self_loops``, while torch.compile traces them."""
    how = original.__name__
    args = (edge_index, edge_attr) if how == _HOW[0] else (edge_index, edge_attr, fill_value, num_nodes)
    if not _is_plain(edge_index) or (how != _HOW[0] and not isinstance(num_nodes, (int, torch.SymInt))):
        return original(*args)
    is_filled = edge_attr is None or (how == _HOW[2] and isinstance(fill_value, (int, float)) and edge_attr.dim() == 1)
    if how != _HOW[0] and not is_filled:
        if how == _HOW[2]:
            return original(*args)
        edges = _traced_loops(edge_index, how, num_nodes)[0]
        return edges, original(*args)[1]
    edges, rows, loops, _ = _traced_loops(edge_index, how, 0 if how == _HOW[0] else num_nodes)
    if edge_attr is None:
        return edges, None
    if how == _HOW[0]:
        return edges, edge_attr.index_select(0, rows)
    loop_attr = edge_attr.new_full((num_nodes,), fill_value)
    loop_attr = loop_attr.index_put((edge_index[0].index_select(0, loops),), edge_attr.index_select(0, loops))
    return edges, torch.cat([edge_attr.index_select(0, rows), loop_attr])


def _traced_loops(edge_index: Tensor, how: str, num_nodes: Any) -> tuple[Tensor, ...]:
    results = torch.ops.halfgnn_pyg.self_loops(edge_index, how, num_nodes)
    copy_new(edge_index, results)
    return results


def _is_plain(edge_index: Any) -> bool:
    return type(edge_index) is Tensor and edge_index.layout == torch.strided and edge_index.dim() == 2


def _self_loops(edge_index: Tensor, how: str, num_nodes: int) -> tuple[Tensor, ...]:
    def make() -> tuple[Tensor, ...]:
        edges = getattr(utils, how)(edge_index, **({} if how == _HOW[0] else {"num_nodes": num_nodes}))[0]
        share_graphs(edge_index, (how, num_nodes), edges)
        if how == _HOW[1]:  # nothing to ask the device for, which a capture forbids
            return edges, *(edge_index.new_empty(0, dtype=torch.int64) for _ in range(2))
        is_loop = edge_index[0] == edge_index[1]
        return edges, (~is_loop).nonzero().view(-1), is_loop.nonzero().view(-1)

    return _made(edge_index, ("traced", how, num_nodes), make)


def _made(edge_index: Tensor, key: Any, make: Callable[[], tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
    """What is cached with the edge_index, and a key, which is the first once more.

    A replay of a CUDA graph may find other ids in the same tensor.
    """
    if is_captured(edge_index.device):
        edges, *others = make()
        return edges, *others, edges.clone()
    topology = Topology() if edge_index.is_inference() else topology_of(edge_index)
    edges, *others = copies_made_once(topology, key, make)
    return edges, *others, shared_copy(edges)


@register_fake("self_loops", namespace="halfgnn_pyg")
def _(edge_index, how, num_nodes):
    if how == _HOW[1]:
        empty = edge_index.new_empty(0, dtype=torch.int64)
        edges = edge_index.new_empty(2, edge_index.shape[1] + num_nodes)
        return edges, empty, empty.clone(), edges.clone()
    kept, loops = unknown_size(), unknown_size()
    rows = [edge_index.new_empty(size, dtype=torch.int64) for size in (kept, loops)]
    edges = edge_index.new_empty(2, kept + num_nodes)
    return edges, *rows, edges.clone()


# ---- weights -----------------------------------------------------------------------------------------------------------------


def gcn_norm(
    original: Original,
    edge_index: Any,
    edge_weight: Any,
    num_nodes: Any,
    improved: bool,
    add_self_loops: bool,
    flow: str,
    dtype: Any,
) -> Any:
    """``gcn_norm``, while torch.compile traces it."""
    if edge_weight is not None or not _is_plain(edge_index) or not isinstance(num_nodes, (int, torch.SymInt)):
        return original(edge_index, edge_weight, num_nodes, improved, add_self_loops, flow, dtype)
    dtype = torch.get_default_dtype() if dtype is None else dtype
    results = torch.ops.halfgnn_pyg.gcn_norm(edge_index, num_nodes, improved, add_self_loops, flow, dtype)
    copy_new(edge_index, results)
    edges, weights, *_ = results
    return (edges if add_self_loops else edge_index), weights


def _gcn_norm(
    edge_index: Tensor,
    num_nodes: int,
    improved: bool,
    add_self_loops: bool,
    flow: str,
    dtype: Any,
) -> tuple[Tensor, Tensor, int, Tensor]:
    def make() -> tuple[Tensor, ...]:
        normalized = utils_gcn_norm()
        ids = edge_index.clone() if is_captured(edge_index.device) else edge_index  # nothing is cached with the copy
        edges, weights = normalized(ids, None, num_nodes, improved, add_self_loops, flow, dtype)
        if edges is not ids:
            share_graphs(ids, (_HOW[2], num_nodes), edges)
        return edges.clone() if edges is edge_index else edges, weights

    key = ("traced gcn_norm", num_nodes, improved, add_self_loops, flow, dtype)
    edges, weights, edges_key = _made(edge_index, key, make)
    return edges, weights, edges.shape[1] - num_nodes if add_self_loops else edges.shape[1], edges_key


def utils_gcn_norm() -> Original:
    from torch_geometric.nn.conv.gcn_conv import gcn_norm

    return gcn_norm


@register_fake("gcn_norm", namespace="halfgnn_pyg")
def _(edge_index, num_nodes, improved, add_self_loops, flow, dtype):
    kept = unknown_size() if add_self_loops else edge_index.shape[1]
    total = kept + num_nodes if add_self_loops else kept
    edges = edge_index.new_empty(2, total)
    return edges, edge_index.new_empty(total, dtype=dtype), kept, edges.clone()


for _name, _function in (("self_loops", _self_loops), ("gcn_norm", _gcn_norm)):
    library.impl(_name, _function, "CompositeExplicitAutograd")
