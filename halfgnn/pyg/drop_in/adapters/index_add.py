"""Rows that programs add up by PyTorch's own operators: ``index_add``, ``scatter_add``, and ``scatter_reduce`` of sums and means.

PyTorch's index_add on the CPU adds one row after the other, and scatter_add sorts the index at every call. Programs that do
without torch_geometric's scatter call them, mostly in place on zeros. Calls that torch_geometric and PyTorch make are left alone:
the wrappers of torch_geometric's functions were asked before. But no index_add of half-precision values on the CPU rounds at every
step.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ....common.caching import ordinary_tensors
from ....common.precision import HALF
from ....drop_in.gate import Reason, index_reason, mode_reason
from ....drop_in.wrappers import calling_package
from .. import thresholds
from ..accounts import fell_back, routed
from ..calls import reduced_call
from ..gate import Call, FallBack, require
from ..message import Message
from ..size import is_small
from .indexing import LEFT_ALONE

Original = Callable[..., Any]

_CALLER = 3  # frames above _reduced: a route, its wrapper, and then the program


def index_add(original: Original, input: Any, dim: Any, index: Any, source: Any, **options: Any) -> Any:
    """``torch.index_add``, ``Tensor.index_add`` and ``index_add_``."""
    rows = _reduced("index_add", "sum", input, dim, index, source, "alpha" if options else None)
    if rows is not None:
        return _added(original, input, rows)
    is_half = isinstance(source, Tensor) and source.dtype in HALF and options.keys() <= {"alpha"}
    if is_half and _may_repeat(input, dim, index, source) and not (_is_in_place(original) and _share(input, source)):
        return _added_in_half(original, input, dim, index, source, **options)
    return original(input, dim, index, source, **options)


def _may_repeat(input: Any, dim: Any, index: Any, source: Tensor) -> bool:
    """Whether a half-precision index_add may add several rows to one, on a CPU. PyTorch gets the calls that it refuses."""
    return (
        type(input) is Tensor
        and type(source) in (Tensor, Message)
        and type(index) is Tensor
        and isinstance(dim, int)
        and source.is_cpu
        and input.dtype is source.dtype
        and input.dim() == source.dim() > 0
        and -source.dim() <= dim < source.dim()
        and index.shape == source.shape[dim : dim + 1 or None]
        and all(a == b for i, (a, b) in enumerate(zip(input.shape, source.shape)) if i != dim % source.dim())
        and index.numel() > 1
        and (mode_reason(may_be_watched=True) or index_reason(index, source)) is None
    )


def _share(input: Tensor, source: Tensor) -> bool:
    """Whether both may be in the same memory, which PyTorch refuses if one is modified in place."""
    return type(source) is Tensor and input.untyped_storage().data_ptr() == source.untyped_storage().data_ptr()


def _added_in_half(
    original: Original, input: Tensor, dim: int, index: Tensor, source: Tensor, alpha: float = 1
) -> Tensor:
    """index_add of half-precision values in fp32: of the rows that the index names. Each is rounded once."""
    with ordinary_tensors():
        ids, places = index.long().unique(return_inverse=True)
    try:
        there = input.index_select(dim, ids)
    except IndexError:  # PyTorch's index_add has its own
        return original(input, dim, index, source, alpha=alpha)
    routed["fp32:index_add"] += 1
    rows = there.float().index_add(dim, places, source.float(), alpha=alpha).to(input.dtype)
    return (
        input.index_copy_(dim, ids, rows) if _is_in_place(original) else input.index_copy(dim, ids, rows).contiguous()
    )


def scatter_add(original: Original, input: Any, dim: Any, index: Any, src: Any, **options: Any) -> Any:
    """``torch.scatter_add``, ``Tensor.scatter_add`` and ``scatter_add_``."""
    rows = None if options else _reduced("scatter_add", "sum", input, dim, index, src)
    if rows is None:
        return original(input, dim, scattered_by(index), src, **options)
    return _added(original, input, rows)


def scatter_reduce(original: Original, input: Any, dim: Any, index: Any, src: Any, reduce: Any, **options: Any) -> Any:
    """``torch.scatter_reduce``, ``Tensor.scatter_reduce`` and ``scatter_reduce_``.

    Extremes are PyTorch's, which divides their gradients among equal rows, and so are means that count the row that is there.
    """
    include_self = options.pop("include_self", True)
    is_routed = reduce == "sum" if include_self else reduce in ("sum", "mean") and _is_constant(input)
    reason = None if is_routed else Reason.NO_OPERATOR
    rows = None if options else _reduced("scatter_reduce", reduce, input, dim, index, src, reason)
    if rows is None:
        return original(input, dim, scattered_by(index), src, reduce, include_self=include_self, **options)
    if include_self:
        return _added(original, input, rows)
    shape = input.shape[0], *[1] * (rows.dim() - 1)
    has_rows = torch.zeros(shape, dtype=torch.bool, device=input.device).index_fill_(0, _of_rows(index).long(), True)
    out = torch.where(has_rows, rows, input).contiguous()
    return input.copy_(out) if _is_in_place(original) else out


def _is_constant(input: Any) -> bool:
    return isinstance(input, Tensor) and not input.requires_grad


def _is_in_place(original: Original) -> bool:
    return original.__name__.endswith("_")


def _added(original: Original, input: Tensor, rows: Tensor) -> Tensor:
    return input.add_(rows) if _is_in_place(original) else (input + rows).contiguous()  # as PyTorch's


def _of_rows(index: Tensor) -> Tensor:
    """The index (E,) of which scatter's (E, *) is an expanded view."""
    return index.as_strided(index.shape[:1], index.stride()[:1])


def scattered_by(index: Any) -> Any:
    """The index in int64, expanded as it was. PyTorch's scatter raises for some of int32, and its gradient gathers wrong rows."""
    if type(index) is not Tensor or index.dtype is not torch.int32:
        return index
    if index.layout != torch.strided or index.dim() < 2 or index.numel() == 0 or any(index.stride()[1:]):
        return index.to(torch.int64)
    return _of_rows(index).to(torch.int64).view(-1, *[1] * (index.dim() - 1)).expand(index.shape)


def _reduced(
    name: str, reduction: str, input: Any, dim: Any, index: Any, src: Any, reason: str | None = None
) -> Tensor | None:
    """The rows of src (E, *) reduced to those of input (N, *) by the index; None if they fall back to PyTorch.

    reason: why they are, if the caller knows.
    """
    if (
        not isinstance(src, Tensor)
        or src.numel() < thresholds.FEW_ROWS
        or src.dim() == 0
        or not isinstance(index, Tensor)
        or not isinstance(input, Tensor)
        or calling_package(_CALLER) in LEFT_ALONE
    ):
        return None
    try:
        require(reason or _reason(name, reduction, input, dim, index, src))
        vector = index if name == "index_add" else _of_rows(index)
        rows = reduced_call(name, Call.of(src, vector, 0, input.shape[0], reduction))
    except FallBack as left:
        fell_back[name, left.reason] += 1
        return None
    return rows if rows.dtype is input.dtype else None


def _reason(name: str, reduction: str, input: Tensor, dim: Any, index: Tensor, src: Tensor) -> str | None:
    if type(input) is not Tensor:
        return Reason.SUBCLASS_OF_TENSOR
    reason = mode_reason(may_be_watched=True) or index_reason(index, src)
    if reason is not None:
        return reason
    if type(src) is not Message and is_small(src, reduction):
        return Reason.FEW_VALUES
    if dim != 0 and dim != -src.dim():
        return Reason.ANOTHER_DIMENSION
    if input.shape[1:] != src.shape[1:] or input.dtype is not src.dtype or input.device != src.device:
        return Reason.ANOTHER_SHAPE
    if name == "index_add":
        return None if index.shape == src.shape[:1] else Reason.ANOTHER_SHAPE
    return None if index.shape == src.shape and not any(index.stride()[1:]) else Reason.INDEX_PER_VALUE
