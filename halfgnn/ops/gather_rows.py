"""Rows of a table, copied by id."""

from __future__ import annotations

import torch
from torch import Tensor

from .. import _library
from ..common.fake import register_fake
from ..common.operands import check_tensor

_gather_rows = torch.ops.halfgnn.gather_rows.default


@register_fake("gather_rows", on_cpu=("table",))
def _(table, ids, out, num_threads=0):
    return None


def gather_rows(table: Tensor, ids: Tensor, out: Tensor | None = None, *, num_threads: int = 0) -> Tensor:
    """out[i] = table[ids[i]], copied as bytes, for any dtype.

    Args:
        table: (N, *), every row contiguous. If ids are on CUDA, table may be page-locked memory of the CPU: the GPU then reads the
            rows in place, so they must not change before it has.
        ids: (n,), int32 or int64.
        out: (n, *) that takes the rows, of table's dtype, contiguous, on the device of ids; by default a new tensor.
        num_threads: number of threads that copy on the CPU; 0 means PyTorch's.

    On CUDA an error about an id would need a synchronisation. So the row of an id out of range is filled with bytes of 0xFF: nan,
    or -1 in integers.

    Returns:
        out

    Raises:
        IndexError: on the CPU, an id out of range; no row is copied. TypeError: wrong dtypes.
        ValueError: wrong shapes, strides or devices; an out with the negative or conjugate bit; an argument that requires a
            gradient, since there is no derivative.
    """
    check_tensor(table, "table")
    check_tensor(ids, "ids")
    if ids.device.type == "meta" and table.device.type != "meta":  # the fake kernel, which copies nothing
        raise ValueError(f"ids is on meta; expected a device that can read the table, which is on {table.device}")
    if ids.is_cuda:
        _library.check_device(ids.device)
    if out is None:
        out = torch.empty((ids.numel(), *table.shape[1:]), dtype=table.dtype, device=ids.device)
    else:
        check_tensor(out, "out")
        if out.is_neg() or out.is_conj():  # PyTorch would give the operator a copy to write to, and fail
            what = "negative" if out.is_neg() else "conjugate"
            raise ValueError(f"out is a view with the {what} bit, of shape {tuple(out.shape)}; expected one without it")
    _gather_rows(table, ids, out, num_threads)
    return out
