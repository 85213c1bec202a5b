"""Features of heads in half precision, and the fp32 logits of nodes beside them: one autograd Function, of few kernels."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from ..common.autograd import apply, pull_back, saved_tensors
from ..common.precision import without_autocast
from ..common.products import chunk_rows, is_transformed, wide_product


class _ProjectedHeads(torch.autograd.Function):
    """F.linear(h, weight) in the half type of h (N, in), and for each attn (1, H, D) the fp32 logits (N, H) of its heads.

    The sum over D is folded into the weight, so that logits are of h and not of rounded features. Gradients of the parameters are
    rounded once, to the dtype of the parameter: autograd would round those of each use. A backward that is to be differentiated, or
    maps over several gradients, is made of PyTorch's operators.
    """

    @staticmethod
    def forward(ctx, h, weight, *attns):  # not with setup_context, which may not save what is neither input nor result
        feat, logits, kept = _forward(h, weight, attns)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(h, weight, *attns, *kept)
        return feat, *logits

    @staticmethod
    def backward(ctx, grad_feat, *grads):
        h, weight, *attns, rounded, attn, fold = saved_tensors(ctx, "the logits of nodes")
        given = [x for x in (grad_feat, *grads) if x is not None]
        if not given:
            return (None,) * len(ctx.needs_input_grad)
        if torch.is_grad_enabled() or is_transformed(*given):
            return tuple(pull_back(_formula, (h, weight, *attns), ctx.needs_input_grad, (grad_feat, *grads)))
        with without_autocast(h.device):  # autocast may be on when the backward runs
            return _gradients(ctx.needs_input_grad, (h, weight, *attns), (rounded, attn, fold), grad_feat, grads)


def _forward(
    h: Tensor, weight: Tensor, attns: tuple[Tensor, ...]
) -> tuple[Tensor, tuple[Tensor, ...], tuple[Tensor, ...]]:
    """Features, logits, and what the backward reads again: the rounded weight, the attns, and the folded weight."""
    rounded, attn = weight.to(h.dtype), _stacked(attns)
    fold = _fold(weight, attn)
    if h.is_cuda:
        fold = fold.to(h.dtype)
    return F.linear(h, rounded), _logits(h, fold).unbind(), (rounded, attn, fold)


def _formula(h: Tensor, weight: Tensor, *attns: Tensor) -> tuple[Tensor, ...]:
    """What _ProjectedHeads computes, by operators that autograd differentiates."""
    fold = _fold(weight, _stacked(attns))
    return F.linear(h, weight.to(h.dtype)), *(h.float() @ x.t() for x in fold.unbind(1))


def _fold(weight: Tensor, attn: Tensor) -> Tensor:
    """(H, A, in): for each head the sums over D of attn (H, A, D) times weight (H * D, in)."""
    return torch.bmm(attn, weight.float().view(attn.shape[0], attn.shape[2], -1))


def _stacked(attns: tuple[Tensor, ...]) -> Tensor:
    """(H, A, D) in fp32."""
    return (attns[0] if len(attns) == 1 else torch.cat(attns)).float().transpose(0, 1)


def _logits(h: Tensor, fold: Tensor) -> Tensor:
    """(A, N, H) in fp32: those of an attn are contiguous, as kernels read them. fold: rounded to the dtype of h on CUDA."""
    heads, count, width = fold.shape
    by_attn = fold.permute(1, 2, 0)
    if h.is_cuda:
        return wide_product(h.expand(count, *h.shape), by_attn, h.dtype)
    logits = fold.new_empty(count, h.shape[0], heads)
    step = chunk_rows(width + heads * count)
    for some, out in zip(h.split(step), logits.split(step, 1)):
        wide = some.float()
        for one, weight in zip(out.unbind(), by_attn.unbind()):
            torch.mm(wide, weight, out=one)
    return logits


def _gradients(needs, inputs, kept, grad_feat, grads) -> tuple[Tensor | None, ...]:
    """Of the inputs, h, weight and attns, where none of the gradients is to be differentiated. kept: of _forward."""
    h, weight, *attns = inputs
    rounded, stacked, fold = kept
    need_h, need_weight, *need_attns = needs
    grad_h = grad_weight = None
    if grad_feat is not None:
        grad_h = grad_feat @ rounded if need_h else None
        if need_weight:
            grad_weight = wide_product(grad_feat.t(), h, h.dtype) if h.is_cuda else (grad_feat.t() @ h).float()
    of_attns: list[Tensor | None] = [None] * len(attns)
    if any(grad is not None for grad in grads):
        grad = _of_logits(grads).to(fold.dtype)
        if need_h:
            grad_h = _add_from_logits(grad_h, grad, fold.flatten(0, 1), h.dtype)
        if need_weight or any(need_attns):
            grad_fold = _of_fold(grad, h).view(fold.shape)
            if need_weight:
                grad_weight = _add_from_fold(grad_weight, grad_fold, stacked)
            if any(need_attns):
                by_head = weight.float().view(fold.shape[0], -1, fold.shape[2])
                found = torch.bmm(grad_fold, by_head.transpose(1, 2)).transpose(0, 1).contiguous().unsqueeze(1).unbind()
                of_attns = [x.to(attn.dtype) if need else None for x, attn, need in zip(found, attns, need_attns)]
    return grad_h, None if grad_weight is None else grad_weight.to(weight.dtype), *of_attns


def _of_logits(grads) -> Tensor:
    """(N, H * A) in fp32, in the order of the rows of fold."""
    if len(grads) == 1:
        return grads[0]
    some = next(x for x in grads if x is not None)
    return torch.stack([torch.zeros_like(some) if x is None else x for x in grads], -1).flatten(1)


def _add_from_logits(grad_h: Tensor | None, grad: Tensor, fold: Tensor, dtype: torch.dtype) -> Tensor:
    """grad_h, if there is one, plus the gradient (N, H * A) of logits times fold (H * A, in)."""
    if grad.is_cuda:
        return grad @ fold if grad_h is None else grad_h.addmm_(grad, fold)
    if grad_h is None:
        grad_h = fold.new_zeros(grad.shape[0], fold.shape[1], dtype=dtype)
    step = chunk_rows(sum(fold.shape))
    for target, some in zip(grad_h.split(step), grad.split(step)):
        target.add_(some @ fold)
    return grad_h


def _of_fold(grad: Tensor, h: Tensor) -> Tensor:
    """grad (N, H * A) transposed times h (N, in), in fp32."""
    if h.is_cuda:
        return wide_product(grad.t(), h, h.dtype)
    total = grad.new_zeros(grad.shape[1], h.shape[1])
    step = chunk_rows(total.shape[0] + total.shape[1])
    for some, of_h in zip(grad.split(step), h.split(step)):
        total.addmm_(some.t(), of_h.float())
    return total


def _add_from_fold(grad_weight: Tensor | None, grad_fold: Tensor, attn: Tensor) -> Tensor:
    """grad_weight (H * D, in), if there is one, plus the gradient (H, A, in) of the folded weight times attn (H, A, D)."""
    if grad_weight is None:
        return torch.bmm(attn.transpose(1, 2), grad_fold).flatten(0, 1)
    grad_weight.view(attn.shape[0], attn.shape[2], -1).baddbmm_(attn.transpose(1, 2), grad_fold)
    return grad_weight


def projected_heads(h: Tensor, weight: Tensor, *attns: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
    """F.linear(h, weight) in half precision, and the logits of its heads.

    Args:
        h: (N, in), half.
        weight: (H * D, in), half or fp32.
        attns: one or two of shape (1, H, D), half or fp32.

    Returns:
        (N, H * D) in the dtype of h, and the logits (N, H) for each attn, in fp32. They are not of the rounded features.
    """
    with without_autocast(h.device):
        feat, *logits = apply(_ProjectedHeads, h, weight, *attns)
    return feat, tuple(logits)
