"""DGL's operators and message passing under halfgnn.dgl: results, caches, fall-backs, patching."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
import weakref
from itertools import permutations
from typing import Any

import pytest
import torch

dgl = pytest.importorskip("dgl", reason="dgl is not installed", exc_type=ImportError)

import dgl.function as fn  # noqa: E402

import halfgnn  # noqa: E402
import halfgnn.dgl  # noqa: E402
from halfgnn.dgl import topology  # noqa: E402

HALVES = [torch.float16, torch.bfloat16]
REDUCES = ["sum", "mean", "max", "min"]

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


@pytest.fixture(autouse=True)
def clean():
    halfgnn.dgl.unpatch()
    halfgnn.dgl.reset_stats()
    yield
    halfgnn.dgl.unpatch()


@pytest.fixture
def patched():
    halfgnn.dgl.patch()


def fell_back():
    return halfgnn.dgl.stats()["fell_back"]


def homogeneous(idtype=torch.int64):
    torch.manual_seed(0)  # dgl.rand_graph does not use it
    return dgl.graph(tuple(torch.randint(0, 30, (2, 100), dtype=idtype)), num_nodes=30)


def bipartite(idtype=torch.int64):
    torch.manual_seed(0)
    src, dst = torch.randint(0, 30, (300,)), torch.randint(0, 40, (300,))
    return dgl.heterograph({("a", "to", "b"): (src, dst)}, {"a": 30, "b": 40}, idtype=idtype)


GRAPHS = [homogeneous, bipartite]


def rows(g, target: str) -> int:
    return {"u": g.num_src_nodes(), "v": g.num_dst_nodes(), "e": g.num_edges()}[target]


def operand(count: int, shape: tuple[int, ...], dtype=torch.float64, seed: int = 1):
    """Away from zero, so that it can be a divisor."""
    torch.manual_seed(seed)
    return (torch.rand((count, *shape), dtype=torch.float64) + 0.5).to(dtype).requires_grad_()


def distinct(count: int, shape: tuple[int, ...], dtype, seed: int = 1):
    """Up to 128 values in [0.5, 1). No two values of a column are equal, not even in a half type."""
    torch.manual_seed(seed)
    order = torch.rand(count, *shape).argsort(0)
    return (0.5 + order.double() / 256).to(dtype).requires_grad_()


def with_gradients(function, *operands):
    """Result and gradients, without the infinities of nodes without in-edges."""
    out = function(*operands)
    torch.manual_seed(9)
    grad = torch.rand(out.shape, dtype=torch.float64).to(out.dtype)
    finite = out.masked_fill(out.isinf(), 0)
    return [out.detach(), *torch.autograd.grad(finite, operands, grad)]


def assert_same(actual, expected, rtol=1e-9, atol=1e-9):
    for a, b in zip(actual, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=rtol, atol=atol)


# ---- one relation --------------------------------------------------------------------------------


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
    assert halfgnn.dgl.stats() == {"routed": {"gspmm:copy_u_mean": 1}, "fell_back": {}}


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


# ---- message passing and caches ------------------------------------------------------------------


def propagate(g, x, w):
    """Forward and backward through update_all, apply_edges and edge_softmax of one graph."""
    x, w = x.detach().clone().requires_grad_(), w.detach().clone().requires_grad_()
    with g.local_scope():
        g.srcdata["x"], g.dstdata["x"], g.edata["w"] = x, x[: g.num_dst_nodes()], w
        g.update_all(fn.u_mul_e("x", "w", "m"), fn.sum("m", "y"))
        g.apply_edges(fn.u_dot_v("x", "y", "s"))
        g.edata["a"] = dgl.ops.edge_softmax(g, g.edata["s"])
        g.update_all(fn.u_mul_e("x", "a", "m"), fn.max("m", "z"))
        out = g.dstdata["z"]
        return [out.detach(), *torch.autograd.grad(out.sum(), (x, w))]


def assert_propagates_as_dgl(g):
    x, w = operand(g.num_src_nodes(), (4,)), operand(g.num_edges(), (1,), seed=2)
    with halfgnn.dgl.accelerate():
        actual = propagate(g, x, w)
    assert_same(actual, propagate(g, x, w))


@pytest.fixture
def conversions(monkeypatch):
    """A list to which every conversion of a graph index to a Graph is appended."""
    made = []
    convert = halfgnn.graph._of_adjacencies
    monkeypatch.setattr(halfgnn.graph, "_of_adjacencies", lambda relation: made.append(convert(relation)) or made[-1])
    return made


def test_a_graph_is_converted_once(conversions):
    g = homogeneous()
    for _ in range(3):
        assert_propagates_as_dgl(g)
    assert len(conversions) == 1
    assert halfgnn.Graph.from_dgl(g) is conversions[0]
    assert halfgnn.dgl.graph_from_dgl(g.local_var(), "_E") is conversions[0]
    assert len(conversions) == 1


def test_relations_of_a_heterograph_are_converted_once(conversions):
    hg = heterograph()
    x = torch.rand(hg.num_nodes("user"), 4)
    with halfgnn.dgl.accelerate():
        for _ in range(3):
            for relation in (hg["follows"], hg["follows"]["follows"]):
                relation.srcdata["x"] = x
                relation.update_all(fn.copy_u("x", "m"), fn.sum("m", "y"))
                dgl.ops.edge_softmax(relation, torch.rand(relation.num_edges(), 1))
    assert len(conversions) == 1
    assert halfgnn.Graph.from_dgl(hg, "follows") is conversions[0]
    assert halfgnn.Graph.from_dgl(hg, ("user", "follows", "user")) is conversions[0]
    with pytest.raises(ValueError, match="etype"):
        halfgnn.Graph.from_dgl(hg)


def test_a_changed_graph_is_converted_anew(conversions):
    g = homogeneous()
    assert_propagates_as_dgl(g)
    changes = [
        lambda: g.add_edges([0, 1, 2], [3, 4, 5]),
        lambda: g.add_nodes(4),
        lambda: g.remove_edges([5, 6, 7]),
        lambda: g.remove_nodes([0, 9]),
    ]
    for i, change in enumerate(changes):
        change()
        assert_propagates_as_dgl(g)
        assert len(conversions) == i + 2
        graph = halfgnn.Graph.from_dgl(g)
        assert (graph.num_src, graph.num_edges) == (g.num_nodes(), g.num_edges())
        assert all(torch.equal(a, b) for a, b in zip(graph.edges(), g.edges(), strict=True))


def test_one_changed_relation_of_a_heterograph():
    hg = heterograph()
    halfgnn.dgl.patch()
    x = {ntype: torch.rand(hg.num_nodes(ntype), 3) for ntype in hg.ntypes}

    def run():
        hg.ndata["x"] = x
        hg.multi_update_all({e: (fn.copy_u("x", "m"), fn.sum("m", "y")) for e in hg.etypes}, "sum")
        return {ntype: hg.nodes[ntype].data["y"] for ntype in ("user", "item")}

    run()
    hg.add_edges([0, 1], [2, 2], etype="buys")
    after = run()
    halfgnn.dgl.unpatch()
    for ntype, expected in run().items():
        torch.testing.assert_close(after[ntype], expected)


@pytest.mark.parametrize("formats", ["coo", "csr", "csc", ["coo", "csr"], ["csr", "csc"]], ids=str)
@pytest.mark.parametrize("make", GRAPHS)
def test_restricted_formats(make, formats):
    g = make()
    whole = g.formats(["coo", "csr", "csc"])
    g = g.formats(formats)
    x, w = operand(g.num_src_nodes(), (4,)), operand(g.num_edges(), (1,), seed=2)
    if make is bipartite:
        operands, call = (x, w), dgl.ops.u_mul_e_sum
    else:
        operands, call = (), None
    with halfgnn.dgl.accelerate():
        before = g.formats()
        actual = with_gradients(lambda *t: call(g, *t), *operands) if call else propagate(g, x, w)
        after = g.formats()
    expected = with_gradients(lambda *t: call(whole, *t), *operands) if call else propagate(whole, x, w)
    assert_same(actual, expected)
    assert fell_back() == {}
    assert "coo" in before["created"] or "coo" not in after["created"], "COO was asked for"


def test_other_id_type_and_derived_graphs():
    g = homogeneous()
    for derived in (
        g.int(),
        dgl.reverse(g),
        g.clone(),
        dgl.add_self_loop(g),
        dgl.in_subgraph(g, [1, 2]),
    ):
        assert_propagates_as_dgl(derived)
    block = dgl.to_block(dgl.in_subgraph(g, torch.arange(10)), torch.arange(10))
    assert isinstance(halfgnn.Graph.from_dgl(block), halfgnn.Graph)
    assert_propagates_as_dgl(block)
    assert halfgnn.Graph.from_dgl(g.int()).idtype is torch.int32


def test_apply_edges_of_some_edges_send_and_pull():
    def run():
        g = homogeneous()
        g.ndata["x"] = operand(30, (3,)).detach()
        g.apply_edges(fn.u_add_v("x", "x", "s"), edges=torch.tensor([3, 5, 8]))
        g.send_and_recv(torch.tensor([3, 5, 8]), fn.copy_u("x", "m"), fn.sum("m", "a"))
        g.pull(torch.tensor([1, 2]), fn.copy_u("x", "m"), fn.max("m", "b"))
        g.push(torch.tensor([1, 2]), fn.copy_u("x", "m"), fn.mean("m", "c"))
        return [g.edata["s"], g.ndata["a"], g.ndata["b"], g.ndata["c"]]

    expected = run()
    with halfgnn.dgl.accelerate():
        assert_same(run(), expected)
    assert fell_back() == {}


def test_shares_memory_with_dgl():
    g = homogeneous().formats(["csc", "csr"])
    g.create_formats_()
    graph = halfgnn.Graph.from_dgl(g)
    for side, format in ((graph.csc(), "csc"), (graph.csr(), "csr")):
        for ours, theirs in zip(side, g.adj_tensors(format), strict=True):
            assert ours.data_ptr() == theirs.data_ptr()


def test_edges_stored_in_order_need_no_edge_ids():
    src, dst = torch.tensor([0, 2, 1, 0]), torch.tensor([0, 0, 1, 2])
    g = dgl.graph((src, dst))
    assert halfgnn.Graph.from_dgl(g).csc()[2] is None
    assert halfgnn.Graph.from_dgl(dgl.graph((dst, src))).csc()[2] is not None


def test_what_is_kept_dies_with_the_graph():
    g = homogeneous()
    assert_propagates_as_dgl(g)
    kept = weakref.ref(halfgnn.Graph.from_dgl(g))
    assert kept() is not None
    del g
    assert kept() is None, "without a garbage collection"


def test_a_used_graph_can_be_copied_and_sent():
    g = homogeneous()
    assert_propagates_as_dgl(g)
    for other in (pickle.loads(pickle.dumps(g)), copy.deepcopy(g), copy.copy(g)):
        assert_propagates_as_dgl(other)


def test_copies_on_other_devices_are_made_once():
    kept = topology.topology_of(homogeneous()._graph)
    there = kept.on(torch.device("meta"))
    assert there.device.type == "meta"
    assert there.csc().indices.shape == (100,)
    assert kept.on(torch.device("meta")) is there
    assert kept.on(torch.device("cpu")) is kept.graph


def test_public_operators_take_a_dgl_graph():
    g = homogeneous()
    x, w = torch.rand(30, 4), torch.rand(100, 1)
    torch.testing.assert_close(halfgnn.ops.u_mul_e_sum(g, x, w), dgl.ops.u_mul_e_sum(g, x, w))
    with pytest.raises(TypeError):
        halfgnn.dgl.graph_from_dgl("g")


# ---- heterographs, all relations at once ---------------------------------------------------------


def heterograph():
    torch.manual_seed(0)
    sizes = {"user": 12, "item": 9, "shop": 4}
    relations = [
        ("user", "follows", "user", 30),
        ("user", "buys", "item", 25),
        ("item", "bought", "user", 20),
        ("shop", "sells", "item", 10),
    ]
    edges = {
        (src, name, dst): (
            torch.randint(0, sizes[src], (n,)),
            torch.randint(0, sizes[dst] - 2, (n,)),
        )
        for src, name, dst, n in relations
    }
    return dgl.heterograph(edges, sizes)


def node_operands(g, shape, dtype=torch.float64):
    return {t: operand(g.num_nodes(t), shape, dtype, seed=i) for i, t in enumerate(g.ntypes)}


def edge_operands(g, shape, dtype=torch.float64):
    return {t: operand(g.num_edges(t), shape, dtype, seed=i) for i, t in enumerate(g.canonical_etypes)}


MESSAGES = {
    "copy_u": lambda: fn.copy_u("x", "m"),
    "copy_e": lambda: fn.copy_e("w", "m"),
    "u_add_e": lambda: fn.u_add_e("x", "w", "m"),
    "u_mul_e": lambda: fn.u_mul_e("x", "w", "m"),
    "u_sub_e": lambda: fn.u_sub_e("x", "w", "m"),
    "u_div_e": lambda: fn.u_div_e("x", "w", "m"),
}


def update_all(g, message, reduce_op, nodes, edges):
    with g.local_scope():
        g.ndata["x"], g.edata["w"] = nodes, edges
        g.update_all(MESSAGES[message](), getattr(fn, reduce_op)("m", "y"))
        return [g.nodes[ntype].data["y"] for ntype in ("item", "user")]


def relation_by_relation(g, message, reduce_op, nodes, edges):
    """The correct result of update_all on a heterograph, made of DGL's own operators for one relation.

    DGL's own update_all on all relations has wrong gradients for most of these cases.
    """
    combine = {"sum": torch.add, "max": torch.maximum, "min": torch.minimum}[reduce_op]
    out: dict[str, Any] = {}
    for src, name, dst in g.canonical_etypes:
        relation = g[src, name, dst]
        operands = {"copy_u": (nodes[src],), "copy_e": (edges[src, name, dst],)}.get(
            message, (nodes[src], edges[src, name, dst])
        )
        part = getattr(dgl.ops, f"{message}_{reduce_op}")(relation, *operands)
        out[dst] = combine(out[dst], part) if dst in out else part
    return [out[t].masked_fill(out[t].isinf(), 0) for t in ("item", "user")]


def gradients(out, leaves):
    total = sum((x * torch.arange(1, x.numel() + 1).view_as(x)).sum() for x in out)
    grads = torch.autograd.grad(total, leaves, allow_unused=True)
    return [torch.zeros_like(x) if g is None else g for x, g in zip(leaves, grads, strict=True)]


@pytest.mark.parametrize("reduce_op", ["sum", "max", "min"])
@pytest.mark.parametrize("message", MESSAGES)
def test_update_all_of_a_heterograph(message, reduce_op):
    g = heterograph()
    nodes, edges = node_operands(g, (3,)), edge_operands(g, (3,))
    leaves = [*nodes.values(), *edges.values()]
    expected = relation_by_relation(g, message, reduce_op, nodes, edges)
    by_dgl = update_all(g, message, reduce_op, nodes, edges)
    with halfgnn.dgl.accelerate():
        actual = update_all(g, message, reduce_op, nodes, edges)
        grads = gradients(actual, leaves)
    assert_same(actual, by_dgl)
    assert_same(grads, gradients(expected, leaves))
    routed = f"gspmm_hetero:{message}_{reduce_op}"
    assert halfgnn.dgl.stats() == {"routed": {routed: 1}, "fell_back": {}}


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("reduce_op", ["sum", "max"])
def test_update_all_of_a_heterograph_in_half(reduce_op, dtype):
    g = heterograph()
    nodes, edges = node_operands(g, (3,), torch.float32), edge_operands(g, (3,), torch.float32)
    expected = update_all(g, "u_mul_e", reduce_op, nodes, edges)
    with halfgnn.dgl.accelerate():
        half = update_all(
            g,
            "u_mul_e",
            reduce_op,
            {k: x.to(dtype) for k, x in nodes.items()},
            {k: x.to(dtype) for k, x in edges.items()},
        )
        with torch.autocast("cpu", dtype):
            mixed = update_all(g, "u_mul_e", reduce_op, nodes, edges)
    for a, b, c in zip(half, mixed, expected, strict=True):
        assert a.dtype is dtype and b.dtype is dtype
        tolerance = 0.003 if dtype is torch.float16 else 0.02
        torch.testing.assert_close(a.float(), c, rtol=tolerance, atol=tolerance)
        assert torch.equal(a, b)
    assert fell_back() == {}


def test_relations_are_added_in_fp32(patched):
    """256 + 0.5 + 0.5. In fp16 each 0.5 is lost."""
    edges = {("a", f"r{i}", "b"): ([0], [0]) for i in range(3)}
    g = dgl.heterograph(edges)
    g.edata["w"] = {
        etype: torch.tensor([[w]], dtype=torch.float16)
        for etype, w in zip(g.canonical_etypes, (2048.0, 1.0, 1.0), strict=True)
    }
    g.update_all(fn.copy_e("w", "m"), fn.sum("m", "y"))
    assert g.nodes["b"].data["y"].item() == 2050


@pytest.mark.parametrize("message", ["u_add_v", "u_dot_v", "e_mul_v", "u_sub_e", "copy_u"])
def test_apply_edges_of_a_heterograph(message):
    g = heterograph()
    nodes, edges = node_operands(g, (3,)), edge_operands(g, (3,))
    leaves = [*nodes.values(), *edges.values()]
    fields = ["x" if target in "uv" else "w" for target in (message[0], message[-1])]

    def run(g):
        with g.local_scope():
            g.ndata["x"], g.edata["w"] = nodes, edges
            function = fn.copy_u("x", "s") if message == "copy_u" else getattr(fn, message)(*fields, "s")
            g.apply_edges(function)
            return [g.edata["s"][etype] for etype in g.canonical_etypes]

    def one_by_one():
        pick = {"u": lambda r: nodes[r[0]], "v": lambda r: nodes[r[2]], "e": lambda r: edges[r]}
        targets = "u" if message == "copy_u" else message[0] + message[-1]
        return [getattr(dgl.ops, message)(g[r], *(pick[target](r) for target in targets)) for r in g.canonical_etypes]

    expected = run(g)
    with halfgnn.dgl.accelerate():
        actual = run(g)
        grads = gradients(actual, leaves)
    assert_same(actual, expected)
    assert_same(grads, gradients(one_by_one(), leaves))
    assert halfgnn.dgl.stats() == {"routed": {f"gsddmm_hetero:{message}": 1}, "fell_back": {}}


@pytest.mark.parametrize("norm_by", ["dst", "src"])
@pytest.mark.parametrize("shape", [(1,), (3, 1)])
def test_edge_softmax_of_a_heterograph(shape, norm_by):
    g = heterograph()
    logits = edge_operands(g, shape)

    def run():
        score = dgl.ops.edge_softmax(g, logits, norm_by=norm_by)
        return [score[etype] for etype in g.canonical_etypes]

    expected = run()
    leaves = list(logits.values())
    with halfgnn.dgl.accelerate():
        actual = run()
        again = run()
    assert_same(actual, expected)
    assert_same(again, expected)
    assert_same(gradients(actual, leaves), gradients(expected, leaves))
    assert halfgnn.dgl.stats() == {"routed": {f"edge_softmax_hetero:{norm_by}": 2}, "fell_back": {}}


def test_gradient_of_one_relation_reaches_all_operands():
    """As in DGL, where a call is one node of the autograd graph, the gradient is zeros and not None."""
    g = heterograph()

    def run(call, operands):
        out = call(operands)
        grads = torch.autograd.grad(out.sum(), list(operands.values()), allow_unused=True)
        return [x is not None for x in grads]

    def softmax(logits):
        return dgl.ops.edge_softmax(g, logits)["user", "buys", "item"]

    def copy_e(edges):
        return dgl.ops.copy_e_sum(g, list(edges.values()))[g.get_ntype_id("user")]

    def u_add_v(nodes):
        x = list(nodes.values())
        return dgl.ops.u_add_v(g, x, x)[0]

    calls = [(softmax, edge_operands(g, (2,))), (copy_e, edge_operands(g, (2,)))]
    assert all(all(run(*call)) for call in calls)
    calls.append((u_add_v, node_operands(g, (2,))))  # DGL's own backward of it raises an error
    with halfgnn.dgl.accelerate():
        assert all(all(run(*call)) for call in calls)
    assert fell_back() == {}


@pytest.mark.parametrize("cross_reducer", ["sum", "max", "min", "mean", "stack"])
@pytest.mark.parametrize("reduce_op", REDUCES)
def test_multi_update_all(reduce_op, cross_reducer):
    """With negative data. A node without messages must not give a zero to the max over relations."""
    g = heterograph()
    leaves = list(node_operands(g, (3,)).values())

    def run():
        with g.local_scope():
            g.ndata["x"] = {t: -x for t, x in zip(g.ntypes, leaves, strict=True)}
            step = (fn.copy_u("x", "m"), getattr(fn, reduce_op)("m", "y"))
            g.multi_update_all({etype: step for etype in g.canonical_etypes}, cross_reducer)
            return [g.nodes[ntype].data["y"] for ntype in ("item", "user")]

    expected = run()
    with halfgnn.dgl.accelerate():
        actual = run()
    assert_same(actual, expected)
    assert list(halfgnn.dgl.stats()["routed"]) == [f"gspmm:copy_u_{reduce_op}"]
    assert fell_back() == {}


# ---- what is left to DGL -------------------------------------------------------------------------


def test_mixed_types_are_refused_by_dgl(patched):
    g = homogeneous()
    x, w, y = torch.rand(30, 4), torch.rand(100, 1).double(), torch.rand(30, 4).half()
    with pytest.raises(dgl.DGLError, match="data type"):
        dgl.ops.u_mul_e_sum(g, x, w)
    with pytest.raises(dgl.DGLError, match="data type"):
        dgl.ops.u_mul_e_mean(g, x, w)
    with pytest.raises(dgl.DGLError, match="data type"):
        dgl.ops.u_add_v(g, x, y)
    with torch.autocast("cpu", torch.bfloat16), pytest.raises(dgl.DGLError, match="data type"):
        dgl.ops.u_mul_e_sum(g, x, w)
    assert fell_back() == {
        "gspmm:u_mul_e_sum": {"torch.float32 with torch.float64": 3},
        "gsddmm:u_add_v": {"torch.float32 with torch.float16": 1},
    }
    assert halfgnn.dgl.stats()["routed"] == {}


def test_integers_are_left_to_dgl(patched):
    with pytest.raises(dgl.DGLError):
        dgl.ops.copy_u_sum(homogeneous(), torch.ones(30, 4, dtype=torch.int64))
    assert fell_back() == {"gspmm:copy_u_sum": {"torch.int64 on cpu": 1}}


def test_operands_of_one_side_are_left_to_dgl():
    g, x = homogeneous(), torch.rand(30, 4)
    expected = dgl.ops.gsddmm(g, "add", x, x, "u", "u")
    with halfgnn.dgl.accelerate():
        assert_same([dgl.ops.gsddmm(g, "add", x, x, "u", "u")], [expected])
    assert fell_back() == {"gsddmm:('add', 'u', 'u')": {"no such operator": 1}}


def test_user_defined_functions_are_left_to_dgl():
    g = homogeneous()
    g.ndata["x"] = torch.rand(30, 4)

    def run():
        g.update_all(lambda edges: {"m": edges.src["x"] * 2}, fn.sum("m", "a"))
        g.update_all(fn.copy_u("x", "m"), lambda nodes: {"b": nodes.mailbox["m"].sum(1)})
        g.apply_edges(lambda edges: {"s": edges.src["x"] - edges.dst["x"]})
        return [g.ndata["a"], g.ndata["b"], g.edata["s"]]

    expected = run()
    with halfgnn.dgl.accelerate():
        assert_same(run(), expected, rtol=1e-5, atol=1e-5)
    assert halfgnn.dgl.stats() == {
        "routed": {"gspmm:copy_e_sum": 1, "gsddmm:copy_u": 1},
        "fell_back": {
            "udf:message": {"user-defined function": 2},
            "udf:reduce": {"user-defined function": 1},
        },
    }


def test_heterograph_calls_that_are_left_to_dgl(patched):
    g = heterograph()
    with pytest.raises(NotImplementedError):
        g.ndata["x"] = {t: x.detach() for t, x in node_operands(g, (3,)).items()}
        g.update_all(fn.copy_u("x", "m"), fn.mean("m", "y"))
    logits = [x.detach() for x in edge_operands(g, (1,)).values()]
    with pytest.raises(dgl.DGLError):
        dgl.backend.edge_softmax_hetero(g._graph, torch.tensor([0]), "dst", *logits)
    assert fell_back() == {"edge_softmax_hetero:dst": {"eids": 1}}


def test_reset_stats(patched):
    dgl.ops.copy_u_sum(homogeneous(), torch.rand(30, 4))
    taken = halfgnn.dgl.stats()
    halfgnn.dgl.reset_stats()
    assert taken == {"routed": {"gspmm:copy_u_sum": 1}, "fell_back": {}}
    assert halfgnn.dgl.stats() == {"routed": {}, "fell_back": {}}


# ---- patching ------------------------------------------------------------------------------------


def dgl_globals():
    """Every name bound in a module of DGL, and the methods of its graph index."""
    bound = {
        (module, name): value
        for module, namespace in list(sys.modules.items())
        if module.split(".")[0] == "dgl"
        for name, value in vars(namespace).items()
        if callable(value)
    }
    index = dgl.heterograph_index.HeteroGraphIndex
    return {**bound, **{(index, name): value for name, value in vars(index).items()}}


def changed(before):
    return {key for key, value in dgl_globals().items() if before.get(key) is not value}


def test_unpatch_restores_everything():
    before = dgl_globals()
    halfgnn.dgl.patch()
    patched = changed(before)
    assert ("dgl.ops.spmm", "gspmm_internal") in patched
    assert ("dgl.ops.edge_softmax", "edge_softmax_internal") in patched
    halfgnn.dgl.patch()
    assert changed(before) == patched
    halfgnn.dgl.unpatch()
    assert changed(before) == set()
    halfgnn.dgl.unpatch()
    assert changed(before) == set()


def test_nothing_of_the_originals_stays_bound():
    """No module of DGL has another name for a replaced function."""
    before = dgl_globals()
    halfgnn.dgl.patch()
    originals = {id(before[key]): key for key in changed(before)}
    kept = {key for key, value in dgl_globals().items() if id(value) in originals}
    assert kept == set()


def test_accelerate_nests():
    before = dgl_globals()
    with halfgnn.dgl.accelerate():
        patched = changed(before)
        assert patched
        with halfgnn.dgl.accelerate():
            assert changed(before) == patched
        assert changed(before) == patched
    assert changed(before) == set()
    halfgnn.dgl.patch()
    with halfgnn.dgl.accelerate():
        pass
    assert changed(before) == patched, "was patched before"


def test_accelerate_ends_with_an_exception_and_decorates():
    before = dgl_globals()
    with pytest.raises(KeyError), halfgnn.dgl.accelerate():
        raise KeyError
    assert changed(before) == set()

    @halfgnn.dgl.accelerate()
    def run():
        return bool(changed(before))

    assert run()
    assert changed(before) == set()


def test_graph_made_and_used_before_and_after():
    g = homogeneous()
    assert_propagates_as_dgl(g)
    assert_propagates_as_dgl(g)
    x, w = torch.rand(30, 4).double(), torch.rand(100, 1).double()
    expected = propagate(g, x, w)
    with halfgnn.dgl.accelerate():
        out = dgl.ops.u_mul_e_sum(g, x.requires_grad_(), w)
    out.sum().backward()  # outside: the backward of calls that were routed inside
    assert_same(propagate(g, x, w), expected)


def run_python(code: str) -> str:
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr
    return result.stdout.strip()


def test_import_does_not_import_dgl():
    code = "import sys, halfgnn, halfgnn.dgl; print('dgl' in sys.modules)"
    assert run_python(code) == "False"


def test_without_dgl(monkeypatch):
    monkeypatch.setitem(sys.modules, "dgl", None)  # as if it were not installed
    with pytest.raises(ImportError, match=r"halfgnn\.dgl\.patch\(\) needs DGL"):
        halfgnn.dgl.patch()
    with pytest.raises(ImportError), halfgnn.dgl.accelerate():
        pass
    halfgnn.dgl.unpatch()
    assert halfgnn.dgl.stats() == {"routed": {}, "fell_back": {}}


# ---- blocks that overlap, modes that outlive a call ------------------------------------------------


def is_routed():
    halfgnn.dgl.reset_stats()
    g = dgl.graph(([0, 1], [1, 0]))
    dgl.ops.copy_u_sum(g, torch.ones(2, 1))
    return bool(halfgnn.dgl.stats()["routed"])


def test_overlapping_blocks():
    """Two blocks overlap, for example in two threads. The first to end must not end the other."""
    first, second = halfgnn.dgl.accelerate(), halfgnn.dgl.accelerate()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert is_routed()
    second.__exit__(None, None, None)
    assert not is_routed()


def test_patch_inside_a_block_stays():
    with halfgnn.dgl.accelerate():
        halfgnn.dgl.patch()
    assert is_routed()
    with halfgnn.dgl.accelerate():
        halfgnn.dgl.unpatch()
        assert is_routed()
    assert not is_routed()


def test_inference_then_training():
    """Data that is kept with DGL's graph works in training even if it was made in inference mode."""
    g = dgl.add_self_loop(dgl.rand_graph(10, 40))
    conv, x = dgl.nn.GATConv(8, 8, 2), torch.randn(10, 8)
    with halfgnn.dgl.accelerate():
        with torch.inference_mode():
            expected = conv(g, x)
        actual = conv(g, x)
        actual.sum().backward()
    assert torch.equal(actual, expected)
    assert conv.fc.weight.grad.abs().sum() > 0
