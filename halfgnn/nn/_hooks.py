"""Whether calling a layer is no more than its formula."""

from __future__ import annotations

from torch import nn

from ..common.compat import has_any_global_hook


def is_plain(layer: nn.Module) -> bool:
    """Whether calling it is F.linear on its weight and bias and nothing more: no wrapper, no hook, no parametrization."""
    if not isinstance(layer, nn.Linear) or type(layer).forward is not nn.Linear.forward:
        return False
    return is_unhooked(layer) and "parametrizations" not in layer._modules


def is_unhooked(layer: nn.Module) -> bool:
    """Whether calling it is its class's forward and nothing more."""
    return not (is_hooked(layer) or has_any_global_hook())


def is_hooked(layer: nn.Module) -> bool:
    """Whether calling it runs hooks of its own, or a forward that was set on this instance."""
    hooks = layer._forward_hooks or layer._forward_pre_hooks or layer._backward_hooks or layer._backward_pre_hooks
    return bool(hooks) or "forward" in layer.__dict__
