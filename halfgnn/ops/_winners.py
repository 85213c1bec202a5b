"""Gradients of max and min as functions that autograd differentiates.

Which edges won is a constant. So a result is made of the operands' elements at the winners, and a gradient of these elements goes
back to where they come from.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ._double_backward import Pair, aligned
from ._operands import graph_of


def winner_type(indptr: Tensor, indices: Tensor) -> torch.dtype:
    """That of the ids of winning edges, among rows that are copied."""
    return torch.int64 if indptr.dtype == torch.int64 and indices.shape[0] > 2**31 - 1 else torch.int32


def elements_at(x: Tensor, ids: Tensor, missing: float = 0) -> Tensor:
    """out[v, k] = x[ids[v, k], k] in fp32 (fp64 for fp64), or `missing` if the id is negative. x (rows, *), ids (n, *)."""
    x = x.to(torch.promote_types(x.dtype, torch.float32))
    if x.shape[0] == 0:
        return x.new_full(ids.shape, missing)
    return torch.gather(x, 0, ids.long().clamp(min=0)).masked_fill(ids < 0, missing)


def rows_of_elements(value: Tensor, ids: Tensor, num_rows: int) -> Tensor:
    """The transpose of elements_at: out[ids[v, k], k] is the sum of such value[v, k]."""
    out = value.new_zeros((num_rows, *value.shape[1:]))
    return out.scatter_add(0, ids.long().clamp(min=0), value.masked_fill(ids < 0, 0)) if num_rows else out


def source_ids(g, arg: Tensor) -> Tensor:
    """The source of each edge in arg, -1 for none."""
    src, _ = g.edges()
    if src.shape[0] == 0:
        return arg
    return src[arg.long().clamp(min=0)].long().masked_fill(arg < 0, -1)


def gradients_of_winners(op, shapes, dtypes, need_lhs, need_rhs, *saved) -> Pair:
    """Those of gspmm's operands under max or min. saved: CSC, grad, lhs, rhs and the winners."""
    csc, (grad, lhs, rhs, arg) = saved[:3], saved[3:]
    wide = torch.promote_types(grad.dtype, torch.float32)
    src = source_ids(graph_of(csc, None, shapes[0][0], grad.shape[0]), arg)
    of_lhs = of_rhs = grad.to(wide)
    x = None if lhs is None else elements_at(aligned(lhs, grad.shape[1:]), src, 1)
    y = None if rhs is None else elements_at(aligned(rhs, grad.shape[1:]), arg, 1)
    if op == "sub":
        of_rhs = -of_rhs
    elif op == "mul":
        of_lhs, of_rhs = of_lhs if y is None else of_lhs * y, of_rhs if x is None else of_rhs * x
    elif op == "div":
        of_lhs = of_lhs / y
        of_rhs = of_rhs if x is None else -of_lhs * x / y
    elif op == "relu_add":
        assert x is not None and y is not None
        # PyTorch's gradient of relu: its derivative by x + y is 0, and not None.
        of_lhs = of_rhs = torch.ops.aten.threshold_backward(of_lhs, x + y, 0)
    return (
        _rows_of_operand(of_lhs, src, shapes[0], dtypes[0]) if need_lhs else None,
        _rows_of_operand(of_rhs, arg, shapes[1], dtypes[1]) if need_rhs else None,
    )


def _rows_of_operand(value: Tensor, ids: Tensor, shape: torch.Size, dtype: torch.dtype) -> Tensor:
    rows = rows_of_elements(value, ids, shape[0])
    ones = (1,) * (value.dim() - len(shape))
    return rows.sum_to_size(shape[:1] + ones + shape[1:]).reshape(shape).to(dtype)
