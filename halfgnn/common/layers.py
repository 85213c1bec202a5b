"""Layers of modules: whether a call of one does no more than its formula, and the check of what it projects."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from .compat import has_any_global_hook
from .operands import check_parameter, is_linear


def is_plain(layer: nn.Module) -> bool:
    """Whether a call is F.linear of weight and bias and nothing more: no subclass's forward, no hook, no parametrization."""
    return is_linear(layer) and is_unhooked(layer) and "parametrizations" not in layer._modules


def is_unhooked(layer: nn.Module) -> bool:
    """Whether a call is the forward of the layer's class and nothing more."""
    return not (is_hooked(layer) or has_any_global_hook())


def is_hooked(layer: nn.Module) -> bool:
    """Whether a call runs hooks of the layer, or a forward that was set on this instance."""
    hooks = layer._forward_hooks or layer._forward_pre_hooks or layer._backward_hooks or layer._backward_pre_hooks
    return bool(hooks) or "forward" in layer.__dict__


def check_layer(x: Tensor, name: str, layer: Any) -> None:
    """check_parameter of a projection. Only a plain one is checked, because others may change their input first."""
    if is_plain(layer):
        check_parameter(x, name, layer.weight)
