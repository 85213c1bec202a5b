"""Shared by the tests of modules: graphs, a module's output with all its gradients, and the rule for half precision."""

from __future__ import annotations

import contextlib
import sys

import pytest
import torch

from halfgnn import reference
from halfgnn.common.precision import autocast
from halfgnn.graph_argument import as_graph

HALVES = [torch.float16, torch.bfloat16]
NUM_NODES, NUM_EDGES, IN_FEATS = 40, 220, 12


def random_edges(num_src=NUM_NODES, num_dst=NUM_NODES, num_edges=NUM_EDGES, loops=True):
    """src, dst (E,), in random order. With loops every destination has an in-edge. Without them the last quarter has
    none."""
    gen = torch.Generator().manual_seed(num_edges)
    src = torch.randint(num_src, (num_edges,), generator=gen)
    dst = torch.randint(num_dst if loops else num_dst * 3 // 4, (num_edges,), generator=gen)
    if not loops:
        return src, dst
    own = torch.arange(num_dst)
    return torch.cat([src, own % num_src]), torch.cat([dst, own])


def seeded(make, seed=1):
    torch.manual_seed(seed)
    return make()


def randn(*shape, dtype=torch.float32, seed=3):
    gen = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, dtype=torch.float64, generator=gen).to(dtype)


def with_gradients(module, call, inputs):
    """The output of call(*inputs) and the gradients of its inputs and of the module's parameters."""
    inputs = [x.detach().requires_grad_() for x in inputs]
    out = call(*inputs)
    grad = randn(*out.shape, dtype=torch.float64, seed=5).to(out)
    return [out.detach(), *torch.autograd.grad(out, [*inputs, *module.parameters()], grad, allow_unused=True)]


def assert_close(actual, expected, tolerance=1e-5):
    assert len(actual) == len(expected)
    for a, b in zip(actual, expected):
        assert (a is None) == (b is None)
        if a is not None:
            torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


def tolerance_of(dtype):
    return 1e-4 if dtype == torch.float32 else 1e-9


# ---- half precision ----------------------------------------------------------------------------------------------------------


def assert_near(actual, expected, formula, dtype, most=0.4):
    """The rule of support.py for whole modules: half precision loses no more than the same formula in PyTorch in that
    half type.

    actual, expected (in fp32) and formula (made inside :func:`by_formulas`): an output and the gradients. The error of
    each, in the Euclidean norm, is at most twice the formula's error plus two units in the last place. A gradient of
    one number needs these units if the formula is right by chance. If the terms of a gradient cancel, its error is that
    of the terms, so its size counts as at least a tenth of the largest gradient.

    most: the largest error of the formula, relative to the result, at which the comparison still says something; None
        for any.

    No fixed bound is both tight and safe. Rounded features move a few logits to the other side of LeakyReLU's kink, and
    change which neighbour is the largest. This changes a gradient by up to a tenth. The formula sees the same features.
    """
    assert len(actual) == len(expected) == len(formula)
    eps = torch.finfo(dtype).eps
    largest = max((x.double().norm().item() for x in expected[1:] if x is not None), default=0)
    for i, results in enumerate(zip(actual, expected, formula)):
        assert all((x is None) == (results[0] is None) for x in results)
        if results[0] is None:
            continue
        got, truth, rounded = (x.double().cpu() for x in results)
        size = truth.norm().item() if i == 0 else max(truth.norm().item(), 0.1 * largest)
        error, allowed = (got - truth).norm().item(), (rounded - truth).norm().item()
        assert most is None or allowed <= most * size, (
            f"result {i}: the formula itself is off by {allowed:.3g} of {size:.3g}"
        )
        assert error <= 2 * (allowed + eps * size), (
            f"result {i}: off by {error:.3g} of {size:.3g}, the formula by {allowed:.3g}"
        )


@contextlib.contextmanager
def by_formulas():
    """Replaces halfgnn.ops by halfgnn.reference in the half type of the operands, so that every step rounds. Without
    dropout."""
    with pytest.MonkeyPatch.context() as patch:
        for (module, name), formula in _FORMULAS.items():
            patch.setattr(sys.modules[f"halfgnn.ops.{module}"], name, _in_their_type(formula))
            patch.setattr(sys.modules["halfgnn.ops"], name, _in_their_type(formula))
        yield


def _dot_attention(g, query, key, value, scale=None, p=0.0, **terms):
    return reference.dot_attention(g, query, key, value, query.shape[-1] ** -0.5 if scale is None else scale, **terms)


_FORMULAS = {
    ("spmm", "gspmm"): reference.gspmm,
    ("sddmm", "gsddmm"): reference.gsddmm,
    ("sddmm", "u_add_v_add_e"): reference.u_add_v_add_e,
    ("gated_sum", "gated_sum"): reference.gated_sum,
    ("edge_softmax", "edge_softmax"): reference.edge_softmax,
    ("attention", "gat_attention"): lambda g, *operands: reference.gat_attention(g, *operands[:5]),
    ("attention", "gatv2_attention"): lambda g, *operands, **terms: reference.gatv2_attention(
        g, *operands[:4], **terms
    ),
    ("attention", "dot_attention"): _dot_attention,
}


def _in_their_type(formula):
    def call(g, *operands, out_dtype=None, **options):
        operands = [autocast(x) if isinstance(x, torch.Tensor) else x for x in operands]
        dtypes = [x.dtype for x in operands if isinstance(x, torch.Tensor)]
        dtype = next(
            (dtype for dtype in dtypes if dtype in HALVES), dtypes[0]
        )  # fp32 operands beside halves are rounded
        operands = [x.to(dtype) if isinstance(x, torch.Tensor) else x for x in operands]
        options = {name: x.to(dtype) if isinstance(x, torch.Tensor) else x for name, x in options.items()}
        with torch.autocast("cpu", enabled=False):
            out = formula(as_graph(g), *operands, **options)
        return out if out_dtype is None else out.to(out_dtype)

    return call
