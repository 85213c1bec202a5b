"""How an autograd Function is called, how it names its arguments, and what it does where it is differentiated again."""

from __future__ import annotations

import inspect
from collections import namedtuple
from typing import Any

import torch
from torch import Tensor

_unwrap_if_dead = torch._C._functorch.unwrap_if_dead


def apply(function: type[torch.autograd.Function], *args):
    """function.apply(*args) without its costliest part.

    Function.apply reads the signature of `forward` at every call, which is needless because all arguments are given. Traced code
    and functorch transforms take the public route.

    A tensor that outlived its functorch transform is unwrapped, as in Function.apply. So no gradient is recorded into what the
    transform left behind.
    """
    if torch.compiler.is_compiling():
        return function.apply(*_each_once(args))
    if torch._C._are_functorch_transforms_active():
        return function.apply(*args)
    # Only a tensor that requires a gradient can record one, and most arguments do not.
    alive = [_unwrap_if_dead(x) if isinstance(x, Tensor) and x.requires_grad else x for x in args]
    return super(torch.autograd.Function, function).apply(*alive)  # type: ignore[misc]


def _each_once(args: tuple) -> list:
    """args with a view in place of every tensor that came before.

    The compiler makes one input of two equal ones, and loses the gradient of the second (PyTorch issue 181146).
    """
    distinct: list = []
    for value in args:
        is_repeated = isinstance(value, Tensor) and value.is_floating_point() and any(value is x for x in distinct)
        distinct.append(value.view_as(value) if is_repeated else value)
    return distinct


def saved_tensors(ctx: Any, name: str) -> tuple[Any, ...]:
    """ctx.saved_tensors. The error says what to write if an operand of the operator `name` was modified in place meanwhile."""
    if torch.compiler.is_compiling():
        return ctx.saved_tensors
    try:
        return ctx.saved_tensors
    except RuntimeError as error:
        if "inplace operation" not in str(error):
            raise
        raise RuntimeError(
            f"the gradient of {name} reads an operand that was modified in place after the call; write x = x + y in place of "
            f"x += y, or give {name} a clone. {error}"
        ) from None


def snapshot(x: Tensor, with_history: bool = True) -> Tensor:
    """x for an operator that may keep it for its backward, in which it has the values of now even if x is written to meanwhile.

    Nothing is copied before x is written to: the result shares the memory of x until then (PyTorch's copy on write). x itself is
    returned where no write can come between, where autograd records nothing, and where memory cannot be shared like this (NumPy's).
    An input that no operator has made also stays as it is on CUDA, because a captured graph may read it at its address, and if
    something else holds its memory: a NumPy array that was made of x before would keep the old memory when x is written to.

    with_history: whether gradients of the result reach x.
    """
    if (
        torch.compiler.is_compiling()
        or not torch.is_grad_enabled()
        or (x.is_leaf and (x.requires_grad or not x.is_cpu or _is_held_elsewhere(x)))
    ):
        return x
    if x.is_cuda and torch.cuda.is_current_stream_capturing():
        return x
    try:
        return (x if with_history else x.detach())._lazy_clone()  # type: ignore[attr-defined]
    except RuntimeError:
        return x


def _is_held_elsewhere(x: Tensor) -> bool:
    """Whether anything but x holds its memory: a view, an array of NumPy's, what was exported by DLPack."""
    storage = x.untyped_storage()  # which holds the memory too
    return x._use_count() > 1 or torch._C._storage_Use_Count(storage._cdata) > 2  # type: ignore[attr-defined]


def is_recorded() -> bool:
    """Whether autograd records the backward that runs now: under create_graph=True, and under functorch transforms always.

    In code that is compiled it does not matter: torch.compile's own backward has no derivative.
    """
    return torch.is_grad_enabled() and not torch.compiler.is_compiling()


def once(name: str, remedy: str, backward, *args):
    """backward(*args), which raises an error if it is differentiated.

    name: the operator whose backward it is, and in which case. remedy: what to do instead.
    """
    return apply(_Once, name, remedy, backward, *args) if is_recorded() else backward(*args)


class _Once(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(name, remedy, backward, *args):
        return backward(*args)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.name, ctx.remedy = inputs[:2]

    @staticmethod
    def backward(ctx, *_):
        raise RuntimeError(
            f"second derivatives of {ctx.name} are not implemented; {ctx.remedy}, or use halfgnn.reference.{ctx.name.split()[0]}, "
            "which is plain PyTorch"
        )


def inputs_of(function: type[torch.autograd.Function]) -> Any:
    """The class of a named tuple with one field per argument of function.forward, None by default.

    With it an autograd Function names its arguments, those that need a gradient, and the gradients that its backward returns.
    """
    names = list(inspect.signature(function.forward).parameters)
    return namedtuple("Inputs", names, defaults=[None] * len(names))  # type: ignore[misc]
