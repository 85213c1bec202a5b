"""The kernels and the fake kernels of torch.ops.halfgnn.edge_network and edge_network_backward.

The backward returns the gradients of the tensors in the order of the arguments: those of operands, norm_weight and norm_bias,
weights, biases. One that is not needed or whose tensor is missing is empty.
"""

from __future__ import annotations

import torch

from ...common.fake import register_fake
from ...common.precision import without_autocast
from ._kernels import Operands, Options, backward, forward
from ._layers import Layers


def width_of(x: Operands, weights) -> int:
    """Of messages."""
    if weights:
        return weights[-1].shape[0]
    rows = x.src if x.src is not None else x.dst
    return x.edge_weight.shape[0] if rows is None else rows.shape[1]


def _parts(operands, norm, weights, biases, activation, slope, eps, *options):
    layers = Layers(weights, biases, *norm, activation, slope, eps)
    return Operands(*operands), layers, Options(*options)


def _edge_network(*args):
    csc, operands, norm, (weights, biases), options = args[:3], args[3:12], args[12:14], args[14:16], args[16:]
    x, layers, options = _parts(operands, norm, weights, biases, *options)
    with without_autocast(args[0].device):  # operands are cast already
        return forward(csc, x, layers, options, width_of(x, weights))


def _edge_network_backward(*args):
    csc, operands, norm, (weights, biases), options = args[:3], args[3:12], args[12:14], args[14:16], args[20:]
    position, grad, grad_edges, needs = args[16:20]
    x, layers, options = _parts(operands, norm, weights, biases, *options)
    with without_autocast(args[0].device):
        total, of_layers = backward(csc, x, layers, options, position, grad, grad_edges, needs)
    found = [*total, of_layers.norm_weight, of_layers.norm_bias, *of_layers.weights, *of_layers.biases]
    given = [*operands, *norm, *weights, *biases]
    empty = args[0].new_empty((0,), dtype=x.dtype)
    return [empty.clone() if y is None or t is None else y.to(t.dtype) for y, t in zip(found, given)]


def _register() -> list[torch.library.Library]:
    """For the devices that the library has the other operators for. The registrations live as long as what is returned."""
    has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
    keys = [key for key in ("CPU", "CUDA") if has_kernel("halfgnn::gspmm", key)]
    libraries = [torch.library.Library("halfgnn", "IMPL", key) for key in keys]
    for library in libraries:
        library.impl("edge_network", _edge_network)
        library.impl("edge_network_backward", _edge_network_backward)
    return libraries


_libraries = _register()


@register_fake("edge_network")
def _(*args):
    x, weights, reduce, return_edges = Operands(*args[3:12]), args[14], args[19], args[21]
    like, width = next(t for t in x if t is not None), width_of(x, weights)
    num_dst, num_edges = args[0].shape[0] - 1, args[1].shape[0]
    out = like.new_empty((0 if reduce == "none" else num_dst, width))
    position = like.new_empty(out.shape if reduce == "max" else (0,), dtype=torch.int64)
    return out, like.new_empty((num_edges if return_edges else 0, width)), position


@register_fake("edge_network_backward")
def _(*args):
    given, needs = [*args[3:14], *args[14], *args[15]], args[19]
    like = next(t for t in given if t is not None)
    needed = [*needs, *[True] * (len(given) - len(needs))]

    def gradient(x, is_needed):
        if x is None or not is_needed:
            return like.new_empty((0,))
        return torch.empty_like(x, memory_format=torch.contiguous_format)

    return [gradient(*pair) for pair in zip(given, needed)]
