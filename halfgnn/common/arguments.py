"""Checks of arguments that are not tensors. Errors name the user's argument."""

from __future__ import annotations

import math
import operator
from typing import Any

from torch import Tensor

MESSAGE_OPS = ("add", "sub", "mul", "div")
REDUCES = ("sum", "mean", "max", "min")
TARGETS = {"u": "u", "v": "v", "e": "e", "src": "u", "dst": "v", "edge": "e"}  # DGL's spellings


def check_name(value, name: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise ValueError(f"{name} is {value!r}; expected one of {', '.join(known)}")


def checked_flag(value: Any, name: str) -> bool:
    """value as a bool. A tensor is refused: its truth would be read from the device, if it has one. So is what has a length."""
    if isinstance(value, Tensor):
        raise TypeError(f"{name} is a tensor of shape {tuple(value.shape)}; expected True or False")
    if hasattr(value, "__len__"):
        raise TypeError(f"{name} is {value!r}; expected True or False")
    return bool(value)


def check_number(value: Any, name: str) -> float:
    """value as a finite float."""
    if type(value) is not float:
        value = _as_float(value, name)
    if not -math.inf < value < math.inf:
        raise ValueError(f"{name} is {value}; expected a finite number")
    return value


def _as_float(value: Any, name: str) -> float:
    if isinstance(value, Tensor):
        if value.numel() != 1 or value.is_complex():
            raise TypeError(f"{name} is a tensor of shape {tuple(value.shape)} and {value.dtype}; expected a number")
        if value.requires_grad:
            raise TypeError(
                f"{name} is a tensor that requires a gradient, but no gradient would reach it; expected a number"
            )
    elif isinstance(value, (str, bytes)) or not hasattr(value, "__float__"):
        raise TypeError(f"{name} is {value!r}; expected a number")
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):  # for example an array, or an integer beyond every float
        raise TypeError(f"{name} is {value!r}; expected a number") from None


def check_probability(value: Any, name: str) -> float:
    value = check_number(value, name)
    if not 0 <= value <= 1:
        raise ValueError(f"{name} is {value}; expected a probability in [0, 1]")
    return value


def checked_integer(value: Any, name: str, expected: str) -> int:
    """value as an int. A bool is refused. wanted: what the error says is expected."""
    try:
        count = operator.index(value)
    except TypeError:
        what = f"a tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else repr(value)
        raise TypeError(f"{name} is {what}; expected {expected}") from None
    if isinstance(value, bool):
        raise TypeError(f"{name} is {value!r}; expected {expected}")
    return count


def checked_size(value: Any, name: str, least: int = 0) -> int:
    """A number of features or heads, at least `least`."""
    expected = "a positive integer" if least else "an integer of at least 0"
    count = checked_integer(value, name, expected)
    if count < least:
        raise ValueError(f"{name} is {count}; expected {expected}")
    return count


def checked_fanout(value: Any, name: str) -> int:
    """A number of neighbours, -1 for all."""
    expected = "a number of neighbours, or -1 for all"
    count = checked_integer(value, name, expected)
    if count < -1:
        raise ValueError(f"{name} is {count}; expected {expected}")
    return count


def checked_widths(value: Any, name: str, pairs: Any = tuple) -> tuple[int, int]:
    """The widths of the features of sources and destinations, from one integer or a pair. pairs: the types of a pair."""
    if not isinstance(value, pairs):
        return (checked_size(value, name),) * 2
    if len(value) != 2:
        raise ValueError(f"{name} is {value!r}; expected an integer or the pair (of the sources, of the destinations)")
    return checked_size(value[0], f"{name}[0]"), checked_size(value[1], f"{name}[1]")
