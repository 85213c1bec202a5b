"""gspmm of values that half precision cannot add, that are not finite, or of which none is the largest; and results that DGL gets
or got wrong in half precision."""

import itertools

import pytest
import torch

import halfgnn
from halfgnn import ops, reference
from tests import support
from tests.support import DEVICES, DTYPES, HALVES, REDUCES, SPMM_OPS, check_gspmm, make_graph, randn

# ---- special values ------------------------------------------------------------------------------


@pytest.mark.parametrize("device,dtype", support.devices_and([torch.float16, torch.bfloat16, torch.float32]))
@pytest.mark.parametrize("op,reduce_op", list(itertools.product(SPMM_OPS, REDUCES)))
def test_inf_and_nan(op, reduce_op, dtype, device):
    g = make_graph("bipartite", torch.int64, device)
    x, y = support.spmm_operands(g, op, (2, 12), (2, 1), dtype, device)
    for operand in (x, y):
        if operand is not None:
            flat = operand.view(-1)
            flat[::17], flat[5::19], flat[7::23] = torch.inf, -torch.inf, torch.nan
    # Gradients of products with inf and nan are compared too: they are NaN and inf in the same places.
    check_gspmm(g, op, reduce_op, [x, y])


@pytest.mark.parametrize("device,dtype", support.devices_and(DTYPES))
@pytest.mark.parametrize("reduce_op,worst", [("max", -torch.inf), ("min", torch.inf)])
def test_extremes_of_infinities_alone(reduce_op, worst, dtype, device):
    """A row with only the identity of the reduction still has a winner: its first edge."""
    g = make_graph("duplicates", torch.int64, device, identity=True)
    x = torch.full((g.num_edges, 2), worst, dtype=dtype, device=device, requires_grad=True)
    out = ops.gspmm(g, "copy_rhs", reduce_op, None, x)
    assert out[:, 0].tolist() == [worst, 0, worst, 0]
    out.sum().backward()
    assert x.grad[:, 0].tolist() == [1, 0, 1, 0, 0, 0, 0]


@pytest.mark.parametrize("device,dtype", support.devices_and(DTYPES))
@pytest.mark.parametrize("reduce_op", ["max", "min"])
def test_first_edge_wins_ties(reduce_op, dtype, device):
    g = make_graph("star", torch.int32, device)
    x = torch.zeros(g.num_src, 3, dtype=dtype, device=device, requires_grad=True)
    with torch.no_grad():  # equal, but of different sign
        x[::2] = -0.0
    y = torch.zeros(g.num_edges, 3, dtype=dtype, device=device, requires_grad=True)
    ops.gspmm(g, "add", reduce_op, x, y).sum().backward()
    assert x.grad.nonzero()[:, 0].unique().tolist() == [0] and x.grad[0].tolist() == [1, 1, 1]
    assert y.grad.nonzero()[:, 0].unique().tolist() == [0] and y.grad[0].tolist() == [1, 1, 1]


@pytest.mark.parametrize("device,dtype", support.devices_and(DTYPES))
@pytest.mark.parametrize("reduce_op", ["max", "min"])
def test_first_nan_wins(reduce_op, dtype, device):
    g = make_graph("star", torch.int32, device)
    y = randn(g.num_edges, 1, dtype=dtype, device=device)
    y[[70, 40, 299]] = torch.nan
    y.requires_grad_()
    out = ops.gspmm(g, "copy_rhs", reduce_op, None, y)
    assert out[3].isnan().all()
    out[3].sum().backward()
    assert y.grad.nonzero()[:, 0].tolist() == [40]


@pytest.mark.parametrize("device,dtype", support.devices_and([torch.float16, torch.bfloat16, torch.float32]))
@pytest.mark.parametrize("reduce_op", ["max", "min"])
@pytest.mark.parametrize("dim", [8, 17, 40, 64, 130, 300])
def test_extremes_without_their_winners(dim, reduce_op, dtype, device):
    """A kernel of its own on the CPU: the same values, with rows of several runs, ties, infinities and NaN."""
    generator = torch.Generator().manual_seed(dim)
    src, dst = torch.randint(50, (900,), generator=generator), torch.randint(9, (900,), generator=generator) ** 2 // 7
    g = halfgnn.Graph.from_edges(src, dst, num_src=50, num_dst=10).to(device)
    x = torch.randn(50, dim, generator=generator).to(device, dtype)
    x[::3] = x[::3].round()
    for value, rows in ((torch.inf, 5), (-torch.inf, 7), (torch.nan, 11)):
        for columns in (slice(0, 1), slice(dim // 2, dim // 2 + 2), slice(dim - 1, dim)):
            out = ops.gspmm(g, "copy_lhs", reduce_op, x, None)
            with_winners = ops.gspmm(g, "copy_lhs", reduce_op, x.clone().requires_grad_(), None).detach()
            assert torch.equal(out.nan_to_num(7e4), with_winners.nan_to_num(7e4))
            truth = reference.gspmm(g, "copy_lhs", reduce_op, x.double(), None)
            torch.testing.assert_close(out.double(), truth, rtol=0, atol=0, equal_nan=True)
            x[::rows, columns] = value


@pytest.mark.parametrize("device", DEVICES)
def test_mean_of_values_whose_half_sum_overflows(device):
    g = make_graph("star", torch.int32, device)
    x = (torch.rand(g.num_src, 8, dtype=torch.float64) * 3e4 + 3e4).half().to(device)
    out, _ = check_gspmm(g, "copy_lhs", "mean", [x, None])
    assert out.isfinite().all() and (out[3] > 3e4).all()
    w = torch.ones(g.num_edges, 1, dtype=torch.float16, device=device)
    assert torch.equal(ops.u_mul_e_mean(g, x, w), out)
    assert ops.copy_u_sum(g, x)[3].isinf().all()
    check_gspmm(g, "copy_lhs", "sum", [x, None], out_dtype=torch.float32)


@pytest.mark.parametrize("device", DEVICES)
def test_products_that_overflow_or_vanish_in_half_only(device):
    """A message is computed in float32: 300 * 300 - 300 * 300 is 0, and 1000 tiny products add up."""
    g = make_graph("star", torch.int32, device)
    x = torch.full((g.num_src, 4), 300.0, dtype=torch.float16, device=device)
    sign = torch.where(torch.arange(300, device=device) % 2 == 0, 300.0, -300.0).half().view(-1, 1)
    assert (ops.u_mul_e_sum(g, x, sign)[3] == 0).all()
    tiny = torch.full((g.num_src, 4), 2.0**-14, dtype=torch.float16, device=device)
    w = torch.full((g.num_edges, 1), 2.0**-12, dtype=torch.float16, device=device)
    expected = torch.full((4,), 300 * 2.0**-26, dtype=torch.float64).half()
    assert torch.equal(ops.u_mul_e_sum(g, tiny, w)[3].cpu(), expected)
    # Division by a small number whose reciprocal overflows, and by a large one whose reciprocal vanishes.
    small = torch.full((g.num_edges, 1), 2.0**-20, dtype=torch.float16, device=device)
    assert (ops.u_div_e_max(g, torch.full_like(tiny, 2.0**-10), small)[3] == 1024).all()
    large = torch.full((g.num_edges, 1), 6e4, dtype=torch.float16, device=device)
    assert (ops.u_div_e_max(g, torch.full_like(tiny, 6e4), large)[3] == 1).all()


@pytest.mark.parametrize("device,dtype", support.devices_and(HALVES))
def test_subnormal_values_survive(dtype, device):
    g = make_graph("random", torch.int32, device)
    x = (
        (torch.randint(-20, 20, (g.num_src, 16)).double() * torch.finfo(dtype).smallest_normal / 64)
        .to(dtype)
        .to(device)
    )
    check_gspmm(g, "copy_lhs", "sum", [x, None], backward=False)
    out = ops.copy_u_max(g, x)
    assert torch.equal(out.cpu(), reference.gspmm(g.to("cpu"), "copy_lhs", "max", x.cpu(), None))
    assert (out != 0).any()


# ---- regressions: results that DGL gets or got wrong in half precision ---------------------------


@pytest.mark.parametrize("device,dtype", support.devices_and(HALVES))
def test_sum_does_not_stop_growing(dtype, device):
    """dmlc/dgl#4674: a running half sum of 13,000 values in [0, 1) stops at 2048 (256 in bfloat16)."""
    n = 13_000
    g = halfgnn.Graph.from_edges(torch.arange(n), torch.zeros(n, dtype=torch.int64), num_dst=1).to(device)
    x = torch.rand(n, 3, dtype=torch.float64).to(dtype)
    out = ops.copy_u_sum(g, x.to(device)).cpu()
    assert (out > 6000).all() and torch.equal(out[0], x.double().sum(0).to(dtype))


@pytest.mark.parametrize("device", DEVICES)
def test_mean_over_more_neighbours_than_half_can_count(device):
    """In-degree 100,000 is infinite in float16, and so is the sum."""
    g = support.hub_graph(device=device)
    x = torch.full((g.num_src, 2), 1.5, dtype=torch.float16, device=device, requires_grad=True)
    out = ops.copy_u_mean(g, x)
    assert (out[1] == 1.5).all()
    out[1].sum().backward()
    share = (
        torch.bincount(g.edges()[0][g.edges()[1] == 1].long(), minlength=g.num_src).double()
        / g.in_degrees()[1].double()
    )
    assert torch.equal(x.grad[:, 0], share.half())


@pytest.mark.parametrize("device,dtype", support.devices_and(DTYPES))
@pytest.mark.parametrize("where", ["feature", "weight"])
@pytest.mark.parametrize("reduce_op", ["sum", "mean"])
def test_infinite_values_stay_in_their_rows(reduce_op, where, dtype, device):
    """Of the last edge of a row, beside rows of few edges and of none, which may read it too. Likewise in the backward."""
    degrees = torch.tensor([3, 0, 1, 7, 0, 0, 2, 9, 1, 5, 0, 33, 4, 6, 0, 1])
    num_edges, last = int(degrees.sum()), degrees.cumsum(0) - 1
    dst = torch.repeat_interleave(torch.arange(len(degrees)), degrees)
    for reverse in (False, True):
        edges = torch.arange(num_edges)
        src = (dst, edges) if reverse else (edges, dst)
        nodes = (
            {"num_src": len(degrees), "num_dst": num_edges}
            if reverse
            else {"num_src": num_edges, "num_dst": len(degrees)}
        )
        g = halfgnn.Graph.from_edges(*src, **nodes).to(device)
        infinite = last[[3, 7, 12]].to(device)
        x = torch.rand(g.num_src, 16, device=device).add(0.5).to(dtype)
        w = torch.rand(num_edges, 1, device=device).add(0.5).to(dtype)
        grad = torch.rand(g.num_dst, 16, device=device).add(0.5).to(dtype)
        if where == "weight":
            w[infinite] = torch.inf
        else:
            (grad if reverse else x)[infinite] = torch.inf
        x, w = x.requires_grad_(), w.requires_grad_()
        out = ops.gspmm(g, "mul", reduce_op, x, w)
        out.backward(grad)
        expected_x, expected_w = x.detach().float().requires_grad_(), w.detach().float().requires_grad_()
        expected = reference.gspmm(g, "mul", reduce_op, expected_x, expected_w)
        expected.backward(grad.float())
        for found, wanted in ((out, expected), (x.grad, expected_x.grad), (w.grad, expected_w.grad)):
            assert torch.equal(found.isinf(), wanted.isinf()) and torch.equal(found.isnan(), wanted.isnan())


@pytest.mark.parametrize("device,dtype", support.devices_and(DTYPES))
@pytest.mark.parametrize("reduce_op", ["max", "min"])
def test_extremes_of_isolated_nodes(reduce_op, dtype, device):
    """Their results are 0, not the smallest or largest half, and they give no gradient to node 0."""
    src, dst = torch.tensor([1, 2]), torch.tensor([1, 1])
    g = halfgnn.Graph.from_edges(src, dst, num_src=3, num_dst=4).to(device)
    x = randn(3, 2, dtype=dtype, device=device).requires_grad_()
    out = ops.gspmm(g, "copy_lhs", reduce_op, x, None)
    assert (out[[0, 2, 3]] == 0).all()
    out.sum().backward()
    assert (x.grad[0] == 0).all()
    assert x.grad.sum() == 2
