"""Features and logits of GAT on the CPU: made beside one another, without products as large as the features."""

from __future__ import annotations

import pytest
import torch

from halfgnn.common import products
from halfgnn.nn import projections
from tests.support_nn import HALVES, randn, seeded

HEADS, DIM, IN_FEATS = 3, 9, 7
EPS = {dtype: torch.finfo(dtype).eps for dtype in (*HALVES, torch.float32)}
LAYERS = {
    "linear": lambda: torch.nn.Linear(IN_FEATS, HEADS * DIM, bias=False),
    "linear-bias": lambda: torch.nn.Linear(IN_FEATS, HEADS * DIM),
    "other": lambda: torch.nn.Sequential(torch.nn.Linear(IN_FEATS, HEADS * DIM)),
}


@pytest.fixture(params=[1, 1 << 20], ids=["several-chunks", "one-chunk"], autouse=True)
def _chunk(request, monkeypatch):
    monkeypatch.setattr(products, "_CHUNK", request.param)


def error(actual, expected):
    return float((actual.detach().double() - expected).abs().max() / expected.abs().max())


def expected_of(layer, x, *attns):
    feat = layer(x).unflatten(-1, (HEADS, -1))
    return feat, *((feat * attn).sum(-1) for attn in attns)


def twice(function, leaves):
    """Results, gradients of their squares, and gradients of the squared norm of these."""
    results = function()
    first = torch.autograd.grad(sum(x.double().square().sum() for x in results), leaves, create_graph=True)
    second = torch.autograd.grad(sum(x.double().square().sum() for x in first), leaves)
    return *results, *first, *second


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("name", LAYERS)
def test_derivatives(name, dtype):
    layer = seeded(LAYERS[name]).to(dtype)
    x, *attns = (randn(*shape, seed=i).to(dtype) for i, shape in enumerate([(600, IN_FEATS), *[(1, HEADS, DIM)] * 2]))
    leaves = [x.requires_grad_(), *(attn.requires_grad_() for attn in attns), *layer.parameters()]

    def actual():
        feat, logits = projections.project_with_logits(layer, x, HEADS, DIM, *attns)
        return feat, *logits

    wide = seeded(LAYERS[name]).double()
    copies = [leaf.detach().double().requires_grad_() for leaf in leaves[:3]]
    expected = twice(lambda: expected_of(wide, *copies), [*copies, *wide.parameters()])
    for a, b in zip(twice(actual, leaves), expected, strict=True):
        assert a.dtype == dtype
        assert error(a, b) < (1e-5 if dtype == torch.float32 else 1e-13)


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_half_features(dtype):
    """Logits are fp32, and each gradient is rounded once."""
    feat, attns = randn(600, HEADS, DIM).to(dtype), [randn(1, HEADS, DIM, seed=i).to(dtype) for i in (1, 2)]
    leaves = [x.requires_grad_() for x in (feat, *attns)]
    copies = [x.detach().double().requires_grad_() for x in leaves]
    logits = projections._with_logits(*leaves)[1]
    expected = [(copies[0] * attn).sum(-1) for attn in copies[1:]]
    upstream = [randn(600, HEADS, seed=i) for i in (3, 4)]
    assert all(x.dtype == torch.float32 and error(x, y) < 1e-6 for x, y in zip(logits, expected))
    grads = torch.autograd.grad(logits, leaves, upstream)
    for a, b in zip(grads, torch.autograd.grad(expected, copies, [x.double() for x in upstream])):
        assert a.dtype == dtype
        assert error(a, b) < EPS[dtype]


def test_infinite_values_stay_in_their_head():
    feat = randn(600, HEADS, DIM)
    feat[300, 1, 2] = torch.inf
    _, (logits,) = projections._with_logits(feat.requires_grad_(), randn(1, HEADS, DIM, seed=1).abs())
    assert logits.isinf().nonzero().tolist() == [[300, 1]]
    (grad,) = torch.autograd.grad(logits, feat, torch.zeros_like(logits))
    assert (grad == 0).all()


def test_no_nodes():
    feat, logits = projections.project_with_logits(
        seeded(LAYERS["other"]), randn(0, IN_FEATS), HEADS, DIM, randn(1, HEADS, DIM)
    )
    assert feat.shape == (0, HEADS, DIM)
    assert logits[0].shape == (0, HEADS)


@pytest.mark.filterwarnings("ignore:There is a performance drop:UserWarning")
@pytest.mark.parametrize("dtype", [*HALVES, torch.float32], ids=str)
@pytest.mark.parametrize("name", LAYERS)
def test_several_gradients_at_once(name, dtype):
    """torch.autograd.functional.jacobian(vectorize=True) runs the backward so, under a vmap that is not functorch's."""
    layer = seeded(LAYERS[name]).to(dtype)
    x, *attns = (randn(*shape, seed=i).to(dtype) for i, shape in enumerate([(600, IN_FEATS), *[(1, HEADS, DIM)] * 2]))
    leaves = [x.requires_grad_(), *(attn.requires_grad_() for attn in attns), *layer.parameters()]
    feat, logits = projections.project_with_logits(layer, x, HEADS, DIM, *attns)
    results = feat, *logits
    grads = [randn(2, *result.shape, seed=i).to(result.dtype) for i, result in enumerate(results)]
    together = torch.autograd.grad(results, leaves, grads, retain_graph=True, is_grads_batched=True)
    for i in range(2):
        alone = torch.autograd.grad(results, leaves, [grad[i] for grad in grads], retain_graph=True)
        for a, b in zip(together, alone, strict=True):
            assert a.dtype == b.dtype and error(a[i], b.double()) < max(2 * EPS[dtype], 1e-6)
