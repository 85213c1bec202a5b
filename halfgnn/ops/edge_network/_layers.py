"""The layers of a network on edges behind the first: forward, and backward from what the forward made."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

_aten = torch.ops.aten


class Activation(NamedTuple):
    """function(z, slope); gradient(grad, z, a, slope): that of z, from that of a = function(z)."""

    function: Callable[[Tensor, float], Tensor]
    gradient: Callable[[Tensor, Tensor, Tensor, float], Tensor]


ACTIVATIONS = {
    "relu": Activation(lambda z, _: torch.relu(z), lambda grad, z, a, _: _aten.threshold_backward(grad, a, 0)),
    "silu": Activation(lambda z, _: F.silu(z), lambda grad, z, a, _: _aten.silu_backward(grad, z)),
    "gelu": Activation(lambda z, _: F.gelu(z), lambda grad, z, a, _: _aten.gelu_backward(grad, z)),
    "tanh": Activation(lambda z, _: torch.tanh(z), lambda grad, z, a, _: _aten.tanh_backward(grad, a)),
    "softplus": Activation(lambda z, _: F.softplus(z), lambda grad, z, a, _: _aten.softplus_backward(grad, z, 1, 20)),
    "leaky_relu": Activation(
        lambda z, slope: F.leaky_relu(z, slope),
        lambda grad, z, a, slope: _aten.leaky_relu_backward(grad, z, slope, False),
    ),
}


def wide_type(dtype: torch.dtype) -> torch.dtype:
    """The dtype of sums over edges."""
    return torch.promote_types(dtype, torch.float32)


def zeros_like(x: Tensor | None) -> Any:
    """What a sum over tiles begins with."""
    if x is None:
        return None
    return torch.zeros_like(x, dtype=wide_type(x.dtype), memory_format=torch.contiguous_format)


def cast(x: Tensor | None, dtype: torch.dtype) -> Any:
    return None if x is None else x.to(dtype)


class Layers(NamedTuple):
    """Linear layers, each behind the activation, and LayerNorm behind the last if there is a norm_weight."""

    weights: Sequence[Tensor]
    biases: Sequence[Tensor | None]
    norm_weight: Tensor | None
    norm_bias: Tensor | None
    activation: str
    slope: float
    eps: float

    def to(self, dtype: torch.dtype) -> Layers:
        weights, biases = [x.to(dtype) for x in self.weights], [cast(x, dtype) for x in self.biases]
        return Layers(weights, biases, cast(self.norm_weight, dtype), cast(self.norm_bias, dtype), *self[4:])

    def activate(self, z: Tensor) -> Tensor:
        return ACTIVATIONS[self.activation].function(z, self.slope)

    def normalize(self, z: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return torch.native_layer_norm(z, z.shape[1:], self.norm_weight, self.norm_bias, self.eps)

    def forward(self, z: Tensor) -> Tensor:
        """Messages (T, *) of the sums (T, F) that the first activation is of."""
        for weight, bias in zip(self.weights, self.biases):
            z = F.linear(self.activate(z), weight, bias)
        return z if self.norm_weight is None else self.normalize(z)[0]


class LayerGradients:
    """The gradients of Layers, summed over tiles in fp32 or wider."""

    def __init__(self, layers: Layers):
        self.layers = layers
        self.weights = [zeros_like(x) for x in layers.weights]
        self.biases = [zeros_like(x) for x in layers.biases]
        self.norm_weight, self.norm_bias = zeros_like(layers.norm_weight), zeros_like(layers.norm_bias)

    def backward(self, z: Tensor, pull_message: Callable[[Tensor], Tensor]) -> Tensor:
        """The gradient of the sums z (T, F). pull_message: from messages to their gradient."""
        layers, gradient = self.layers, ACTIVATIONS[self.layers.activation].gradient
        sums, activated = [z], []
        for weight, bias in zip(layers.weights, layers.biases):
            activated.append(layers.activate(sums[-1]))
            sums.append(F.linear(activated[-1], weight, bias))
        grad = self._norm_backward(sums.pop(), pull_message)
        for i in reversed(range(len(activated))):
            a, bias = activated.pop(), self.biases[i]
            self.weights[i].add_(grad.t() @ a)
            if bias is not None:
                bias.add_(grad.sum(0, dtype=bias.dtype))
            grad = gradient(grad @ layers.weights[i], sums.pop(), a, layers.slope)
        return grad

    def _norm_backward(self, z: Tensor, pull_message: Callable[[Tensor], Tensor]) -> Tensor:
        if self.norm_weight is None:
            return pull_message(z)
        message, mean, rstd = self.layers.normalize(z)
        grad, norm = pull_message(message), (self.layers.norm_weight, self.layers.norm_bias)
        of_rows = _aten.native_layer_norm_backward(grad, z, z.shape[1:], mean, rstd, *norm, [True, False, False])[0]
        # Not native_layer_norm_backward's: on a CPU those of bf16 are summed in bf16, and by each thread for itself.
        wide = self.norm_weight.dtype
        grad = grad.to(wide)
        self.norm_weight.add_((grad * ((z.to(wide) - mean.to(wide)) * rstd.to(wide))).sum(0))
        if self.norm_bias is not None:
            self.norm_bias.add_(grad.sum(0))
        return of_rows
