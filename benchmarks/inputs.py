"""Random inputs, and the work of one direction: a forward, a backward, or both."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


@functools.lru_cache(maxsize=8)
def normal(shape: tuple[int, ...], dtype: torch.dtype, seed: int, device: str = "cpu") -> Tensor:
    """Standard normal numbers, the same for every dtype except for rounding. Shared: do not write to them."""
    generator = torch.Generator(device).manual_seed(seed)
    return torch.randn(shape, generator=generator, device=device).to(dtype)


@functools.lru_cache(maxsize=4)
def uniform(shape: tuple[int, ...], dtype: torch.dtype, seed: int, device: str = "cpu") -> Tensor:
    """Numbers from [0, 1), the same for every dtype except for rounding. Shared: do not write to them."""
    generator = torch.Generator(device).manual_seed(seed)
    return torch.rand(shape, generator=generator, device=device).to(dtype)


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
