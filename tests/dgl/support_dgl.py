"""Graphs and operands of DGL, shared by the tests of this folder."""

from __future__ import annotations

import dgl
import dgl.function as fn
import torch

import halfgnn.dgl


def fell_back():
    return halfgnn.dgl.stats()["fell_back"]


def homogeneous(idtype=torch.int64):
    torch.manual_seed(0)  # dgl.rand_graph does not use it
    return dgl.graph(tuple(torch.randint(0, 30, (2, 100), dtype=idtype)), num_nodes=30)


def bipartite(idtype=torch.int64):
    torch.manual_seed(0)
    src, dst = torch.randint(0, 30, (300,)), torch.randint(0, 40, (300,))
    return dgl.heterograph({("a", "to", "b"): (src, dst)}, {"a": 30, "b": 40}, idtype=idtype)


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
