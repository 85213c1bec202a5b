"""halo: rows of nodes with those of ghosts, as one autograd Function for all node types.

One Function: with one per type, processes could call the collectives of the backward in different orders.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from .exchange import Exchange


def halo(exchange: Exchange, types: Sequence[int], rows: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Rows (num_own, *) of some node types, each followed by those of its ghosts. types: which of the exchange's."""
    return _Halo.apply(exchange, tuple(types), *rows)


class _Halo(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, exchange: Exchange, types: tuple[int, ...], *rows: Tensor) -> tuple[Tensor, ...]:
        ctx.exchange, ctx.types = exchange, types
        ctx.set_materialize_grads(False)  # which would make some for integers too
        outs = tuple(exchange.with_ghosts(types, rows))
        ctx.shapes = [out.shape for out in outs]
        ctx.likes = [out.new_empty(0) for out in outs]
        return outs

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> Any:
        numbers = [i for i, needed in enumerate(ctx.needs_input_grad[2:]) if needed]
        given = [
            ctx.likes[i].new_zeros(ctx.shapes[i]) if (grad := grads[i]) is None else grad for i in numbers
        ]  # others may have gradients for these rows
        found: list[Tensor | None] = [None] * len(grads)
        for i, grad in zip(numbers, _Returned.apply(ctx.exchange, tuple(ctx.types[i] for i in numbers), *given)):
            found[i] = grad
        return None, None, *found


class _Returned(torch.autograd.Function):
    """Gradients of rows with ghosts, summed into the rows of their owners."""

    @staticmethod
    def forward(ctx: Any, exchange: Exchange, types: tuple[int, ...], *grads: Tensor) -> tuple[Tensor, ...]:
        ctx.exchange, ctx.types = exchange, types
        return tuple(exchange.returned(types, grads))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        return None, None, *_Halo.apply(ctx.exchange, ctx.types, *grads)
