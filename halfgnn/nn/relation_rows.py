"""Features of several edge types in the order of a stack of their relations (halfgnn.heterograph)."""

from __future__ import annotations

import torch
from torch import Tensor

from ..common.autograd import apply


def joined(parts: list[Tensor]) -> Tensor:
    """Rows of all relations, one relation after the other."""
    return torch.cat(parts) if len(parts) > 1 else parts[0]


def taken(x: Tensor, rows: int | None, ids: Tensor | None) -> Tensor:
    """The first `rows` rows of x, or the rows `ids`: those of a relation in a stack."""
    return x[:rows] if ids is None else apply(_TakeRows, x, ids)


class _TakeRows(torch.autograd.Function):
    """x[ids] for distinct ids. Its gradient is written and not added up, so it is the same in every run, on a GPU too."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x, ids):
        return x.index_select(0, ids)

    @staticmethod
    def setup_context(ctx, inputs, output):
        x, ids = inputs
        ctx.save_for_backward(ids)
        ctx.num_rows = x.shape[0]

    @staticmethod
    def backward(ctx, grad):
        (ids,) = ctx.saved_tensors
        return grad.new_zeros(ctx.num_rows, *grad.shape[1:]).index_copy(0, ids.long(), grad), None
