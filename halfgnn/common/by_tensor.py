"""What is kept with a tensor of ids, while the tensor lives and is not written to."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from torch import Tensor

T = TypeVar("T")


def state_of(tensor: Tensor) -> tuple[Any, ...]:
    """What changes when the tensor is written to, resized or pointed elsewhere."""
    return tensor._version, tensor.data_ptr(), tensor.shape


class ByTensor(Generic[T]):
    """Values by tensor and key. A view is known by its base and its place in it, because a program may make it at every call.

    Nothing is kept with a tensor of inference mode, whose writes are not counted.
    """

    def __init__(self, most: int = 16) -> None:
        self._most = most  # values per tensor; the oldest goes first
        self._entries: dict[int, _Entry[T]] = {}

    def of(self, tensor: Tensor, key: Any, make: Callable[[], T]) -> T:
        """The value of the tensor under the key. It is made at its first use."""
        if tensor.is_inference():
            return make()
        base = tensor._base
        if base is not None:
            place = tensor.data_ptr() - base.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype
            tensor, key = base, (key, place)
        values = self._values(tensor)
        if key not in values:
            value = make()
            while len(values) >= self._most:
                values.pop(next(iter(values)), None)
            values[key] = value
        return values[key]

    def _values(self, tensor: Tensor) -> dict[Any, T]:
        entry = self._entries.get(id(tensor))
        if entry is None or entry.ref() is not tensor or entry.state != state_of(tensor):
            entry = self._entries[id(tensor)] = _Entry(tensor, functools.partial(_forget, self._entries, id(tensor)))
        return entry.values


class _Entry(Generic[T]):
    def __init__(self, tensor: Tensor, forget: Callable[[Any], None]) -> None:
        self.ref = weakref.ref(tensor, forget)
        self.state = state_of(tensor)
        self.values: dict[Any, T] = {}


def _forget(entries: dict[int, Any], key: int, ref: Any) -> None:
    entry = entries.get(key)
    if entry is not None and entry.ref is ref:  # not one that a tensor of the same id has made since
        del entries[key]
