"""``x[index]`` and ``index_select``: what the drop-in learns from them.

A stand-in of Tensor.__getitem__ runs at every indexing of the process. Where it finds nothing it costs 0.2 microseconds.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..common.autograd import snapshot
from ..common.drop_in import Bindings, calling_package, is_checkpointed, stand_in
from ..common.refusals import refuse_mode
from ..common.sequence_slot import can_clear
from . import _operators, _relations, _worth
from ._graph import is_known, is_worth_a_graph, may_share, note_selection
from ._indices import gathered
from ._messages import lifted
from ._operators import refuse_ids, refuse_rows
from ._propagation import Propagation, is_first_use

# Packages whose own calls of methods are not routed, and the code without a name that torch.compile makes.
LEFT_ALONE = frozenset(("torch", "torch_geometric", "halfgnn", ""))
_ALL = slice(None)
_INTEGERS = (torch.int64, torch.int32)


def install(bindings: Bindings) -> None:
    if not can_clear():
        return
    original = Tensor.__getitem__

    def __getitem__(self: Tensor, index: Any) -> Any:
        kind = type(index)
        if kind is tuple:
            if len(index) == 2 and type(index[1]) is type(self) is Tensor:
                return _selected(original(self, index), self, index)
        elif kind is Tensor and index.dim() == 1 and index.dtype is torch.int64 and _has_rows(self):
            rows = _rows(self, index)
            if rows is not None:
                return rows
        return original(self, index)

    bindings.bind(Tensor, "__getitem__", __getitem__)
    bindings.bind(Tensor, "index_select", stand_in(Tensor.index_select, _index_select))


def _selected(columns: Any, x: Tensor, index: tuple[Any, Tensor]) -> Any:
    """Columns of an edge_index."""
    if torch._C._is_tracing():
        return columns
    is_edge_index = x.dim() == 2 and x.shape[0] == 2 and x.dtype in _INTEGERS and x.layout == torch.strided
    if (
        is_edge_index
        and type(index[0]) is slice
        and index[0] == _ALL
        and index[1].dim() == 1
        and type(columns) is Tensor
        and columns.shape[1] > _worth.FEW // _worth.USUAL_WIDTH
        and may_share(x)
        and refuse_mode() is None
    ):
        note_selection(x, columns)
    return columns


def index_select(original: Callable[..., Any], input: Any, dim: Any, index: Any, **kwargs: Any) -> Any:
    """``torch.index_select``, whose gradient may be summed by a Graph."""
    if type(index) is Tensor and not kwargs and dim == 0 and isinstance(input, Tensor) and index.dim() == 1:
        rows = _rows(input, index) if input.dim() > 1 and (input.requires_grad or input.dim() == 3) else None
        if rows is not None:
            return rows
    return original(input, dim, index, **kwargs)


def _index_select(original: Callable[..., Any], input: Any, dim: Any, index: Any) -> Any:
    """``Tensor.index_select``, which torch_geometric calls for what it does not lift."""
    if calling_package(2) in LEFT_ALONE:
        return original(input, dim, index)
    return index_select(original, input, dim, index)


def _has_rows(x: Tensor) -> bool:
    """Whether x[index] may be routed. PyTorch adds up single numbers quickly, but on CUDA it sorts the index to do so."""
    return x.dim() > 1 or (x.dim() == 1 and x.is_cuda and x.requires_grad)


def _rows(x: Tensor, index: Tensor) -> Tensor | None:
    """x[index], if it is not left to PyTorch."""
    if torch.compiler.is_compiling() or torch._C._is_tracing() or x.size(0) == 0:
        return None
    num_values = _worth.weighed_rows(x, index.numel())
    if num_values < _worth.FEW_ROWS or x.device != index.device:
        return None
    if x.dim() != 3 and is_first_use(index, num_values, x.requires_grad, "message"):
        return None
    if (refuse_mode() or refuse_rows(x)) is not None:
        return None
    rows = _relations.weights(x, index) if x.dim() == 3 else None
    if rows is None and _operators.FUSE_ALL:
        rows = _message(x, index, num_values)
    return gathered(x, index) if rows is None else rows


def _message(x: Tensor, index: Tensor, num_values: int) -> Tensor | None:
    """x[index] as a message, which may be reduced without being formed: if the index is a row of an edge_index.

    None if it is not, or if a write to x could reach the message.
    """
    if index.is_inference() or x.is_inference() or is_checkpointed():
        return None
    edges, with_gradient = index._base, x.requires_grad and torch.is_grad_enabled()
    if type(edges) is not Tensor or edges.dim() != 2 or edges.shape[0] != 2:
        return None
    if _worth.are_few(num_values, with_gradient, False) or not is_worth_a_graph(edges, num_values, with_gradient):
        return None
    if index.is_cuda and torch.cuda.is_current_stream_capturing():
        return None
    propagation = Propagation(edges, [None, None])
    row = propagation.row_of(index)
    if row is None or refuse_ids(propagation, row, x.shape[0]) is not None:
        return None
    x = x.resolve_neg() if x.is_neg() else x  # below autograd PyTorch would not
    values = snapshot(x, with_history=False, without_autograd=True)
    if values is x:
        return None
    propagation.size[row] = x.shape[0]
    if not is_known(edges):
        propagation.ending_in(row, x.shape[0])
    return lifted(x, propagation, row, index, values=values)
