"""Which operands and devices the drop-ins route, and why they leave others to the library that they are drop-ins for."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ..common.precision import HALF, may_mix

_IDS = (torch.int32, torch.int64)
# Modes of PyTorch that call every operator as it is, halfgnn's too, and count it or keep its results. Subclasses may do more.
_WATCHING_MODES = frozenset(
    (
        "torch.utils.flop_counter.FlopCounterMode",
        "torch.utils.flop_counter._FlopCounterMode",
        "torch.utils.checkpoint._CachingTorchDispatchMode",
        "torch.utils.checkpoint._CachedTorchDispatchMode",
        "torch.autograd.graph._CloneArgBeforeMutateMode",
        "torch.testing._internal.logging_tensor.LoggingTensorMode",
    )
)
CASTABLE_TYPES = frozenset([*HALF, torch.float32])  # by autocast


def _cuda_has(*operators: str) -> bool:
    return all(
        torch._C._dispatch_has_kernel_for_dispatch_key(f"halfgnn::{operator}{suffix}", "CUDA")
        for operator in operators
        for suffix in ("", "_backward")
    )


@functools.cache
def cuda_has_attention() -> bool:
    """Whether the fused attentions have CUDA kernels."""
    return _cuda_has("gat_attention", "gatv2_attention", "dot_attention")


@functools.cache
def types_on(device: str) -> frozenset[torch.dtype]:
    """The dtypes that are routed on a kind of device."""
    if device == "cpu":
        return CASTABLE_TYPES | {torch.float64}
    # Calls on CUDA are routed only if every operator has a CUDA kernel: half a model on the GPU would only raise.
    return CASTABLE_TYPES if device == "cuda" and _cuda_has("gspmm", "gsddmm", "edge_softmax") else frozenset()


def refuse_tracing() -> str | None:
    """Why an operator of halfgnn cannot stand in the code that runs now. A trace would have the kept graph as a constant."""
    if torch._C._is_tracing():
        return "torch.jit.trace"
    return "forward-mode AD" if torch.autograd.forward_ad._current_level >= 0 else None


def refuse_mode(may_be_watched: bool = False) -> str | None:
    """Why the code that runs now is not an eager call on its data.

    may_be_watched: whether a mode may see the operators that run, if it calls each as it is. It must see the same ones at every
    call: what is kept is made under :func:`.kept.ordinary_tensors`.
    """
    if torch._C._are_functorch_transforms_active():
        return "functorch"
    return refuse_tracing() or (
        _refuse_dispatch_modes(may_be_watched) if torch._C._len_torch_dispatch_stack() else None
    )


def _refuse_dispatch_modes(may_be_watched: bool) -> str | None:
    for place in range(torch._C._len_torch_dispatch_stack()):
        mode = type(torch._C._get_dispatch_stack_at(place))
        if not may_be_watched or f"{mode.__module__}.{mode.__qualname__}" not in _WATCHING_MODES:
            return f"dispatch mode {mode.__qualname__}"
    return None


def refuse_index(index: Any, rows: Tensor | None = None) -> str | None:
    """Why an index, an edge_index or offsets are not read. It is asked first: their values may be nowhere.

    rows: what the index says something of.
    """
    if type(index) is not Tensor and type(index) is not nn.Parameter:
        return f"index of class {type(index).__name__}"
    if index.layout != torch.strided:
        return f"{index.layout} index"
    if index.dtype not in _IDS:
        return f"ids of {index.dtype}"
    is_readable = types_on(index.device.type) and (rows is None or index.device == rows.device)
    return None if is_readable else f"index on {index.device.type}"


def refuse(operands: Sequence[Any], mixed: bool = False) -> str | None:
    """Why operands are not routed; None if they are.

    mixed: one operand may be half and the other fp32.
    """
    first = operands[0]
    if not isinstance(first, Tensor):
        return "missing operand"
    dtype, device = first.dtype, first.device.type
    if dtype not in types_on(device):
        return f"{dtype} on {device}"
    for other in operands[1:]:
        if not isinstance(other, Tensor):
            return "missing operand"
        if other.dtype is not dtype and not _may_mix(dtype, other.dtype, device, mixed):
            return f"{dtype} with {other.dtype}"
    return None


def _may_mix(dtype: torch.dtype, other: torch.dtype, device: str, mixed: bool) -> bool:
    if torch.is_autocast_enabled(device):
        return dtype in CASTABLE_TYPES and other in CASTABLE_TYPES
    return mixed and may_mix(dtype, other)
