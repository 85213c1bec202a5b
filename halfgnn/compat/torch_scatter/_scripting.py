"""What torch.jit.script makes of functions here."""

from __future__ import annotations

import typing
from collections.abc import Callable
from typing import Any, TypeVar

import torch

Function = TypeVar("Function", bound=Callable[..., Any])


def in_python(function: Function) -> Function:
    """Code that torch.jit.script compiles calls the function in Python. Annotations that are strings would not be read."""
    function.__annotations__ = typing.get_type_hints(function)
    return torch.jit.ignore(function)
