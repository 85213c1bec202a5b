"""What the tests of modules share: graphs, a module's output with all its gradients, and what half precision may lose."""

from __future__ import annotations

import torch

HALVES = [torch.float16, torch.bfloat16]
NUM_NODES, NUM_EDGES, IN_FEATS = 40, 220, 12


def random_edges(num_src=NUM_NODES, num_dst=NUM_NODES, num_edges=NUM_EDGES, loops=True):
    """src, dst (E,), in no order; with loops every destination has an in-edge, without them the last quarter has none."""
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


# Relative errors in the Euclidean norm: of the output, and of gradients, for which rounding flips the sign of a few logits.
_HALF_TOLERANCES = {torch.float16: (0.005, 0.06), torch.bfloat16: (0.03, 0.25)}


def assert_near(actual, expected, dtype):
    """The result of half precision is that of fp32 but for rounding. Gradients that cancel err as their terms do."""
    largest = max((x.double().norm().item() for x in expected[1:] if x is not None), default=0)
    for i, (a, b) in enumerate(zip(actual, expected)):
        assert (a is None) == (b is None)
        if a is not None:
            error, size = (a.double().cpu() - b.double()).norm().item(), b.double().norm().item()
            forward, backward = _HALF_TOLERANCES[dtype]
            bound = forward * size if i == 0 else backward * max(size, 0.1 * largest)
            assert error <= bound, (error, size, largest, tuple(a.shape))
