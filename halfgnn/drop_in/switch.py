"""Drop-ins that are turned on and off: patch(), unpatch() and accelerate()."""

from __future__ import annotations

import contextlib
import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import torch

from ..common.compat import forget_names_without
from .checkpoint import CHECKPOINTS
from .names import NAMES
from .table import ALWAYS, Shared
from .wrappers import Bindings


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
    """A block of accelerate(), the parts of the drop-in that it asks for, and values of options."""

    def __init__(self, parts: list[str], values: dict[str, Any]) -> None:
        self.parts, self.values, self.is_open = parts, values, True


class Switch:
    """Turns a drop-in on and off. It is on after patch(), and while a block of accelerate() is open in any thread.

    Args:
        install: binds the wrappers of operators.
        options: name of an option of patch() and accelerate() -> what binds its wrappers. An option is on while any patch() or
            block asks for it.
        restored: called when all operators have been restored.
        shared: name of an option -> wrappers that it shares with other drop-ins, and their user.
        values: name of an option that has a value -> what sets it, to None if nobody asks for one. The last one that was asked for,
            by a block that is open or by patch(), is on.
    """

    _all: ClassVar[list[Switch]] = []

    def __init__(
        self,
        install: Callable[[Bindings], None],
        options: dict[str, Callable[[Bindings], None]],
        restored: Callable[[], None] = lambda: None,
        shared: dict[str, tuple[Shared, Any]] | None = None,
        values: dict[str, Callable[[Any], None]] | None = None,
    ) -> None:
        self._setters = values or {}
        self._installers = {ALWAYS: install, **options}
        self._bindings = {part: Bindings() for part in self._installers}
        self._restored = restored
        self._shared = {ALWAYS: (CHECKPOINTS, self), **(shared or {})}
        self._lock = threading.RLock()
        self._patched: set[str] = set()  # parts that patch() has asked for
        self._patched_values: dict[str, Any] = {}
        self._open: list[_Block] = []  # blocks of accelerate()
        self._all.append(self)

    def patch(self, **options: Any) -> None:
        """options: False asks for one to be off, which it cannot be if it is on; None asks for nothing."""
        with self._lock:
            self._warn(options)
            NAMES.forget()
            block = self._block(options)
            self._install(block.parts)
            self._patched.update(block.parts)
            self._patched_values |= block.values
            self._set_values()

    def unpatch(self) -> None:
        with self._lock:
            NAMES.forget()
            self._patched.clear()
            self._patched_values.clear()
            self._restore_unused()

    @contextlib.contextmanager
    def accelerate(self, *, is_again: bool = False, **options: Any) -> Iterator[None]:
        """is_again: the drop-in was on with these options before. Modules that were imported since are not searched for names."""
        block = self._block(options)
        with self._lock:
            if not is_again:
                self._warn(options)
            self._install(block.parts, is_again)
            self._open.append(block)
            self._set_values()
        try:
            yield
        finally:
            with self._lock:
                block.is_open = False
                self._open = [other for other in self._open if other.is_open]
                self._restore_unused(is_again)

    @contextlib.contextmanager
    def suspended(self) -> Iterator[None]:
        """A block in which the drop-in is off in the whole process, and can be turned on again. Then it is on as it was before."""
        with self._lock:
            patched, values, blocks = self._patched, self._patched_values, self._open
            self._patched, self._patched_values, self._open = set(), {}, []
            self._restore_unused()
        try:
            yield
        finally:
            with self._lock:
                self._patched |= patched
                self._patched_values = {**values, **self._patched_values}
                self._open += [block for block in blocks if block.is_open]
                self._install([part for part in self._installers if self._is_used(part)])
                self._set_values()

    @classmethod
    @contextlib.contextmanager
    def all_suspended(cls) -> Iterator[None]:
        """:meth:`suspended` of each drop-in of the process."""
        with contextlib.ExitStack() as stack:
            for switch in list(cls._all):
                stack.enter_context(switch.suspended())
            yield

    def active(self) -> dict[str, Any] | None:
        """The options that are on, as accelerate() takes them; None if the drop-in is off."""
        with self._lock:
            if not self._is_used(ALWAYS):
                return None
            parts = {part: self._is_used(part) for part in self._installers if part != ALWAYS}
            return {**parts, **self._values()}

    def _warn(self, options: dict[str, Any]) -> None:
        for name, is_wanted in options.items():
            if is_wanted is False and self._is_used(name):
                warnings.warn(
                    f"{name}=False changes nothing: an earlier patch(), or an accelerate() that is open, has turned {name} on, and "
                    "patch() and accelerate() only add options. Call unpatch() first.",
                    stacklevel=4,  # who called patch() of the drop-in, or entered accelerate()
                )

    def _block(self, options: dict[str, Any]) -> _Block:
        parts = [name for name, is_wanted in options.items() if is_wanted and name not in self._setters]
        values = {name: value for name, value in options.items() if value is not None and name in self._setters}
        return _Block([ALWAYS, *parts], values)

    def _values(self) -> dict[str, Any]:
        """Those that are on."""
        values = dict(self._patched_values)
        for block in self._open:
            values |= block.values
        return values

    def _set_values(self) -> None:
        values = self._values()
        for name, put in self._setters.items():
            put(values.get(name))

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
        self._set_values()
        for part in reversed(self._bindings):
            bindings = self._bindings[part]
            if bindings and not self._is_used(part):
                bindings.restore()
                forget_names_without(torch.index_add)  # or Dynamo would end its graphs at what was wrapped
                if part == ALWAYS and not is_again:
                    self._restored()
                if part in self._shared:
                    shared, user = self._shared[part]
                    shared.leave(user, is_again)
