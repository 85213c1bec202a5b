"""What tests/ops leaves out of several reductions because only the CUDA kernels have it: rows cut into pieces, slices, widths of
access, types of results and gradients, warps of many rows.
"""

from __future__ import annotations

import pytest
import torch

from halfgnn import Graph, ops, reference
from halfgnn.ops.copy_u_reduce import REDUCTIONS
from laboratory.simt import control
from laboratory.simt.graphs import CUT, FEW_EDGES, PIECE, graph_of
from tests import support
from tests.support import HALVES, randn
from tests.support_reduce import check

if not control.SIMULATED:
    pytest.skip("runs on the simulator: laboratory/simt/run.py", allow_module_level=True)

DTYPES = [*HALVES, torch.float32]
VARIANTS = [(torch.int32, False), (torch.int32, True), (torch.int64, False), (torch.int64, True)]
PNA = ("mean", "max", "min", "std")


@pytest.mark.parametrize("dtype", DTYPES)
def test_widths_of_access(dtype):
    """Of all types of results, and so of their gradients."""
    for width in (1, 2, 4, 8, 12, 41, 66, 132, 264):
        g = support.make_graph("bipartite", VARIANTS[width % 4][0], identity=width % 3 == 0)
        for out_dtype in {dtype, torch.float32}:
            check(g, randn(g.num_src, width, dtype=dtype), REDUCTIONS, out_dtype=out_dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("reduces", [REDUCTIONS, ("max", "min"), ("mean", "std")])
def test_rows_cut_into_pieces(reduces, dtype):
    """Of the forward, and of the backward. Ties among pieces too."""
    for g, width in ((graph_of(CUT, 37, *VARIANTS[1]), 8), (graph_of(CUT, 37, *VARIANTS[2]).reverse(), 5)):
        check(g, randn(g.num_src, width, dtype=dtype), reduces)
        check(g, torch.randint(-2, 3, (g.num_src, width)).to(dtype), ("max", "min"))


@pytest.mark.parametrize("width", [8, 24, 128, 200])
@pytest.mark.parametrize("name", FEW_EDGES)
def test_rows_of_few_edges(name, width):
    case = list(FEW_EDGES).index(name) + width // 8
    g = graph_of(FEW_EDGES[name] * (1 if "long" in name else 3), 37, *VARIANTS[case % 4])
    for graph in (g, g.reverse()):
        check(graph, randn(graph.num_src, width, dtype=DTYPES[case % 3]), PNA)


@pytest.mark.parametrize("width,dtype", [(512, torch.float16), (600, torch.bfloat16)])
def test_slices(width, dtype):
    """Those of the gathered rows that fit in a small cache are swept one after the other."""
    g = graph_of([140, 0, 6, 82] * 6, 200, torch.int32)
    x = randn(g.num_src, width, dtype=dtype)

    def run():
        before = control.get("blocks")
        check(g, x, PNA)
        return control.get("blocks") - before

    whole = run()
    with control.setting(l2_cache_bytes=24 << 10):
        assert run() > whole


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("degree", [40, PIECE - 1, 5 * PIECE])
def test_digits_of_variances(degree, dtype):
    """The first value lies far from the others, or all are nearly equal, or pieces lie far from one another."""
    n = 16
    far = randn(degree, n, dtype=torch.float32)
    far[0] += 300
    near = 1000 + torch.arange(degree * n).view(degree, n) % 3 * 8
    apart = randn(degree, n, dtype=torch.float32) + torch.arange(degree).view(-1, 1) // PIECE * 64
    g = Graph.from_edges(torch.arange(degree), torch.zeros(degree, dtype=torch.int64), num_src=degree, num_dst=1)
    for x in (far.to(dtype), near.to(dtype), apart.to(dtype)):
        got = ops.copy_u_reduce(g, x, REDUCTIONS, out_dtype=torch.float32)
        truth = reference.copy_u_reduce(g, x.double(), REDUCTIONS)
        for name, value, wanted in zip(REDUCTIONS, got, truth):
            if name in ("var", "std"):
                assert ((value.double() - wanted) / wanted).abs().max() < 1e-5, name
            else:
                limit = x.double().abs().sum() / n if name == "sum" else x.double().abs().max()
                assert (value.double() - wanted).abs().max() <= 1e-6 * limit, name


def test_equal_values_have_no_variance():
    """Of any magnitude, and in any number of pieces."""
    g = graph_of([1, 7, 70, 3 * PIECE, 0], 9, torch.int32)
    for value in (3.0, -1e-30, 1e30, 1e38):
        var, std, mean = ops.copy_u_reduce(g, torch.full((9, 5), value), ("var", "std", "mean"), eps=0.0)
        finite = g.in_degrees() < 4 if value == 1e38 else slice(None)
        assert not var[finite].any() and not std[finite].any()
        if value < 1e38:
            torch.testing.assert_close(mean[:4], torch.full((4, 5), value), rtol=1e-6, atol=0)
            assert not mean[4].any()


@pytest.mark.parametrize("value", [float("inf"), float("-inf"), float("nan")])
@pytest.mark.parametrize("which", [0, 5, -1])
@pytest.mark.parametrize("dtype", DTYPES)
def test_one_value_that_is_not_finite(which, value, dtype):
    """It shows in its own column of its own rows, and nowhere else: what fills a batch reads it, too."""
    degrees = [3, 0, PIECE + 5, 0, 1, 0, 90]
    g = graph_of(degrees, 37, torch.int32, identity=True)
    x = randn(g.num_src, 9, dtype=dtype)
    x[g.csc().indices[which], 7] = value
    got = ops.copy_u_reduce(g, x, REDUCTIONS)
    truth = reference.copy_u_reduce(g, x.double(), REDUCTIONS)
    for name, result, wanted in zip(REDUCTIONS, got, truth):
        assert result[:, [*range(7), 8]].isfinite().all() and not result[[1, 3, 5]].any(), name
        assert torch.equal(result.isnan(), wanted.isnan()), name
        assert torch.equal(result[wanted.isinf()].double(), wanted[wanted.isinf()]), name


@pytest.mark.parametrize("dtype", DTYPES)
def test_ties_of_nan_and_of_zeros(dtype):
    """The first nan wins both, whatever its sign, and of zeros the first one, whatever theirs."""
    for degree in (5, 90, 3 * PIECE):
        x = torch.ones(degree, 8)
        x[2:], x[4:, 1], x[3::2, 2], x[2::2, 3] = 0.0, torch.nan, -0.0, -0.0
        x[4:, 4] = -torch.tensor(torch.nan)
        x[:, 5:7] = torch.inf
        x[:, 6] *= -1
        g = Graph.from_edges(torch.arange(degree), torch.zeros(degree, dtype=torch.int64), num_src=degree, num_dst=1)
        x = x.to(dtype).requires_grad_()
        for i, winners in enumerate([[0, 4, 0, 0, 4, 0, 0, 2], [2, 4, 2, 2, 4, 0, 0, 2]]):
            result = ops.copy_u_reduce(g, x, ("max", "min"))[i]
            (grad,) = torch.autograd.grad(result, x, torch.ones_like(result))
            expected = [w if (i, c) != (0, 7) else 0 for c, w in enumerate(winners)]
            assert grad.argmax(0).tolist() == expected and grad.sum() == 8


def test_gradients_one_by_one():
    """Each is that of all, whatever else is not read; pieces and empty rows too."""
    g = graph_of([PIECE + 3, 0, 5, 40], 9, torch.int32).reverse()
    x = randn(g.num_src, 12, dtype=torch.float32).requires_grad_()
    upstream = randn(g.num_dst, 12, dtype=torch.float32)
    total = torch.zeros_like(x)
    out = ops.copy_u_reduce(g, x, REDUCTIONS)
    for result in out:
        total += torch.autograd.grad(result, x, upstream, retain_graph=True)[0]
    (together,) = torch.autograd.grad(out, x, [upstream] * len(out))
    torch.testing.assert_close(total, together, rtol=1e-4, atol=1e-4)
