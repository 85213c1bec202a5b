"""Rows of a table by id: copied, or converted from codes of 8 bits."""

from __future__ import annotations

import torch
from torch import Tensor

from .. import _library
from ..common.fake import register_fake
from ..common.operands import check_tensor

_gather_rows = torch.ops.halfgnn.gather_rows.default


@register_fake("gather_rows", on_cpu=("table", "scale", "zero_point"))
def _(table, ids, out, num_threads=0, scale=None, zero_point=None):
    return None


def gather_rows(
    table: Tensor,
    ids: Tensor,
    out: Tensor | None = None,
    *,
    num_threads: int = 0,
    scale: Tensor | None = None,
    zero_point: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> Tensor:
    """out[i] = table[ids[i]], copied as bytes, for any dtype. With a scale out[i] = (table[ids[i]] - zero_point) * scale.

    Args:
        table: (N, *), every row contiguous. If ids are on CUDA, table may be page-locked memory of the CPU: the GPU then reads the
            rows in place, so they must not change before it has. With a scale: torch.uint8, torch.int8, torch.float8_e4m3fn or
            torch.float8_e5m2.
        ids: (n,), int32 or int64.
        out: (n, *) that takes the rows, of table's dtype, contiguous, on the device of ids; by default a new tensor. With a scale:
            torch.float16, torch.bfloat16 or torch.float32.
        num_threads: number of threads that copy on the CPU; 0 means PyTorch's.
        scale: () or any shape of one element, (N, 1, ...) for one per row, or (*) for one per column; torch.float32, contiguous, on
            the device of ids or beside table. The product is computed in fp32 and rounded once to out's dtype.
        zero_point: of scale's shape, dtype and device; integers' alone.
        out_dtype: of a new out, if there is a scale; by default torch.float16.

    On CUDA an error about an id would need a synchronisation. So the row of an id out of range is filled with bytes of 0xFF: nan,
    or -1 in integers.

    Returns:
        out

    Raises:
        IndexError: on the CPU, an id out of range; no row is copied. TypeError: wrong dtypes.
        ValueError: wrong shapes, strides or devices; an out with the negative or conjugate bit; an argument that requires a
            gradient, since there is no derivative; an out_dtype without a scale or beside out.
    """
    check_tensor(table, "table")
    check_tensor(ids, "ids")
    for name, value in (("scale", scale), ("zero_point", zero_point)):
        if value is not None:
            check_tensor(value, name)
    if ids.device.type == "meta" and table.device.type != "meta":  # the fake kernel, which copies nothing
        raise ValueError(f"ids is on meta; expected a device that can read the table, which is on {table.device}")
    if ids.is_cuda:
        _library.check_device(ids.device)
    if out_dtype is not None and (scale is None or out is not None):
        raise ValueError(f"out_dtype is {out_dtype}; expected it {'beside scale' if out is None else 'without out'}")
    if out is None:
        dtype = table.dtype if scale is None else out_dtype or torch.float16
        out = torch.empty((ids.numel(), *table.shape[1:]), dtype=dtype, device=ids.device)
    else:
        check_tensor(out, "out")
        if out.is_neg() or out.is_conj():  # PyTorch would give the operator a copy to write to, and fail
            what = "negative" if out.is_neg() else "conjugate"
            raise ValueError(f"out is a view with the {what} bit, of shape {tuple(out.shape)}; expected one without it")
    if scale is None and zero_point is None:
        _gather_rows(table, ids, out, num_threads)
    else:
        _gather_rows(table, ids, out, num_threads, scale, zero_point)
    return out
