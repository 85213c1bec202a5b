"""What drop-ins share: names of another library that are bound to stand-ins, from patch() to unpatch()."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any


class Bindings:
    """Attributes that were bound to something else, and what they were bound to."""

    def __init__(self) -> None:
        self._originals: list[tuple[Any, str, Any]] = []  # (owner, name, original)

    def __bool__(self) -> bool:
        return bool(self._originals)

    def bind(self, owner: Any, name: str, stand_in: Any) -> None:
        self._originals.append((owner, name, getattr(owner, name)))
        setattr(owner, name, stand_in)

    def restore(self) -> None:
        while self._originals:
            owner, name, original = self._originals.pop()
            setattr(owner, name, original)


class Switch:
    """Turns a drop-in on and off. It is on after patch(), and while a block of accelerate() is open in any thread.

    Args:
        install: binds the stand-ins of operators.
        install_fused: binds the forwards of fused modules.
        restored: called when all operators have been restored.
    """

    def __init__(
        self,
        install: Callable[[Bindings], None],
        install_fused: Callable[[Bindings], None],
        restored: Callable[[], None] = lambda: None,
    ) -> None:
        self._install_operators, self._install_fused, self._restored = install, install_fused, restored
        self._operators, self._fused = Bindings(), Bindings()
        self._lock = threading.RLock()
        self._patched = self._patched_fused = False  # by patch(), and with fuse=True
        self._open = self._open_fused = 0  # blocks of accelerate(), and those with fuse=True

    def patch(self, fuse: bool) -> None:
        with self._lock:
            self._install(fuse)
            self._patched = True
            self._patched_fused = self._patched_fused or fuse

    def unpatch(self) -> None:
        with self._lock:
            self._patched = self._patched_fused = False
            self._restore_unused()

    @contextlib.contextmanager
    def accelerate(self, fuse: bool) -> Iterator[None]:
        with self._lock:
            self._install(fuse)
            self._open += 1
            self._open_fused += fuse
        try:
            yield
        finally:
            with self._lock:
                self._open -= 1
                self._open_fused -= fuse
                self._restore_unused()

    def _install(self, fuse: bool) -> None:
        try:
            if not self._operators:
                self._install_operators(self._operators)
            if fuse and not self._fused:
                self._install_fused(self._fused)
        except BaseException:
            self._restore_unused()
            raise

    def _restore_unused(self) -> None:
        """Restores what neither patch() nor an open block needs."""
        if not self._patched_fused and not self._open_fused:
            self._fused.restore()
        if not self._patched and not self._open and self._operators:
            self._operators.restore()
            self._restored()
