"""How an autograd Function is called, how it names its arguments, and what it does where it is differentiated again."""

from __future__ import annotations

import inspect
from collections import namedtuple
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.autograd import forward_ad

from .precision import without_autocast

_unwrap_if_dead = torch._C._functorch.unwrap_if_dead
# Tensor subclasses whose values are made when materialized() is called. Autograd's C++ must not get them.
LAZY: list[type] = []
# What writes calls of autograd Functions into an FX graph, while one is made (halfgnn.compiled); the innermost is last.
RECORDERS: list[Callable[[type[torch.autograd.Function], Sequence[Any]], Any]] = []


def apply(function: type[torch.autograd.Function], *args):
    """function.apply(*args), by the operator of csrc/torch/autograd if `function` is :func:`in_cpp`.

    Without one, what costs most of Function.apply is left out: it reads the signature of `forward` at every call, which is needless
    because all arguments are given. Compiled code and functorch transforms take the public route.

    A tensor that outlived its functorch transform is unwrapped, as in Function.apply. So no gradient is recorded into what the
    transform left behind.
    """
    if torch.compiler.is_compiling():
        if not torch.compiler.is_dynamo_compiling() and RECORDERS:
            return RECORDERS[-1](function, args)
        return function.apply(*_each_once(args))
    if torch._C._are_functorch_transforms_active():
        return function.apply(*args)
    # Only a tensor that requires a gradient can record one, and most arguments do not: isinstance takes longer to say no.
    alive = [_alive(x) if getattr(x, "requires_grad", False) and isinstance(x, Tensor) else x for x in args]
    if _is_eager() and getattr(function, "operator", None) and function.takes(*args):  # type: ignore[attr-defined]
        return function.operator(*alive)  # type: ignore[attr-defined]
    return super(torch.autograd.Function, function).apply(*alive)  # type: ignore[misc]


def _is_eager() -> bool:
    """Whether neither a trace nor another dispatch mode sees the operators that are called, and no tensor has a tangent."""
    return forward_ad._current_level < 0 and torch._C._len_torch_dispatch_stack() == 0


_Function = TypeVar("_Function", bound=type[torch.autograd.Function])
_IN_CPP: dict[str, Any] = {}  # by the names of their operators
SCALAR_TYPES = {5: torch.float16, 6: torch.float32, 7: torch.float64, 15: torch.bfloat16}  # c10/core/ScalarType.h


def in_cpp(name: str, takes: Callable[..., bool] = lambda *args: True) -> Callable[[_Function], _Function]:
    """For an autograd Function with the arguments of torch.ops.halfgnn_autograd.<name>, which does the same in C++.

    takes(*args): whether the operator in C++ supports these arguments.
    The Function has `gradients(kept, grads, needs)`: the gradients of the operands from what the operator keeps and those of its
    results, None for one that is not needed. The operator calls it where they are recorded themselves, and where a side of the
    topology is missing.
    """

    def of(function: _Function) -> _Function:
        packet = getattr(torch.ops.halfgnn_autograd, name, None)  # None beside another torch: halfgnn/_library.py
        function.operator = packet and packet.default  # type: ignore[attr-defined]
        function.takes = staticmethod(takes)  # type: ignore[attr-defined]
        _IN_CPP[name] = function
        return function

    return of


def shapes_and_dtypes(kept: Sequence) -> tuple[tuple[torch.Size, torch.Size], tuple[torch.dtype, torch.dtype]]:
    """Those of two operands, of the last four values that an operator in C++ keeps."""
    lhs_shape, rhs_shape, lhs_dtype, rhs_dtype = kept[-4:]
    return (torch.Size(lhs_shape), torch.Size(rhs_shape)), (SCALAR_TYPES[lhs_dtype], SCALAR_TYPES[rhs_dtype])


def _gradients_by_python(name, kept, grads, needs):
    return list(_IN_CPP[name].gradients(kept, grads, needs))


_LIBRARY = torch.library.Library("halfgnn_autograd", "FRAGMENT")
_LIBRARY.define("gradients_by_python(str name, Any[] kept, Any[] grads, bool[] needs) -> Any[]")
_LIBRARY.impl("gradients_by_python", _gradients_by_python, "CompositeImplicitAutograd")


def _alive(x: Any) -> Tensor:
    return x.materialized() if type(x) in LAZY else _unwrap_if_dead(x)


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


def snapshot(x: Tensor, without_autograd: bool = False) -> Tensor:
    """x for an operator that may save it for its backward: it has the values of now even if x is modified in place meanwhile.

    Nothing is copied before x is modified in place: the result shares the memory of x until then (PyTorch's copy on write). x
    itself is returned where no write can come between, where autograd records nothing, and where memory cannot be shared like this
    (NumPy's). An input that no operator has made also stays as it is on CUDA, because a captured graph may read it at its address,
    and if something else holds its memory: a NumPy array that was made of x before would keep the old memory when x is modified in
    place.

    without_autograd: also where autograd records nothing.
    """
    if (
        torch.compiler.is_compiling()
        or not (torch.is_grad_enabled() or without_autograd)
        or (x.is_leaf and (x.requires_grad or not x.is_cpu or _is_held_elsewhere(x)))
    ):
        return x
    if x.is_cuda and torch.cuda.is_current_stream_capturing():
        return x
    try:
        return x._lazy_clone()  # type: ignore[attr-defined]
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


def recorded(name: str, backward: Callable, args: Sequence, again: Callable, inputs: Sequence) -> Any:
    """backward(*args), for a backward of the operator `name` that :func:`is_recorded`: so it has derivatives itself.

    again(*inputs): the results of backward(*args) by operators that autograd differentiates, None for one that nothing reads. It is
    called only when a derivative of a result is asked for.
    inputs: tensors, or None. They are kept until then, and gradients reach them alone.
    """
    values = [_unwrap_if_dead(x).detach() if isinstance(x, Tensor) else x for x in args]
    return apply(_Recorded, name, backward, again, len(values), *values, *inputs)


class _Recorded(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(name, backward, again, count, *values):
        return backward(*values[:count])

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.name, _, ctx.again, count, *values = inputs
        ctx.count, ctx.is_tuple = count, not isinstance(output, Tensor)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*values[count:])

    @staticmethod
    def backward(ctx, *cotangents):
        inputs = saved_tensors(ctx, ctx.name)
        unread = [None] * (4 + ctx.count)
        needed = ctx.needs_input_grad[len(unread) :]
        if all(x is None for x in cotangents):
            return (*unread, *(None for _ in inputs))
        again = ctx.again if ctx.is_tuple else lambda *x: (ctx.again(*x),)
        return (*unread, *pull_back(again, inputs, needed, cotangents))


def pull_back(
    function: Callable, inputs: Sequence, needed: Sequence[bool], cotangents: Sequence
) -> list[Tensor | None]:
    """The gradients of <cotangents, function(*inputs)>, recorded if gradients are: None for an input that is not needed.

    function returns as many results as there are cotangents. A result or cotangent that is None counts as 0. Under functorch the
    gradient of an input that is not read may be zeros.
    """
    places = [i for i, x in enumerate(needed) if x]

    def read(*values):
        every = list(inputs)
        for i, value in zip(places, values):
            every[i] = value
        pairs = [(y, x) for y, x in zip(function(*every), cotangents) if y is not None and x is not None]
        return tuple(y for y, _ in pairs), tuple(x for _, x in pairs)

    gradients: list[Tensor | None] = [None] * len(inputs)
    if places:
        with without_autocast(inputs[places[0]].device):
            of_places = _pull_back(read, [inputs[i] for i in places])
        for i, gradient in zip(places, of_places):
            gradients[i] = gradient
    return gradients


def _pull_back(read: Callable, inputs: list[Tensor]) -> Sequence[Tensor | None]:
    """read returns results and their cotangents."""
    if torch._C._are_functorch_transforms_active():
        # Not vjp: that pulls back after its level has ended, and a _Recorded among the operators would reuse the level.

        def inner_product(*x):
            return sum(((y * cotangent).sum() for y, cotangent in zip(*read(*x))), inputs[0].new_zeros(()))

        return torch.func.grad(inner_product, tuple(range(len(inputs))))(*inputs)
    is_kept = torch.is_grad_enabled()
    aliases = [x.view_as(x).requires_grad_() for x in inputs]
    with torch.enable_grad():
        pairs = [(y, x) for y, x in zip(*read(*aliases)) if y.requires_grad]
    if not pairs:
        return [None] * len(inputs)
    results, cotangents = zip(*pairs)
    return torch.autograd.grad(results, aliases, cotangents, create_graph=is_kept, allow_unused=True)


def inputs_of(function: type[torch.autograd.Function]) -> Any:
    """The class of a named tuple with one field per argument of function.forward, None by default.

    With it an autograd Function names its arguments, those that need a gradient, and the gradients that its backward returns.
    """
    names = list(inspect.signature(function.forward).parameters)
    return namedtuple("Inputs", names, defaults=[None] * len(names))  # type: ignore[misc]
