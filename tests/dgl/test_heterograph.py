"""Operators of DGL on all relations of a heterograph at once, under halfgnn.dgl."""

from __future__ import annotations

from typing import Any

import pytest
import torch

dgl = pytest.importorskip("dgl", reason="dgl is not installed", exc_type=ImportError)

import dgl.function as fn  # noqa: E402

import halfgnn  # noqa: E402
import halfgnn.dgl  # noqa: E402
from tests.dgl.support_dgl import (  # noqa: E402
    assert_same,
    edge_operands,
    fell_back,
    heterograph,
    node_operands,
)

HALVES = [torch.float16, torch.bfloat16]
REDUCES = ["sum", "mean", "max", "min"]


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


@pytest.mark.parametrize("relations", [0, 1, None])
@pytest.mark.parametrize("cross_reducer", ["sum", "max", "min", "mean", "stack"])
@pytest.mark.parametrize("reduce_op", REDUCES)
def test_multi_update_all(reduce_op, cross_reducer, relations):
    """With negative data. A node without messages must not give a zero to the max over relations."""
    g = heterograph()
    for etype in g.canonical_etypes[
        :relations
    ]:  # nodes 0 and 1 are isolated in some or all of the relations into their type
        _, dst, eids = g.edges(form="all", etype=etype)
        g = dgl.remove_edges(g, eids[dst < 2], etype=etype)
    leaves = list(node_operands(g, (3,)).values())

    def run():
        with g.local_scope():
            g.ndata["x"] = {t: -x for t, x in zip(g.ntypes, leaves, strict=True)}
            step = (fn.copy_u("x", "m"), getattr(fn, reduce_op)("m", "y"))
            g.multi_update_all({etype: step for etype in g.canonical_etypes}, cross_reducer)
            results = [g.nodes[ntype].data["y"] for ntype in ("item", "user")]
        loss = sum((out * out.detach().cos()).masked_fill(out.isinf(), 0).sum() for out in results)
        return [*results, *torch.autograd.grad(loss, leaves, allow_unused=True)]

    expected = run()
    with halfgnn.dgl.accelerate():
        actual = run()
    assert_same(actual, expected)
    assert list(halfgnn.dgl.stats()["routed"]) == [f"gspmm:copy_u_{reduce_op}"]
    assert fell_back() == {}
