"""The wrapper of torch_geometric's softmax: over the edges that share a node."""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch import Tensor
from torch._C import TensorBase

from .... import ops
from ....common.precision import without_autocast
from ....drop_in.checkpoint import is_checkpointed
from ....drop_in.compiled import is_compiled
from ....drop_in.gate import Reason, index_reason, mode_reason
from ....drop_in.wrappers import Route as Original
from ....drop_in.wrappers import inline
from ....expressions.attention import is_exp_wide, softmax_of
from ....expressions.expression import strides_like
from ....expressions.rows import FEW_INDEXED, adds_in_half, are_plain_rows, as_int64, in_fp32
from ....expressions.values import own_values, shared_values
from ....graph import Graph
from ....ops.coo_softmax import coo_softmax
from ..accounts import fell_back, routed
from ..call import current_edges, current_module, plain
from ..gate import Call, FallBack, require
from ..message import Message, expression_of, tensor_of
from ..options import ON
from ..rows_by_index import graph_between, graph_over
from ..size import Size, is_small


@inline
def softmax(original: Original) -> Original:
    """``utils.softmax``: over the edges that share a node."""
    left_alone, is_below, counts, route = is_compiled, is_small, fell_back, _softmax
    ordinary, message, few, of_few = Tensor, Message, ("edge_softmax", Reason.FEW_VALUES), _softmax_of_few
    is_first, first, left = _is_first_use, ("edge_softmax", Reason.FIRST_USE_OF_INDEX), _left_softmax
    most_indexed = FEW_INDEXED

    def softmax_or_few(
        src: Tensor,
        index: Tensor | None = None,
        ptr: Tensor | None = None,
        num_nodes: int | None = None,
        dim: int = 0,
    ) -> Tensor:
        if left_alone() or not isinstance(src, ordinary):
            return original(src, index, ptr, num_nodes, dim)
        if type(src) is not message and is_below(src, "softmax"):
            return of_few(original, few, src, index, ptr, num_nodes, dim)
        if type(src) is type(index) is ordinary and ptr is None and is_first(src, index):
            if src.numel() <= most_indexed:
                return of_few(original, first, src, index, ptr, num_nodes, dim)
            counts[first] += 1
            return left(original, src, index, ptr, num_nodes, dim)
        return route(original, src, index, ptr, num_nodes, dim)

    return softmax_or_few


def _is_first_use(src: Tensor, index: Tensor) -> bool:
    """Whether a softmax falls back to PyG because nothing is known of its index."""
    if not src.is_cpu or index.dtype is not torch.int64 or index.layout is not torch.strided:
        return False
    return Size.of(src, "softmax").is_first_use(index, current_edges())


def _softmax_of_few(
    original: Original,
    left: tuple[str, str],
    src: Tensor,
    index: Tensor | None,
    ptr: Tensor | None,
    num_nodes: int | None,
    dim: int,
) -> Tensor:
    """PyG's softmax of a few rows by one operator, or by those of PyTorch without PyG's functions, which counts as `left`."""
    rank = src.dim()
    if ptr is None and num_nodes is not None and are_plain_rows(src, index, dim, rank):
        assert index is not None
        try:
            if mode_reason(may_be_watched=True) is None:
                out = own_values(_laid_out(coo_softmax(index, src, num_nodes), strides_like(src)))
                routed["coo_softmax"] += 1
            else:
                out = _softmax_by_pytorch(src, index, num_nodes)
                fell_back[left] += 1
            return out
        except (RuntimeError, IndexError, TypeError, ValueError):
            pass  # PyG raises its own
    fell_back[left] += 1
    return _left_softmax(original, src, index, ptr, num_nodes, dim)


def _softmax_by_pytorch(src: Tensor, index: Tensor, num_nodes: int) -> Tensor:
    zeros = src.new_zeros((num_nodes, *src.shape[1:]))
    ids = index.view(-1, *[1] * (src.dim() - 1)).expand_as(src)
    largest = TensorBase.scatter_reduce(zeros, 0, ids, src.detach(), "amax", include_self=False)
    powers = (src - TensorBase.index_select(largest, 0, index)).exp()
    total = TensorBase.index_add(zeros, 0, index, powers) + 1e-16
    return powers / TensorBase.index_select(total, 0, index)


def _left_softmax(
    original: Original, src: Tensor, index: Tensor | None, ptr: Tensor | None, num_nodes: int | None, dim: int
) -> Tensor:
    """PyG's own softmax."""
    index = as_int64(index)
    if adds_in_half(src):
        return in_fp32("softmax", lambda x: original(x, index, ptr, num_nodes, dim), src)
    return original(src, index, ptr, num_nodes, dim)


def _softmax(
    original: Original, src: Tensor, index: Tensor | None, ptr: Tensor | None, num_nodes: int | None, dim: int
) -> Tensor:
    lazy = expression_of(src)
    strides = strides_like(src if lazy is None else lazy)
    if lazy is not None and mode_reason() is None:
        out = (
            _deferred(Call.of(lazy, index, dim, num_nodes, "softmax"))
            if ON.fuse and isinstance(index, Tensor)
            else None
        )
        if out is not None:
            return out
        src = shared_values(lazy)
    src, reason = tensor_of(src, "softmax"), None
    try:
        g = _graph(Call.of(src, index if ptr is None else ptr, dim, num_nodes, "softmax"), ptr is not None)
    except FallBack as left:
        reason = left.reason
    if reason is not None:
        fell_back["edge_softmax", reason] += 1
        return _left_softmax(original, src, index, ptr, num_nodes, dim)
    routed["edge_softmax"] += 1
    if is_exp_wide(src):
        src = src.float()
    with without_autocast(src.device):
        out = _laid_out(ops.edge_softmax(g, src), strides)
    return own_values(out)  # the caller may write into it


def _graph(call: Call, is_between: bool) -> Graph:
    """The Graph of a call's index, or of offsets, which PyG prefers. Raises FallBack if PyG takes the call."""
    if not isinstance(call.index, Tensor):
        raise FallBack(Reason.NO_INDEX)
    if not is_between:
        require(index_reason(plain(call.index), call.src))
    if is_small(call.src, call.kind):
        raise FallBack(Reason.FEW_VALUES)
    if is_between:
        return graph_between(call)
    if call.size.is_first_use(call.index, current_edges()):
        raise FallBack(Reason.FIRST_USE_OF_INDEX)
    return graph_over(call, call.owner())


def _laid_out(x: Tensor, strides: tuple[int, ...] | None) -> Tensor:
    """x with the strides that PyG's operators on every value give it; None for a contiguous tensor."""
    return x if strides is None else x.new_empty_strided(x.shape, strides).copy_(x)


def _deferred(call: Call) -> Tensor | None:
    """The softmax of an expression as a message, which may become a part of a fused attention."""
    owner = call.owner()
    if owner is None or call.edges_reason(owner) is not None:
        return None
    module = current_module()
    readers = _READ[bool(getattr(module, "training", False))]
    if module in readers:
        return None
    softmax = softmax_of(call.src, *owner, call.num_rows, ON.fuse_all, lambda: _note_read(module, readers))
    return None if softmax is None else Message.of(softmax)


# Modules whose softmax was read, in evaluation and in training, by dropout or to be returned: what is deferred is then computed
# step by step, at a cost.
_READ: tuple[weakref.WeakSet[Any], weakref.WeakSet[Any]] = weakref.WeakSet(), weakref.WeakSet()


def _note_read(module: Any, readers: weakref.WeakSet[Any]) -> None:
    if module is not None and not is_checkpointed():  # which would not defer again what it recomputes
        readers.add(module)
