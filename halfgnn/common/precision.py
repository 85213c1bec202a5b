"""The dtype in which a call computes: half types and torch.autocast."""

from __future__ import annotations

import contextlib
from typing import Any, overload

import torch
from torch import Tensor

HALF = (torch.float16, torch.bfloat16)


def may_mix(a: torch.dtype, b: torch.dtype) -> bool:
    """Whether gspmm and gsddmm take operands of two floating-point dtypes together: equal ones, or a half type and fp32."""
    return a is b or (a is torch.float32 and b in HALF) or (a in HALF and b is torch.float32)


@overload
def autocast(data: Tensor) -> Tensor: ...
@overload
def autocast(data: None) -> None: ...
@overload
def autocast(data: Tensor | None) -> Tensor | None: ...
def autocast(data: Tensor | None) -> Tensor | None:
    """The operand in the dtype of the torch.autocast that is on for its device. fp64 and integers stay as they are.

    The dtype is read at every call, so fp16 and bf16 both work. Autograd records the cast, so leaves get gradients of their own
    dtype.
    """
    if data is None:
        return None
    device_type = data.device.type
    if device_type not in ("cpu", "cuda") and not torch.amp.is_autocast_available(device_type):
        return data
    if not torch.is_autocast_enabled(device_type):
        return data
    dtype = torch.get_autocast_dtype(device_type)
    if data.dtype == dtype or data.dtype == torch.float64 or not data.is_floating_point():
        return data
    return data.to(dtype)


def autocast_all(device: torch.device, *operands: Tensor | None) -> tuple[Tensor | None, ...]:
    """:func:`autocast` of operands that are on `device`, which is asked once."""
    device_type = device.type
    if device_type in ("cpu", "cuda") and not torch.is_autocast_enabled(device_type):
        return operands  # mostly
    return tuple(autocast(data) for data in operands)


def autocasts(device: torch.device) -> bool:
    """Whether autocast is on for the device."""
    device_type = device.type
    return device_type in ("cpu", "cuda") and torch.is_autocast_enabled(device_type)


def without_autocast(device: torch.device) -> contextlib.AbstractContextManager:
    if autocasts(device):
        return torch.autocast(device.type, enabled=False)
    return contextlib.nullcontext()


def computed_type(x: Any) -> torch.dtype:
    """The dtype in which an operator takes x, which has a dtype and a device: autocast's if it is on, otherwise that of x."""
    if x.dtype != torch.float64 and autocasts(x.device):
        return torch.get_autocast_dtype(x.device.type)
    return x.dtype
