"""Rounding at nodes of very large degree: fp32 sums consist of runs, so their error does not grow with the degree."""

import pytest
import support
import torch

from halfgnn import Graph, ops

DEGREE = 30_000 if support.SIMULATED else 300_000
# The error of a plain running fp32 sum of these values is 1e-3 or more.
TOLERANCE = 2e-6


@pytest.fixture(scope="module")
def hub():
    """One destination with DEGREE in-edges from one source."""
    ends = torch.zeros(DEGREE, dtype=torch.int32)
    return Graph.from_edges(ends, ends, num_src=1, num_dst=1, sort=True)[0]


def assert_close(got, truth):
    error = ((got.double() - truth) / truth).abs().max().item()
    assert error <= TOLERANCE, f"relative error {error:.2e}"


@pytest.mark.parametrize("width", [1, 5, 8, 16, 41])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_sum(hub, width, dtype):
    x = torch.full((1, width), 0.1).to(dtype)
    truth = x.double() * DEGREE
    assert_close(ops.copy_u_sum(hub, x, out_dtype=torch.float32), truth)
    assert_close(ops.copy_u_mean(hub, x, out_dtype=torch.float32), x.double())
    weight = torch.full((DEGREE, 1), 0.7).to(dtype)
    assert_close(ops.u_mul_e_sum(hub, x, weight, out_dtype=torch.float32), truth * weight[0].double())
    assert_close(ops.u_add_e_sum(hub, x, weight, out_dtype=torch.float32), truth + DEGREE * weight[0].double())


@pytest.mark.parametrize("width", [1, 16])
def test_gradients(hub, width):
    x = torch.full((1, width), 0.1, requires_grad=True)
    weight = torch.full((DEGREE, 1), 0.7, requires_grad=True)
    ops.u_mul_e_sum(hub, x, weight).sum().backward()
    assert_close(x.grad, weight.detach().double().sum())
    y = torch.full((1, width), 0.3, requires_grad=True)
    x.grad = None
    ops.u_mul_v(hub, x, y).sum().backward()
    assert_close(x.grad, DEGREE * y.detach().double())


@pytest.mark.parametrize("heads", [1, 3, 4])
def test_softmax(hub, heads):
    logits = torch.linspace(-1, 1, DEGREE).unsqueeze(1).repeat(1, heads).requires_grad_()
    out = ops.edge_softmax(hub, logits)
    truth = torch.softmax(logits.detach().double(), 0)
    assert_close(out, truth)
    upstream = torch.full_like(out, 0.1) + (torch.arange(DEGREE) % 2).unsqueeze(1)
    out.backward(upstream)
    weighted = (truth * upstream.double()).sum(0)
    expected = truth * (upstream.double() - weighted)
    assert_close(logits.grad, expected)
