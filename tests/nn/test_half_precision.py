"""Modules in half types and under autocast: accuracy, logits, sums, products of halves."""

from __future__ import annotations

import pytest
import torch

import halfgnn
import halfgnn.nn
from halfgnn import ops
from halfgnn.common import products
from halfgnn.nn.projections import node_logits
from tests.nn.support_modules import (
    HALF_MODULES,
    make_graph,
    make_module,
    mixed_results_of,
    results_of,
)
from tests.support_nn import (
    HALVES,
    IN_FEATS,
    NUM_NODES,
    assert_close,
    assert_near,
    by_formulas,
    randn,
    seeded,
)

# ---- half precision ----------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("name", HALF_MODULES)
def test_half(name, dtype, device):
    actual = results_of(name, dtype, device)
    assert all(result.dtype == dtype for result in actual)
    with by_formulas():
        formula = results_of(name, dtype, device)
    assert_near(actual, results_of(name, torch.float32), formula, dtype)


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("name", HALF_MODULES)
def test_autocast(name, dtype, device):
    actual = mixed_results_of(name, dtype, device)
    assert all(gradient.dtype == torch.float32 for gradient in actual[1:])
    with by_formulas():
        formula = mixed_results_of(name, dtype, device)
    assert_near(actual, results_of(name, torch.float32), formula, dtype)


@pytest.mark.parametrize("name", ["GATConv", "GATv2Conv", "DotGatConv", "TransformerConv"])
def test_autocast_of_half_features(name):
    """An input as from a layer before."""
    actual = mixed_results_of(name, torch.bfloat16, features=torch.bfloat16)
    with by_formulas():
        formula = mixed_results_of(name, torch.bfloat16, features=torch.bfloat16)
    assert_near(actual, results_of(name, torch.float32), formula, torch.bfloat16)


def test_logits_are_fp32(monkeypatch):
    seen = []
    attention = ops.gat_attention
    monkeypatch.setattr(ops, "gat_attention", lambda g, *x: seen.append([t.dtype for t in x[:3]]) or attention(g, *x))
    module, g, x = make_module("GATConv"), make_graph(), randn(NUM_NODES, IN_FEATS)
    with torch.autocast("cpu", torch.bfloat16):
        module(g, x)
        module(g, x.bfloat16())
    module.bfloat16()(g, x.bfloat16())
    assert seen == [[torch.bfloat16, torch.float32, torch.float32]] * 3


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_accuracy_of_logits(dtype, device):
    """Halves are multiplied without rounding and summed in fp32."""
    linear = seeded(lambda: torch.nn.Linear(64, 24)).to(device)
    attns = [randn(1, 3, 8, seed=i).to(device).requires_grad_() for i in (1, 2)]
    h = randn(50, 2, 64).to(device, dtype).requires_grad_()
    grad = randn(50, 2, 6).to(device)
    exact = h.detach().double().requires_grad_()
    feat = torch.nn.functional.linear(exact, linear.weight.double(), linear.bias.double()).view(50, 2, 3, 8)
    expected = torch.cat([(feat * attn.double()).sum(-1) for attn in attns], -1)
    actual = torch.cat(node_logits(linear, h, *attns), -1)
    assert actual.dtype == torch.float32
    leaves = [linear.weight, linear.bias, *attns]
    # On CUDA the weight and the gradient are rounded to half before the product.
    tolerance = 1e-5 if device == "cpu" else 4 * torch.finfo(dtype).eps
    torch.testing.assert_close(actual.double(), expected, rtol=tolerance, atol=10 * tolerance)
    actual = torch.autograd.grad(actual, [h, *leaves], grad)
    expected = torch.autograd.grad(expected, [exact, *leaves], grad.double())
    for i, (a, b) in enumerate(zip(actual, expected)):
        error = (a.double() - b.double()).norm() / b.double().norm()
        assert error <= (torch.finfo(dtype).eps if i == 0 else tolerance), i


@pytest.mark.parametrize("norm", ["both", "right"])
def test_fp16_sums_are_scaled_before_they_are_rounded(norm):
    """The sum over a hub's 1,000 neighbours exceeds 65,504; the normalised result does not."""
    count = 1000
    g = halfgnn.Graph.from_edges(torch.arange(count), torch.zeros(count, dtype=torch.int64), num_src=count, num_dst=1)
    conv = halfgnn.nn.GraphConv(4, 4, norm=norm, weight=False, bias=False)
    out = conv(g, (torch.full((count, 4), 1000.0).half(), torch.zeros(1, 4).half()))
    expected = 1000.0 if norm == "right" else 1000.0 * count**0.5
    torch.testing.assert_close(out, torch.full((1, 4), expected).half())


# ---- products of halves ------------------------------------------------------------------------


def conv_and_leaves(dtype, **options):
    module = seeded(lambda: halfgnn.nn.GATConv(IN_FEATS, 8, 2, allow_zero_in_degree=True, **options))
    return module, make_graph(), randn(NUM_NODES, IN_FEATS).to(dtype).requires_grad_()


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_backward_under_autocast(dtype, device):
    """The backward may run inside the autocast region or outside. The products are the same."""
    results = []
    for inside in (False, True):
        module, g, x = conv_and_leaves(torch.float32)
        module, g, x = module.to(device), g.to(device), x.detach().to(device).requires_grad_()
        with torch.autocast(device, dtype):
            loss = module(g, x).float().square().sum()
            if inside:
                loss.backward()
        if not inside:
            loss.backward()
        results.append([x.grad, *(p.grad for p in module.parameters())])
    for a, b in zip(*results):
        assert torch.equal(a, b)


@pytest.mark.parametrize("rows", [0, 1, 255, 256, 257, 1000])
def test_products_by_chunks(monkeypatch, rows):
    """Chunks of 256 rows give the same as one product."""
    monkeypatch.setattr(products, "_CHUNK", 1)
    h = randn(rows, 7).bfloat16().requires_grad_()
    weight, bias = randn(9, 7, seed=1).requires_grad_(), randn(9, seed=2).requires_grad_()
    upstream = randn(rows, 4, seed=3).bfloat16(), randn(rows, 5, seed=4)
    parts = products.widened_linear(h, weight, bias, 4)
    assert [part.dtype for part in parts] == [torch.bfloat16, torch.float32]
    product = h.float() @ weight.t() + bias
    assert_close(parts[0].float(), product[:, :4], tolerance=2**-8)
    assert_close(parts[1], product[:, 4:])
    grads = torch.autograd.grad(parts, (h, weight, bias), upstream)
    expected = torch.autograd.grad(product, (h, weight, bias), torch.cat([upstream[0].float(), upstream[1]], 1))
    for got, right in zip(grads, expected):
        assert got.dtype == right.dtype
        assert_close(got.float(), right.float(), tolerance=2**-7)


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_no_input_features(dtype):
    module = halfgnn.nn.TransformerConv((0, 4), 8, 1)
    with torch.autocast("cpu", dtype):
        out = module(make_graph(), (torch.randn(NUM_NODES, 0), torch.randn(NUM_NODES, 4)))
    out.float().sum().backward()
    assert module.lin_value.bias.grad.isfinite().all()


def test_functorch_over_parameters_in_half():
    module, g, x = conv_and_leaves(torch.bfloat16)
    module.bfloat16()
    named = {name: p.detach() for name, p in module.named_parameters()}
    stacked = {name: torch.stack([p, 2 * p]) for name, p in named.items()}

    def call(parameters):
        return torch.func.functional_call(module, parameters, (g, x.detach()))

    both = torch.func.vmap(call)(stacked)
    for i in range(2):
        alone = call({name: p[i] for name, p in stacked.items()})
        torch.testing.assert_close(
            both[i], alone, rtol=2**-7, atol=2**-7
        )  # products of another shape may round otherwise


def test_overflow_stays_in_its_head():
    """For a projection from whose output the logits are computed."""
    module, g, x = conv_and_leaves(torch.float32)
    with torch.no_grad():
        module.fc.weight[:8] *= 1e6
    module.fc.register_forward_hook(lambda *_: None)
    with torch.autocast("cpu", torch.float16):
        out = module(g, x)
    assert not out[:, 0].isfinite().all() and out[:, 1].isfinite().all()
