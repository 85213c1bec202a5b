"""``x[index]`` and ``index_select``: what the drop-in learns from them.

A wrapper of Tensor.__getitem__ runs at every indexing of the process. Where it finds nothing it costs 0.2 microseconds.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch._C import TensorBase

from ....common.autograd import snapshot
from ....common.caching import is_captured
from ....common.precision import HALF
from ....drop_in.checkpoint import is_checkpointed
from ....drop_in.compiled import is_between_graphs, is_compiled, leave_out
from ....drop_in.gate import Reason, mode_reason
from ....drop_in.wrappers import calling_package, inline
from ....expressions.propagation import Propagation
from ....expressions.rows import has_gradient_in_half, in_fp32, rows_in_fp32
from ....graphs_by_tensor.made_once import shared_copy
from ....graphs_by_tensor.store import is_heard_of, is_known, note_selection, selected_before
from .. import relations, thresholds
from ..accounts import fell_back
from ..call import current_edges
from ..edge_lists import taken
from ..gate import FallBack, eager_reason, ids_reason, require
from ..message import gather, message_of
from ..options import ON
from ..rows_by_index import gathered
from ..size import Size, has_gradient, may_share, weighed_rows

# Packages whose own calls of methods are not routed, and the code without a name that torch.compile makes.
LEFT_ALONE = frozenset(("torch", "torch_geometric", "halfgnn", ""))
_select_rows = TensorBase.index_select  # PyTorch's own: Tensor has a wrapper of it
_ALL = slice(None)
_INTEGERS = (torch.int64, torch.int32)
_SELECTING = (torch.bool, torch.int64)  # dtypes of masks and indices


@inline
def getitem(original: Callable[..., Any]) -> Callable[..., Any]:
    """``Tensor.__getitem__``, which asks whether code is compiled where it may route a call only."""
    left_alone, between_graphs, half_types, limits = is_compiled, is_between_graphs, HALF, thresholds

    def __getitem__(self: Tensor, index: Any) -> Any:
        kind = type(index)
        if kind is tuple:
            if len(index) == 2 and type(index[1]) is type(self) is Tensor and not self.requires_grad:
                if left_alone() and not between_graphs():
                    return original(self, index)
                return _selected(original, self, index)
        elif kind is Tensor and index.dim() == 1 and index.dtype is torch.int64 and (self.dim() > 1 or self.is_cuda):
            if left_alone():
                return original(self, index)
            # _rows leaves few to PyTorch too; TGN's message store of torch_geometric takes them 1,000 times per batch.
            if self.is_cuda or index.numel() * self.numel() >= limits.FEW_ROWS * len(self):
                rows = _rows(self, index, 2) if _has_rows(self) else None
                rows = _read_by_index_select(self, index) if rows is None else rows
                if rows is not None:
                    return rows
        if self.requires_grad and self.dtype in half_types and not left_alone():
            return _taken_in_half(original, self, index)
        return original(self, index)

    return __getitem__


def _read_by_index_select(x: Tensor, index: Tensor) -> Tensor | None:
    """x[index] by PyTorch's index_select, or None if it might be another one: ids may be negative in x[index].

    On a CPU index_select reads rows three to five times as fast, and adds up their gradients twice as fast and in the order of the
    index, whereas x[index] does so in one thread alone.
    """
    is_plain = type(x) in (Tensor, nn.Parameter) and x.is_cpu and index.is_cpu and x.is_contiguous()
    if not is_plain or (x.requires_grad and x.dtype in HALF) or mode_reason() is not None:
        return None
    try:
        return taken(x, index)
    except (IndexError, RuntimeError):
        return None


def _taken_in_half(original: Callable[..., Any], x: Tensor, index: Any) -> Any:
    """Half-precision x[index] with a gradient, which PyTorch adds up in half precision on a CPU if rows may repeat."""
    if not has_gradient_in_half(x) or not _has_ids(index):
        return original(x, index)
    if type(index) is list and all(type(i) is int for i in index):
        index = torch.tensor(index, dtype=torch.int64, device=x.device)
    if type(index) is Tensor and index.dim() > 0:
        shape = x.shape

        def add(grad: Tensor, ids: Tensor) -> Tensor:
            return grad.new_zeros(shape).index_put((ids,), grad, accumulate=True)

        rows = rows_in_fp32("x[index]", lambda y: original(y, index), add, x, index)
        return original(x, index) if rows is None else rows
    if type(x) not in (Tensor, nn.Parameter) or mode_reason(may_be_watched=True) is not None:
        return original(x, index)
    return in_fp32("x[index]", lambda y: original(y, index), x)


def _has_ids(index: Any) -> bool:
    """Whether an index may name an entry twice: it has lists of ids. PyTorch takes sequences and arrays for such lists.

    By slices and single integers of any kind the result is a view of x, which a program may write to.
    """
    if isinstance(index, Tensor):
        return index.dim() > 0 and index.dtype not in (torch.bool, torch.uint8)
    if isinstance(index, tuple):
        return any(_has_ids(part) for part in index)
    if index is None or index is Ellipsis or isinstance(index, slice):
        return False
    try:
        operator.index(index)
    except TypeError:
        return True
    return False


@inline
def embedding(original: Callable[..., Any]) -> Callable[..., Any]:
    """``torch.nn.functional.embedding``, whose gradient PyTorch adds up in half precision on a CPU."""
    left_alone, ordinary, half_types, route = is_compiled, Tensor, HALF, _embedding

    def embedding_or_in_half(
        input: Any,
        weight: Any,
        padding_idx: Any = None,
        max_norm: Any = None,
        norm_type: Any = 2.0,
        scale_grad_by_freq: Any = False,
        sparse: Any = False,
    ) -> Any:
        if left_alone() or not isinstance(weight, ordinary) or weight.dtype not in half_types:
            return original(input, weight, padding_idx, max_norm, norm_type, scale_grad_by_freq, sparse)
        return route(original, input, weight, padding_idx, max_norm, norm_type, scale_grad_by_freq, sparse)

    return embedding_or_in_half


def _embedding(
    original: Callable[..., Any],
    input: Any,
    weight: Tensor,
    padding_idx: Any,
    max_norm: Any,
    norm_type: Any,
    scale_grad_by_freq: Any,
    sparse: Any,
) -> Any:
    """Of half-precision values. A sparse gradient is not added up."""
    options = padding_idx, max_norm, norm_type, scale_grad_by_freq, sparse
    if sparse or type(input) is not Tensor or not has_gradient_in_half(weight):
        return original(input, weight, *options)
    num_rows = weight.shape[0]
    padding = -1 if padding_idx is None else padding_idx + num_rows if padding_idx < 0 else padding_idx

    def add(grad: Tensor, ids: Tensor) -> Tensor:
        return torch.ops.aten.embedding_dense_backward(grad, ids, num_rows, padding, scale_grad_by_freq)

    rows = rows_in_fp32("embedding", lambda y: original(input, y, *options), add, weight, input)
    return original(input, weight, *options) if rows is None else rows


def _selected(original: Callable[..., Any], x: Tensor, index: tuple[Any, Tensor]) -> Any:
    """Columns of an edge_index: those that an equal mask selected before, as copies on write."""
    is_edge_index = x.dim() == 2 and x.shape[0] == 2 and x.dtype in _INTEGERS and x.layout == torch.strided
    if not is_edge_index or type(index[0]) is not slice or index[0] != _ALL or index[1].dim() != 1:
        return original(x, index)
    is_by_mask = index[1].dtype in _SELECTING and index[1].device == x.device
    if is_by_mask and is_heard_of(x) and mode_reason() is None and not is_captured(x.device):
        columns = selected_before(x, index[1])
        if columns is not None:
            return shared_copy(columns)
    columns = original(x, index)
    if (
        type(columns) is Tensor
        and columns.shape[1] > thresholds.FEW // thresholds.USUAL_WIDTH
        and may_share(x)
        and mode_reason() is None
    ):
        note_selection(x, index[1], columns)
    return columns


leave_out(_selected, "columns of an edge_index are noted between two graphs")


def index_select(original: Callable[..., Any], input: Any, dim: Any, index: Any, frames: int = 3, **kwargs: Any) -> Any:
    """``torch.index_select``, whose gradient may be summed by a Graph. frames: between _rows and the program."""
    if type(index) is Tensor and not kwargs and dim == 0 and isinstance(input, Tensor) and index.dim() == 1:
        rows = _rows(input, index, frames) if input.dim() > 1 and (input.requires_grad or input.dim() == 3) else None
        if rows is not None:
            return rows
    if isinstance(input, Tensor) and input.requires_grad and input.dtype in HALF and not kwargs:
        return _selected_in_half(original, input, dim, index)
    return original(input, dim, index, **kwargs)


def _selected_in_half(original: Callable[..., Any], input: Tensor, dim: Any, index: Any) -> Any:
    """PyTorch's index_select of half-precision values with a gradient, which it may add up in half precision."""
    has_rows = type(index) is Tensor and isinstance(dim, int) and -input.dim() <= dim < input.dim()
    if not has_rows or not has_gradient_in_half(input):
        return original(input, dim, index)
    shape = input.shape

    def add(grad: Tensor, ids: Tensor) -> Tensor:
        return grad.new_zeros(shape).index_add(dim, ids.view(-1), grad)

    rows = rows_in_fp32("index_select", lambda y: original(y, dim, index), add, input, index)
    return original(input, dim, index) if rows is None else rows


def index_select_of_tensor(original: Callable[..., Any], input: Any, dim: Any, index: Any) -> Any:
    """``Tensor.index_select``, which torch_geometric calls for what it does not lift."""
    if calling_package(2) in LEFT_ALONE:
        if input.requires_grad and input.dtype in HALF:
            return _selected_in_half(original, input, dim, index)
        return original(input, dim, index)
    return index_select(original, input, dim, index, 4)


def _has_rows(x: Tensor) -> bool:
    """Whether x[index] may be routed. PyTorch adds up single numbers quickly, but on CUDA it sorts the index to do so.

    Rows of a permuted x of several dimensions are permuted too, but not those that index_select makes.
    """
    if x.dim() > 2 and not x.is_contiguous():
        return False
    return x.dim() > 1 or (x.dim() == 1 and x.is_cuda and x.requires_grad)


def _rows(x: Tensor, index: Tensor, frames: int) -> Tensor | None:
    """x[index], if it does not fall back to PyTorch. frames: those between this one and the program's."""
    if x.size(0) == 0:
        return None
    num_values = weighed_rows(x, index.numel())
    if num_values < thresholds.FEW_ROWS or x.device != index.device:
        return None
    try:
        return _routed_rows(x, index, num_values, frames + 1)
    except FallBack as left:
        if x.requires_grad and torch.is_grad_enabled() and calling_package(frames) not in LEFT_ALONE:
            fell_back["x[index]", left.reason] += 1
    return None


def _routed_rows(x: Tensor, index: Tensor, num_values: int, frames: int) -> Tensor:
    """x[index]. Raises FallBack if it falls back to PyTorch."""
    size, may_be_weights = Size(num_values, has_gradient(x)), relations.may_be_weights(x, index)
    # PyTorch adds up half-precision gradients in half precision: their first uses are routed too.
    if not may_be_weights and not has_gradient_in_half(x) and size.is_first_use(index, current_edges()):
        raise FallBack(Reason.FIRST_USE_OF_INDEX)
    require(eager_reason(x, index))
    weights = relations.weights(x, index) if may_be_weights and mode_reason() is None else None
    if weights is not None:
        return message_of(weights)
    # A graph of torch.compile, whose code is in no package, returns tensors as they were when it was traced.
    if ON.fuse_all and calling_package(frames):
        try:
            return _message(x, index, size)
        except FallBack as left:
            if calling_package(frames) not in LEFT_ALONE:
                fell_back["fused:x[index]", left.reason] += 1
    return gathered(x, index)


def _message(x: Tensor, index: Tensor, size: Size) -> Tensor:
    """x[index] as a message, which may be reduced without being materialized: if the index is a row of an edge_index.

    Otherwise, or if a write to x could reach the message, it raises FallBack.
    """
    if index.is_inference() or x.is_inference():
        raise FallBack(Reason.INFERENCE_MODE)
    require(mode_reason() or (Reason.CHECKPOINT if is_checkpointed() else None))
    edges = index._base
    if type(edges) is not Tensor or edges.dim() != 2 or edges.shape[0] != 2:
        raise FallBack(Reason.NO_ROW_OF_EDGE_INDEX)
    if size.is_below_limit():
        raise FallBack(Reason.FEW_VALUES)
    if not size.pays_for(edges):
        raise FallBack(Reason.FIRST_USES_OF_EDGE_INDEX)
    if index.is_cuda and torch.cuda.is_current_stream_capturing():
        raise FallBack(Reason.CAPTURE)
    propagation = Propagation(edges, [None, None])
    row = propagation.row_of(index)
    if row is None:
        raise FallBack(Reason.NO_ROW_OF_EDGE_INDEX)
    require(ids_reason(propagation, row, x.shape[0]))
    x = x.resolve_neg() if x.is_neg() else x  # operators that are called below autograd would not
    values = snapshot(x, without_autograd=True)
    if values is x:
        raise FallBack(Reason.MEMORY)
    propagation.size[row] = x.shape[0]
    if not is_known(edges):
        propagation.ending_in(row, x.shape[0])
    return gather(x, propagation, row, index, values=values)
