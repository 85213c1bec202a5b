"""The raw operators head_logits and head_logits_backward: against float64, any shape and alignment, and clear errors."""

import pytest
import torch

from halfgnn.ops.head_logits import with_head_logits
from tests import support
from tests.ops.test_raw_ops import opcheck
from tests.support import randn

raw = torch.ops.halfgnn
SHAPES = [
    (1, 1, 1),
    (5, 3, 9),
    (300, 8, 8),
    (70, 6, 16),
    (33, 1, 41),
    (40, 2, 128),
    (9, 1, 300),
    (3001, 8, 16),  # several parts, of unequal rows
    (4, 40, 8),
]
AWKWARD = [(0, 3, 4), (5, 0, 4), (5, 3, 0), (2, 300, 2), (1, 1, 2049)]


def wide(dtype):
    return torch.float64 if dtype == torch.float64 else torch.float32


def operands(shape, dtype, device="cpu", count=2):
    rows, heads, dim = shape
    feat = randn(*shape, dtype=dtype, device=device)
    attns = [randn(1, heads, dim, dtype=wide(dtype), device=device) for a in range(count)]
    grads = [randn(rows, heads, dtype=wide(dtype), device=device) for a in range(count)]
    return feat, attns, grads, randn(*shape, dtype=dtype, device=device)


def is_close(actual, expected, magnitude, dtype):
    """Rounded once to dtype, and sums in float32."""
    eps = torch.finfo(dtype).eps / 2 if dtype in support.HALVES else 0.0
    arithmetic = 64 * torch.finfo(wide(dtype)).eps
    error = (actual.double() - expected).abs()
    return bool((error <= eps * expected.abs() + arithmetic * magnitude + 1e-7 * (dtype == torch.float16)).all())


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("shape", SHAPES + AWKWARD, ids=str)
@pytest.mark.parametrize("device,dtype", support.devices_and(support.DTYPES), ids=str)
def test_values_and_gradients(shape, count, device, dtype):
    feat, attns, grads, upstream = operands(shape, dtype, device, count)
    logits = raw.head_logits(feat, *attns)[:count]
    wider, sides = feat.double(), list(zip(attns, grads, strict=True))
    for logit, attn in zip(logits, attns):
        terms = wider * attn.double()
        assert logit.dtype == wide(dtype) and logit.shape == shape[:2]
        assert is_close(logit, terms.sum(-1), terms.abs().sum(-1), wide(dtype))
    second = [attns[1], grads[0], grads[1]] if count == 2 else [None, grads[0], None]
    grad_feat, grad_attns = raw.head_logits_backward(feat, attns[0], *second, upstream, True, True)
    terms = [upstream.double(), *(grad.double()[..., None] * attn.double() for attn, grad in sides)]
    assert grad_feat.dtype == dtype and grad_attns.shape == (count, 1, *shape[1:])
    assert is_close(grad_feat, sum(terms), sum(x.abs() for x in terms), dtype)
    for actual, grad in zip(grad_attns, grads):
        terms = wider * grad.double()[..., None]
        assert is_close(actual, terms.sum(0, keepdim=True), terms.abs().sum(0, keepdim=True), wide(dtype))
    alone = raw.head_logits_backward(feat, attns[0], *second, upstream, True, False)
    assert torch.equal(alone[0], grad_feat) and alone[1].numel() == 0
    of_attns = raw.head_logits_backward(feat, attns[0], *second, None, False, True)
    assert torch.equal(of_attns[1], grad_attns) and of_attns[0].numel() == 0
    assert not raw.head_logits_backward(feat, attns[0], *second, upstream, False, False)[1].numel()


@pytest.mark.parametrize("device", support.DEVICES)
def test_gradients_that_are_missing_count_as_zero(device):
    feat, (attn, more), (grad, more_grad), upstream = operands((20, 2, 8), torch.float16, device)
    zeros, none = torch.zeros_like(grad), torch.zeros_like(feat)
    for given in ((grad, None, upstream), (None, more_grad, upstream), (grad, more_grad, None)):
        filled = [x if x is not None else y for x, y in zip(given, (zeros, zeros, none))]
        actual = raw.head_logits_backward(feat, attn, more, *given, True, True)
        expected = raw.head_logits_backward(feat, attn, more, *filled, True, True)
        assert all(torch.equal(a, b) for a, b in zip(actual, expected))


@pytest.mark.parametrize("device", support.DEVICES)
def test_rows_that_lie_apart_or_are_not_aligned(device):
    feat, attns, grads, upstream = operands((50, 4, 8), torch.float16, device)
    shifted = torch.empty(feat.numel() + 1, dtype=feat.dtype, device=device)[1:].view_as(feat).copy_(feat)
    columns = torch.cat([feat, feat], 2)[..., :8]
    expected = raw.head_logits(feat, *attns), raw.head_logits_backward(feat, *attns, *grads, upstream, True, True)
    for form in (shifted, columns):
        actual = raw.head_logits(form, *attns), raw.head_logits_backward(form, *attns, *grads, upstream, True, True)
        for a, b in zip((*actual[0], *actual[1]), (*expected[0], *expected[1])):
            torch.testing.assert_close(a, b, rtol=2e-3, atol=1e-4)


@pytest.mark.parametrize("device", support.DEVICES)
def test_infinite_values_stay_in_their_head(device):
    feat, (attn, more), _, _ = operands((20, 3, 9), torch.float16, device)
    feat[7, 1, 2] = torch.inf
    for logits in raw.head_logits(feat, attn, more):
        assert logits.isinf().nonzero().tolist() == [[7, 1]]


@pytest.mark.parametrize("device,dtype", support.devices_and([torch.float16, torch.float64]), ids=str)
def test_opcheck(device, dtype):
    feat, attns, grads, upstream = operands((6, 2, 8), dtype, device)
    opcheck(raw.head_logits, feat, attns[0])
    opcheck(raw.head_logits, feat, *attns)
    for needs in ((True, True), (False, True), (True, False)):
        opcheck(raw.head_logits_backward, feat, *attns, *grads, upstream, *needs)
    opcheck(raw.head_logits_backward, feat, attns[0], None, grads[0], None, None, True, True)


ERRORS = {
    "feat has shape": (ValueError, lambda f, a, b: (f[0], a, b)),
    "feat has dtype": (TypeError, lambda f, a, b: (f.int(), a, b)),
    "attn has shape": (ValueError, lambda f, a, b: (f, a[0], b)),
    "more_attn has shape": (ValueError, lambda f, a, b: (f, a, b[:, :1])),
    "attn has dtype": (TypeError, lambda f, a, b: (f, a.half(), b)),
    "more_attn has dtype": (TypeError, lambda f, a, b: (f, a, b.double())),
}


@pytest.mark.parametrize("device", support.DEVICES)
@pytest.mark.parametrize("message", ERRORS)
def test_errors_name_the_argument(message, device):
    feat, attns, grads, upstream = operands((6, 2, 8), torch.float16, device)
    error, change = ERRORS[message]
    with pytest.raises(error, match=message):
        raw.head_logits(*change(feat, *attns))
    with pytest.raises(error, match=message):
        raw.head_logits_backward(*change(feat, *attns), *grads, upstream, True, True)


@pytest.mark.parametrize("name,place", [("grad", 3), ("more_grad", 4), ("upstream", 5)])
def test_errors_of_gradients(name, place):
    feat, attns, grads, upstream = operands((6, 2, 8), torch.float16)
    arguments = [feat, *attns, *grads, upstream, True, True]
    for change, error in (
        (lambda x: x[1:], ValueError),
        (lambda x: x.double(), TypeError),
        (lambda x: x.to("meta"), ValueError),
    ):
        changed = [change(x) if i == place else x for i, x in enumerate(arguments)]
        with pytest.raises(
            (error, NotImplementedError, RuntimeError), match=name if change(feat).device == feat.device else None
        ):
            raw.head_logits_backward(*changed)
    with pytest.raises(ValueError, match="more_grad is given without more_attn"):
        raw.head_logits_backward(feat, attns[0], None, *grads, upstream, True, True)


def test_derivatives_of_both_orders():
    feat, attns, _, _ = (
        operands((5, 2, 3), torch.float64) if not support.SIMULATED else operands((5, 2, 3), torch.float32)
    )
    if support.SIMULATED:
        pytest.skip("of the CPU: float64")
    inputs = [x.requires_grad_() for x in (feat, *attns)]
    torch.autograd.gradcheck(with_head_logits, inputs)
    torch.autograd.gradgradcheck(with_head_logits, inputs)
    torch.autograd.gradcheck(with_head_logits, inputs[:2])


def test_the_gradient_of_features_is_made_in_one_pass():
    """Of a half result it is rounded once, although it is the sum of three gradients."""
    feat, attns, grads, upstream = operands((300, 2, 8), torch.float16)
    feat.requires_grad_()
    results = with_head_logits(feat, *attns)
    (grad,) = torch.autograd.grad(results, feat, [upstream, *grads])
    terms = [upstream.double(), *(g.double()[..., None] * a.double() for g, a in zip(grads, attns))]
    assert is_close(grad, sum(terms), sum(x.abs() for x in terms), grad.dtype)


def test_gradients_that_are_differentiated_again_or_mapped_are_the_same():
    """They are made of PyTorch's operators, not by the kernel."""
    feat, attns, grads, upstream = operands((20, 2, 8), torch.float32)
    inputs = [x.requires_grad_() for x in (feat, *attns)]
    results, given = with_head_logits(*inputs), [upstream, *grads]
    expected = torch.autograd.grad(results, inputs, given, retain_graph=True)
    again = torch.autograd.grad(results, inputs, given, create_graph=True)
    mapped = torch.autograd.grad(results, inputs, [torch.stack([x, -x]) for x in given], is_grads_batched=True)
    for a, b, c in zip(expected, again, mapped):
        torch.testing.assert_close(b, a, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(c, torch.stack([a, -a]), rtol=1e-4, atol=1e-4)
