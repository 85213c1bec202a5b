"""Gradients of maxima and minima on the CPU where nodes have many edges: each element is added to the source of its winner."""

import pytest
import torch

import halfgnn
from halfgnn import ops
from tests.support import HALVES, IDTYPES, check_gspmm, randn
from tests.support_reduce import check

raw = torch.ops.halfgnn
DEGREE = 48  # from which elements are added (csrc/cpu/scatter_winners.h)
DTYPES = [*HALVES, torch.float32]
VARIANTS = [(idtype, identity) for idtype in IDTYPES for identity in (False, True)]


def graph(variant, degree=DEGREE, num_src=37, num_dst=31):
    """Degrees from 0 to 3 * degree around `degree`: a few sources have most edges, some have none."""
    idtype, identity = variant
    generator = torch.Generator().manual_seed(degree)
    share = torch.tensor([0.0, 3.0, 1.0] * num_dst)[:num_dst].double() + 0.01
    share[0] = 0  # a node without edges
    count = degree * max(num_src, num_dst)
    dst = torch.multinomial(share, count, replacement=True, generator=generator)
    src = (torch.rand(count, generator=generator) ** 3 * (num_src - 2)).long()
    g = halfgnn.Graph.from_edges(src.to(idtype), dst.to(idtype), num_src=num_src, num_dst=num_dst, sort=identity)
    return g[0] if identity else g


def winners_of(g, x, reduce_op):
    return raw.gspmm(*g.csc(), "copy_lhs", reduce_op, x, None)[1]


def gradient(g, grad, arg, reduce_op, in_edges=True):
    csc = g.csc()
    shape = (g.num_src, *grad.shape[1:])
    return raw.gspmm_backward(
        *g.csr(), csc.indptr, True, "copy_lhs", reduce_op, grad, None, None, arg, shape, shape, grad.dtype, grad.dtype,
        True, False, False, *(csc[1:] if in_edges else (None, None)),
    )[0]  # fmt: skip


def exact(g, grad, arg):
    """In fp64, in which sums of these gradients have no rounding, and then rounded as the kernel does."""
    src = g.edges()[0].long()[arg.long().clamp(min=0)]
    sums = torch.zeros(g.num_src, *grad.shape[1:], dtype=torch.float64)
    sums.scatter_add_(0, src, grad.double().masked_fill(arg < 0, 0))
    return sums.float().to(grad.dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", [8, 15, 16, 17, 40, 100])
def test_sums_are_rounded_once(width, dtype):
    for case, variant in enumerate(VARIANTS):
        g = graph(variant, num_src=37 if case % 2 else 20, num_dst=31)
        reduce_op = ("max", "min")[case % 2]
        arg = winners_of(g, randn(g.num_src, width, dtype=dtype), reduce_op)
        grad = randn(g.num_dst, width, dtype=dtype)
        assert torch.equal(gradient(g, grad, arg, reduce_op), exact(g, grad, arg)), (variant, reduce_op)
        same = torch.ones(g.num_src, width, dtype=dtype)  # the first edge of every node wins all columns
        arg = winners_of(g, same, reduce_op)
        assert torch.equal(gradient(g, grad, arg, reduce_op), exact(g, grad, arg)), (variant, reduce_op)


def test_a_hub_rounds_once():
    """Thousands of terms of one source, each of which fp32 sums would round."""
    nodes = 2000
    dst = torch.arange(nodes).repeat_interleave(DEGREE)
    src = torch.arange(len(dst)) % DEGREE
    g = halfgnn.Graph.from_edges(src, dst, num_src=DEGREE, num_dst=nodes)
    x = torch.zeros(DEGREE, 24)
    x[7] = 1
    arg, grad = winners_of(g, x, "max"), randn(nodes, 24, dtype=torch.float32)
    got, expected = gradient(g, grad, arg, "max"), exact(g, grad, arg)
    assert torch.equal(got, expected)
    assert not torch.equal(gradient(g, grad, arg, "max", in_edges=False), expected)
    leaf = x.requires_grad_()  # operators pass the in-edges
    assert torch.equal(torch.autograd.grad(ops.copy_u_max(g, leaf), leaf, grad)[0], expected)
    most, least = ops.copy_u_reduce(g, leaf, ("max", "min"))
    (both,) = torch.autograd.grad([most, least], leaf, [grad, grad])
    least_arg = winners_of(g, x.detach(), "min")
    double = exact(g, torch.cat([grad, grad], 1), torch.cat([arg, least_arg], 1))
    assert torch.equal(both[7], double[7, :24]) and torch.equal(both[0], double[0, 24:])


@pytest.mark.parametrize("width", [8, 24, 130])
@pytest.mark.parametrize("variant", VARIANTS)
def test_no_bit_depends_on_threads(variant, width):
    g = graph(variant, degree=2 * DEGREE)
    arg = winners_of(g, randn(g.num_src, width, dtype=torch.float16), "max")
    grad = randn(g.num_dst, width, dtype=torch.float16)
    before = torch.get_num_threads()
    try:
        results = []
        for threads in (1, 2, 5, 40):
            torch.set_num_threads(threads)
            results.append(gradient(g, grad, arg, "max"))
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(result, results[0]) for result in results)


def test_few_edges_are_compared():
    """Below the degree, and where the caller gives no in-edges, the other kernel runs: to the same bits."""
    g = graph(VARIANTS[0], degree=DEGREE - 1)
    arg, grad = winners_of(g, randn(g.num_src, 24, dtype=torch.float32), "max"), torch.rand(g.num_dst, 24)
    arg[:] = arg.max(1, keepdim=True).values  # many terms of few sources, that differ in the last bit
    assert torch.equal(gradient(g, grad, arg, "max"), gradient(g, grad, arg, "max", in_edges=False))


@pytest.mark.parametrize("variant", VARIANTS)
def test_infinities_nan_and_no_winner(variant):
    g = graph(variant)
    arg = winners_of(g, randn(g.num_src, 20, dtype=torch.float16), "min")
    grad = randn(g.num_dst, 20, dtype=torch.float16)
    grad[1, 3], grad[4, 3], grad[7, 3] = torch.inf, -torch.inf, 1
    grad[5, 5], grad[8, 9], grad[0] = torch.nan, torch.inf, torch.nan  # node 0 has no edges
    got, expected = gradient(g, grad, arg, "min"), exact(g, grad, arg)
    assert expected.isnan().any() and expected.isinf().any()
    torch.testing.assert_close(got, expected, rtol=0, atol=0, equal_nan=True)
    # What is no edge of the node is nobody's winner, whatever its number.
    arg[2], arg[3] = g.num_edges + 5, -7
    elsewhere = arg[4].clone()
    arg[1] = arg[7] = elsewhere  # of a node after it, and of one before
    grad[1:4] = 1
    assert torch.equal(
        gradient(g, grad.nan_to_num(), arg, "min"), gradient(g, grad.nan_to_num(), arg, "min", in_edges=False)
    )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("variant", VARIANTS)
def test_gradients_of_operators(variant, dtype):
    """By the rule of support.py: of one extreme, of both, and beside sums."""
    g = graph(variant)
    check_gspmm(g, "copy_lhs", "max", (randn(g.num_src, 3, 8, dtype=dtype), None))
    for reduces in (("max", "min"), ("mean", "max", "min", "std"), ("sum", "min")):
        check(g, randn(g.num_src, 33, dtype=dtype), reduces)
    x = randn(g.num_src, 16, dtype=dtype).requires_grad_()
    ops.copy_u_max(g, x, out_dtype=torch.float32).sum().backward()
    assert x.grad is not None and x.grad.dtype == dtype
    assert x.grad.double().sum() == (g.in_degrees() > 0).sum() * 16  # small integers
