"""Matrix products in half precision on the CPU: whether they are slow on this processor, and how they are made in fp32 then."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from .autograd import apply
from .memory import empty
from .precision import HALF, without_autocast


def _fast_halves() -> tuple[torch.dtype, ...]:
    """Half types whose matrix products are fast on this processor. Those of other half types take 5 to 30 times those of fp32.

    oneDNN makes products of bf16 on every processor with AVX-512, but they are slow without instructions for bf16.
    """
    if platform.machine().lower() not in ("x86_64", "amd64"):
        return HALF
    takes = {half: getattr(torch.ops.mkldnn, f"_is_mkldnn_{half}_supported", bool)() for half in ("bf16", "fp16")}
    has_bf16 = getattr(torch.cpu, "_is_avx512_bf16_supported", bool)()
    return (torch.bfloat16,) * (takes["bf16"] and has_bf16) + (torch.float16,) * takes["fp16"]


_FAST_HALVES = _fast_halves()


def multiplies_slowly(dtype: torch.dtype) -> bool:
    """Whether it is a half type whose matrix products are slow on this processor."""
    return dtype in HALF and dtype not in _FAST_HALVES


class _WidenedLinear(torch.autograd.Function):
    """F.linear(h, weight, bias) of half h (N, in), computed in fp32.

    The first `num_rounded` columns are rounded to h's dtype, and the rest stay fp32. The product is made by chunks of rows, so that
    the widened rows stay in the cache and h is never held in fp32. The backward is made of PyTorch's operators, so it can be
    differentiated again.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(h, weight, bias, num_rounded):
        if is_transformed():
            product = F.linear(h.float(), weight, bias)
            return product[:, :num_rounded].to(h.dtype), product[:, num_rounded:].clone()
        rounded = empty(h, (h.shape[0], num_rounded))
        wide = h.new_empty(h.shape[0], weight.shape[0] - num_rounded, dtype=torch.float32)
        for rows in chunks(h.shape[0], sum(weight.shape)):
            product = F.linear(h[rows].float(), weight, bias)
            rounded[rows] = product[:, :num_rounded]
            wide[rows] = product[:, num_rounded:]
        return rounded, wide

    @staticmethod
    def setup_context(ctx, inputs, output):
        h, weight, bias, _ = inputs
        ctx.save_for_backward(h, weight)
        ctx.has_bias = bias is not None

    @staticmethod
    def backward(ctx, grad_rounded, grad_wide):
        h, weight = ctx.saved_tensors
        with without_autocast(h.device):  # autocast may be on when the backward runs
            gradients = _whole_gradients if is_transformed(grad_rounded, grad_wide) else _gradients_by_chunks
            need_h, need_weight, _, _ = ctx.needs_input_grad
            needs = _Needs(need_h, need_weight, ctx.has_bias)
            return *gradients(h, weight, grad_rounded, grad_wide, needs), None


def is_transformed(*gradients: Tensor) -> bool:
    """Whether chunks cannot be used, nor results written into given memory.

    Compiled code would have a copy of the loop's body per chunk, and vmap cannot write into a tensor that it does not map over.
    gradients: of a backward, which torch.autograd.grad(is_grads_batched=True) runs under a vmap that is not functorch's.
    """
    if torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active():
        return True
    return any(torch._C._functorch.is_legacy_batchedtensor(grad) for grad in gradients)


_CHUNK = 1 << 20  # fp32 elements of the operands and the product of a chunk


def chunk_rows(width: int) -> int:
    """Rows of a chunk, of which each takes `width` elements."""
    return max(256, _CHUNK // max(1, width))


def chunks(num_rows: int, width: int) -> Iterator[slice]:
    """Slices of rows, of which each takes `width` elements."""
    step = chunk_rows(width)
    for begin in range(0, num_rows, step):
        yield slice(begin, begin + step)


Gradients = tuple[Tensor | None, Tensor | None, Tensor | None]  # of h, weight, bias


class _Needs(NamedTuple):
    """Which of the Gradients are wanted."""

    h: bool
    weight: bool
    bias: bool


def _whole_gradients(h: Tensor, weight: Tensor, grad_rounded: Tensor, grad_wide: Tensor, needs: _Needs) -> Gradients:
    grad = torch.cat([grad_rounded.float(), grad_wide], 1)
    return (
        (grad @ weight).to(h.dtype) if needs.h else None,
        grad.t() @ h.float() if needs.weight else None,
        grad.sum(0) if needs.bias else None,
    )


def _gradients_by_chunks(
    h: Tensor, weight: Tensor, grad_rounded: Tensor, grad_wide: Tensor, needs: _Needs
) -> Gradients:
    grad_h = empty(h, h.shape) if needs.h else None
    grad_weight = torch.zeros_like(weight) if needs.weight else None
    grad_bias = weight.new_zeros(weight.shape[0]) if needs.bias else None
    for rows in chunks(h.shape[0], sum(weight.shape)):
        grad = torch.cat([grad_rounded[rows].float(), grad_wide[rows]], 1)
        if grad_h is not None:
            grad_h[rows] = grad @ weight
        if grad_weight is not None:
            grad_weight += grad.t() @ h[rows].float()
        if grad_bias is not None:
            grad_bias += grad.sum(0)
    return grad_h, grad_weight, grad_bias


def widened_linear(h: Tensor, weight: Tensor, bias: Tensor | None, num_rounded: int) -> tuple[Tensor, Tensor]:
    """_WidenedLinear of h (*, in), with parameters of any dtype."""
    with without_autocast(h.device):
        bias = None if bias is None else bias.float()
        parts = apply(_WidenedLinear, h.flatten(0, -2), weight.float(), bias, num_rounded)
    return tuple(part.view(*h.shape[:-1], part.shape[1]) for part in parts)


# ---- on CUDA -----------------------------------------------------------------------------------------------------------------

SUMS_HALVES_IN_FP32 = "dtype" in torch.ops.aten.mm.overloads()  # torch.mm and torch.bmm, since torch 2.8


def wide_product(a: Tensor, b: Tensor, half: torch.dtype) -> Tensor:
    """a @ b in fp32, of matrices on CUDA or batches of them.

    half: the dtype to which both are rounded if PyTorch can sum half-precision products in fp32.
    """
    if SUMS_HALVES_IN_FP32 and not torch.compiler.is_compiling():
        return (torch.mm if a.dim() == 2 else torch.bmm)(a.to(half), b.to(half), out_dtype=torch.float32)
    return a.float() @ b.float()
