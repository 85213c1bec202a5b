"""Norms of the nodes of each graph of a batch, by the Graph of a batch vector: two passes over the features for the statistics, and
one for the result, where torch_geometric's steps take about ten; and as few in the backward.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from ... import ops
from ...common.autograd import apply, is_recorded, saved_tensors, snapshot
from ...common.precision import HALF, without_autocast
from ...expressions.reduce import incidence
from ...graph import Graph


class Norm(NamedTuple):
    """What a norm subtracts and divides by.

    mean_of_all, variance_of_all: whether one mean, and one variance, is taken of all columns. divides_by_rows: whether a variance
    of all columns is a sum of their squares, divided by the number of rows alone.
    """

    eps: float
    mean_of_all: bool = False
    variance_of_all: bool = False
    divides_by_rows: bool = False
    scale: float = 1.0


class _Statistics(NamedTuple):
    """By group: the number of rows (B, 1), sums of the columns (B, F), the mean and what is subtracted, the reciprocal of the
    deviation, each (B, F) or (B, 1); and the rows (N, F) from which that was subtracted."""

    counts: Tensor
    total: Tensor
    mean: Tensor
    shift: Tensor
    rstd: Tensor
    centered: Tensor


def normalized(
    x: Tensor, g: Graph, norm: Norm, weight: Tensor | None, bias: Tensor | None, mean_scale: Tensor | None
) -> Tensor:
    """weight * (x - mean_scale * mean) / deviation + bias of rows x (N, F); g: the Graph of their index.

    weight, bias, mean_scale: (F,), or None for ones and zeros; fp32 beside half rows, of which the result is fp32 then, and half
    otherwise. It is computed in fp32 (fp64 of fp64 rows), and rounded once.
    """
    with without_autocast(x.device):
        return apply(_Normalize, snapshot(x), g, norm, weight, bias, mean_scale)  # x may be modified in place meanwhile


def _statistics(x: Tensor, g: Graph, norm: Norm, mean_scale: Tensor | None) -> _Statistics:
    degrees = g.in_degrees().view(-1, 1)
    counts = degrees.clamp(min=1).to(_wide(x))
    total = _sum_of_rows(g, x)
    mean = total.sum(1, keepdim=True) / (counts * x.shape[1]) if norm.mean_of_all else total / counts
    shift = mean if mean_scale is None else mean * mean_scale
    centered = _of_rows(g, "sub", x, shift)
    squares = _sum_of_products(g, centered, centered)
    if norm.variance_of_all:
        squares = squares.sum(1, keepdim=True)
    # Groups without rows have no deviation that is 0, whose reciprocal would reach the gradients of parameters.
    variance = (squares / _divisor(norm, counts, x) + norm.eps).masked_fill(degrees == 0, 1)
    return _Statistics(counts, total, mean, shift, variance.rsqrt(), centered)


def _wide(x: Tensor) -> torch.dtype:
    return torch.promote_types(x.dtype, torch.float32)


def _sum_of_rows(g: Graph, x: Tensor) -> Tensor:
    return ops.gspmm(g, "copy_rhs", "sum", None, x, out_dtype=torch.float32 if x.dtype in HALF else None)


def _of_rows(g: Graph, op: str, x: Tensor, of_group: Tensor) -> Tensor:
    """x (N, F) - or * what its group has, (B, F) or (B, 1)."""
    if of_group.shape[1] < x.shape[1] and 4 * of_group.shape[0] < x.shape[0]:
        of_group = of_group.expand(-1, x.shape[1]).contiguous()  # operands of equal shapes take half of the time
    return ops.gsddmm(g, op, x, of_group, "e", "v")


def _divisor(norm: Norm, counts: Tensor, x: Tensor) -> Tensor:
    return counts * x.shape[1] if norm.variance_of_all and not norm.divides_by_rows else counts


def _sum_of_products(g: Graph, x: Tensor, y: Tensor) -> Tensor:
    return ops.gspmm(incidence(g), "mul", "sum", x, y, out_dtype=torch.float32 if x.dtype in HALF else None)


def _result(g: Graph, norm: Norm, stats: _Statistics, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    factor = stats.rstd if norm.scale == 1 else stats.rstd * norm.scale
    out = _of_rows(g, "mul", stats.centered, factor if weight is None else factor * weight)
    return out if bias is None else out + bias if out.requires_grad else out.add_(bias)


class _Normalize(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, g: Graph, norm: Norm, weight: Tensor | None, bias: Tensor | None, mean_scale: Tensor | None
    ) -> Tensor:
        stats = _statistics(x, g, norm, mean_scale)
        ctx.g, ctx.norm = g, norm
        # x itself is read where the backward is differentiated.
        ctx.save_for_backward(x, weight, mean_scale, *stats)
        out = _result(g, norm, stats, weight, bias)
        return out if any(y is not None for y in (weight, bias, mean_scale)) else out.to(x.dtype)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        x, weight, mean_scale, *stats = saved_tensors(ctx, "a norm")
        with without_autocast(grad.device):
            if is_recorded():
                found = _recorded_gradients(ctx, grad, x, weight, mean_scale)
            else:
                found = _gradients(ctx, grad, _Statistics(*stats), weight, mean_scale)
        grad_x, *others = found
        if grad_x is not None:
            grad_x = grad_x.to(x.dtype)
        return grad_x, None, None, *(y if needed else None for y, needed in zip(others, ctx.needs_input_grad[3:]))


def _gradients(
    ctx: Any, grad: Tensor, stats: _Statistics, weight: Tensor | None, mean_scale: Tensor | None
) -> tuple[Tensor | None, ...]:
    """Of x, weight, bias and mean_scale."""
    g, norm = ctx.g, ctx.norm
    counts, total, mean, shift, rstd, centered = stats
    grad = grad.contiguous()
    of_grad, of_product = _sum_of_rows(g, grad), _sum_of_products(g, grad, centered)
    factor = rstd * norm.scale
    grad_weight = None if weight is None else (of_product * factor).sum(0)
    of_rstd = of_product * norm.scale if weight is None else of_product * (weight * norm.scale)
    if norm.variance_of_all:
        of_rstd = of_rstd.sum(1, keepdim=True)
    # Not by the third power of rstd, which leaves the range of fp32 before the gradient does.
    of_square = of_rstd * rstd * rstd * rstd * -0.5 / _divisor(norm, counts, grad)
    factor = factor if weight is None else factor * weight
    # The sum of centered rows is that of rows, less what was subtracted from each.
    of_shift = of_grad * factor + 2 * of_square * (total - ctx.g.in_degrees().to(counts.dtype).view(-1, 1) * shift)
    if mean_scale is None:
        grad_scale, of_mean = None, of_shift
    else:
        grad_scale, of_mean = -(of_shift * mean).sum(0), of_shift * mean_scale
    if norm.mean_of_all:
        of_mean = of_mean.sum(1, keepdim=True) / grad.shape[1]
    grad_x = None
    if ctx.needs_input_grad[0]:
        rows = _of_rows(g, "mul", grad, factor)
        rows += _of_rows(g, "mul", centered, 2 * of_square)
        grad_x = _of_rows(g, "sub", rows, of_mean / counts)
    return grad_x, grad_weight, of_grad.sum(0), grad_scale


def _recorded_gradients(
    ctx: Any, grad: Tensor, x: Tensor, weight: Tensor | None, mean_scale: Tensor | None
) -> tuple[Tensor | None, ...]:
    """The same by operators that autograd differentiates."""
    grad = grad.to(_wide(x))
    out = _result(ctx.g, ctx.norm, _statistics(x, ctx.g, ctx.norm, mean_scale), weight, None)
    inputs = x, weight, mean_scale
    wanted = [y for y in inputs if y is not None and y.requires_grad]
    found = iter(torch.autograd.grad(out, wanted, grad, create_graph=True) if wanted else ())
    grad_x, grad_weight, grad_scale = (next(found) if y is not None and y.requires_grad else None for y in inputs)
    return grad_x, grad_weight, grad.sum(0), grad_scale
