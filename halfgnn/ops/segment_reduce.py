"""Reduction over consecutive segments."""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from .. import _library
from ..common.arguments import REDUCES, check_name
from ..common.autograd import apply, in_cpp, is_recorded, recorded
from ..common.fake import register_fake
from ..common.operands import check_dense, check_tensor
from ..common.precision import autocast
from ._operands import needs_grad
from ._winners import rows_of_elements

_segment_reduce = torch.ops.halfgnn.segment_reduce.default
_segment_reduce_backward = torch.ops.halfgnn.segment_reduce_backward.default


@register_fake("segment_reduce")
def _(offsets, value, reduce):
    out = value.new_empty((offsets.shape[0] - 1, *value.shape[1:]))
    return out, offsets.new_empty(out.shape if reduce in ("max", "min") else (0,))


@register_fake("segment_reduce_backward")
def _(offsets, grad, arg, reduce, num_rows):
    return grad.new_empty((num_rows, *grad.shape[1:]))


@in_cpp("segment_reduce")
class _SegmentReduce(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(offsets, value, reduce):
        return _segment_reduce(offsets, value, reduce)

    @staticmethod
    def setup_context(ctx, inputs, output):
        offsets, value, reduce = inputs
        ctx.mark_non_differentiable(output[1])
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(offsets, output[1] if reduce in ("max", "min") else None)
        ctx.reduce, ctx.num_rows = reduce, value.shape[0]

    @staticmethod
    def backward(ctx, grad, _):
        if grad is None:
            return None, None, None
        offsets, arg = ctx.saved_tensors
        return None, _differentiated(offsets, grad, arg, ctx.reduce, ctx.num_rows), None

    @staticmethod
    def gradients(kept, grads, needs):
        offsets, _, reduce, arg, num_rows = kept
        return (_differentiated(offsets, grads[0], arg, reduce, num_rows),)


def _differentiated(offsets, grad, arg, reduce, num_rows):
    """The gradient of value by the raw operator, recorded if it is to be."""
    args = offsets, grad, arg, reduce, num_rows
    if not is_recorded():
        return _segment_reduce_backward(*args)
    if arg is None:
        return apply(_SegmentReduceBackward, *args)
    again = functools.partial(rows_of_elements, num_rows=num_rows)
    return recorded("segment_reduce", _segment_reduce_backward, args, again, (grad, arg))


class _SegmentReduceBackward(torch.autograd.Function):
    """The gradient of a sum or mean. It is linear in grad, and its derivative is the sum or mean again."""

    generate_vmap_rule = True

    @staticmethod
    def forward(offsets, grad, arg, reduce, num_rows):
        return _segment_reduce_backward(offsets, grad, arg, reduce, num_rows)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(inputs[0])
        ctx.reduce = inputs[3]

    @staticmethod
    def backward(ctx, to_value):
        return None, apply(_SegmentReduce, *ctx.saved_tensors, to_value, ctx.reduce)[0], None, None, None


def segment_reduce(seglen: Tensor, value: Tensor, reducer: str = "sum") -> Tensor:
    """out[s] = reduce of the s-th segment of value. The segments have seglen[0], seglen[1], ... rows and follow one another.

    Args:
        seglen: (S,) int32 or int64, adding up to value.shape[0].
        value: (R, *), fp16, bf16 or fp32 (fp64 on the CPU).
        reducer: sum, mean, max or min. Sums are fp32 and rounded once. An empty segment gives 0.

    Derivatives of every order exist. Semantics follow dgl.ops.segment_reduce, except that DGL gives infinities for empty segments
    under max and min.

    Returns:
        (S, *)

    Raises:
        TypeError: wrong dtypes. ValueError: wrong shapes; lengths that are negative or do not add up; an unknown reducer.
    """
    for tensor, name in ((seglen, "seglen"), (value, "value")):
        check_tensor(tensor, name)
        check_dense(tensor, name)
    if seglen.dim() != 1 or seglen.dtype not in (torch.int32, torch.int64):
        raise (ValueError if seglen.dim() != 1 else TypeError)(
            f"seglen has shape {tuple(seglen.shape)} and dtype {seglen.dtype}; expected one dimension of torch.int32 or torch.int64"
        )
    if value.dim() == 0:
        raise ValueError("value has no dimensions; expected (R, *)")
    if seglen.device != value.device:
        raise ValueError(f"seglen is on {seglen.device}; expected the device of value, {value.device}")
    check_name(reducer, "reducer", REDUCES)
    if value.is_cuda:
        _library.check_device(value.device)
    value = autocast(value)
    return over_offsets(torch.nn.functional.pad(seglen.cumsum(0, dtype=seglen.dtype), (1, 0)), value, reducer)


def over_offsets(offsets: Tensor, value: Tensor, reducer: str) -> Tensor:
    """segment_reduce of the segments value[offsets[s]:offsets[s + 1]], whose arguments have been checked."""
    if needs_grad(value):
        return apply(_SegmentReduce, offsets, value, reducer)[0]
    return _segment_reduce(offsets, value, reducer)[0]
