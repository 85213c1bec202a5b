"""Keeps a class whose __getitem__ is bound to a Python function from looking like a sequence to C.

CPython fills two slots of a class for such a function: that of mappings, by which x[index] goes, and that of sequences.
torch.Tensor has the first alone, and PyTorch takes what has the second for a sequence: torch.tensor([loss, accuracy]) would ask
tensors without dimensions for their length. A slot stays filled when the function is gone. So the second one is emptied here, by
ctypes: nothing in Python does that. A class that is derived while the function is there keeps both.
"""

from __future__ import annotations

import ctypes
import functools
import sys
from collections.abc import Iterator
from typing import Any

_NAME = "__getitem__"


class _Sequence(ctypes.Structure):
    """PySequenceMethods, up to sq_item."""

    _fields_ = [(name, ctypes.c_void_p) for name in ("length", "concat", "repeat", "item")]


class _Type(ctypes.Structure):
    """PyTypeObject, up to tp_as_sequence. Ten fields come between its size and that."""

    _fields_ = [
        ("object", ctypes.c_byte * object.__basicsize__),
        ("size", ctypes.c_ssize_t),
        ("others", ctypes.c_void_p * 10),
        ("as_sequence", ctypes.POINTER(_Sequence)),
    ]


def _clear(cls: type) -> None:
    methods = _Type.from_address(id(cls)).as_sequence
    if methods:
        methods.contents.item = None


@functools.cache
def can_clear() -> bool:
    """Whether this interpreter has the layout above, which is tried on a class of its own."""
    if sys.implementation.name != "cpython":
        return False

    class Probe:
        def __getitem__(self, index: Any) -> Any:
            return index

    is_sequence = ctypes.pythonapi.PySequence_Check
    is_sequence.argtypes, is_sequence.restype = [ctypes.py_object], ctypes.c_int
    slots = _Type.from_address(id(Probe))
    # A layout that differs would most likely differ in what was read first.
    if slots.size != 0 or not slots.as_sequence or not slots.as_sequence.contents.item or not is_sequence(Probe()):
        return False
    _clear(Probe)
    return not is_sequence(Probe()) and Probe()[7] == 7


def clear_below(cls: type) -> None:
    """Empties the slot of cls, and of its subclasses that have no __getitem__ of their own."""
    for each in _with_subclasses(cls):
        owner = next(base for base in each.__mro__ if _NAME in vars(base))
        if issubclass(cls, owner):
            _clear(each)


def _with_subclasses(cls: type) -> Iterator[type]:
    yield cls
    below: type
    for below in type.__subclasses__(cls):
        yield from _with_subclasses(below)
