"""Tables of what is intercepted: one row for each function, method and forward that is replaced."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, NamedTuple

from .sequence_slot import can_clear
from .wrappers import Bindings, Functions, Route, wrapper

ALWAYS = "operators"  # the part of a drop-in that is always on with it


class Row(NamedTuple):
    """One intercepted name.

    Attributes:
        owner: a class, whose attribute is replaced; or the name of a module, whose function is replaced under every name that any
            module has for it.
        name: of the attribute or function.
        adapter: the wrapper calls it with the original and then the original's arguments.
        part: the option of the drop-in with which the row is bound.
    """

    owner: type | str
    name: str
    adapter: Route
    part: str = ALWAYS


class Table:
    """Binds the rows of a drop-in."""

    def __init__(self, rows: list[Row]) -> None:
        self._methods = [row for row in rows if isinstance(row.owner, type)]
        functions: dict[str, list[tuple[str, str, Route]]] = {}
        for row in rows:
            if isinstance(row.owner, str):
                functions.setdefault(row.part, []).append((row.owner, row.name, row.adapter))
        self._functions = {part: Functions(routes) for part, routes in functions.items()}

    def bind(self, bindings: Bindings, part: str = ALWAYS) -> None:
        if part in self._functions:
            self._functions[part].bind(bindings)
        for owner, name, adapter, _ in (row for row in self._methods if row.part == part):
            if name != "__getitem__" or can_clear():
                bindings.bind(owner, name, wrapper(getattr(owner, name), adapter))

    def restored(self) -> None:
        """To be called when the bindings have been restored."""
        for functions in self._functions.values():
            functions.restored()


class Shared:
    """Wrappers that several drop-ins ask for. They are bound while any of them does.

    Args:
        install: binds the wrappers.
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
