"""Arguments of ops.edge_network, and its comparison with the same formula in PyTorch."""

from __future__ import annotations

import pytest
import torch

from halfgnn import ops, reference
from halfgnn.ops.edge_network import operator
from tests.support import HALVES, randn
from tests.support_nn import assert_near

EDGES, WIDTH, HIDDEN = 5, 16, 8


def arguments(g, dtype, *, norm=True, factors=False, distances=False, dst=True, feat=True, **options):
    """Leaves, by the names of the operator."""
    wide = dict(dtype=dtype, device=g.device)
    found = {
        "src": randn(g.num_src, WIDTH, **wide),
        "layers": [(randn(HIDDEN, WIDTH, **wide) / 4, randn(HIDDEN, **wide)), (randn(EDGES, HIDDEN, **wide) / 3, None)],
    }
    if dst:
        found["dst"] = randn(g.num_dst, WIDTH, **wide)
    if feat:
        found |= {"edge_feat": randn(g.num_edges, EDGES, **wide), "edge_weight": randn(WIDTH, EDGES, **wide) / 2}
    if norm:
        found["norm"] = randn(EDGES, **wide), randn(EDGES, **wide)
    if factors:
        found |= {"factor": randn(g.num_src, EDGES, **wide), "edge_factor": randn(g.num_edges, **wide)}
    if distances:
        found["positions"] = randn(g.num_src, 3, **wide), randn(g.num_dst, 3, **wide)
        found["distance_weight"] = randn(WIDTH, **wide) / 3
    return found | options


def mapped(value, function):
    """With function(x) in place of every tensor, which may be in tuples and lists."""
    if isinstance(value, dict):
        return {name: mapped(x, function) for name, x in value.items()}
    if isinstance(value, (tuple, list)):
        return type(value)(mapped(x, function) for x in value)
    return function(value) if isinstance(value, torch.Tensor) else value


def leaves_of(given) -> list[torch.Tensor]:
    found: list[torch.Tensor] = []
    mapped(given, lambda x: found.append(x) or x)
    return found


def results(function, g, given, upstream=None):
    """(results, gradients of all leaves). upstream: a list of the results' gradients, or an empty one to be filled."""
    given = mapped(given, lambda x: x.detach().clone().requires_grad_())
    out = function(g, **given)
    outs = list(out) if isinstance(out, tuple) else [out]
    if upstream is not None and not upstream:
        upstream += [randn(*x.shape, dtype=x.dtype, device=x.device) for x in outs]
    grads = [u.to(x) for u, x in zip(upstream, outs)]
    gradients = torch.autograd.grad(outs, leaves_of(given), grads, allow_unused=True)
    return [x.detach() for x in outs], list(gradients)


def every_result(*args):
    outs, gradients = results(*args)
    return [*outs, *gradients]


def compare(g, given, tile_edges=64):
    """In tiles of so many edges, with the formula: fp64 and fp32 with the reference, halves by the rule of modules, no worse than
    PyTorch's layers in that type."""
    upstream: list[torch.Tensor] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(operator, "tile_edges", lambda num_edges, is_cpu: tile_edges)
        actual = every_result(ops.edge_network, g, given, upstream)
    host = g.to("cpu")
    upstream = [x.cpu() for x in upstream]
    on_host = mapped(given, lambda x: x.cpu())
    truth = every_result(reference.edge_network, host, mapped(on_host, lambda x: x.double()), upstream)
    dtype = actual[0].dtype
    if dtype in HALVES:
        formula = every_result(reference.edge_network, host, on_host, upstream)
        assert_near(actual, truth, formula, dtype, most=None)
        return
    bound = 1e-9 if dtype == torch.float64 else 2e-4
    for got, right in zip(actual, truth):
        size = right.abs().max().item() if right.numel() else 0
        torch.testing.assert_close(got.cpu().double(), right, rtol=bound, atol=bound * max(size, 1e-3))
