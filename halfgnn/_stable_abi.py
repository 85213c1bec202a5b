"""What PyTorch's stable ABI leaves out of the operators of a library, added where Python calls them.

Such a library can raise ValueError and IndexError, but no TypeError or NotImplementedError. It can neither refuse derivatives nor
tell autograd that an operator has modified a tensor in place. Each operator of torch.ops becomes an object of a subclass here,
whose __call__ does this for halfgnn's own calls, those of other Python code, and those of compiled code alike. It takes the place
of PyTorch's __call__, so that a call has no function more. In a library by ATen csrc/torch/aten does all of this.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

_ERRORS = {"TypeError": TypeError, "NotImplementedError": NotImplementedError}
_TYPED = re.compile(r"(\w+): (.*)", re.DOTALL)  # csrc/torch/stable/errors.h


def complete(namespace: str) -> None:
    """Completes all operators of a library that has been loaded: torch.ops.<namespace>.*"""
    for packet in _packets(namespace):
        complete_one = _writing if packet.default._schema.is_mutable else _returning
        for operator in (packet, packet.default):
            _set_call(operator, complete_one(operator._op, packet.default))


def complete_errors(namespace: str) -> None:
    """Gives operators that call those of such a library (csrc/torch/autograd) the errors that these mean."""
    for packet in _packets(namespace):
        _set_call(packet.default, _with_typed_errors(packet.default._op))


def _packets(namespace: str) -> list[Any]:
    prefix = f"{namespace}::"
    names = [x.removeprefix(prefix) for x in torch._C._dispatch_get_all_op_names() if x.startswith(prefix)]
    return [getattr(getattr(torch.ops, namespace), name) for name in names]


def _set_call(operator: Any, call: Callable[..., Any]) -> None:
    kind = type(operator)
    operator.__class__ = type(kind.__name__, (kind,), {"__call__": call, "__module__": kind.__module__})


def _with_typed_errors(call: Callable[..., Any]) -> Callable[..., Any]:
    def complete_call(self: Any, /, *args: Any) -> Any:
        try:
            return call(*args)
        except RuntimeError as error:
            raise _typed(error) from None

    return complete_call


def _typed(error: RuntimeError) -> Exception:
    """The error that an operator of the library means."""
    found = _TYPED.match(str(error))
    return _ERRORS[found[1]](found[2]) if found and found[1] in _ERRORS else error


def _returning(call: Callable[..., Any], operator: Any) -> Callable[..., Any]:
    name = operator._schema.name
    # Lists of tensors are ids, which have no derivative.
    returns_tensors = all(isinstance(result.type, torch.TensorType) for result in operator._schema.returns)
    returns_one = returns_tensors and len(operator._schema.returns) == 1

    def complete_call(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        if forward_ad._current_level >= 0:
            _refuse_forward_ad(operator, args, kwargs)
        try:
            results = call(*args, **kwargs) if kwargs else call(*args)
        except RuntimeError as error:
            raise _typed(error) from None
        # Without a kernel for autograd PyTorch lets results require gradients where operands do, and warns in the backward.
        if returns_one:
            if results.requires_grad:
                _refuse_gradients(name, (results,))
        elif returns_tensors and results and results[0].requires_grad:
            _refuse_gradients(name, results)
        return results

    return complete_call


def _writing(call: Callable[..., Any], operator: Any) -> Callable[..., Any]:
    """Of an operator that writes to arguments and returns nothing by which a derivative could be refused later."""
    name, arguments = operator._schema.name, operator._schema.arguments
    written = {x.name for x in arguments if x.alias_info is not None and x.alias_info.is_write}

    def complete_call(self: Any, /, *args: Any, **kwargs: Any) -> None:
        tensors = _tensors(operator, args, kwargs)
        if forward_ad._current_level >= 0:
            _refuse_forward_ad(operator, args, kwargs)
        if torch.is_grad_enabled():
            for argument, value in tensors:
                if value.requires_grad:
                    raise ValueError(
                        f"{argument} requires grad, and {name} has no derivative: detach it, or call it under torch.no_grad()"
                    )
        try:
            call(*args, **kwargs)
        except RuntimeError as error:
            raise _typed(error) from None
        for argument, value in tensors:
            if argument in written and not value.is_inference():
                torch.autograd.graph.increment_version(value)

    return complete_call


def _tensors(operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[tuple[str, Tensor]]:
    """The arguments that are tensors, with their names."""
    named = [*zip((argument.name for argument in operator._schema.arguments), args), *kwargs.items()]
    return [(name, value) for name, value in named if isinstance(value, Tensor)]


def _refuse_gradients(name: str, results: Iterable[Tensor]) -> None:
    def refuse(gradient: Tensor) -> None:
        raise RuntimeError(f"derivative for {name} is not implemented")

    for result in results:
        if result.requires_grad:
            result.register_hook(refuse)


def _refuse_forward_ad(operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    for argument, value in _tensors(operator, args, kwargs):
        if forward_ad.unpack_dual(value).tangent is not None:
            raise NotImplementedError(
                f"Trying to use forward AD with {operator._schema.name}, which has no derivative: give it the primal of {argument}"
            )
