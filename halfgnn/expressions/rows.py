"""Rows of nodes, one for each edge, and what PyTorch would add up in half precision.

On a CPU PyTorch rounds at every step when it adds up half-precision values in segment_reduce, in index_add (in some layouts and on
some processors), and in the gradients of ``x[index]``, ``index_select`` and ``embedding``. Such sums stop growing at 256 in bf16
and at 2048 in fp16. Calls of this kind that no Graph sums, because they are small or have another form, are made here: by PyTorch's
own operators in fp32, rounded once. ``stats()`` counts them as ``"fp32:..."``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from .. import ops
from ..common.autograd import apply
from ..common.precision import HALF, without_autocast
from ..drop_in.gate import mode_reason
from ..graph import Graph
from .accounts import routed

_COPIED = (*HALF, torch.float32)
FEW_INDEXED = 16_384  # values of which index_add and its gradient take less time than scatter_add


def is_copied(x: Tensor) -> bool:
    """Whether a Graph copies rows of x faster than PyTorch: on CUDA, where index_select reads whole rows at a tenth of the GPU's
    rate (docs/tuning.md, predictions)."""
    return x.is_cuda and x.dim() > 1 and x.dtype in _COPIED and 0 not in x.shape


def rows_at(x: Tensor, index: Tensor, graph: Callable[[], Graph]) -> Tensor:
    """x[index] (E, *).

    graph: gives a Graph whose edges end in the nodes that the entries of the index name, in their order.
    """
    if not is_copied(x):
        return x.index_select(0, index)
    with without_autocast(x.device):
        return ops.gsddmm(graph(), "copy_lhs", x, None, "v", "v")


def gathered_rows(x: Tensor, index: Tensor, graph: Callable[[], Graph], dim: int = 0) -> Tensor:
    """x.index_select(dim, index), whose gradient is summed by a Graph with an edge per entry, into the nodes that it names."""
    if not (x.requires_grad and torch.is_grad_enabled()):
        return rows_at(x, index, graph) if dim == 0 else x.index_select(dim, index)
    rows = apply(GatherRows, x if dim == 0 else x.movedim(dim, 0).contiguous(), index, graph())
    return rows if dim == 0 else rows.movedim(0, dim).contiguous()


class GatherRows(torch.autograd.Function):
    """x[index] (E, *), of whose index g is a Graph."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, index: Tensor, g: Graph) -> Tensor:
        ctx.g = g
        return rows_at(x, index, lambda: g)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        with without_autocast(grad.device):
            return ops.gspmm(ctx.g, "copy_rhs", "sum", None, grad), None, None


def are_plain_rows(src: Tensor, index: Any, dim: int, rank: int) -> bool:
    """Whether PyTorch's operators add up rows of src, of so many dimensions, as PyG does."""
    return (
        rank > 0
        and (dim == 0 or dim == -rank)
        and src.is_cpu
        and (src.dtype is torch.float32 or src.dtype is torch.float64)  # half-precision sums would round at each step
        and type(index) is Tensor
        and index.dtype is torch.int64
        and index.dim() == 1
    )


def as_int64(index: Any) -> Any:
    """An index for PyTorch's scatter, which raises or gathers wrong rows by some of int32, and torch_geometric with it."""
    return index.to(torch.int64) if isinstance(index, Tensor) and index.dtype is torch.int32 else index


# ---- what PyTorch would add up in half precision ---------------------------------------------------------------------------------


def adds_in_half(x: Tensor) -> bool:
    """Whether PyTorch may add up values of x, or their gradients, in half precision."""
    return x.dtype in HALF and x.is_cpu


def has_gradient_in_half(x: Tensor) -> bool:
    """Whether PyTorch may add up the gradient of rows of x in half precision."""
    return x.requires_grad and x.dtype in HALF and x.is_cpu and torch.is_grad_enabled()


def in_fp32(name: str, function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """function(x), computed in fp32 and rounded once. It is counted under the name."""
    routed[f"fp32:{name}"] += 1
    return function(x.float()).to(x.dtype)


def rows_in_fp32(
    name: str, take: Callable[[Tensor], Tensor], add: Callable[[Tensor, Tensor], Tensor], x: Tensor, index: Tensor
) -> Tensor | None:
    """take(x), rows of x by an index, whose gradient is summed in fp32 and rounded once; None if PyTorch has to sum it.

    add: (gradient of the rows in fp32, index) -> that of x in fp32, by operators that autograd differentiates.
    """
    if (
        type(x) not in (Tensor, nn.Parameter)
        or not has_gradient_in_half(x)
        or mode_reason(may_be_watched=True) is not None
    ):
        return None
    routed[f"fp32:{name}"] += 1
    return apply(_Rows, x, index, take, add)


class _Rows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, index: Tensor, take: Any, add: Any) -> Tensor:
        ctx.save_for_backward(index)
        ctx.add = add
        return take(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        (index,) = ctx.saved_tensors
        with without_autocast(grad.device):
            return ctx.add(grad.float(), index).to(grad.dtype), None, None, None
