"""What is kept with a tensor of ids, while the tensor lives and is not written to."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

T = TypeVar("T")


def state_of(tensor: Tensor) -> tuple[Any, ...]:
    """What changes when the tensor is written to, resized or pointed elsewhere."""
    return tensor._version, tensor.data_ptr(), tensor.shape


class ByTensor(Generic[T]):
    """One value per tensor. It is forgotten with the tensor. Tensors of inference mode have no state, and no value."""

    def __init__(self) -> None:
        self._entries: dict[int, _Entry[T]] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def has_heard_of(self, tensor: Tensor) -> bool:
        """Whether it had a value once. It is the cheapest question."""
        return id(tensor) in self._entries

    def get(self, tensor: Tensor) -> T | None:
        """The value of the tensor as it is now."""
        entry = self._entries.get(id(tensor))
        return entry.value if entry is not None and entry.ref() is tensor and entry.state == state_of(tensor) else None

    def put(self, tensor: Tensor, value: T) -> T:
        return self._put(tensor, value, state_of(tensor))

    def _put(self, tensor: Tensor, value: T, state: Any) -> T:
        key = id(tensor)
        self._entries[key] = _Entry(tensor, value, functools.partial(_forget, self._entries, key), state)
        return value


class ByContent(ByTensor[T]):
    """One value per tensor whose writes are not counted: a tensor of inference mode on the CPU. The content is compared with a copy
    at every question. That is for what takes longer to make."""

    def get(self, tensor: Tensor) -> T | None:
        entry = self._entries.get(id(tensor))
        if entry is None or entry.ref() is not tensor:
            return None
        copy = entry.state
        is_same = copy.dtype == tensor.dtype and copy.shape == tensor.shape and torch.equal(copy, tensor)
        return entry.value if is_same else None

    def put(self, tensor: Tensor, value: T) -> T:
        return self._put(tensor, value, tensor.clone())


class _Entry(Generic[T]):
    def __init__(self, tensor: Tensor, value: T, forget: Callable[[Any], None], state: Any) -> None:
        self.ref, self.state, self.value = weakref.ref(tensor, forget), state, value


def _forget(entries: dict[int, Any], key: int, ref: Any) -> None:
    entry = entries.get(key)
    if entry is not None and entry.ref is ref:  # not one that another tensor of this id has made since
        del entries[key]


class ByPlace(Generic[T]):
    """Values by tensor and key. A view is known by its base and its place in it, because a program may make it at every call."""

    def __init__(self, most: int = 16) -> None:
        self._most = most  # values per tensor; the oldest goes first
        self._values: ByTensor[dict[Any, T]] = ByTensor()

    def of(self, tensor: Tensor, key: Any, make: Callable[[], T]) -> T:
        """The value of the tensor under the key. It is made at its first use, and at every use of a tensor of inference mode."""
        if tensor.is_inference():
            return make()
        base = tensor._base
        if base is not None:
            place = tensor.data_ptr() - base.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype
            tensor, key = base, (key, place)
        values = self._values.get(tensor)
        if values is None:
            values = self._values.put(tensor, {})
        if key not in values:
            value = make()
            while len(values) >= self._most:
                values.pop(next(iter(values)), None)
            values[key] = value
        return values[key]
