"""Logits of nodes: the dot product of each head's features with a vector, as in GAT."""

from __future__ import annotations

import torch
from torch import Tensor

from ..common.autograd import apply, in_cpp, saved_tensors
from ..common.fake import register_fake
from ..common.precision import without_autocast
from ..common.products import is_transformed

_head_logits = torch.ops.halfgnn.head_logits.default
_head_logits_backward = torch.ops.halfgnn.head_logits_backward.default


@register_fake("head_logits")
def _(feat, attn, more_attn=None):
    shape = feat.shape[:2]
    return attn.new_empty(shape), attn.new_empty((0,) if more_attn is None else shape)


@register_fake("head_logits_backward")
def _(feat, attn, more_attn, grad, more_grad, upstream, need_feat, need_attn):
    count = 1 if more_attn is None else 2
    return (
        feat.new_empty(feat.shape if need_feat else (0,)),
        attn.new_empty((count, *attn.shape) if need_attn else (0,)),
    )


@in_cpp("head_logits")
class _HeadLogits(torch.autograd.Function):
    """feat itself, and its logits. So its gradient and that of the logits are added in one pass, and rounded once more.

    A backward that is to be differentiated, or maps over several gradients, is made of PyTorch's operators.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(feat, attn, more_attn):
        if is_transformed():
            return feat.view_as(feat), *(_dot(feat, x) for x in _given(attn, more_attn))
        first, second = _head_logits(feat, attn, more_attn)
        return (feat.view_as(feat), first) if more_attn is None else (feat.view_as(feat), first, second)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, upstream, grad, more_grad=None):
        feat, attn, more_attn = saved_tensors(ctx, "head_logits")
        need_feat, need_attn, need_more = ctx.needs_input_grad
        if grad is None and more_grad is None:
            return upstream, None, None
        if torch.is_grad_enabled() or is_transformed(*_given(upstream, grad, more_grad)):
            return _gradients(feat, attn, more_attn, upstream, grad, more_grad, ctx.needs_input_grad)
        with without_autocast(feat.device):  # autocast may be on when the backward runs
            needs_attns = need_attn or need_more
            args = feat, attn, more_attn, grad, more_grad, upstream, need_feat, needs_attns
            grad_feat, grad_attns = _head_logits_backward(*args)
        of_attns = grad_attns.unbind() if needs_attns else (None,)
        return (
            grad_feat if need_feat else None,
            of_attns[0] if need_attn else None,
            of_attns[-1] if need_more else None,
        )

    @staticmethod
    def gradients(kept, grads, needs):
        return _gradients(*kept, *grads, needs)


def _given(*tensors: Tensor | None) -> list[Tensor]:
    return [x for x in tensors if x is not None]


def _dot(feat: Tensor, attn: Tensor) -> Tensor:
    return (feat.to(attn.dtype) * attn).sum(-1)


def _gradients(feat, attn, more_attn, upstream, grad, more_grad, needs) -> tuple[Tensor | None, ...]:
    """By PyTorch's operators, which autograd differentiates."""
    with without_autocast(feat.device):  # autocast may be on when the backward runs
        return _composed(feat, attn, more_attn, upstream, grad, more_grad, needs)


def _composed(feat, attn, more_attn, upstream, grad, more_grad, needs) -> tuple[Tensor | None, ...]:
    of_feat, of_attns = upstream, []
    for x, g, need in zip((attn, more_attn), (grad, more_grad), needs[1:]):
        of_attns.append((g.unsqueeze(-1) * feat.to(g.dtype)).sum(0, keepdim=True) if need and g is not None else None)
        if needs[0] and g is not None:
            spread = (g.unsqueeze(-1) * x).to(feat.dtype)
            of_feat = spread if of_feat is None else of_feat + spread
    return of_feat if needs[0] else None, *of_attns


def with_head_logits(feat: Tensor, attn: Tensor, more_attn: Tensor | None = None) -> tuple[Tensor, ...]:
    """feat (N, H, D), for every further use, and <attn[0, h], feat[n, h]> (N, H) for each of the one or two attns (1, H, D).

    attns are fp32, or fp64 beside an fp64 feat, and so are the logits. They are not rounded to the type of feat.
    """
    return apply(_HeadLogits, feat, attn, more_attn)[: 2 if more_attn is None else 3]
