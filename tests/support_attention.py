"""Shared by the tests of the fused attentions: their operands, and the rule of support.py for them, with dropout."""

import contextlib
import functools
import math
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch

from halfgnn import ops, reference
from halfgnn.ops.attention import dot, gat, gatv2
from tests import support
from tests.support import randn

SLOPE = 0.2


@dataclass(frozen=True)
class Kind:
    """One attention. shapes: target and trailing shape of each operand, for H heads of D. The target of a parameter is
    None."""

    name: str
    call: Callable  # (g, *operands, dropout_p=...)
    specification: Callable  # (g, *operands, mask)
    shapes: Callable  # (heads, dim) -> [(target, shape)]
    logits: tuple[int, ...] = ()  # operands that may be fp32 beside half features

    def operands(self, g, heads, dim, dtype, device="cpu", logit_dtype=None):
        made = []
        for i, (target, shape) in enumerate(self.shapes(heads, dim)):
            rows = () if target is None else (support.rows_of(g, target),)
            kind = logit_dtype if logit_dtype is not None and i in self.logits else dtype
            made.append(randn(*rows, *shape, dtype=kind, device=device))
        return made


def _gat(g, feat, src, dst, **options):
    return ops.gat_attention(g, feat, src, dst, negative_slope=SLOPE, **options)


def _gat_edge(g, feat, src, dst, edge, **options):
    return ops.gat_attention(g, feat, src, dst, edge, SLOPE, **options)


KINDS = [
    Kind(
        "gat",
        _gat,
        lambda g, x, src, dst, mask=None: reference.gat_attention(g, x, src, dst, None, SLOPE, mask),
        lambda h, d: [("u", (h, d)), ("u", (h,)), ("v", (h,))],
        (1, 2),
    ),
    Kind(
        "gat_edge",
        _gat_edge,
        lambda g, x, src, dst, edge, mask=None: reference.gat_attention(g, x, src, dst, edge, SLOPE, mask),
        lambda h, d: [("u", (h, d)), ("u", (h,)), ("v", (h,)), ("e", (h,))],
        (1, 2, 3),
    ),
    Kind(
        "gatv2",
        lambda g, *operands, **options: ops.gatv2_attention(g, *operands, SLOPE, **options),
        lambda g, *operands, mask=None: reference.gatv2_attention(g, *operands, SLOPE, mask),
        lambda h, d: [("u", (h, d)), ("v", (h, d)), (None, (h, d))],
    ),
    Kind(
        "dot",
        lambda g, *operands, **options: ops.dot_attention(g, *operands, 0.3, **options),
        lambda g, *operands, mask=None: reference.dot_attention(g, *operands, 0.3, mask),
        lambda h, d: [("v", (h, d)), ("u", (h, d)), ("u", (h, d))],
    ),
]
GAT, GAT_EDGE, GATV2, DOT = KINDS
every_kind = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
SEED = (1234567890123456789, 987654321)


@functools.cache
def seed_on(device):
    """SEED as a tensor for operators. It is made once, because a copy to a GPU cannot be captured into a CUDA graph."""
    return torch.tensor(SEED, device=device)


@contextlib.contextmanager
def fixed_seed():
    """Inside this context every call drops the same weights."""

    def draw(dropout_p, device):
        return seed_on(device) if dropout_p else None

    modules = dot, gat, gatv2
    before = gat.draw_seed
    for module in modules:
        module.draw_seed = draw
    try:
        yield
    finally:
        for module in modules:
            module.draw_seed = before


def magnitudes(kind, g, mask, operands, grad, stored=0.0):
    """Sums of the magnitudes of all terms, for the result and for the operands' gradients, as support.check takes them.

    stored: GAT's forward keeps a rounded sum for the gradient of attn_dst. This is the weight of that rounding,
    relative to an error in fp32.
    """
    sizes = [x.abs() for x in operands]
    value = operands[2 if kind is DOT else 0]
    if kind is DOT:
        logits, size = (reference.gsddmm(g, "dot", x[1], x[0]).squeeze(-1) * 0.3 for x in (operands, sizes))
    elif kind is GATV2:
        hidden, size = (reference.gsddmm(g, "add", x[0], x[1]) for x in (operands, sizes))
        logits, size = (torch.nn.functional.leaky_relu(hidden, SLOPE) * operands[2]).sum(-1), (size * sizes[2]).sum(-1)
    else:
        logits, size = (reference.gsddmm(g, "add", x[1], x[2]) + (x[3] if len(x) > 3 else 0) for x in (operands, sizes))
        logits = torch.nn.functional.leaky_relu(logits, SLOPE)
    weights = reference.edge_softmax(g, logits)
    kept = weights if mask is None else weights * mask
    # An error in the last place of a logit becomes a relative error of the weight.
    if g.num_edges:
        kept, weights = (x * (1 + size.nan_to_num(posinf=0).amax(0)) for x in (kept, weights))
    out = reference.gspmm(g, "mul", "sum", value.abs(), kept.unsqueeze(-1))
    to_value = reference.gspmm(g.reverse(), "mul", "sum", grad.abs(), kept.unsqueeze(-1))
    delta = (grad.abs() * out).sum(-1)
    term = kept * reference.gsddmm(g, "dot", value.abs(), grad.abs()).squeeze(-1)
    term = term + weights * reference.gsddmm(g, "copy_rhs", None, delta)
    wide = term.unsqueeze(-1)
    if kind is DOT:
        to_query = reference.gspmm(g, "mul", "sum", sizes[1], 0.3 * wide)
        return out, to_query, reference.gspmm(g.reverse(), "mul", "sum", sizes[0], 0.3 * wide), to_value
    to_src = reference.gspmm(g.reverse(), "copy_rhs", "sum", None, term)
    to_dst = reference.gspmm(g, "copy_rhs", "sum", None, term)
    if kind is GATV2:
        to_attn = (wide * reference.gsddmm(g, "add", sizes[0], sizes[1])).sum(0)
        return out, to_value + sizes[2] * to_src.unsqueeze(-1), sizes[2] * to_dst.unsqueeze(-1), to_attn
    to_dst = to_dst + stored * 2 * delta  # rounding of the positive edges' sum, and of out
    return (out, to_value, to_src, to_dst, term)[: 1 + len(operands)]


def check(kind, g, operands, dropout_p=0.0, terms=10_000, **options):
    """Forward and all gradients under the rule."""
    host, heads = g.to("cpu"), operands[0].shape[1]
    mask = reference.dropout_mask(SEED, g.num_edges, heads, dropout_p) if dropout_p else None

    def specified(*given):
        return kind.specification(host, *given, mask=None if mask is None else mask.to(given[0].dtype))

    def by_formula(*given):  # PyTorch's formula takes half logits with half features, not fp32 ones
        return specified(*(x.to(given[0].dtype) for x in given))

    dtype, single = operands[0].dtype, torch.finfo(torch.float32).eps
    stored = torch.finfo(dtype).eps / single / (8 + 4 * math.sqrt(terms)) if dtype in support.HALVES else 0.0
    with fixed_seed():
        return support.check(
            lambda *given: kind.call(g, *given, dropout_p=dropout_p, **options),
            specified,
            operands,
            formula=by_formula,
            # Weights below the smallest normal number of float32 may be 0.
            bounds=lambda *given: [x + 1e-32 for x in magnitudes(kind, host, mask, given[:-1], given[-1], stored)],
            terms=terms,
        )
