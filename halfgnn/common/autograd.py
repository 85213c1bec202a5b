"""How an autograd Function is called."""

from __future__ import annotations

import torch
from torch import Tensor

_unwrap_if_dead = torch._C._functorch.unwrap_if_dead


def apply(function: type[torch.autograd.Function], *args):
    """function.apply(*args) without its costliest part: Function.apply reads the signature of `forward` at every call, in vain
    since arguments are given in full. Traced code and functorch transforms take the public route.

    A tensor that outlived its functorch transform is unwrapped, as Function.apply does it: no gradient is recorded into what
    the transform left behind."""
    if torch.compiler.is_compiling():
        return function.apply(*_each_once(args))
    if torch._C._are_functorch_transforms_active():
        return function.apply(*args)
    # Only a tensor that requires a gradient can record one, and most arguments do not.
    alive = [_unwrap_if_dead(x) if isinstance(x, Tensor) and x.requires_grad else x for x in args]
    return super(torch.autograd.Function, function).apply(*alive)  # type: ignore[misc]


def _each_once(args: tuple) -> list:
    """args with a view in place of a tensor that came before: the compiler makes one input of the two, and loses the gradient of
    the second (PyTorch issue 181146)."""
    found: list = []
    for value in args:
        is_repeated = isinstance(value, Tensor) and value.is_floating_point() and any(value is x for x in found)
        found.append(value.view_as(value) if is_repeated else value)
    return found
