"""Features of heads in bf16 with fp32 logits beside them: values, gradients, and the kernels of both directions on CUDA."""

from __future__ import annotations

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from halfgnn.common import products
from halfgnn.common.products import multiplies_slowly
from halfgnn.nn import projected_heads, projections
from tests.support_nn import randn

HEADS, DIM, IN_FEATS, NODES = 3, 8, 7, 600
EPS = torch.finfo(torch.bfloat16).eps
needs_fast_products = pytest.mark.skipif(
    multiplies_slowly(torch.bfloat16), reason="bf16 products are made in fp32 here"
)


@pytest.fixture(params=[1, 1 << 20], ids=["several-chunks", "one-chunk"])
def _chunk(request, monkeypatch):
    monkeypatch.setattr(products, "_CHUNK", request.param)


def error(actual, expected):
    return float((actual.detach().double() - expected.detach()).abs().max() / expected.detach().abs().max())


def operands(count, dtype=torch.float32):
    h, weight = randn(NODES, IN_FEATS).bfloat16(), randn(HEADS * DIM, IN_FEATS, seed=1).to(dtype)
    attns = [randn(1, HEADS, DIM, seed=2 + i).to(dtype) for i in range(count)]
    return [x.requires_grad_() for x in (h, weight, *attns)]


def formula(h, weight, *attns):
    feat = h @ weight.t()
    return feat, *((feat.unflatten(-1, (HEADS, DIM)) * attn).sum(-1) for attn in attns)


def called(leaves):
    feat, logits = projected_heads.projected_heads(*leaves)
    return feat, *logits


@pytest.mark.usefixtures("_chunk")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("count", [1, 2])
def test_values_and_gradients(count, dtype):
    """Logits are not of rounded features, and gradients of parameters in fp32 are not rounded to bf16."""
    leaves = operands(count, dtype)
    copies = [x.detach().double().requires_grad_() for x in leaves]
    results, expected = called(leaves), formula(*copies)
    assert results[0].dtype == torch.bfloat16 and error(results[0], expected[0]) < 2 * EPS
    for logits, right in zip(results[1:], expected[1:], strict=True):
        assert logits.dtype == torch.float32 and logits.is_contiguous() and error(logits, right) < 1e-6
    upstream = [randn(*x.shape, seed=9 + i).to(x.dtype) for i, x in enumerate(results)]
    grads = torch.autograd.grad(results[1:], leaves, upstream[1:], retain_graph=True)
    right = torch.autograd.grad(expected[1:], copies, [x.double() for x in upstream[1:]], retain_graph=True)
    for leaf, a, b in zip(leaves, grads, right, strict=True):
        assert a.dtype == leaf.dtype and error(a, b) < (1e-6 if leaf.dtype == torch.float32 else EPS)
    grads = torch.autograd.grad(results, leaves, upstream)
    for a, b in zip(grads, torch.autograd.grad(expected, copies, [x.double() for x in upstream]), strict=True):
        assert error(a, b) < 2 * EPS


@pytest.mark.parametrize("given", [(0,), (1,), (2,), (0, 2)], ids=str)
def test_some_results_have_gradients(given):
    leaves = operands(2)
    copies = [x.detach().double().requires_grad_() for x in leaves]
    results, expected = called(leaves), formula(*copies)
    grads = torch.autograd.grad(sum(results[i].float().square().sum() for i in given), leaves, allow_unused=True)
    right = torch.autograd.grad(sum(expected[i].square().sum() for i in given), copies, allow_unused=True)
    for a, b in zip(grads, right, strict=True):
        if b is None:
            assert a is None or not a.any()
        else:
            assert error(a, b) < 3 * EPS


@pytest.mark.parametrize("needed", range(4))
def test_one_operand_needs_a_gradient(needed):
    leaves = operands(2)
    for i, leaf in enumerate(leaves):
        leaf.requires_grad_(i == needed)
    sum(x.float().square().sum() for x in called(leaves)).backward()
    everything = operands(2)
    sum(x.float().square().sum() for x in called(everything)).backward()
    assert torch.equal(leaves[needed].grad, everything[needed].grad)
    assert all(leaf.grad is None for i, leaf in enumerate(leaves) if i != needed)


def test_second_derivatives():
    leaves = operands(2)
    copies = [x.detach().double().requires_grad_() for x in leaves]

    def second(results, of):
        first = torch.autograd.grad(sum(x.to(torch.float64).square().sum() for x in results), of, create_graph=True)
        return torch.autograd.grad(sum(x.double().square().sum() for x in first), of)

    for a, b in zip(second(called(leaves), leaves), second(formula(*copies), copies), strict=True):
        assert error(a, b) < 8 * EPS


@needs_fast_products
def test_modules_take_it_under_autocast():
    layer = torch.nn.Linear(IN_FEATS, HEADS * DIM, bias=False)
    x, attn = randn(NODES, IN_FEATS).requires_grad_(), randn(1, HEADS, DIM, seed=1).requires_grad_()
    with torch.autocast("cpu", torch.bfloat16):
        feat, _ = projections.project_with_logits(layer, x, HEADS, DIM, attn)
    assert "_ProjectedHeads" in type(feat.grad_fn.next_functions[0][0]).__name__
    feat.float().sum().backward()  # with no gradient of the logits
    assert attn.grad is None and layer.weight.grad.dtype == x.grad.dtype == torch.float32


class _Kernels(TorchDispatchMode):
    """Operators of ATen that are kernels on CUDA."""

    NOT = frozenset(
        {"alias", "detach", "empty_like", "expand", "permute", "t", "transpose", "unbind", "unsqueeze", "view"}
    )

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        name = str(function).split(".")[1]
        if function.namespace == "aten" and name not in self.NOT:
            self.names.append(name)
        return function(*args, **(kwargs or {}))


def test_kernels_on_cuda():
    with FakeTensorMode(), torch.no_grad():
        h = torch.empty(NODES, IN_FEATS, dtype=torch.bfloat16, device="cuda")
        weight = torch.empty(HEADS * DIM, IN_FEATS, device="cuda")
        attns = [torch.empty(1, HEADS, DIM, device="cuda") for _ in range(2)]
        with _Kernels() as forward:
            feat, logits, kept = projected_heads._forward(h, weight, tuple(attns))
        upstream = [torch.empty_like(x) for x in (feat, *logits)]
        with _Kernels() as backward:
            grads = projected_heads._gradients((True,) * 4, (h, weight, *attns), kept, upstream[0], upstream[1:])
    assert [(x.dtype, x.shape) for x in grads] == [(x.dtype, x.shape) for x in (h, weight, *attns)]
    assert all(x.is_contiguous() for x in (*logits, *grads))
    if products.SUMS_HALVES_IN_FP32:
        assert forward.names == ["_to_copy", "cat", "bmm", "_to_copy", "mm", "bmm"]
        assert sorted(backward.names) == sorted(
            ["mm", "mm", "stack", "_to_copy", "addmm_", "mm", "baddbmm_", "bmm", "clone"]
        )
