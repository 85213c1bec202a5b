"""A linear layer per type, on rows that are sorted by type."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from ..common.precision import HALF, computed_type
from .projections import linear


def typed_linear(x: Tensor, ends: Sequence[int], weight: Tensor) -> Tensor:
    """x (N, in) times weight (types, in, out), each row times the matrix of its type: (N, out) in the dtype of autocast or of x.

    On CUDA half precision takes one torch.nn.functional.grouped_mm, if this version of torch has it. Otherwise there is a product
    per type.

    Args:
        ends: for every type the number of rows of it and of those before it.
    """
    dtype = computed_type(x)
    if _is_grouped(x, weight, dtype):
        offsets = torch.tensor(ends, dtype=torch.int32, device=x.device)
        return F.grouped_mm(x.to(dtype).contiguous(), weight.to(dtype), offs=offsets)
    begins = (0, *ends[:-1])
    parts = [linear(x[begin:end], matrix.t(), None) for begin, end, matrix in zip(begins, ends, weight) if end > begin]
    if not parts and weight.shape[0] > 0:
        return linear(x, weight[0].t(), None)  # no row; the gradient of weight is 0, not None
    return torch.cat(parts) if parts else x.new_zeros((0, weight.shape[2]), dtype=dtype)


def _is_grouped(x: Tensor, weight: Tensor, dtype: torch.dtype) -> bool:
    """grouped_mm reads rows 16 bytes at a time."""
    is_aligned = weight.shape[1] % 8 == 0 and weight.shape[2] % 8 == 0
    return x.is_cuda and dtype in HALF and is_aligned and x.shape[0] > 0 and hasattr(F, "grouped_mm")
