"""Rows of a tile: taken of tensors of all edges or nodes, and put into results of all, in the forward and in the backward.

Each row belongs to one tile, so that gradients are written into one tensor: PyTorch's would be one of the full size for each tile.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..common.autograd import snapshot


class Place(NamedTuple):
    """Where the rows of a tile are: from first, or by ids (num_rows,)."""

    first: int
    num_rows: int
    ids: Tensor | None = None

    def take(self, x: Tensor, dim: int) -> Tensor:
        return x.narrow(dim, self.first, self.num_rows) if self.ids is None else x.index_select(dim, self.ids)

    def put(self, x: Tensor, rows: Tensor, dim: int) -> None:
        if self.ids is None:
            x.narrow(dim, self.first, self.num_rows).copy_(rows)
        else:
            x.index_copy_(dim, self.ids.long(), rows)

    def spread(self, rows: Tensor, like: Tensor, dim: int) -> Tensor:
        """Zeros but for the rows, with the rows' history."""
        zeros = torch.zeros(like.shape, dtype=rows.dtype, device=rows.device)
        if self.ids is None:
            return zeros.slice_scatter(rows, dim, self.first, self.first + self.num_rows)
        return zeros.index_copy(dim, self.ids.long(), rows)


class Kept:
    """A tensor that is read again in the backward. See common.autograd.snapshot for what may be modified in place meanwhile."""

    def __init__(self, x: Tensor) -> None:
        self.x, self._version = x, None if x.is_inference() else x._version

    def check(self) -> None:
        if self._version is not None and self.x._version != self._version:
            raise RuntimeError(
                f"a tensor {tuple(self.x.shape)} that tiles read was modified in place before its gradient was computed: the "
                "backward reads it again; clone it before it is modified"
            )


class Source:
    """A tensor whose rows, in a dimension, tiles take. Their gradients go through a token, which has no values."""

    def __init__(self, x: Tensor, dim: int) -> None:
        self._kept, self.dim, self._gradient = Kept(snapshot(x)), dim, _Gradient()
        self._token = _Token.apply(x, self._gradient) if x.requires_grad and torch.is_grad_enabled() else None

    def take(self, place: Place) -> Tensor:
        self._kept.check()
        return place.take(self._kept.x, self.dim) if self._token is None else _Take.apply(self._token, self, place)

    @property
    def values(self) -> Tensor:
        return self._kept.x.detach()

    def leaf(self, place: Place) -> Tensor:
        """Rows of which a function keeps what it keeps in training."""
        rows = place.take(self.values, self.dim).clone()
        return rows.requires_grad_(rows.is_floating_point())

    def put_gradient(self, place: Place, grad: Tensor) -> None:
        place.put(self._gradient.of(self._kept.x), grad, self.dim)


class _Gradient:
    """Of all rows of a Source, into which each tile writes its own.

    A token's node holds it, and not the Source: that holds the token, and features would live until Python collects cycles.
    """

    def __init__(self) -> None:
        self._task = -1
        self._grad: Tensor | None = None

    def of(self, x: Tensor) -> Tensor:
        task = torch._C._current_graph_task_id()
        if self._grad is None or self._task != task:  # of a backward that has failed, perhaps
            self._grad, self._task = torch.zeros_like(x), task
        return self._grad

    def taken(self) -> Tensor | None:
        grad, self._grad = self._grad, None
        return grad


def _without_values(x: Tensor) -> Tensor:
    return x.new_zeros(()).expand(x.shape)


class _Token(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, gradient: _Gradient) -> Tensor:
        ctx.gradient = gradient
        ctx.set_materialize_grads(False)
        return _without_values(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None) -> Any:  # type: ignore[override]
        """grad: of rows whose gradients have a history."""
        written = ctx.gradient.taken()
        if grad is None or written is None:
            return written if grad is None else grad, None
        return grad + written, None


class _Take(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, token: Tensor, source: Source, place: Place) -> Tensor:
        ctx.source, ctx.place = source, place
        ctx.set_materialize_grads(False)
        rows = place.take(source.values, source.dim)
        return rows.clone() if place.ids is None else rows

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None) -> Any:  # type: ignore[override]
        if grad is None:
            return None, None, None
        if torch.is_grad_enabled():  # create_graph
            return ctx.place.spread(grad, ctx.source.values, ctx.source.dim), None, None
        ctx.source.put_gradient(ctx.place, grad)
        return None, None, None


class Result:
    """A tensor of all rows, into which each tile writes its own."""

    def __init__(self, num_rows: int, dim: int) -> None:
        self._num_rows, self.dim = num_rows, dim
        self.values: Tensor | None = None
        self._tokens: list[Tensor] = []

    def put(self, rows: Tensor, place: Place) -> None:
        if self.values is None:
            shape = [*rows.shape]
            shape[self.dim] = self._num_rows
            self.values = rows.new_empty(shape)
        expected = [*self.values.shape]
        expected[self.dim] = place.num_rows
        if [*rows.shape] != expected or rows.dtype is not self.values.dtype:
            raise ValueError(
                f"a result has shape {tuple(rows.shape)} and dtype {rows.dtype} on one tile; expected {tuple(expected)} and "
                f"{self.values.dtype}, as on the tiles before it"
            )
        if rows.requires_grad:
            self._tokens.append(_Put.apply(rows, self, place))
        else:
            place.put(self.values, rows, self.dim)

    def tensor(self) -> Tensor:
        assert self.values is not None
        return _All.apply(self, *self._tokens) if self._tokens else self.values


class _Put(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, result: Result, place: Place) -> Tensor:
        ctx.place, ctx.dim = place, result.dim
        assert result.values is not None
        place.put(result.values, rows, result.dim)
        return _without_values(result.values)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:  # type: ignore[override]
        return ctx.place.take(grad, ctx.dim), None, None


class _All(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, result: Result, *tokens: Tensor) -> Tensor:
        ctx.count = len(tokens)
        assert result.values is not None
        return result.values

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:  # type: ignore[override]
        return None, *[grad] * ctx.count
