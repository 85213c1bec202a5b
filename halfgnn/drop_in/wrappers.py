"""Names of another library that are bound to wrappers, and restored."""

from __future__ import annotations

import functools
import importlib
import sys
import types
from collections.abc import Callable
from typing import Any, ClassVar

import torch

from .compiled import is_compiled, skip_frames
from .names import NAMES
from .sequence_slot import clear_below

Route = Callable[..., Any]


class Bindings:
    """Attributes that were bound to something else, and what they were bound to."""

    def __init__(self) -> None:
        self._bound: list[tuple[Any, str, Any, Any]] = []  # (owner, name, original, wrapper)
        self._inherited: set[tuple[Any, str]] = set()  # (owner, name): of another class
        self._is_on = False

    def __bool__(self) -> bool:
        return self._is_on

    def bind(self, owner: Any, name: str, wrapper: Any) -> None:
        if not self._is_on:
            self._bound, self._is_on = [], True
        self._bound.append((owner, name, getattr(owner, name), wrapper))
        if isinstance(owner, type) and name not in vars(owner):
            self._inherited.add((owner, name))
        _set(owner, name, wrapper)

    def bind_again(self) -> bool:
        """Binds what was restored last, but names that have another value by now. Returns False if nothing was restored."""
        for owner, name, original, wrapper in self._bound:
            if getattr(owner, name, None) is original:
                _set(owner, name, wrapper)
        self._is_on = bool(self._bound)
        return self._is_on

    def restore(self) -> None:
        for owner, name, original, wrapper in reversed(self._bound):
            if getattr(owner, name, None) is not wrapper:
                continue
            if (owner, name) in self._inherited:
                delattr(owner, name)
                _keep_slots(owner, name)
            else:
                _set(owner, name, original)
        self._is_on = False


def _set(owner: Any, name: str, value: Any) -> None:
    setattr(owner, name, value)
    _keep_slots(owner, name)


def _keep_slots(owner: Any, name: str) -> None:
    """Lets C see in a class what it saw before."""
    if name == "__getitem__":
        clear_below(owner)


# ---- functions under all their names -------------------------------------------------------------------------------------------


_wrappers: dict[tuple[Any, Route], Any] = {}


def wrapper(original: Any, route: Route) -> Any:
    """A function that calls route(original, ...), and that TorchScript reads as the original: its source and its globals.

    There is one for the life of the process. torch.compile guards code by the functions that it calls, and a drop-in that is turned
    on and off would else compile it again each time. The original is called alone in what torch.compile makes.
    """
    key = original, route
    if key not in _wrappers:
        _wrappers[key] = _new_wrapper(original, route)
    return _wrappers[key]


def _new_wrapper(original: Any, route: Route) -> Any:
    left_alone = is_compiled

    def call(*args: Any, **kwargs: Any) -> Any:
        if left_alone():
            return original(*args, **kwargs)
        return route(original, *args, **kwargs)

    function: Any = route(original) if getattr(route, "is_inline", False) else call
    skip_frames(function)
    if hasattr(original, "__globals__"):
        function = _in_place_of(original, function)
    else:  # TorchScript knows PyTorch's functions without source by their identity
        function = functools.update_wrapper(function, original)
    operator = torch.jit._builtins._find_builtin(original)
    if operator is not None:
        torch.jit._builtins._register_builtin(function, operator)
    return function


def inline(make: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Marks a route that makes the wrapper of an original itself, for calls of a microsecond: it has a frame less.

    The wrapper must not read globals: it gets those of the original. It asks is_compiled() of .compiled before it does anything
    else.
    """
    make.is_inline = True  # type: ignore[attr-defined]
    return make


def _in_place_of(original: Any, function: Any) -> Any:
    same = types.FunctionType(
        function.__code__, original.__globals__, original.__name__, function.__defaults__, function.__closure__
    )
    return functools.update_wrapper(same, original)


def calling_package(frames: int) -> str:
    """The package whose code is so many frames above the one that asks. It takes 0.2 microseconds."""
    name = sys._getframe(frames + 1).f_globals.get("__name__")
    return name.partition(".")[0] if isinstance(name, str) else ""


class Functions:
    """Functions that are replaced under every name that any module has for them.

    A function has one wrapper for the life of the process.

    Args:
        routes: module, name, and what the wrapper calls.
    """

    _all: ClassVar[list[Functions]] = []

    def __init__(self, routes: list[tuple[str, str, Route]]) -> None:
        self._routes = routes
        self._pairs: dict[int, tuple[Any, Any]] = {}  # id of an original -> (it, its wrapper)
        self._all.append(self)

    def bind(self, bindings: Bindings) -> None:
        bound = self._pairs_now()
        for functions in self._all:  # modules are searched once for all
            if not functions._pairs:
                functions._pairs_now()
        for original, replacement in bound.values():
            _share_overloads(original, replacement)
        for place, name, original in NAMES.of({key: original for key, (original, _) in bound.items()}):
            bindings.bind(place, name, bound[id(original)][1])

    def _pairs_now(self) -> dict[int, tuple[Any, Any]]:
        pairs = {}
        for module, name, route in self._routes:
            original = getattr(importlib.import_module(module), name)
            pairs[id(original)] = self._pairs.setdefault(id(original), (original, wrapper(original, route)))
        NAMES.want({id(function): function for pair in pairs.values() for function in pair})
        return pairs

    def restored(self) -> None:
        """To be called when the bindings have been restored. Modules that were imported meanwhile get the originals."""
        originals = {id(replacement): original for original, replacement in self._pairs.values()}
        for place, name, replacement in NAMES.of({id(new): new for _, new in self._pairs.values()}):
            setattr(place, name, originals[id(replacement)])
        for original, replacement in self._pairs.values():
            _share_overloads(original, replacement)


def _share_overloads(*functions: Any) -> None:
    """Gives each function the overloads that TorchScript has compiled for any of them.

    TorchScript compiles the overloads of a function when it is scripted first. It keeps them with the function object, and forgets
    their declarations.
    """
    state = torch.jit._state
    compiled = [x for function in functions for x in state._try_get_jit_cached_overloads(function) or ()]
    if compiled:
        overloads = {x.qualified_name: x for x in compiled}
        for function in functions:
            state._set_jit_overload_cache(function, list(overloads.values()))
