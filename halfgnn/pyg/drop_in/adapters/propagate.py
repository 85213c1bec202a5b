"""``MessagePassing.propagate``: what it notes of a call, and the features of nodes that it gathers for edges."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch._C import TensorBase
from torch_geometric.nn import MessagePassing, aggr

from ....common.precision import HALF
from ....drop_in.compiled import is_compiled
from ....drop_in.gate import Reason, mode_reason
from ....drop_in.wrappers import Route as Original
from ....drop_in.wrappers import inline
from ....expressions.propagation import Propagation
from ....expressions.rows import gathered_rows
from ....graphs_by_tensor.store import is_heard_of
from .. import thresholds
from ..accounts import accounts, fell_back
from ..call import FEW, begin, current, current_call, current_edges, plain
from ..edge_lists import taken
from ..gate import FallBack, eager_reason, ids_reason, require
from ..message import gather
from ..size import Size, count_of, has_gradient, is_new_and_small
from .refused_graphs import refuse_graph

_select_rows = TensorBase.index_select  # PyTorch's own: Tensor has a wrapper of it
_EXTREMES = (aggr.MaxAggregation, aggr.MinAggregation)


@inline
def check_input(original: Original) -> Original:
    """``MessagePassing._check_input``, which is the first that a call of propagate or edge_updater does."""
    left_alone, of_index, note, strided, ordinary = is_compiled, plain, begin, torch.strided, Tensor
    refuse_if_graph = refuse_graph

    def _check_input(self: Any, edge_index: Any, size: Any) -> Any:
        if type(edge_index) is not ordinary and not left_alone():
            refuse_if_graph(self, edge_index)
        mutable_size = original(self, edge_index, size)
        if not left_alone():
            edges = edge_index if type(edge_index) is ordinary else of_index(edge_index)
            is_dense = isinstance(edges, ordinary) and edges.layout is strided
            note(edges if is_dense else None, mutable_size, self)
        return mutable_size

    return _check_input


@inline
def index_select(original: Original) -> Original:
    """``MessagePassing._index_select``: features of one side's nodes for every edge."""
    left_alone, limits, counts, select, last_call = is_compiled, thresholds, fell_back, _index_select, current_call
    few, extremes, few_rows = ("propagate", Reason.FEW_VALUES), _EXTREMES, _few_rows
    first, of_few = ("propagate", Reason.FIRST_USES_OF_EDGE_INDEX), FEW

    def _index_select_or_few(self: Any, src: Tensor, index: Tensor) -> Tensor:
        if left_alone():
            return original(self, src, index)
        num_values, num_nodes = src.numel() * index.numel(), src.size(self.node_dim) if src.dim() > 1 else src.numel()
        num_values = num_values // limits.GPU_SPEED if src.is_cuda else num_values
        if num_values < limits.FEW * num_nodes or (  # before anything else: a call on a small graph takes 10 us
            num_values < limits.FEW_SUMMED * num_nodes and type(self._modules.get("aggr_module")) not in extremes
        ):
            counts[few] += 1
            return few_rows(self, src, index)
        num_values //= num_nodes or 1
        call = last_call()
        # What was found of the first rows of a call holds for others that are no more.
        if call is not None and (found := call[of_few]) is not None and num_values <= found[0]:
            found[1][1] += num_values
            counts[first] += 1
            return few_rows(self, src, index)
        return select(original, self, src, index, num_values)

    return _index_select_or_few


def _few_rows(self: Any, src: Tensor, index: Tensor) -> Tensor:
    """What the original does, after it has asked whether this is compiled, and by a wrapper, which takes as long as few rows do."""
    safe = type(self)._index_select_safe
    if safe is not MessagePassing._index_select_safe or src.dtype in HALF:
        return self._index_select_safe(src, index)
    try:
        if self.node_dim == 0 or self.node_dim + src.dim() == 0:
            return taken(src, index)
        return _select_rows(src, self.node_dim, index)
    except (IndexError, RuntimeError):  # torch_geometric raises its own
        return self._index_select_safe(src, index)


def _index_select(original: Original, self: Any, src: Tensor, index: Tensor, num_values: int) -> Tensor:
    is_extreme, call = type(self._modules.get("aggr_module")) in _EXTREMES, current_call()
    with_gradient, edges = has_gradient(src), None if call is None else call[0]()
    if (
        edges is not None
        and not is_heard_of(edges)
        and is_new_and_small(edges, num_values, with_gradient, is_extreme, counts=False)
    ):
        call[FEW] = num_values, count_of(edges)  # type: ignore[index]
        fell_back["propagate", Reason.FIRST_USES_OF_EDGE_INDEX] += 1
        return _few_rows(self, src, index)
    size = Size(num_values, with_gradient, is_extreme=is_extreme)
    try:
        return _gathered(self, src, plain(index), size)
    except FallBack as left:
        fell_back["propagate", left.reason] += 1
        is_small = left.reason in (Reason.FEW_VALUES, Reason.FIRST_USES_OF_EDGE_INDEX)
    return _few_rows(self, src, index) if is_small else original(self, src, index)


def _gathered(conv: Any, src: Tensor, index: Tensor, size: Size) -> Tensor:
    """The rows as a message; in a mode that would see messages, materialized."""
    require(eager_reason(src, index))
    if size.is_below_limit():
        raise FallBack(Reason.FEW_VALUES)
    edges, propagation = current_edges(), current()
    if edges is not None and not size.pays_for(edges):
        raise FallBack(Reason.FIRST_USES_OF_EDGE_INDEX)
    if propagation is None:
        raise FallBack(Reason.SPARSE_EDGE_INDEX)
    row, dim = _side_of(conv, src, index, propagation), conv.node_dim % src.dim()
    accounts.note(src)
    if (mode := mode_reason()) is not None:
        fell_back["propagate", mode] += 1
        g = propagation.ending_in(row, src.shape[dim])
        return gathered_rows(src, index, lambda: g, dim)
    src = src.resolve_neg() if src.is_neg() else src  # operators that are called below autograd would not
    return gather(src, propagation, row, index, dim)


def _side_of(conv: Any, src: Tensor, index: Tensor, propagation: Propagation) -> int:
    """The row of edge_index by which features are gathered. Raises FallBack if they fall back to PyG."""
    require(propagation.refusal)
    dim, rank = conv.node_dim, src.dim()
    if not -rank <= dim < rank:
        raise FallBack(Reason.NODE_DIM.format(dim, rank))
    row = propagation.row_of(index)
    if row is None:
        raise FallBack(Reason.ANOTHER_INDEX)
    require(ids_reason(propagation, row, src.shape[dim]))
    return row
