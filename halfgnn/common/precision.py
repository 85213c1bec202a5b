"""In which type a call computes: half types, and what torch.autocast makes of them."""

from __future__ import annotations

import contextlib
from typing import overload

import torch
from torch import Tensor

HALF = (torch.float16, torch.bfloat16)


@overload
def autocast(data: Tensor) -> Tensor: ...
@overload
def autocast(data: None) -> None: ...
@overload
def autocast(data: Tensor | None) -> Tensor | None: ...
def autocast(data: Tensor | None) -> Tensor | None:
    """The operand in the dtype of the enclosing torch.autocast of its device; fp64 and integers stay as they are.

    Read at every call from the state that the user entered, so it follows fp16 and bf16 alike. The cast is recorded by autograd:
    leaves get gradients of their own dtype.
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


def autocasts(device: torch.device) -> bool:
    """Whether autocast is on for the device."""
    return device.type in ("cpu", "cuda") and torch.is_autocast_enabled(device.type)


def without_autocast(device: torch.device) -> contextlib.AbstractContextManager:
    if autocasts(device):
        return torch.autocast(device.type, enabled=False)
    return contextlib.nullcontext()


def computed_type(x: Tensor) -> torch.dtype:
    """The dtype in which an operator computes on x: autocast's where that is on."""
    if x.dtype != torch.float64 and autocasts(x.device):
        return torch.get_autocast_dtype(x.device.type)
    return x.dtype
