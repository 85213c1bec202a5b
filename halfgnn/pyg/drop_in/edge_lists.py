"""Rows of an edge list that no Graph is made for: gathered for its edges and added up by coo_sum.

The bits are those of PyTorch's index_select and scatter_add, which make the gradients of each other by index_add and gather, and so
take about twice as long as coo_sum, which is both ways the same kernel.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch._C import TensorBase

from ...drop_in.gate import mode_reason
from ...ops import coo_sum
from . import thresholds
from .accounts import routed
from .size import has_gradient

_select_rows = TensorBase.index_select  # PyTorch's own: Tensor has a wrapper of it
_NOT_HALF = (torch.float32, torch.float64)  # coo_sum rounds sums of fp16 and bf16 once, and PyTorch at each step
_OPERATOR, _RAW = coo_sum._CooSum.operator, coo_sum._coo_sum  # type: ignore[attr-defined]  # with and without a gradient
_unwrap_if_dead = torch._C._functorch.unwrap_if_dead
_PLAIN = (Tensor, nn.Parameter)
_ERRORS = (RuntimeError, IndexError, TypeError, ValueError)  # of coo_sum; PyTorch raises its own of the same call


def may_add(index: Tensor, *operands: Tensor | None) -> bool:
    """Whether coo_sum takes the ids and operands as they are, and the code that runs is eager."""
    if type(index) is not Tensor or not index.is_cpu or index.layout is not torch.strided:
        return False
    dtype = None
    for x in operands:
        if x is None:
            continue
        if type(x) not in _PLAIN or not x.is_cpu or x.layout is not torch.strided or x.dtype not in _NOT_HALF:
            return False
        if dtype is not None and x.dtype is not dtype:
            return False
        dtype = x.dtype
    return not torch.compiler.is_compiling() and mode_reason(may_be_watched=True) is None


def taken(x: Tensor, index: Tensor) -> Tensor:
    """x[index], with PyTorch's errors for wrong ids. x (N, *), index (E,)."""
    if not has_gradient(x) or index.dim() != 1 or x.dim() == 0:
        return _select_rows(x, 0, index)
    num_values = x.numel() // (x.shape[0] or 1) * index.shape[0]
    if num_values < thresholds.EDGE_LIST or not may_add(index, x):
        return _select_rows(x, 0, index)
    try:
        return _summed(None, index, x, "sum", index.shape[0])
    except _ERRORS:
        return _select_rows(x, 0, index)


def added(rows: Tensor, index: Tensor, num_rows: int, is_mean: bool) -> Tensor | None:
    """Sums or means (num_rows, *) of rows (E, *); None if they are few, wrong or not coo_sum's."""
    if rows.numel() < thresholds.EDGE_LIST or not may_add(index, rows):
        return None
    reduce = "mean" if is_mean else "sum"
    try:
        out = _summed(index, None, rows, reduce, num_rows)
    except _ERRORS:
        return None
    routed[f"coo_sum:copy_e_{reduce}"] += 1
    return out


def _summed(row: Tensor | None, col: Tensor | None, x: Tensor, reduce: str, num_rows: int) -> Tensor:
    """coo_sum of copies. Nothing is asked here that may_add has asked, as such a call takes a few microseconds."""
    operator = _OPERATOR if has_gradient(x) else _RAW
    if operator is None or torch._C._len_torch_dispatch_stack() > 0:
        return coo_sum.coo_sum(row, col, x, None, reduce, num_rows)
    return operator(row, col, _unwrap_if_dead(x), None, "copy_lhs", reduce, num_rows)
