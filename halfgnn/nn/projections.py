"""Projections of features: matrix products, in fp32 if half precision is slow on the processor; logits of nodes; padding."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..common.autograd import apply
from ..common.layers import is_plain, is_unhooked
from ..common.memory import empty
from ..common.operands import is_linear
from ..common.precision import HALF, autocasts, computed_type, without_autocast
from ..common.products import is_transformed, multiplies_slowly, wide_product, widened_linear
from ..ops.head_logits import with_head_logits
from .projected_heads import projected_heads


class _Kind(NamedTuple):
    """What decides how the rows of a product are multiplied: their device and dtype, and the dtype in which they are computed."""

    device: str
    dtype: torch.dtype
    computed: torch.dtype


def _kind_of(x: Tensor) -> _Kind:
    return _Kind(x.device.type, x.dtype, computed_type(x))


def _widens(x: _Kind, weight: Tensor) -> bool:
    """Whether products of x are made in fp32, with the unrounded weight, because half-precision products are slow.

    They always are under functorch's transforms (not compiled): vmap makes F.linear round before it adds the bias.
    """
    dtype = x.computed
    if x.device != "cpu" or dtype not in HALF:
        return False
    is_mixed = x.dtype != weight.dtype and not torch.is_autocast_enabled(x.device)  # F.linear refuses them
    if is_mixed or multiplies_slowly(dtype):
        return not is_mixed
    return not torch.compiler.is_compiling() and torch._C._are_functorch_transforms_active()


def widened(x: Tensor) -> Tensor:
    """x in fp32 if it is half."""
    return x.float() if x.dtype in HALF else x


# ---- on the CPU --------------------------------------------------------------------------------------------------------------


class _LargeLinear(torch.autograd.Function):
    """F.linear of h (N, in), with results in huge pages: the memory of a large one takes longer to get than the product.

    The backward can be differentiated again.
    """

    @staticmethod
    def forward(h, weight, bias):
        product = empty(h, (h.shape[0], weight.shape[0]))
        if bias is None:
            return torch.mm(h, weight.t(), out=product)
        return torch.addmm(bias, h, weight.t(), out=product)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs[:2])

    @staticmethod
    def backward(ctx, grad):
        h, weight = ctx.saved_tensors
        needs = ctx.needs_input_grad
        with without_autocast(h.device):  # autocast may be on when the backward runs
            grad_h = None
            # The backward is to be differentiated, or maps over several gradients.
            if needs[0] and (torch.is_grad_enabled() or is_transformed(grad)):
                grad_h = grad @ weight
            elif needs[0]:
                grad_h = torch.mm(grad, weight, out=empty(h, h.shape))
            return grad_h, grad.t() @ h if needs[1] else None, grad.sum(0) if needs[2] else None


_LARGE = 1 << 20  # values of a product for which memory is taken like this


def _is_large(x: Tensor, weight: Tensor, bias: Tensor | None) -> bool:
    """Whether _LargeLinear takes x: on the CPU, in one dtype that is not half, without autocast or transforms."""
    if is_transformed() or torch.is_autocast_enabled("cpu"):
        return False
    if not x.is_cpu or x.dtype in HALF or x.dim() != 2 or x.shape[0] * weight.shape[0] < _LARGE:
        return False
    return weight.dtype == x.dtype and (bias is None or bias.dtype == x.dtype)


# ---- on CUDA -----------------------------------------------------------------------------------------------------------------


class _HalfLinear(torch.autograd.Function):
    """F.linear of half h (*, in) and fp32 weight (out, in), in fp32: half-precision products, summed in fp32.

    A second derivative raises if torch.mm makes the sums, because that has no derivative.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(h, weight):
        return wide_product(h.flatten(0, -2), weight.t(), h.dtype).view(*h.shape[:-1], weight.shape[0])

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, grad):
        h, weight = ctx.saved_tensors
        grad = grad.flatten(0, -2)
        grad_h = grad_weight = None
        need_h, need_weight = ctx.needs_input_grad
        with without_autocast(h.device):  # autocast may be on when the backward runs
            if need_h:
                grad_h = (grad.to(h.dtype) @ weight.to(h.dtype)).view(h.shape)
            if need_weight:
                grad_weight = wide_product(grad.t(), h.flatten(0, -2), h.dtype)
        return grad_h, grad_weight


# ---- for modules -------------------------------------------------------------------------------------------------------------


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """F.linear. On processors without half matrix units, half products are made in fp32, with the unrounded weight, and rounded."""
    computed = computed_type(x)
    if computed not in HALF or not _widens(_Kind(x.device.type, x.dtype, computed), weight):
        return apply(_LargeLinear, x, weight, bias) if _is_large(x, weight, bias) else F.linear(x, weight, bias)
    return widened_linear(x.to(computed), weight, bias, weight.shape[0])[0]


def is_just(layer: Any, kind: type[nn.Module]) -> bool:
    """Whether the layer is of this very class, and a call does nothing more."""
    return type(layer) is kind and is_unhooked(layer)


def is_product(layer: Any) -> bool:
    """Whether a call is F.linear of the layer's weight and bias, which parametrizations may make, and nothing more."""
    return is_linear(layer) and is_unhooked(layer)


def applied(layer: Any, x: Tensor) -> Tensor:
    """layer(x), by :func:`linear` if the layer is a plain one, or so for each part of an nn.Sequential."""
    if is_just(layer, nn.Sequential):
        for part in layer:
            x = applied(part, x)
        return x
    return linear(x, layer.weight, layer.bias) if is_plain(layer) else _called(layer, x)


def is_quantised(layer: Any) -> bool:
    """Whether the layer is dynamically quantised (torch.ao). Such layers take fp32 only, and autocast does not cast for them."""
    parts = getattr(layer, "_modules", ())
    return "_packed_params" in parts or "_all_weight_values" in parts


def _called(layer: Any, x: Tensor) -> Tensor:
    """layer(x), in the dtype of x if the layer is quantised."""
    return layer(x.float()).to(x.dtype) if x.dtype in HALF and is_quantised(layer) else layer(x)


def wide_linear(h: Tensor, weight: Tensor) -> Tensor:
    """h (*, in), half, times weight (out, in), fp32: (*, out) in fp32, unrounded."""
    return apply(_HalfLinear, h, weight) if h.is_cuda else widened_linear(h, weight, None, 0)[1]


def project(layer: nn.Module, x: Tensor, heads: int, dim: int, width: int) -> Tensor:
    """layer(x) (*, heads * dim) as (*, heads, width). Each head is followed by zeros if width > dim."""
    if not is_plain(layer):
        return _pad(_called(layer, x).unflatten(-1, (heads, dim)), width)
    return linear(x, *_padded_parameters(layer, heads, dim, width)).unflatten(-1, (heads, width))


def padded_weight(layer: Any, heads: int, dim: int, width: int) -> Tensor:
    """The weight of a plain layer, with zeros for the padding of :func:`project`."""
    return _padded_parameters(layer, heads, dim, width)[0]


def _padded_parameters(layer: Any, heads: int, dim: int, width: int) -> tuple[Tensor, Tensor | None]:
    """Weight and bias of a plain layer, with zeros for the padding."""
    weight, bias = layer.weight, layer.bias
    if width == dim:
        return weight, bias
    zeros = weight.new_zeros(heads, width - dim, weight.shape[1])  # F.pad of torch 2.4 refuses a weight without columns
    with without_autocast(weight.device):  # fp16's autocast refuses to join bf16 tensors
        weight = torch.cat([weight.unflatten(0, (heads, dim)), zeros], 1).flatten(0, 1)
    if bias is not None:
        bias = F.pad(bias.unflatten(0, (heads, dim)), (0, width - dim)).flatten()
    return weight, bias


# ---- logits ------------------------------------------------------------------------------------------------------------------


def project_with_logits(
    layer: Any, x: Tensor, heads: int, dim: int, *attns: Tensor
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """project(layer, x, ...), padded for an attention, and the logits <attn, layer(x)> (N, *, H) for each of one or two attns
    (1, H, D), in fp32 for half features."""
    kind = _kind_of(x)
    width = _padded(dim, kind)
    if is_plain(layer) and _widens(kind, layer.weight) and multiplies_slowly(kind.computed):
        weight, bias = _padded_parameters(layer, heads, dim, width)
        more_weight = torch.cat([weight.float(), *(_fold(layer.weight, attn) for attn in attns)])
        more_bias = None if bias is None else torch.cat([bias.float(), *(_fold(layer.bias, attn) for attn in attns)])
        feat, logits = widened_linear(x.to(kind.computed), more_weight, more_bias, weight.shape[0])
        return feat.unflatten(-1, (heads, width)), logits.chunk(len(attns), -1)
    # Features in half precision are rounded: logits of x by folded weights are not.
    is_half = is_plain(layer) and kind.computed in HALF
    if is_half and _casts_alike(layer, x) and not is_transformed():
        return _half_heads(layer, x.to(kind.computed), heads, dim, width, attns)
    feat = project(layer, x, heads, dim, width)
    if is_half or (is_plain(layer) and torch.compiler.is_compiling()):
        return feat, node_logits(layer, x, *attns)
    return _with_logits(feat, *(_pad(attn, width) for attn in attns))


def _casts_alike(layer: Any, x: Tensor) -> bool:
    """Whether F.linear takes x with the weight, there being no bias: in one dtype, or autocast's."""
    return layer.bias is None and (x.dtype == layer.weight.dtype or autocasts(x.device))


def _half_heads(
    layer: Any, h: Tensor, heads: int, dim: int, width: int, attns: tuple[Tensor, ...]
) -> tuple[Tensor, tuple[Tensor, ...]]:
    weight, _ = _padded_parameters(layer, heads, dim, width)
    feat, logits = projected_heads(h.flatten(0, -2), weight, *(_pad(attn, width) for attn in attns))
    nodes = h.shape[:-1]
    return feat.view(*nodes, heads, width), tuple(x.view(*nodes, heads) for x in logits)


def _pad(x: Tensor, width: int) -> Tensor:
    """x with zeros up to `width` in the last dimension. F.pad copies even if there is nothing to add."""
    return x if x.shape[-1] == width else F.pad(x, (0, width - x.shape[-1]))


def node_logits(layer: Any, h: Tensor, *attns: Tensor) -> tuple[Tensor, ...]:
    """For each attn (1, H, D) the logits <attn, layer(h)> (N, *, H) of h (N, *, in), in fp32 for half h, under autocast too.

    The sum over D is folded into the weight, so layer(h) is neither materialized nor read again.
    """
    if not is_plain(layer):
        return _with_logits(_called(layer, h).unflatten(-1, (attns[0].shape[-2], -1)), *attns)[1]
    weight = torch.cat([_fold(layer.weight, attn) for attn in attns])
    with without_autocast(h.device):
        logits = wide_linear(h, weight) if h.dtype in HALF else F.linear(h, weight)
    if layer.bias is not None:
        logits = logits + torch.cat([_fold(layer.bias, attn) for attn in attns])
    return logits.chunk(len(attns), -1)


def _with_logits(feat: Tensor, *attns: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
    """feat (N, *, H, D), and for each attn (1, H, D) the logits <attn, feat> (N, *, H)."""
    computed = torch.float64 if feat.dtype == torch.float64 else torch.float32
    flat = feat if feat.dim() == 3 else feat.flatten(0, -3)
    flat, *logits = with_head_logits(flat, *(attn.to(computed) for attn in attns))
    return flat.view(feat.shape), tuple(x.view(feat.shape[:-1]) for x in logits)


def _fold(weight: Tensor, attn: Tensor) -> Tensor:
    """weight (H * D, in) or (H * D,) times attn (1, H, D), summed over D."""
    weight = widened(weight).unflatten(0, attn.shape[-2:])
    return (weight * widened(attn).view(*attn.shape[-2:], *[1] * (weight.dim() - 2))).sum(1)


# ---- padding -----------------------------------------------------------------------------------------------------------------


def padded(dim: int, x: Tensor, weighted: bool = True) -> int:
    """The width to which rows of `dim` values per head, projected from x, are padded with zeros: `dim`, or a multiple of 8.

    weighted: whether an attention or weighted sum reads them, not a plain sum.
    """
    return _padded(dim, _kind_of(x), weighted) if dim % 8 else dim


def _padded(dim: int, x: _Kind, weighted: bool = True) -> int:
    return dim + -dim % 8 if dim % 8 and _padding_pays(dim, x, weighted) else dim


def _padding_pays(dim: int, x: _Kind, weighted: bool) -> bool:
    """Whether padding to a multiple of 8 saves time.

    On CUDA half-precision values are read 16 bytes at a time only if 8 divides the width of a head. Otherwise GATv2 and dot
    attention read them one by one, so 41 classes cost less as 48. The CPU's vector kernels take any width from 8 values on.
    """
    if x.device == "cuda":
        return x.computed in HALF and dim > 4
    return x.computed != torch.float64 and weighted and 2 < dim < 8


def trimmed(x: Tensor, dim: int) -> Tensor:
    """x (*, width) without what padding added: (*, dim), a view."""
    return x if x.shape[-1] == dim else x[..., :dim]
