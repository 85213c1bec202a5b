"""Random inputs, and the work of one direction: a forward, a backward, or both."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

_CHUNK = 1 << 26  # numbers that exist in fp32 beside those in the dtype that is asked for
_drawn: dict[tuple[Any, ...], Tensor] = {}  # what the backends of a case share
_only_shapes = False


def normal(shape: tuple[int, ...], dtype: torch.dtype, seed: int, device: str = "cpu") -> Tensor:
    """Standard normal numbers, the same for every dtype except for rounding. Shared: do not write to them."""
    return _draw(torch.randn, shape, dtype, seed, device)


def uniform(shape: tuple[int, ...], dtype: torch.dtype, seed: int, device: str = "cpu") -> Tensor:
    """Numbers from [0, 1), the same for every dtype except for rounding. Shared: do not write to them."""
    return _draw(torch.rand, shape, dtype, seed, device)


def _draw(kind: Callable[..., Tensor], shape: tuple[int, ...], dtype: torch.dtype, seed: int, device: str) -> Tensor:
    if _only_shapes:
        return torch.empty(shape, dtype=dtype, device="meta")
    key = kind, shape, dtype, seed, device
    if key not in _drawn:
        generator = torch.Generator(device).manual_seed(seed)
        numbers = torch.empty(shape, dtype=dtype, device=device)
        for part in numbers.view(-1).split(_CHUNK):
            part.copy_(kind(part.shape, generator=generator, device=device))
        _drawn[key] = numbers
    return _drawn[key]


def forget(above: int = 0) -> None:
    """Frees the inputs of earlier cases if they have more bytes than that."""
    if sum(numbers.nbytes for numbers in _drawn.values()) > above:
        _drawn.clear()


@contextlib.contextmanager
def only_shapes() -> Iterator[None]:
    """Inside, inputs have shapes and dtypes, and no memory."""
    global _only_shapes
    _only_shapes = True
    try:
        yield
    finally:
        _only_shapes = False


def _gradient(out: Tensor) -> Tensor:
    """The fixed gradient of a result."""
    return normal(tuple(out.shape), out.dtype, 5, out.device.type)


def with_backward(function: Callable[..., Tensor], inputs: tuple[Tensor, ...]) -> Callable[[], tuple[Tensor, ...]]:
    """Work: function(*inputs) and the gradients of all inputs, from a fixed gradient of the result."""
    leaves = tuple(x.clone().requires_grad_() for x in inputs)
    upstream: list[Tensor] = []

    def work() -> tuple[Tensor, ...]:
        out = function(*leaves)
        if not upstream:
            upstream.append(_gradient(out))
        return (out.detach(), *torch.autograd.grad(out, leaves, upstream[0]))

    return work


def backward_of(function: Callable[..., Tensor], inputs: tuple[Tensor, ...]) -> Callable[[], tuple[Tensor, ...]]:
    """Work: only the gradients. The forward pass is done once, before."""
    leaves = tuple(x.clone().requires_grad_() for x in inputs)
    out = function(*leaves)
    upstream = _gradient(out)
    return lambda: torch.autograd.grad(out, leaves, upstream, retain_graph=True)


def directed(direction: str, function: Callable[..., Tensor], inputs: tuple[Tensor, ...]) -> Callable[[], Any]:
    """The work of one direction."""
    if direction == "forward":
        return lambda: function(*inputs)
    return (backward_of if direction == "backward" else with_backward)(function, inputs)
