"""What drop-ins share: names of another library that are bound to stand-ins, from patch() to unpatch()."""

from __future__ import annotations

import contextlib
import functools
import importlib
import sys
import threading
import types
import warnings
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import torch

from .compiled import is_compiled, skip_frames
from .names import NAMES
from .sequence_slot import clear_below

Route = Callable[..., Any]


_OPERATORS = "operators"  # the part of a drop-in that is always on with it


class Bindings:
    """Attributes that were bound to something else, and what they were bound to."""

    def __init__(self) -> None:
        self._bound: list[tuple[Any, str, Any, Any]] = []  # (owner, name, original, stand-in)
        self._inherited: set[tuple[Any, str]] = set()  # (owner, name): of another class
        self._is_on = False

    def __bool__(self) -> bool:
        return self._is_on

    def bind(self, owner: Any, name: str, stand_in: Any) -> None:
        if not self._is_on:
            self._bound, self._is_on = [], True
        self._bound.append((owner, name, getattr(owner, name), stand_in))
        if isinstance(owner, type) and name not in vars(owner):
            self._inherited.add((owner, name))
        _set(owner, name, stand_in)

    def bind_again(self) -> bool:
        """Binds what was restored last, but names that have another value by now. Returns False if nothing was restored."""
        for owner, name, original, stand_in in self._bound:
            if getattr(owner, name, None) is original:
                _set(owner, name, stand_in)
        self._is_on = bool(self._bound)
        return self._is_on

    def restore(self) -> None:
        for owner, name, original, stand_in in reversed(self._bound):
            if getattr(owner, name, None) is not stand_in:
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


_stand_ins: dict[tuple[Any, Route], Any] = {}


def stand_in(original: Any, route: Route) -> Any:
    """A function that calls route(original, ...), and that TorchScript reads as the original: its source and its globals.

    There is one for the life of the process. torch.compile guards code by the functions that it calls, and a drop-in that is turned
    on and off would else compile it again each time. The original is called alone in what torch.compile makes.
    """
    key = original, route
    if key not in _stand_ins:
        _stand_ins[key] = _new_stand_in(original, route)
    return _stand_ins[key]


def _new_stand_in(original: Any, route: Route) -> Any:
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
    """Marks a route that makes the stand-in of an original itself, for calls of a microsecond: it has a frame less.

    The stand-in must not read globals: it gets those of the original. It asks is_compiled() of .compiled before it does anything
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

    A function has one stand-in for the life of the process.

    Args:
        routes: module, name, and what the stand-in calls.
    """

    _all: ClassVar[list[Functions]] = []

    def __init__(self, routes: list[tuple[str, str, Route]]) -> None:
        self._routes = routes
        self._pairs: dict[int, tuple[Any, Any]] = {}  # id of an original -> (it, its stand-in)
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
            pairs[id(original)] = self._pairs.setdefault(id(original), (original, stand_in(original, route)))
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


class Shared:
    """Stand-ins that several drop-ins ask for. They are bound while any of them does.

    Args:
        install: binds the stand-ins.
        restored: called when they have been restored.

    Attributes:
        users: those who ask for them.
    """

    def __init__(self, install: Callable[[Bindings], None], restored: Callable[[], None]) -> None:
        self._install, self._restored = install, restored
        self._bindings = Bindings()
        self._lock = threading.Lock()
        self.users: list[Any] = []

    def use(self, user: Any, is_again: bool) -> None:
        """is_again: as of :meth:`Switch.accelerate`."""
        with self._lock:
            self.users.append(user)
            if not self._bindings and not (is_again and self._bindings.bind_again()):
                self._install(self._bindings)

    def leave(self, user: Any, is_again: bool) -> None:
        with self._lock:
            if user in self.users:
                self.users.remove(user)
            if not self.users and self._bindings:
                self._bindings.restore()
                if not is_again:
                    self._restored()


# ---- on and off ----------------------------------------------------------------------------------------------------------------


def as_option(name: str, value: Any, *values: bool | None) -> Any:
    """An argument of patch() and accelerate() that takes some values.

    Raises:
        ValueError: it is another one.
    """
    if not any(value is each for each in values):
        first = ", ".join(map(repr, values[:-1]))
        raise ValueError(f"{name} is {value!r}; expected {first} or {values[-1]!r}")
    return value


class _Block:
    """A block of accelerate(), and the parts of the drop-in that it asks for."""

    def __init__(self, parts: list[str]) -> None:
        self.parts, self.is_open = parts, True


class Switch:
    """Turns a drop-in on and off. It is on after patch(), and while a block of accelerate() is open in any thread.

    Args:
        install: binds the stand-ins of operators.
        options: name of an option of patch() and accelerate() -> what binds its stand-ins. An option is on while any patch() or
            block asks for it.
        restored: called when all operators have been restored.
        shared: name of an option -> stand-ins that it shares with other drop-ins, and their user.
    """

    _all: ClassVar[list[Switch]] = []

    def __init__(
        self,
        install: Callable[[Bindings], None],
        options: dict[str, Callable[[Bindings], None]],
        restored: Callable[[], None] = lambda: None,
        shared: dict[str, tuple[Shared, Any]] | None = None,
    ) -> None:
        self._installers = {_OPERATORS: install, **options}
        self._bindings = {part: Bindings() for part in self._installers}
        self._restored = restored
        self._shared = {_OPERATORS: (_checkpoints, self), **(shared or {})}
        self._lock = threading.RLock()
        self._patched: set[str] = set()  # parts that patch() has asked for
        self._open: list[_Block] = []  # blocks of accelerate()
        self._all.append(self)

    def patch(self, **options: bool | None) -> None:
        """options: False asks for one to be off, which it cannot be if it is on; None asks for nothing."""
        with self._lock:
            self._warn(options)
            NAMES.forget()
            parts = self._parts(options)
            self._install(parts)
            self._patched.update(parts)

    def unpatch(self) -> None:
        with self._lock:
            NAMES.forget()
            self._patched.clear()
            self._restore_unused()

    @contextlib.contextmanager
    def accelerate(self, *, is_again: bool = False, **options: bool | None) -> Iterator[None]:
        """is_again: the drop-in was on with these options before. Modules that were imported since are not searched for names."""
        block = _Block(self._parts(options))
        with self._lock:
            if not is_again:
                self._warn(options)
            self._install(block.parts, is_again)
            self._open.append(block)
        try:
            yield
        finally:
            with self._lock:
                block.is_open = False
                self._open = [other for other in self._open if other.is_open]
                self._restore_unused(is_again)

    @contextlib.contextmanager
    def suspended(self) -> Iterator[None]:
        """A block in which the drop-in is off in the whole process, and can be turned on anew. Then it is on as it was before."""
        with self._lock:
            patched, blocks = self._patched, self._open
            self._patched, self._open = set(), []
            self._restore_unused()
        try:
            yield
        finally:
            with self._lock:
                self._patched |= patched
                self._open += [block for block in blocks if block.is_open]
                self._install([part for part in self._installers if self._is_used(part)])

    @classmethod
    @contextlib.contextmanager
    def all_suspended(cls) -> Iterator[None]:
        """:meth:`suspended` of each drop-in of the process."""
        with contextlib.ExitStack() as stack:
            for switch in list(cls._all):
                stack.enter_context(switch.suspended())
            yield

    def active(self) -> dict[str, bool] | None:
        """The options that are on, as accelerate() takes them; None if the drop-in is off."""
        with self._lock:
            if not self._is_used(_OPERATORS):
                return None
            return {part: self._is_used(part) for part in self._installers if part != _OPERATORS}

    def _warn(self, options: dict[str, bool | None]) -> None:
        for name, is_wanted in options.items():
            if is_wanted is False and self._is_used(name):
                warnings.warn(
                    f"{name}=False changes nothing: an earlier patch(), or an accelerate() that is open, has turned {name} on, and "
                    "patch() and accelerate() only add options. Call unpatch() first.",
                    stacklevel=4,  # who called patch() of the drop-in, or entered accelerate()
                )

    @staticmethod
    def _parts(options: dict[str, bool | None]) -> list[str]:
        return [_OPERATORS, *(name for name, is_wanted in options.items() if is_wanted)]

    def _is_used(self, part: str) -> bool:
        return part in self._patched or any(part in block.parts for block in self._open)

    def _install(self, parts: list[str], is_again: bool = False) -> None:
        try:
            for part in parts:
                bindings = self._bindings[part]
                if not bindings:
                    if not is_again or not bindings.bind_again():
                        self._installers[part](bindings)
                    if part in self._shared:
                        shared, user = self._shared[part]
                        shared.use(user, is_again)
        except BaseException:
            self._restore_unused()
            raise

    def _restore_unused(self, is_again: bool = False) -> None:
        """Restores what neither patch() nor an open block needs."""
        for part in reversed(self._bindings):
            bindings = self._bindings[part]
            if bindings and not self._is_used(part):
                bindings.restore()
                if part == _OPERATORS and not is_again:
                    self._restored()
                if part in self._shared:
                    shared, user = self._shared[part]
                    shared.leave(user, is_again)


# ---- checkpoints: what is recomputed in a backward runs as its forward did -------------------------------------------------------


def _checkpoint(original: Route, function: Any, *args: Any, **kwargs: Any) -> Any:
    """``torch.utils.checkpoint.checkpoint``. The backward may come after a block of accelerate(), or after unpatch()."""
    modes = [(switch, options) for switch in list(_checkpoints.users) if (options := switch.active()) is not None]
    if not modes:
        return original(function, *args, **kwargs)

    def under_drop_ins(*args: Any, **kwargs: Any) -> Any:
        outer, is_inner = getattr(_recomputed, "task", -1), getattr(_recomputed, "is_checkpointed", False)
        with contextlib.ExitStack() as stack:
            for switch, options in modes:
                stack.enter_context(switch.accelerate(is_again=True, **options))
            _recomputed.task, _recomputed.is_checkpointed = torch._C._current_graph_task_id(), True
            try:
                return function(*args, **kwargs)
            finally:
                _recomputed.task, _recomputed.is_checkpointed = outer, is_inner

    return original(under_drop_ins, *args, **kwargs)


def is_checkpointed() -> bool:
    """Whether a checkpoint calls, in the forward or to recompute it. Both must do the same, whatever happened between them."""
    return getattr(_recomputed, "is_checkpointed", False) or _has_hooks_of_a_checkpoint()


def _has_hooks_of_a_checkpoint() -> bool:
    """Whether PyTorch packs tensors for a checkpoint: one that a program held before it got its stand-in, in a partial say."""
    hooks = _top_hooks() if _top_hooks is not None else None
    return hooks is not None and getattr(hooks[0], "__module__", None) == "torch.utils.checkpoint"


def is_backward() -> bool:
    """Whether autograd calls, or what it calls. A checkpoint that is recomputed in a backward is a forward."""
    task = torch._C._current_graph_task_id()
    return task != -1 and task != getattr(_recomputed, "task", -1) and not _has_hooks_of_a_checkpoint()


def _find_top_hooks() -> Callable[[], Any] | None:
    """PyTorch's function for the hooks by which tensors are packed now. It is private: None if a version lacks it."""
    try:
        top = functools.partial(torch._C._autograd._top_saved_tensors_default_hooks, True)  # type: ignore[attr-defined]
        top()
    except (AttributeError, TypeError):
        return None
    return top


_top_hooks = _find_top_hooks()
# task: the backward in which this thread recomputes a checkpoint; is_checkpointed: whether it is in one
_recomputed = threading.local()
_checkpoint_functions = Functions([("torch.utils.checkpoint", "checkpoint", _checkpoint)])
_checkpoints = Shared(_checkpoint_functions.bind, _checkpoint_functions.restored)  # used by Switches that are on
