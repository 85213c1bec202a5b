"""Caches what torch_geometric makes of an edge_index alone at every call: self-loops, GCN's normalization, Laplacians.

It is made once per content. Callers get copies on write, which share its memory until somebody modifies one in place.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._C import TensorBase
from torch_geometric.utils import add_self_loops

from ....common.caching import is_captured, ordinary_tensors
from ....common.precision import autocasts
from ....drop_in.compiled import is_compiled, is_traced_by_dynamo
from ....drop_in.gate import mode_reason
from ....drop_in.wrappers import inline
from ....graphs_by_tensor.edge_index import lacks_loops
from ....graphs_by_tensor.made_once import copies_made_once
from ....graphs_by_tensor.store import Topology, known_topology, share_graphs, topology_of
from .. import thresholds
from ..size import may_share
from . import traced

Original = Callable[..., Any]

_NOT_HALF = (torch.float32, torch.float64)
_FLOWS = ("source_to_target", "target_to_source")
_ALL = slice(None)
# PyTorch's own: Tensor has wrappers of them.
_columns, _select, _add = TensorBase.__getitem__, TensorBase.index_select, TensorBase.index_add_


class _Inner(threading.local):
    is_part = False  # whether self-loops are made for weights, with which they are kept


_inner = _Inner()


def _is_plain(edge_index: Tensor) -> bool:
    """Whether an eager call has an edge_index whose writes are counted."""
    return not edge_index.is_inference() and mode_reason() is None


def _may_remember(edge_index: Tensor, num_nodes: Any) -> bool:
    """A CUDA graph has to make its own: what it reads when it is replayed must not be forgotten before."""
    return (num_nodes is None or isinstance(num_nodes, int)) and not is_captured(edge_index.device)


# ---- self-loops --------------------------------------------------------------------------------------------------------------


@inline
def self_loops(original: Original) -> Original:
    """``remove_self_loops``, ``add_self_loops`` and ``add_remaining_self_loops``: PyG's, whose new edge_index shares its graphs."""
    left_alone, ordinary, limits, route, is_worth = is_compiled, Tensor, thresholds, _self_loops, may_share
    is_graph, in_graph, of_few = is_traced_by_dynamo, traced.self_loops, _self_loops_of_few

    def self_loops_or_few(edge_index: Any, *args: Any, **kwargs: Any) -> Any:
        if left_alone():
            if is_graph():
                return in_graph(original, edge_index, *args, **kwargs)
            return original(edge_index, *args, **kwargs)
        if type(edge_index) is not ordinary or edge_index.layout is not strided:
            return original(edge_index, *args, **kwargs)
        if edge_index.numel() < limits.FEW_ENDS or not is_worth(edge_index):
            return of_few(original, edge_index, *args, **kwargs)
        return route(original, edge_index, *args, **kwargs)

    strided = torch.strided
    return self_loops_or_few


def _self_loops_of_few(original: Original, edge_index: Tensor, *args: Any, **kwargs: Any) -> Any:
    """PyG's, and nothing is cached. Edges are selected only if there are self-loops among them."""
    name, edge_attr = original.__name__, kwargs.get("edge_attr", args[0] if args else None)
    if (
        name == "add_self_loops"
        or not edge_index.is_cpu
        or edge_index.dim() != 2
        or not _has_rows(edge_attr, edge_index)
    ):
        return original(edge_index, *args, **kwargs)
    if edge_index.shape[0] != 2 or torch._C._are_functorch_transforms_active():
        return original(edge_index, *args, **kwargs)
    src, dst = edge_index.unbind()
    if src.ne(dst).count_nonzero().item() < src.shape[0]:
        return original(edge_index, *args, **kwargs)
    return _where_none_are(name, edge_index, edge_attr, args, kwargs)


def _where_none_are(
    name: str, edge_index: Tensor, edge_attr: Tensor | None, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """What PyG makes of edges without self-loops, which it would select."""
    if name != "remove_self_loops":
        return add_self_loops(edge_index, *args, **kwargs)
    copies = [x if x is None else x.clone(memory_format=torch.contiguous_format) for x in (edge_index, edge_attr)]
    return copies[0], copies[1]


def _self_loops(original: Original, edge_index: Tensor, *args: Any, **kwargs: Any) -> Any:
    """From the second call on without data of edges they are remembered. Batches of new edges do not pay for it."""
    edge_attr = kwargs.get("edge_attr", args[0] if args else None)
    num_nodes = kwargs.get("num_nodes", args[2] if len(args) > 2 else None)
    how = original.__name__, num_nodes
    if not _is_plain(edge_index):
        result = original(edge_index, *args, **kwargs)
        if mode_reason(may_be_watched=True) is None and (num_nodes is None or isinstance(num_nodes, int)):
            share_graphs(edge_index, how, result[0])
        return result
    if edge_attr is not None or _inner.is_part or not _may_remember(edge_index, num_nodes):
        return _with_shared_graphs(original, how, edge_index, *args, **kwargs)
    topology = topology_of(edge_index)
    if how not in topology.derived:
        with ordinary_tensors():  # those of inference mode could not share a graph
            return _with_shared_graphs(original, how, edge_index, *args, **kwargs)

    def make() -> tuple[Tensor]:
        return _with_shared_graphs(original, how, edge_index, *args, **kwargs)[:1]

    return *copies_made_once(topology, how, make), None


def _with_shared_graphs(
    original: Original, how: tuple[str, Any], edge_index: Tensor, *args: Any, **kwargs: Any
) -> tuple[Tensor, Tensor | None]:
    """Where there are known to be no self-loops, PyG need not look for those that remain."""
    name, num_nodes = how
    edge_attr = kwargs.get("edge_attr", args[0] if args else None)
    if name == "add_self_loops" or not _has_rows(edge_attr, edge_index) or not _lacks_loops(edge_index):
        result = original(edge_index, *args, **kwargs)
    else:
        result = _where_none_are(name, edge_index, edge_attr, args, kwargs)
    if type(result[0]) is Tensor and (num_nodes is None or isinstance(num_nodes, int)):
        share_graphs(edge_index, how, result[0])
    return result


def _has_rows(edge_attr: Any, edge_index: Tensor) -> bool:
    """Whether edge_attr, if there is one, has a row for each edge."""
    return edge_attr is None or (isinstance(edge_attr, Tensor) and edge_attr.shape[:1] == edge_index.shape[1:])


def _lacks_loops(edge_index: Tensor) -> bool:
    """Whether no edge is known to be a self-loop. It may be asked where nothing may wait for the device."""
    return not edge_index.is_meta and not is_captured(edge_index.device) and lacks_loops(edge_index)


# ---- weights -----------------------------------------------------------------------------------------------------------------


@inline
def gcn_norm(original: Original) -> Original:
    """``gcn_norm``: an edge_index with self-loops, and the weight of each edge by the degrees of its ends."""
    left_alone, ordinary, of_tensor, route = is_compiled, Tensor, known_topology, _weights
    default = torch.get_default_dtype
    is_graph, in_graph, of_few = is_traced_by_dynamo, traced.gcn_norm, _gcn_norm_of_few

    def gcn_norm_or_kept(
        edge_index: Any,
        edge_weight: Any = None,
        num_nodes: Any = None,
        improved: bool = False,
        add_self_loops: bool = True,
        flow: str = "source_to_target",
        dtype: Any = None,
    ) -> Any:
        options = num_nodes, improved, add_self_loops, flow, dtype
        if left_alone():
            if is_graph():
                return in_graph(original, edge_index, edge_weight, *options)
            return original(edge_index, edge_weight, *options)
        if type(edge_index) is not ordinary or not (edge_weight is None or type(edge_weight) is ordinary):
            return original(edge_index, edge_weight, *options)
        topology = of_tensor(edge_index)
        if topology is None:
            made = of_few(edge_index, edge_weight, *options)
            return original(edge_index, edge_weight, *options) if made is None else made
        if edge_weight is not None or not (topology.graphs or topology.derived):  # hardly used before
            return original(edge_index, edge_weight, *options)
        key = "gcn_norm", num_nodes, bool(improved), bool(add_self_loops), flow, dtype or default()
        return route(original, topology, edge_index, options, key)

    return gcn_norm_or_kept


def _gcn_norm_of_few(
    edge_index: Tensor, weight: Tensor | None, num_nodes: Any, improved: bool, with_loops: bool, flow: str, dtype: Any
) -> tuple[Tensor, Tensor] | None:
    """PyG's gcn_norm of a few edges, by the same sums and products with fewer operators. None: the call falls back, or is cached.

    Edges are selected only if there are self-loops among them.
    """
    dtype = weight.dtype if weight is not None else dtype or torch.get_default_dtype()
    is_plain = edge_index.layout is torch.strided and edge_index.is_cpu and edge_index.dtype is torch.int64
    if (
        not is_plain
        or type(num_nodes) is not int
        or dtype not in _NOT_HALF
        or flow not in _FLOWS
        or edge_index.dim() != 2
    ):
        return None
    if edge_index.shape[0] != 2 or (weight is not None and (weight.shape != edge_index.shape[1:] or not weight.is_cpu)):
        return None
    if (improved and weight is None) or (
        with_loops and edge_index.numel() >= thresholds.FEW_ENDS and may_share(edge_index)
    ):
        return None
    try:
        src, dst = edge_index.unbind()
        if with_loops:
            is_edge = src.ne(dst)
            if is_edge.count_nonzero().item() < is_edge.shape[0]:
                if weight is not None:
                    return None
                edge_index = _columns(edge_index, (_ALL, is_edge))
            loops = torch.arange(num_nodes, device=edge_index.device).expand(2, -1)
            edge_index = torch.cat([edge_index, loops], 1)
            src, dst = edge_index.unbind()
            if weight is not None:
                weight = torch.cat([weight, weight.new_full((num_nodes,), 2.0 if improved else 1.0)])
        values = edge_index.new_ones(src.shape[0], dtype=dtype) if weight is None else weight
        degree = _add(values.new_zeros(num_nodes), 0, dst if flow == _FLOWS[0] else src, values)
        root = degree.pow_(-0.5)
        if not with_loops or weight is not None:
            root.masked_fill_(root == float("inf"), 0)
        at_src, at_dst = _select(root, 0, src), _select(root, 0, dst)
        return edge_index, at_src.mul_(at_dst) if weight is None else at_src * weight * at_dst
    except (RuntimeError, IndexError):  # ids that PyG reads from the end, or does not take
        return None


@inline
def laplacian(original: Original) -> Original:
    """``get_laplacian``: an edge_index with self-loops, and the Laplacian's values."""
    left_alone, ordinary, of_tensor, route = is_compiled, Tensor, known_topology, _weights
    default = torch.get_default_dtype
    has_autocast = autocasts

    def laplacian_or_kept(
        edge_index: Any, edge_weight: Any = None, normalization: Any = None, dtype: Any = None, num_nodes: Any = None
    ) -> Any:
        options = normalization, dtype, num_nodes
        if edge_weight is not None or left_alone() or type(edge_index) is not ordinary:
            return original(edge_index, edge_weight, *options)
        topology = of_tensor(edge_index)
        if topology is None or not (topology.graphs or topology.derived):  # hardly used before
            return original(edge_index, edge_weight, *options)
        is_widened = has_autocast(edge_index.device)  # which autocast does to a reciprocal
        key = "laplacian", num_nodes, normalization, dtype or default(), is_widened
        return route(original, topology, edge_index, options, key)

    return laplacian_or_kept


def _weights(
    original: Original,
    topology: Topology,
    edge_index: Tensor,
    options: tuple[Any, ...],
    key: tuple[Any, ...],
) -> tuple[Tensor, Tensor]:
    """original(edge_index, None, *options). key: of which its result is made; the second entry is the number of nodes."""
    if not _is_plain(edge_index) or not _may_remember(edge_index, key[1]):
        return original(edge_index, None, *options)

    def make() -> tuple[Tensor, ...]:
        _inner.is_part = True
        try:
            edges, weights = original(edge_index, None, *options)
        finally:
            _inner.is_part = False
        # What is kept must not keep the edge_index, with which it is forgotten.
        return (weights,) if edges is edge_index else (edges, weights)

    *edges, weights = copies_made_once(topology, key, make)
    return edges[0] if edges else edge_index, weights
