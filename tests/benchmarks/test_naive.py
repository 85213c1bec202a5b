"""The naive kernels of benchmarks/yardsticks: right by the formulas, and an oracle for the operators."""

import pytest
import torch

import halfgnn
from benchmarks.yardsticks import has_kernels, naive_attention, naive_dot, naive_max, naive_softmax, naive_sum
from halfgnn import reference
from tests import support

DEVICES = [device for device in support.DEVICES if has_kernels(device)]
GRAPHS = ("random", "skewed", "star", "duplicates", "bipartite", "edgeless", "no_source", "no_destination", "empty")
on_graphs = pytest.mark.parametrize("name", GRAPHS)
in_types = pytest.mark.parametrize("dtype", [*support.HALVES, torch.float32], ids=str)
on_devices = pytest.mark.parametrize("device", DEVICES)
SLOPE = 0.2


def inputs(name, dtype, device):
    """A graph with int32 ids whose edges are in the order of its matrix, and features of 3 heads of 10."""
    g = support.make_graph(name, torch.int32, device, identity=True)
    torch.manual_seed(2)
    x, y = (support.randn(rows, 3, 10, dtype=dtype, device=device) for rows in (g.num_src, g.num_dst))
    return g, g.csc()[:2], x, y


def check(actual, expected, by_operator, roundings=2):
    """expected: in fp64. All errors are of rounding: the result once, sums of up to a few hundred terms of about 1 in fp32."""
    eps = torch.finfo(actual.dtype).eps
    for other in (expected, by_operator.double()):
        torch.testing.assert_close(actual.double(), other, rtol=roundings * eps, atol=1e-4)


@on_devices
@on_graphs
@in_types
def test_sum(device, name, dtype):
    g, csc, x, _ = inputs(name, dtype, device)
    weight = support.randn(g.num_edges, 3, dtype=dtype, device=device)
    expected = reference.gspmm(g, "mul", "sum", x.double(), weight.double()[..., None])
    check(naive_sum(*csc, x, weight), expected, halfgnn.ops.u_mul_e_sum(g, x, weight[..., None]))


@on_devices
@on_graphs
@in_types
def test_max_and_its_winners(device, name, dtype):
    g, csc, x, _ = inputs(name, dtype, device)
    out, winner = naive_max(*csc, x)
    x.requires_grad_()
    by_operator = halfgnn.ops.copy_u_max(g, x)
    assert torch.equal(out, by_operator) and torch.equal(out, reference.gspmm(g, "copy_lhs", "max", x.detach(), None))
    grad = support.randn(*out.shape, dtype=dtype, device=device)
    (dx,) = torch.autograd.grad(by_operator, x, grad)
    expected = torch.zeros(
        g.num_src + 1, 3, 10, dtype=torch.float64, device=device
    )  # the last row: of rows without edges
    expected.scatter_add_(0, winner.long() % (g.num_src + 1), grad.double())
    torch.testing.assert_close(dx.double(), expected[:-1], rtol=2 * torch.finfo(dtype).eps, atol=1e-5)


@on_devices
@on_graphs
@in_types
def test_dot(device, name, dtype):
    g, csc, x, y = inputs(name, dtype, device)
    expected = reference.gsddmm(g, "dot", x.double(), y.double(), "u", "v")[..., 0]
    check(naive_dot(*csc, x, y), expected, halfgnn.ops.u_dot_v(g, x, y)[..., 0])


@on_devices
@on_graphs
@in_types
def test_softmax(device, name, dtype):
    g, csc, _, _ = inputs(name, dtype, device)
    logits = 20 * support.randn(g.num_edges, 3, dtype=dtype, device=device)
    expected = reference.edge_softmax(g, logits.double())
    check(naive_softmax(csc[0], logits), expected, halfgnn.ops.edge_softmax(g, logits))


@on_devices
@on_graphs
@in_types
def test_attention(device, name, dtype):
    g, csc, x, y = inputs(name, dtype, device)
    attn = support.randn(3, 10, dtype=dtype, device=device)
    el, er = x[..., :1].contiguous(), y[..., :1].contiguous()
    wide = [t.double() for t in (x, y, attn, el, er)]
    check(
        naive_attention(*csc, "gat", el, er, None, x, SLOPE),
        reference.gat_attention(g, wide[0], wide[3][..., 0], wide[4][..., 0], negative_slope=SLOPE),
        halfgnn.ops.gat_attention(g, x, el[..., 0], er[..., 0], negative_slope=SLOPE),
        roundings=4,
    )
    check(
        naive_attention(*csc, "gatv2", x, y, attn, x, SLOPE),
        reference.gatv2_attention(g, wide[0], wide[1], wide[2], SLOPE),
        halfgnn.ops.gatv2_attention(g, x, y, attn, SLOPE),
        roundings=4,
    )
    check(
        naive_attention(*csc, "dot", x, y, None, x, 0.5),
        reference.dot_attention(g, wide[1], wide[0], wide[0], 0.5),
        halfgnn.ops.dot_attention(g, y, x, x, scale=0.5),
        roundings=4,
    )


@on_devices
def test_wrong_arguments(device):
    g, csc, x, y = inputs("random", torch.float16, device)
    weight = torch.ones(g.num_edges, 3, dtype=torch.float16, device=device)
    for call, kind, error in (
        (
            lambda: naive_sum(csc[0].long(), csc[1].long(), x, weight),
            TypeError,
            "indptr has dtype torch.int64; expected",
        ),
        (lambda: naive_sum(*csc, x.double(), weight), TypeError, "x has dtype torch.float64; expected"),
        (lambda: naive_sum(*csc, x[0], weight), ValueError, r"x has shape \[3, 10\]; expected \(rows, heads, dim\)"),
        (lambda: naive_sum(*csc, x, weight[1:]), ValueError, "weight has shape .*; expected"),
        (
            lambda: naive_sum(*csc, x, weight.float()),
            TypeError,
            "weight has dtype torch.float32; expected torch.float16",
        ),
        (lambda: naive_dot(*csc, x, y.transpose(1, 2)), ValueError, "y has shape"),
        (
            lambda: naive_max(*csc, x.transpose(1, 2)),
            ValueError,
            "x is on .* with strides .*; expected contiguous rows",
        ),
        (lambda: naive_softmax(csc[0], weight[:, 0]), ValueError, r"logits has shape .*; expected \(edges, heads\)"),
        (
            lambda: naive_attention(*csc, "gcn", x, y, None, x, 1.0),
            ValueError,
            "score is 'gcn'; expected gat, gatv2 or dot",
        ),
        (lambda: naive_attention(*csc, "gatv2", x, y, None, x, 1.0), ValueError, "attn is for gatv2"),
        (lambda: naive_attention(*csc, "gat", x, y, None, x, 1.0), ValueError, "of_src has shape"),
    ):
        with pytest.raises(kind, match=error):
            call()


@pytest.mark.skipif(has_kernels("cpu"), reason="CUDA's kernels are simulated")
def test_there_is_none_on_the_cpu():
    with pytest.raises(NotImplementedError, match="naive_softmax"):
        naive_softmax(torch.zeros(1, dtype=torch.int32), torch.ones(0, 3))
