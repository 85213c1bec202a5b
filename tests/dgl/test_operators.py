"""DGL's operators of one relation under halfgnn.dgl, and half types."""

from itertools import permutations

import pytest
import torch

dgl = pytest.importorskip("dgl", reason="dgl is not installed", exc_type=ImportError)

import dgl.function as fn  # noqa: E402

import halfgnn  # noqa: E402
import halfgnn.dgl  # noqa: E402
from tests.dgl.support_dgl import (  # noqa: E402
    assert_same,
    bipartite,
    distinct,
    fell_back,
    homogeneous,
    operand,
    rows,
    with_gradients,
)

HALVES = [torch.float16, torch.bfloat16]
REDUCES = ["sum", "mean", "max", "min"]
GRAPHS = [homogeneous, bipartite]

# From DGL's own tests of its operators.
SPMM_SHAPES = [
    ((1, 2, 1, 3, 1), (4, 1, 3, 1, 1)),
    ((3, 3), (1, 3)),
    ((1,), (3,)),
    ((3,), (1,)),
    ((1,), (1,)),
    ((), ()),
]
SDDMM_SHAPES = [
    ((1, 2, 1, 3, 1), (4, 1, 3, 1, 1)),
    ((5, 3, 1, 7), (1, 3, 7, 7)),
    ((1, 3, 3), (4, 1, 3)),
    ((3,), (3,)),
    ((1,), (1,)),
    ((), ()),
]
# From attention, and with different ranks.
MORE_SPMM_SHAPES = [((4, 8), (4, 1)), ((8,), ()), ((4, 8), (8,)), ((), (3,))]


@pytest.mark.parametrize("make", GRAPHS)
@pytest.mark.parametrize("idtype", [torch.int32, torch.int64], ids=str)
@pytest.mark.parametrize("reduce_op", REDUCES)
@pytest.mark.parametrize("op", ["add", "sub", "mul", "div", "copy_lhs", "copy_rhs"])
def test_gspmm(op, reduce_op, idtype, make):
    g = make(idtype)
    for u_shape, e_shape in SPMM_SHAPES + MORE_SPMM_SHAPES:
        u, e = operand(rows(g, "u"), u_shape), operand(rows(g, "e"), e_shape, seed=2)
        operands = {"copy_lhs": (u,), "copy_rhs": (e,)}.get(op, (u, e))
        message = {"copy_lhs": "copy_u", "copy_rhs": "copy_e"}.get(op, f"u_{op}_e")
        name = f"{message}_{reduce_op}"

        def call(*operands, name=name):
            return getattr(dgl.ops, name)(g, *operands)

        expected = with_gradients(call, *operands)
        with halfgnn.dgl.accelerate():
            actual = with_gradients(call, *operands)
        assert_same(actual, expected)
        assert halfgnn.dgl.stats() == {"routed": {f"gspmm:{name}": 1}, "fell_back": {}}
        halfgnn.dgl.reset_stats()


@pytest.mark.parametrize("make", GRAPHS)
@pytest.mark.parametrize("targets", list(permutations("uve", 2)), ids="".join)
@pytest.mark.parametrize("op", ["add", "sub", "mul", "div", "dot"])
def test_gsddmm(op, targets, make):
    g = make(torch.int32)
    name = f"{targets[0]}_{op}_{targets[1]}"
    for lhs_shape, rhs_shape in SDDMM_SHAPES:
        lhs = operand(rows(g, targets[0]), lhs_shape)
        rhs = operand(rows(g, targets[1]), rhs_shape, seed=2)

        def call(*operands):
            return getattr(dgl.ops, name)(g, *operands)

        if op == "dot" and lhs_shape[-1:] != rhs_shape[-1:]:
            continue
        expected = with_gradients(call, lhs, rhs)
        with halfgnn.dgl.accelerate():
            actual = with_gradients(call, lhs, rhs)
        assert_same(actual, expected)
    assert list(halfgnn.dgl.stats()["routed"]) == [f"gsddmm:{name}"]
    assert fell_back() == {}


@pytest.mark.parametrize("name", ["copy_u", "copy_v"])
def test_copies_to_edges(name):
    g = bipartite()
    x = operand(rows(g, name[-1]), (2, 3))
    expected = with_gradients(lambda x: getattr(dgl.ops, name)(g, x), x)
    with halfgnn.dgl.accelerate():
        assert_same(with_gradients(lambda x: getattr(dgl.ops, name)(g, x), x), expected)
        assert dgl.ops.copy_e(g, x) is x
    assert halfgnn.dgl.stats() == {"routed": {f"gsddmm:{name}": 1}, "fell_back": {}}


@pytest.mark.parametrize("norm_by", ["dst", "src"])
@pytest.mark.parametrize("shape", [(), (1,), (1, 3), (3, 4, 5)])
@pytest.mark.parametrize("make", GRAPHS)
def test_edge_softmax(make, shape, norm_by):
    g = make()
    logits = operand(g.num_edges(), shape or (1,))

    def call(logits):
        return dgl.ops.edge_softmax(g, logits.view(g.num_edges(), *shape), norm_by=norm_by)

    # DGL itself takes no logits of one dimension here.
    expected = with_gradients(lambda x: dgl.ops.edge_softmax(g, x, norm_by=norm_by), logits)
    with halfgnn.dgl.accelerate():
        out, grad = with_gradients(call, logits)
    assert_same([out.view_as(logits), grad], expected)
    assert halfgnn.dgl.stats() == {"routed": {f"edge_softmax:{norm_by}": 1}, "fell_back": {}}


@pytest.mark.parametrize("name", ["edge_softmax", "copy_u_max", "u_mul_e_min"])
def test_second_derivatives(name, patched):
    g = homogeneous()
    operands = {"edge_softmax": "e", "copy_u_max": "u"}.get(name, "ue")
    operands = [distinct(rows(g, target), (2,), torch.float64, seed=i) for i, target in enumerate(operands)]
    assert torch.autograd.gradgradcheck(lambda *x: getattr(dgl.ops, name)(g, *x).exp(), operands)
    assert fell_back() == {}


def test_edge_softmax_is_torch_softmax_on_a_clique():
    n = 6
    src, dst = (x.flatten() for x in torch.meshgrid(torch.arange(n), torch.arange(n), indexing="ij"))
    g = dgl.graph((src, dst))
    logits = operand(n * n, (2,))
    with halfgnn.dgl.accelerate():
        by_dst = dgl.nn.functional.edge_softmax(g, logits)
        by_src = dgl.nn.functional.edge_softmax(g, logits, norm_by="src")
    torch.testing.assert_close(by_dst.view(n, n, 2), logits.view(n, n, 2).softmax(0))
    torch.testing.assert_close(by_src.view(n, n, 2), logits.view(n, n, 2).softmax(1))


@pytest.mark.parametrize("norm_by", ["dst", "src"])
@pytest.mark.parametrize("make", GRAPHS)
def test_edge_softmax_of_some_edges(make, norm_by):
    g = make()
    eids = torch.randperm(g.num_edges())[:40]
    logits = operand(40, (3, 1))

    def call(logits):
        return dgl.ops.edge_softmax(g, logits, eids, norm_by)

    expected = with_gradients(call, logits)
    with halfgnn.dgl.accelerate():
        assert_same(with_gradients(call, logits), expected)
    assert halfgnn.dgl.stats() == {"routed": {f"edge_softmax:{norm_by}": 1}, "fell_back": {}}


@pytest.mark.parametrize("reduce_op", REDUCES)
def test_segment_reduce(reduce_op):
    seglen = torch.tensor([3, 0, 5, 1, 0])
    value = operand(9, (2, 3))

    def call(value):
        return dgl.ops.segment_reduce(seglen, value, reduce_op)

    expected = with_gradients(call, value)
    backend_expected = dgl.backend.segment_reduce("sum", value, torch.tensor([0, 3, 3, 9]))
    with halfgnn.dgl.accelerate():
        assert_same(with_gradients(call, value), expected)
        assert call(value.half()).dtype is torch.float16
        backend = dgl.backend.segment_reduce("sum", value, torch.tensor([0, 3, 3, 9]))
    assert_same([backend], [backend_expected])
    assert sum(halfgnn.dgl.stats()["routed"].values()) == 3
    assert fell_back() == {}


def test_readout_of_a_batch():
    g = dgl.batch([homogeneous(), dgl.rand_graph(4, 9)])
    g.ndata["x"] = operand(34, (5,))
    expected = dgl.mean_nodes(g, "x")
    with halfgnn.dgl.accelerate():
        assert_same([dgl.mean_nodes(g, "x")], [expected])
        g.ndata["x"] = g.ndata["x"].half()
        half = dgl.mean_nodes(g, "x")
    torch.testing.assert_close(half, expected.half(), rtol=1e-3, atol=1e-3)
    assert halfgnn.dgl.stats() == {"routed": {"segment_reduce:mean": 2}, "fell_back": {}}


def test_graph_without_edges(patched):
    g = dgl.graph(([], []), num_nodes=3)
    x, e = torch.ones(3, 2), torch.ones(0, 2)
    for reduce_op in REDUCES:
        assert torch.equal(getattr(dgl.ops, f"copy_u_{reduce_op}")(g, x), torch.zeros(3, 2))
        assert torch.equal(getattr(dgl.ops, f"u_mul_e_{reduce_op}")(g, x, e), torch.zeros(3, 2))
    assert dgl.ops.u_add_v(g, x, x).shape == (0, 2)
    assert dgl.ops.edge_softmax(g, e).shape == (0, 2)
    assert fell_back() == {}


# ---- half precision ------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_half_mean_over_a_hub(dtype, patched):
    """A sum past fp16's range and a degree past 65504. The mean is right for both."""
    n = 70_000
    g = dgl.graph((torch.arange(n), torch.zeros(n, dtype=torch.int64)), num_nodes=n)
    g.ndata["x"] = torch.full((n, 2), 2.0, dtype=dtype)
    g.update_all(fn.copy_u("x", "m"), fn.mean("m", "y"))
    assert torch.equal(g.ndata["y"][0], torch.full((2,), 2.0, dtype=dtype))
    assert torch.equal(g.ndata["y"][1:], torch.zeros(n - 1, 2, dtype=dtype))
    assert halfgnn.dgl.stats()["routed"] == {"gspmm:copy_u_mean": 1} and fell_back() == {}


@pytest.mark.parametrize("reduce_op", ["max", "min"])
@pytest.mark.parametrize("dtype", [*HALVES, torch.float32], ids=str)
def test_max_of_isolated_nodes(dtype, reduce_op, patched):
    g = dgl.graph(([0, 1], [1, 1]), num_nodes=3)
    x = torch.tensor([[5.0], [-7.0], [9.0]], dtype=dtype, requires_grad=True)
    g.ndata["x"] = x
    g.update_all(fn.copy_u("x", "m"), getattr(fn, reduce_op)("m", "y"))
    best = 5.0 if reduce_op == "max" else -7.0
    assert g.ndata["y"].flatten().tolist() == [0, best, 0]
    g.ndata["y"].sum().backward()
    assert x.grad.flatten().tolist() == ([1, 0, 0] if reduce_op == "max" else [0, 1, 0])
    infinity = float("-inf") if reduce_op == "max" else float("inf")
    out = getattr(dgl.ops, f"copy_u_{reduce_op}")(g, x)
    assert out.flatten().tolist() == [infinity, best, infinity], "as DGL in fp32"


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_half_operators_against_fp32(dtype):
    g = homogeneous(torch.int32)
    u, v = (operand(30, (4, 8), dtype, seed) for seed in (1, 2))
    e = distinct(100, (4, 1), dtype, 3)  # distinct, because DGL may choose any of equal extremes
    calls = {
        "u_mul_e_sum": (u, e),
        "u_sub_e_mean": (u, e),
        "u_div_e_max": (torch.ones_like(u).requires_grad_(), e),
        "copy_e_min": (e,),
        "u_dot_v": (u, v),
        "e_sub_v": (e, v),
        "v_div_u": (v, u),
        "edge_softmax": (e,),
    }
    with halfgnn.dgl.accelerate():
        half = {name: with_gradients(lambda *x, f=name: getattr(dgl.ops, f)(g, *x), *x) for name, x in calls.items()}
    assert fell_back() == {}
    for name, operands in calls.items():
        wide = [x.detach().float().requires_grad_() for x in operands]
        expected = with_gradients(lambda *x, f=name: getattr(dgl.ops, f)(g, *x), *wide)
        for a, b in zip(half[name], expected, strict=True):
            assert a.dtype is dtype
            tolerance = 0.004 if dtype is torch.float16 else 0.03
            torch.testing.assert_close(a.float(), b, rtol=tolerance, atol=tolerance * 4)


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_autocast_casts_whatever_comes(dtype, patched):
    g = homogeneous()
    x, w = operand(30, (8,), torch.float32), operand(100, (1,), dtype)
    with torch.autocast("cpu", dtype):
        assert dgl.ops.u_mul_e_sum(g, x, w).dtype is dtype
        assert dgl.ops.u_dot_v(g, x, x.to(dtype)).dtype is dtype
        assert dgl.ops.edge_softmax(g, w.float()).dtype is dtype
        assert dgl.ops.copy_u_sum(g, x.double()).dtype is torch.float64
    assert fell_back() == {}
