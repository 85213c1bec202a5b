"""The competitors scalar_spmm and scalar_sddmm: right, except for the rounding that DGL's kernels have too."""

import pytest
import torch

from benchmarks.yardsticks import has_kernels, scalar_sddmm, scalar_spmm
from halfgnn import reference
from tests import support
from tests.support import IDTYPES

DTYPES = [*support.HALVES, torch.float32]


DEVICES = [device for device in support.DEVICES if has_kernels(device)]
# Every third of them has edges.
GRAPHS = ("random", "skewed", "star", "duplicates", "bipartite", "edgeless", "no_source", "no_destination", "empty")
TYPES = [(dtype, idtype) for dtype in DTYPES for idtype in IDTYPES]


def typed_graphs(device):
    """(dtype, graph). Every pair of types has a third of the graphs, and every graph occurs twice."""
    for i, (dtype, idtype) in enumerate(TYPES):
        for j, name in enumerate(GRAPHS[i % 3 :: 3]):
            yield dtype, support.make_graph(name, idtype, device, identity=(i + j) % 2 == 0)


def assert_near(result, truth, magnitude, roundings, sums=0):
    """magnitude: sum of the magnitudes of all terms of each value. roundings: the number of roundings of a term to its
    type. sums: the number of fp32 additions."""
    info = torch.finfo(result.dtype)
    allowed = (roundings * info.eps + sums * torch.finfo(torch.float32).eps) * magnitude + info.eps * truth.abs()
    allowed += (roundings + sums) * info.eps * info.smallest_normal
    error = (result.double() - truth).abs()
    assert result.shape == truth.shape
    assert (error <= allowed).all(), f"off by {error.max()}"


def check_spmm(g, op, reduce, lhs, rhs):
    out, arg = scalar_spmm(*g.csc(), op, reduce, lhs, rhs)
    operands = [None if x is None else x.double() for x in (lhs, rhs)]
    truth = reference.gspmm(g, op, reduce, *operands)
    if reduce == "max":
        assert torch.equal(out.double(), truth)
        check_winners(g, op, lhs if op == "copy_lhs" else rhs, out, arg)
        return
    assert arg.numel() == 0
    magnitude = reference.gspmm(g, op, "sum", *(None if x is None else x.abs() for x in operands))
    degree = int(g.in_degrees().max()) if g.num_dst else 0
    assert_near(out, truth, magnitude, roundings=1, sums=degree)  # the product is rounded to its type


def check_winners(g, op, feat, out, arg):
    """Winners are in-neighbours or in-edges that have the result's value. They are 0 in rows without edges."""
    assert arg.dtype == g.csc().indptr.dtype and arg.shape == out.shape
    has_edges = g.in_degrees() > 0
    assert not out[~has_edges].any() and not arg[~has_edges].any()
    if has_edges.any() and out[0].numel():
        columns = feat.flatten(1).gather(0, arg[has_edges].flatten(1).long())
        assert torch.equal(columns, out[has_edges].flatten(1))
        src, dst = g.edges()
        ends = src if op == "copy_lhs" else torch.arange(g.num_edges, device=src.device)
        pairs = {(u, v) for u, v in zip(ends.tolist(), dst.tolist())}
        rows = torch.arange(g.num_dst, device=src.device)[has_edges].tolist()
        assert all((u, v) in pairs for v, line in zip(rows, arg[has_edges].flatten(1).tolist()) for u in line)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("shape", [(1,), (7,), (32,), (41,), (300,), (3, 5), (4, 32), (8, 1)])
def test_sums_and_maxima(device, shape):
    for dtype, g in typed_graphs(device):
        x = support.randn(g.num_src, *shape, dtype=dtype, device=device)
        weights = support.randn(g.num_edges, *shape[:-1], 1, dtype=dtype, device=device)
        edges = support.randn(g.num_edges, *shape, dtype=dtype, device=device)
        check_spmm(g, "copy_lhs", "sum", x, None)
        check_spmm(g, "copy_lhs", "max", x, None)
        check_spmm(g, "mul", "sum", x, weights)
        check_spmm(g, "mul", "sum", x, edges)
        check_spmm(g, "copy_rhs", "sum", None, edges)
        check_spmm(g, "copy_rhs", "max", None, edges)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("shape", [(1,), (7,), (31,), (32,), (63,), (64,), (130,), (3, 5), (4, 33), (2, 3, 40)])
def test_dots(device, shape):
    """A head of fewer than 32 elements has one thread. A wider head has a warp, with two elements per lane at a
    time."""
    for dtype, g in typed_graphs(device):
        src, dst = g.edges()
        x = support.randn(g.num_src, *shape, dtype=dtype, device=device)
        y = support.randn(g.num_dst, *shape, dtype=dtype, device=device)
        out = scalar_sddmm(src, dst, "dot", x, y, "u", "v")
        truth = reference.gsddmm(g, "dot", x.double(), y.double())
        magnitude = reference.gsddmm(g, "dot", x.double().abs(), y.double().abs())
        assert_near(out, truth, magnitude, roundings=shape[-1] if shape[-1] < 32 else 10)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("op", ["add", "sub", "mul", "div", "dot"])
@pytest.mark.parametrize("targets", ["uv", "vu", "ev", "eu", "ue", "ee"])
def test_other_operators_and_targets(device, op, targets):
    for dtype in DTYPES:
        g = support.make_graph("bipartite", IDTYPES[dtype == torch.float16], device)
        x, y = (
            support.away_from_zero(support.rows_of(g, target), 3, 6, dtype=dtype, device=device) for target in targets
        )
        out = scalar_sddmm(*g.edges(), op, x, y, *targets)
        truth = reference.gsddmm(g, op, x.double(), y.double(), *targets)
        magnitude = reference.gsddmm(g, "dot" if op == "dot" else "mul", x.abs().double(), y.abs().double(), *targets)
        assert_near(out, truth, magnitude, roundings=6 if op == "dot" else 1)


@pytest.mark.parametrize("device", DEVICES)
def test_messages_and_dots_are_rounded_in_between(device):
    """As in DGL's kernels. The same in fp32 would be 0."""
    g = support.make_graph("duplicates", torch.int64, device)
    weights = torch.tensor([256.0, -256.0], device=device).half().repeat(4)[: g.num_edges].unsqueeze(1)
    x = torch.full((g.num_src, 1), 256.0, dtype=torch.float16, device=device)
    assert not scalar_spmm(*g.csc(), "mul", "sum", x, weights)[0].isfinite().all()
    assert reference.gspmm(g, "mul", "sum", x.double(), weights.double()).isfinite().all()
    for width in (2, 64):
        left = torch.zeros(g.num_src, width, dtype=torch.float16, device=device)
        right = torch.zeros(g.num_dst, width, dtype=torch.float16, device=device)
        left[:, :2], right[:, 0], right[:, 1] = 256, 256, -256
        # inf - inf, or inf where the compiler has made one instruction of the second product and the sum.
        assert not scalar_sddmm(*g.edges(), "dot", left, right, "u", "v").isfinite().any()


@pytest.mark.parametrize("device", DEVICES)
def test_refuses_what_it_cannot_do(device):
    g = support.make_graph("random", torch.int64, device)
    src, dst = g.edges()
    x = support.randn(g.num_src, 4, 8, dtype=torch.float16, device=device)
    w = support.randn(g.num_edges, 4, 1, dtype=torch.float16, device=device)

    def spmm(op, reduce, lhs, rhs):
        return scalar_spmm(*g.csc(), op, reduce, lhs, rhs)

    for call, error, message in (
        (lambda: spmm("add", "sum", x, w), ValueError, "op is 'add'; expected copy_lhs, copy_rhs or mul"),
        (lambda: spmm("mul", "max", x, w), ValueError, "reduce is 'max'; expected sum, or max of a copy"),
        (lambda: spmm("copy_lhs", "mean", x, None), ValueError, "reduce is 'mean'"),
        (lambda: spmm("mul", "sum", x, w.float()), TypeError, "rhs_data torch.float32; expected equal dtypes"),
        (lambda: spmm("mul", "sum", x, w[:, :1]), ValueError, r"rhs_data has trailing shape \[1, 1\]; expected"),
        (lambda: spmm("mul", "sum", x, w[1:]), ValueError, "rows, one per edge"),
        (lambda: spmm("mul", "sum", x, None), ValueError, "rhs_data is None"),
        (lambda: spmm("copy_lhs", "sum", x.int(), None), TypeError, "lhs_data has dtype torch.int32"),
        (lambda: scalar_sddmm(src, dst, "copy_lhs", x, x, "u", "v"), ValueError, "op is 'copy_lhs'"),
        (lambda: scalar_sddmm(src, dst, "dot", x, x[:, :1], "u", "v"), ValueError, "expected equal shapes"),
        (lambda: scalar_sddmm(src, dst, "dot", x, x, "u", "w"), ValueError, "target is 'w'"),
        (lambda: scalar_sddmm(src, dst, "dot", x, x.float(), "u", "v"), TypeError, "expected equal dtypes"),
        (lambda: scalar_sddmm(src, dst.int(), "dot", x, x, "u", "v"), TypeError, "expected equal dtypes"),
        (lambda: scalar_sddmm(src, dst, "sub", w[1:], x, "e", "v"), ValueError, "rows, one per edge"),
    ):
        with pytest.raises(error, match=message):
            call()


@pytest.mark.skipif(has_kernels("cpu"), reason="CUDA's kernels are simulated on the CPU")
def test_there_are_none_on_the_cpu():
    g = support.make_graph("random")
    with pytest.raises(NotImplementedError, match="scalar_spmm"):
        scalar_spmm(*g.csc(), "copy_lhs", "sum", torch.ones(g.num_src, 8), None)
    with pytest.raises(NotImplementedError, match="scalar_sddmm"):
        scalar_sddmm(*g.edges(), "add", torch.ones(g.num_src, 8), torch.ones(g.num_dst, 8), "u", "v")


def test_fake_kernels_have_the_shapes():
    g = support.make_graph("bipartite")
    meta = [None if t is None else t.to("meta") for t in g.csc()]
    x = torch.empty(g.num_src, 3, 8, dtype=torch.float16, device="meta")
    y = torch.empty(g.num_dst, 3, 8, dtype=torch.float16, device="meta")
    out, arg = scalar_spmm(*meta, "copy_lhs", "max", x, None)
    assert out.shape == arg.shape == (g.num_dst, 3, 8) and out.dtype == torch.float16 and arg.dtype == torch.int64
    edges = torch.empty(g.num_edges, 3, 1, dtype=torch.float16, device="meta")
    out, arg = scalar_spmm(*meta, "copy_rhs", "sum", None, edges)
    assert out.shape == (g.num_dst, 3, 1) and arg.shape == (0,)
    ends = [t.to("meta") for t in g.edges()]
    assert scalar_sddmm(*ends, "dot", x, y, "u", "v").shape == (g.num_edges, 3, 1)
    assert scalar_sddmm(*ends, "add", x, y, "u", "v").shape == (g.num_edges, 3, 8)
