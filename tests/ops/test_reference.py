"""The specification itself, compared with simple loops and with DGL in float64."""

import itertools
import math

import pytest
import torch

from halfgnn import reference
from tests import support
from tests.support import GRAPHS, REDUCES, SDDMM_OPS, SPMM_OPS, make_graph

ARITHMETIC = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "div": lambda a, b: a / b,
    "relu_add": lambda a, b: a + b if a + b > 0 else 0.0,
    "copy_lhs": lambda a, b: a,
    "copy_rhs": lambda a, b: b,
}


def loop_reduce(reduce, values):
    if not values:
        return 0.0
    if reduce in ("max", "min"):
        return math.nan if any(math.isnan(v) for v in values) else {"max": max, "min": min}[reduce](values)
    return math.fsum(values) / (len(values) if reduce == "mean" else 1)


@pytest.mark.parametrize("identity", [False, True], ids=["edge_ids", "no_edge_ids"])
@pytest.mark.parametrize("name", [n for n in GRAPHS if n != "skewed"])
def test_gspmm_against_loops(name, identity):
    g = make_graph(name, identity=identity)
    src, dst = (x.tolist() for x in g.edges())
    for op, reduce in itertools.product(SPMM_OPS, REDUCES):
        x, y = support.spmm_operands(g, op, (), (), torch.float64)
        xs, ys = (None if v is None else v.tolist() for v in (x, y))
        messages = [ARITHMETIC[op](xs and xs[u], ys and ys[e]) for e, u in enumerate(src)]
        expected = [loop_reduce(reduce, [m for m, d in zip(messages, dst) if d == v]) for v in range(g.num_dst)]
        expected = torch.tensor(expected, dtype=torch.float64)
        torch.testing.assert_close(reference.gspmm(g, op, reduce, x, y), expected, rtol=1e-12, atol=1e-12)


def test_gsddmm_against_loops():
    g = make_graph("bipartite")
    src, dst = (x.tolist() for x in g.edges())
    ends = {"u": src, "v": dst, "e": range(g.num_edges)}
    for op, a, b in itertools.product(SDDMM_OPS, "uve", "uve"):
        x = support.randn(support.rows_of(g, a), 3, dtype=torch.float64)
        y = support.away_from_zero(support.rows_of(g, b), 3, dtype=torch.float64)
        out = reference.gsddmm(g, op, x, y, a, b)
        for e in range(0, g.num_edges, 37):
            left, right = x[ends[a][e]], y[ends[b][e]]
            expected = (left @ right).view(1) if op == "dot" else ARITHMETIC[op](left, right)
            torch.testing.assert_close(out[e], expected)


def test_edge_softmax_against_torch():
    g = make_graph("bipartite")
    logits = support.randn(g.num_edges, 2, dtype=torch.float64)
    for norm_by, end in (("src", 0), ("dst", 1)):
        out = reference.edge_softmax(g, logits, norm_by)
        for node in range(40):
            mine = g.edges()[end] == node
            torch.testing.assert_close(out[mine], logits[mine].softmax(0))


def test_segment_reduce_against_torch():
    value = support.randn(10, 2, dtype=torch.float64)
    parts = value.split([3, 0, 5, 2])
    for reducer, function in (("sum", torch.sum), ("mean", torch.mean), ("max", torch.amax), ("min", torch.amin)):
        expected = [torch.zeros(2, dtype=torch.float64) if len(p) == 0 else function(p, 0) for p in parts]
        torch.testing.assert_close(
            reference.segment_reduce(torch.tensor([3, 0, 5, 2]), value, reducer), torch.stack(expected)
        )
    with pytest.raises(ValueError, match=r"11.*10"):
        reference.segment_reduce(torch.tensor([11]), value)


def test_first_winner_takes_the_gradient():
    g = make_graph("duplicates", identity=True)  # rows of 2, 0, 5 and 0 edges
    for values, winner in [
        ([1, 1, 7, 7, 7, 7, 7], (0, 2)),
        ([0, 1, 2, 9, 3, 9, 1], (1, 3)),
        ([1, 2, 0, 1, math.nan, 5, math.nan], (1, 4)),
    ]:
        x = torch.tensor(values, dtype=torch.float64, requires_grad=True)
        reference.gspmm(g, "copy_rhs", "max", None, x).sum().backward()
        assert x.grad.nonzero().flatten().tolist() == list(winner) and x.grad.sum() == 2


def test_gradients_are_autograds():
    g = make_graph("duplicates")
    for op, reduce in itertools.product(("mul", "div"), REDUCES):
        operands = [x.requires_grad_() for x in support.spmm_operands(g, op, (2, 2), (2, 1), torch.float64)]
        run = lambda x, y, op=op, reduce=reduce: reference.gspmm(g, op, reduce, x, y)  # noqa: E731
        assert torch.autograd.gradcheck(run, operands)
        assert torch.autograd.gradgradcheck(run, operands)


@pytest.mark.parametrize("dtype", support.DTYPES)
def test_computes_in_the_dtype_of_its_inputs(dtype):
    g = make_graph("self_loops")
    x = torch.full((g.num_src, 2), 1 + 2.0**-7, dtype=dtype)
    for op, data in (("u", x), ("e", x)):
        assert reference.gsddmm(g, "copy_lhs", data, None, op).dtype == dtype
    exact = torch.full((9, 2), (1 + 2.0**-7) ** 2, dtype=torch.float64)
    assert torch.equal(reference.gspmm(g, "mul", "sum", x, x), exact.to(dtype))
    # out_dtype converts the operands, not the rounded result.
    assert torch.equal(reference.gspmm(g, "mul", "sum", x, x, out_dtype=torch.float32), exact.float())
    assert torch.equal(reference.gsddmm(g, "mul", x, x, out_dtype=torch.float32), exact.float())


def test_refuses_unknown_names():
    g = make_graph("random")
    x, w = torch.ones(30, 2), torch.ones(100, 2)
    for call in (
        lambda: reference.gspmm(g, "pow", "sum", x, w),
        lambda: reference.gspmm(g, "mul", "prod", x, w),
        lambda: reference.edge_softmax(g, w, "both"),
        lambda: reference.gsddmm(g, "dot", x, x[:, :1]),
    ):
        with pytest.raises(ValueError):
            call()


# ---- DGL as a second reference -------------------------------------------------------------------


@pytest.fixture(scope="module")
def dgl_ops():
    return pytest.importorskip("dgl").ops


@pytest.fixture(scope="module")
def both_graphs(dgl_ops):
    import dgl

    g = make_graph("bipartite")
    return g, dgl.heterograph({("a", "to", "b"): g.edges()}, {"a": g.num_src, "b": g.num_dst})


@pytest.mark.parametrize(
    "lhs,rhs", [((3,), (3,)), ((1, 2, 1, 3, 1), (4, 1, 3, 1, 1)), ((4, 8), (4, 1)), ((), ()), ((2, 3), (3,))]
)
def test_gspmm_against_dgl(dgl_ops, both_graphs, lhs, rhs):
    g, d = both_graphs
    for op, reduce in itertools.product([op for op in SPMM_OPS if op != "relu_add"], REDUCES):
        operands = support.spmm_operands(g, op, lhs, rhs, torch.float64)
        grad = torch.randn_like(reference.gspmm(g, op, reduce, *operands))
        grad[g.in_degrees() == 0] = 0  # DGL's max and min of isolated nodes are infinite and leak gradients

        def theirs(x, y, op=op, reduce=reduce):
            out = dgl_ops.gspmm(d, op, reduce, x, y)
            return torch.where((g.in_degrees() == 0).view(-1, *[1] * (out.dim() - 1)), 0, out)

        mine = support.evaluate(lambda x, y, op=op, reduce=reduce: reference.gspmm(g, op, reduce, x, y), operands, grad)
        other = support.evaluate(theirs, operands, grad)
        for a, b in zip([mine[0], *mine[1]], [other[0], *other[1]]):
            assert (a is None) == (b is None)
            if a is not None:
                torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("lhs,rhs", [((5, 3, 1, 7), (1, 3, 7, 7)), ((1, 3, 3), (4, 1, 3)), ((3,), (3,)), ((), ())])
def test_gsddmm_against_dgl(dgl_ops, both_graphs, lhs, rhs):
    g, d = both_graphs
    for op, (a, b) in itertools.product(SDDMM_OPS, itertools.permutations("uve", 2)):
        x = support.randn(support.rows_of(g, a), *lhs, dtype=torch.float64)
        y = support.away_from_zero(support.rows_of(g, b), *rhs, dtype=torch.float64)
        expected = dgl_ops.gsddmm(d, op, x, y, a, b)
        torch.testing.assert_close(reference.gsddmm(g, op, x, y, a, b), expected, rtol=1e-9, atol=1e-9)


def test_edge_softmax_and_segments_against_dgl(dgl_ops, both_graphs):
    g, d = both_graphs
    logits = support.randn(g.num_edges, 2, 3, dtype=torch.float64)
    for norm_by in ("dst", "src"):
        torch.testing.assert_close(
            reference.edge_softmax(g, logits, norm_by), dgl_ops.edge_softmax(d, logits, norm_by=norm_by)
        )
    seglen = torch.tensor([100, 150, 50])
    for reducer in REDUCES:
        expected = dgl_ops.segment_reduce(seglen, logits, reducer)
        torch.testing.assert_close(reference.segment_reduce(seglen, logits, reducer), expected)
