"""Rounding at nodes of very large degree: fp32 sums consist of runs, so their error does not grow with the degree."""

import pytest
import torch

from halfgnn import Graph, ops, reference
from tests import support
from tests.support_attention import DOT, GATV2

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


@pytest.mark.parametrize("heads", [1, 3, 4, 20])
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


@pytest.mark.parametrize("dim", [8, 12, 41])
def test_gradients_of_gat_logits(hub, dim):
    """They are differences of sums over all edges and over those with a positive score: here over the same edges."""
    operands = torch.full((1, 1, dim), 0.1), torch.full((1, 1), 0.7), torch.full((1, 1), 0.7)
    upstream = torch.full((1, 1, dim), 0.3)
    _, grads = support.evaluate(lambda *x: ops.gat_attention(hub, *x), operands, upstream)
    assert_close(grads[0], upstream.double())
    for of_logits in grads[1:]:
        assert of_logits.abs().max() <= TOLERANCE * 0.1 * 0.3 * dim


@pytest.mark.skipif(support.SIMULATED, reason="the kernels of CUDA have other runs")
@pytest.mark.parametrize("heads", [1, 2, 3, 4, 8, 20])
def test_softmax_of_small_weights_beside_large_ones(hub, heads):
    """A run of small weights is below half a unit in the last place of the sum of the large ones, or not far above."""
    logits = torch.full((DEGREE, heads), -17.0)
    logits[:64] = 0
    logits.requires_grad_()
    out = ops.edge_softmax(hub, logits)
    truth = torch.softmax(logits.detach().double(), 0)
    assert_close(out, truth)
    upstream = torch.zeros_like(logits)
    upstream[:64] = 1
    out.backward(upstream)
    assert_close(logits.grad[64:], -truth[64:] * truth[:64].sum(0))


@pytest.mark.parametrize("dim", [8, 12])
def test_gradient_of_a_parameter_of_many_nodes(dim):
    """attn of gatv2_attention: each destination, of many with the same two neighbours, adds as much to its gradient."""
    src = torch.tensor([1.1, -2.9]).view(2, 1, 1).repeat(1, 1, dim)  # all terms have one sign
    own, attn = torch.full((1, 1, dim), 0.7), torch.full((1, dim), 0.01)

    def gradient(attention, nodes, dtype):
        ends = torch.arange(nodes, dtype=torch.int32)
        g = Graph.from_edges(ends.new_tensor([0, 1]).repeat(nodes), ends.repeat_interleave(2), num_src=2, num_dst=nodes)
        leaf = attn.to(dtype, copy=True).requires_grad_()
        attention(g, src.to(dtype), own.to(dtype).expand(nodes, 1, dim), leaf, 0.2).sum().backward()
        return leaf.grad

    nodes = DEGREE // 100 if support.SIMULATED else DEGREE
    truth = gradient(reference.gatv2_attention, 1, torch.float64)
    assert_close(gradient(ops.gatv2_attention, nodes, torch.float32), truth * nodes)


# ---- a large term among small ones ---------------------------------------------------------------

# float32 counts in twos from LARGE on: of a run of small terms, which add up to 1, it would take nothing.
LARGE = 2.0**24
SMALL, SMALL_OF_PAIRS = 2.0**-6, 2.0**-7  # GATv2's and dot's runs on CUDA are twice as long as those of sums


@pytest.fixture(scope="module")
def row():
    """One source with edges to many nodes, and before it one with a single edge: on CUDA no row of more edges is one piece."""
    indptr = torch.tensor([0, 1, 1024], dtype=torch.int32)
    indices = torch.zeros(1024, dtype=torch.int32)
    indices[1] = 1  # the first of its row
    return Graph(2, 2, csc=(indptr, indices, None))


def assert_small_terms_count(got, small=SMALL):
    """Of the sum of LARGE and 1022 times small."""
    error = (got.double() - (LARGE + 1022 * small)).abs().max().item()
    assert error <= 3, f"of {1022 * small} that many small terms add up to, {error} got lost"


@pytest.mark.parametrize("width", [41, 256, 602])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_small_terms_beside_a_large_one(row, width, dtype):
    scale = 2.0**-12 if dtype == torch.float16 else 1.0  # for the largest half
    x = (torch.tensor([[SMALL], [LARGE]]) * scale).to(dtype).expand(2, width).contiguous()
    assert_small_terms_count(ops.copy_u_sum(row, x, out_dtype=torch.float32)[1] / scale)
    weight = torch.ones(1024, 1, dtype=dtype)
    assert_small_terms_count(ops.u_mul_e_sum(row, x, weight, out_dtype=torch.float32)[1] / scale)


@pytest.mark.parametrize("width", [41, 256])
@pytest.mark.parametrize("kind", [GATV2, DOT], ids=lambda kind: kind.name)
def test_attention_to_small_values_beside_a_large_one(row, kind, width):
    """Of equal logits: the result is the mean."""
    operands = [torch.zeros_like(x) for x in kind.operands(row, 1, width, torch.float32)]
    operands[2 if kind is DOT else 0][:] = torch.tensor([SMALL_OF_PAIRS, LARGE]).view(2, 1, 1)
    assert_small_terms_count(kind.call(row, *operands)[1].double() * 1023, SMALL_OF_PAIRS)


@pytest.mark.parametrize("width", [41, 132])
def test_gradients_of_small_terms_beside_a_large_one(row, width):
    x = torch.zeros(2, width, requires_grad=True)
    weight = torch.ones(1024, 1, requires_grad=True)
    out = ops.u_mul_e_sum(row.reverse(), x, weight)
    out.backward(torch.tensor([[SMALL], [LARGE]]).expand(2, width))
    assert_small_terms_count(x.grad[1])
