"""Messages: tensors of one row per edge that are materialized when something reads them, and never if they are only reduced.

A ``Message`` stands above autograd. Every function of PyTorch that takes one comes to ``__torch_function__``. It extends the
expression, lowers it, or materializes it and runs on ordinary tensors, which have the only autograd history that there is.
"""

from __future__ import annotations

import contextlib
import functools
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack
from torch.utils._pytree import tree_leaves

from ...common.autograd import LAZY
from ...drop_in.checkpoint import is_backward
from ...drop_in.compiled import leave_out, skip_frames
from ...expressions.expression import Expression, Gather, Op, Softmax, version_of
from ...expressions.propagation import Propagation
from ...expressions.rules import extended, uncast
from ...expressions.values import materialize, own_values
from .accounts import accounts, fell_back

_aten = torch.ops.aten
Handler = Callable[[Any, tuple[Any, ...], dict[str, Any]], Any]


class _Thread(threading.local):
    is_extending = False  # whether an operator of PyTorch runs only to say what it is made of


_thread = _Thread()


class _NotExtended(Exception):
    """Raised through an operator of PyTorch by which no expression can be extended."""


# What functions of PyTorch do with messages, where they do not run on their values; see functions.py.
HANDLERS: dict[Any, Handler] = {}


class Message(Tensor):
    """Attributes:
    lazy: its expression, which :meth:`expression` returns where it still holds.
    viewed: the message of whose memory it is a view or an alias; None if it has memory of its own.
    make_view: what makes it of that one's values.
    tensor: the ordinary tensor that it is once it is materialized.
    former: its values before ``x.data = y`` replaced them, of which earlier views are views.
    """

    lazy: Expression
    viewed: Message | None
    make_view: Callable[[Tensor], Tensor] | None
    tensor: Tensor | None
    former: Tensor | None
    _version_made: int | None
    _is_modified: bool
    _has_view: bool

    @staticmethod
    def of(
        lazy: Expression, viewed: Message | None = None, make_view: Callable[[Tensor], Tensor] | None = None
    ) -> Message:
        message = Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            Message, lazy.shape, lazy.strides, dtype=lazy.dtype, device=lazy.device
        )
        message.lazy, message.viewed, message.make_view = lazy, viewed, make_view
        message.tensor, message.former, message._version_made = None, None, None
        message._is_modified = message._has_view = False
        return message

    def expression(self) -> Expression | None:
        """What is computed; None if its values were modified in place, or its features: then it is an ordinary tensor.

        So it is if it has an ordinary view: who writes to the view's .data is not counted.
        """
        return self.lazy if not self._has_view and self._holds() else None

    def _holds(self) -> bool:
        """Whether its values and its features are those that it was made with."""
        return self._is_unmodified() and self.lazy.is_current()

    def _is_unmodified(self) -> bool:
        tensor = self.tensor
        if tensor is not None and (self._is_modified or tensor.is_inference() or tensor._version != self._version_made):
            return False
        return self.viewed is None or self.viewed._is_unmodified()

    def materialized(self, reader: str | None = None) -> Tensor:
        """The ordinary tensor. reader: the function that reads it, which is counted."""
        if self.tensor is None:
            start = time.perf_counter()
            with _without_transforms():
                self.tensor = self._values() if self.viewed is None else self._view_of(self.viewed._values_of_views())
            self._version_made = version_of(self.tensor)
            if isinstance(self.lazy, Softmax) and reader is not None and not is_backward():
                self.lazy.note_read()
            # What is one operator of both sides is not counted, even if it is materialized.
            if reader is not None and not is_backward() and not self.lazy.name.endswith("_v"):
                fell_back[f"message:{self.lazy.name}", f"read by {reader}"] += 1
                accounts.note_materialized(f"{self.lazy.name} by {reader}", time.perf_counter() - start)
        return self.tensor

    def _values(self) -> Tensor:
        return own_values(materialize(self.lazy))

    def _values_of_views(self) -> Tensor:
        return self.materialized() if self.former is None else self.former

    def _view_of(self, values: Tensor) -> Tensor:
        assert self.make_view is not None
        with torch.set_grad_enabled(self.lazy.requires_grad):
            return self.make_view(values)

    def observed(self) -> Tensor:
        """The ordinary tensor, whose gradient somebody waits for: all gradients have to pass through it from now on."""
        lazy = self.lazy
        if lazy.grad_bypassed:
            raise RuntimeError(
                f"a message {tuple(lazy.shape)} was reduced without being materialized, so that its gradient is not known; call "
                "its retain_grad() before it is used"
            )
        if lazy.requires_grad and not lazy.cache.is_observed and self._holds():
            if self.viewed is None or lazy.cache.is_shared:  # what was made of the values before is watched too
                self.tensor = materialize(lazy)
                self._version_made = version_of(self.tensor)
            lazy.put(self.materialized())
            lazy.cache.is_observed = True
        return self.materialized()

    def before_write(self) -> None:
        """Lets expressions that were made of this one have the values that it has now."""
        lazy = self.lazy
        if lazy.cache.is_observed and lazy.cache.values is self.tensor and lazy.cache.values is not None:
            lazy.put(lazy.cache.values.clone())
        if self.viewed is not None:
            self.viewed.before_write()

    def note_view(self) -> None:
        """Notes that an ordinary tensor is a view of its values."""
        self._has_view = True
        if self.viewed is not None:
            self.viewed.note_view()

    def detached(self) -> Message:
        return Message.of(self.lazy.detached(), self, Tensor.detach)

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        kwargs = kwargs or {}
        handler = HANDLERS.get(func)
        if handler is None and hasattr(func, "__wrapped__"):  # C hands over what it finds under a name: a wrapper
            func = func.__wrapped__
            handler = HANDLERS.get(func)
        if handler is not None:
            result = handler(func, args, kwargs)
            if result is not NotImplemented:
                return result
        return on_values(func, args, kwargs)

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        kwargs = kwargs or {}
        if not _thread.is_extending:
            return _below_autograd(func, args, kwargs)
        if func in _COMPOSED and (parts := func.decompose(*args, **kwargs)) is not NotImplemented:
            return parts
        lazy = extended(func, tuple(_mapped(_expression_of, x) for x in args), kwargs)
        if lazy is None:
            raise _NotExtended
        if not lazy.is_view:
            return Message.of(lazy)
        viewed, view = args[0], lazy
        return Message.of(lazy, viewed, lambda values: view.func(values, *view.args[1:], **view.kwargs))


def _without_transforms() -> contextlib.AbstractContextManager[Any]:
    """A context without functorch's transforms, which a message may be read in: it is made of ordinary tensors."""
    is_transformed = torch._C._are_functorch_transforms_active()
    return temporarily_clear_interpreter_stack() if is_transformed else contextlib.nullcontext()


LAZY.append(Message)
for _method in (Message.materialized, Message.observed):
    leave_out(_method, "a message of halfgnn.pyg's drop-in is materialized between two graphs")


def _materializing(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function or class method that takes ordinary tensors in place of messages, because its C++ does not ask
    ``__torch_function__``."""
    message = Message

    def on_tensors(*args: Any, **kwargs: Any) -> Any:
        if any([type(x) is message for x in args]):
            args = tuple([x.materialized(function.__name__) if type(x) is message else x for x in args])
        return function(*args, **kwargs)

    return skip_frames(functools.wraps(function)(on_tensors))


@functools.cache
def guard_autograd() -> None:
    """Binds ``torch.autograd.Function.apply`` for good: programs may hand it messages when the drop-in is off again."""
    apply = vars(torch.autograd.Function)["apply"].__func__
    torch.autograd.Function.apply = classmethod(_materializing(apply))  # type: ignore[assignment,method-assign]


def on_tensors(original: Callable[..., Any], *args: Any) -> Any:
    """Functions of functorch that wrap a tensor, whose C++ does not ask ``__torch_function__``."""
    return original(*(x.materialized(original.__name__) if type(x) is Message else x for x in args))


def message_of(result: Expression | Tensor) -> Tensor:
    """What an expression is lowered to, which may be another expression, as a program gets it."""
    return Message.of(result) if isinstance(result, Expression) else result


def gather(
    x: Tensor, propagation: Propagation, side: int, index: Tensor, dim: int = 0, values: Tensor | None = None
) -> Message:
    """x.index_select(dim, index) of a row of edges as a message. values: those of x, which no write to x changes."""
    return Message.of(Gather(x, propagation, side, index, dim, values))


def expression_of(x: Any) -> Expression | None:
    """The expression of a message; None for other values, and if it has to be read."""
    return x.expression() if isinstance(x, Message) else None


def tensor_of(x: Tensor, reader: str) -> Tensor:
    """An ordinary tensor: a message's values, which a reader is counted for."""
    return x.materialized(reader) if isinstance(x, Message) else x


def _expression_of(x: Any) -> Any:
    return x.lazy if isinstance(x, Message) else x


def _mapped(function: Callable[[Any], Any], x: Any) -> Any:
    """function of an argument of an operator, or of what it lists."""
    return type(x)(map(function, x)) if type(x) in (list, tuple) else function(x)


def messages_in(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[Message]:
    for x in (*args, *kwargs.values()):
        if isinstance(x, Message):
            yield x
        elif isinstance(x, dict):
            yield from messages_in(tuple(x.values()), {})
        elif isinstance(x, (list, tuple)):
            yield from messages_in(tuple(x), {})


# ---- on ordinary tensors -------------------------------------------------------------------------------------------------------


def on_values(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """func of ordinary tensors in place of messages."""
    name = _name_of(func)
    messages = {id(x): x for x in messages_in(args, kwargs)}
    values = {key: x.materialized(name) for key, x in messages.items()}
    if may_write := _may_write(name, kwargs):
        for x in messages.values():
            x.before_write()

    if func == _SET_DATA and isinstance(args[0], Message) and args[0].former is None:
        args[0].former = values[id(args[0])].view_as(values[id(args[0])])
    result = func(*_replaced(tuple(args), values), **_replaced(kwargs, values))
    if name == "__set__":
        args[0]._is_modified = True
    for x in messages.values():
        if _has_view_in(result, x.tensor):
            x.note_view()
    if not may_write:
        return result
    return next((x for key, x in messages.items() if values[key] is result), result)


_SET_DATA = Tensor.data.__set__  # type: ignore[attr-defined]


def _has_view_in(result: Any, values: Tensor | None) -> bool:
    """Whether a result of values, or one of several, is a view of their memory."""
    if isinstance(result, (list, tuple)):
        return any(_has_view_in(x, values) for x in result)
    if not isinstance(result, Tensor) or values is None or not result._is_view():
        return False
    return result._base is (values if values._base is None else values._base)


def _replaced(x: Any, values: dict[int, Tensor]) -> Any:
    """x with values, by id, in place of messages."""
    if isinstance(x, Message):
        return values[id(x)]
    if isinstance(x, dict):
        return {key: _replaced(y, values) for key, y in x.items()}
    if isinstance(x, (list, tuple)):
        parts = [_replaced(y, values) for y in x]
        return type(x)(*parts) if hasattr(x, "_fields") else type(x)(parts)
    return x


def _name_of(func: Any) -> str:
    name = getattr(func, "__name__", None) or str(func)
    return str(getattr(func.__self__, "__name__", name)) if name == "__get__" else str(name)


def _may_write(name: str, kwargs: dict[str, Any]) -> bool:
    """Whether a function modifies its arguments in place, as its name says."""
    is_method = name.startswith("__i") or name in ("__setitem__", "__set__")
    return (
        (name.endswith("_") and not name.startswith("__"))
        or is_method
        or "out" in kwargs
        or bool(kwargs.get("inplace"))
    )


def _below_autograd(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """func, which C++ has called without __torch_function__. Autograd, which has passed by, is called again for the messages.

    It has noted what else requires a gradient: the history of the result would be that alone.
    """
    messages = list(messages_in(args, kwargs))
    if torch.is_grad_enabled() and any(x.requires_grad for x in messages):
        others = tree_leaves((args, kwargs))
        if any(isinstance(x, Tensor) and type(x) is not Message and x.requires_grad for x in others):
            shape = tuple(messages[0].lazy.shape)
            raise RuntimeError(
                f"{func.name()} is called from C++ on a message {shape} and on another tensor that requires a gradient: the "
                "message's would be lost; pass the message's materialized()"
            )
    included, excluded = torch._C._dispatch_tls_local_include_set(), torch._C._dispatch_tls_local_exclude_set()
    for key in _AUTOGRAD:
        excluded = excluded.remove(key)
    with torch._C._ForceDispatchKeyGuard(included, excluded):
        return on_values(func, args, kwargs)


_AUTOGRAD = [
    torch._C._dispatch_key_parse(name)
    for name in ("AutogradFunctionality", "ADInplaceOrView", "AutogradOther", "AutogradNestedTensor")
]


# ---- extending -----------------------------------------------------------------------------------------------------------------

_COMPOSED = frozenset(
    getattr(getattr(_aten, name), overload)
    for name in (
        "to", "type_as", "view_as", "reshape", "reshape_as", "flatten", "unflatten", "narrow", "swapaxes", "swapdims", "movedim",
        "expand_as", "chunk", "split", "multiply", "subtract", "divide", "true_divide", "absolute", "negative", "concat",
        "concatenate", "contiguous", "where",
    )
    for overload in getattr(_aten, name).overloads()
)  # fmt: skip


def extend(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Another message, if PyTorch's operators of which func is made extend the expression."""
    if is_watched_or_transformed() or is_backward():
        return NotImplemented
    args = tuple(_mapped(_as_tensor, x) for x in args)
    if not any(True for _ in messages_in(args, kwargs)):
        return NotImplemented
    _thread.is_extending = True
    try:
        with (
            torch._C.DisableTorchFunctionSubclass(),
            torch._C._AutoDispatchBelowADInplaceOrView(),
            uncast(args, kwargs),
        ):
            result = func(*args, **kwargs)
    except _NotExtended:
        return NotImplemented
    finally:
        _thread.is_extending = False
    if not isinstance(result, Message):  # what was made of other tensors has no history
        return result if isinstance(result, (list, tuple)) and isinstance(result[0], Message) else NotImplemented
    if isinstance(result.lazy, Op) and result.lazy.keeps:
        result.lazy.keep()
    return result


def is_watched_or_transformed() -> bool:
    """Whether modes see the operators that run, or functorch's transforms give them tensors of their own."""
    return torch._C._len_torch_dispatch_stack() > 0 or torch._C._are_functorch_transforms_active()


def _as_tensor(x: Any) -> Any:
    """A message that is only an ordinary tensor any more as that."""
    return x.materialized() if isinstance(x, Message) and x.expression() is None else x
