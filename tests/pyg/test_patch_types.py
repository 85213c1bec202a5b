"""Dtypes under halfgnn.pyg.patch(): torch_geometric's, under autocast too; and those of patch(half=True)."""

from __future__ import annotations

import copy

import pytest
import torch
import torch_geometric.nn as upstream
from torch_geometric import EdgeIndex, utils

import halfgnn.pyg
from tests import support
from tests.pyg.support_pyg import Layer
from tests.pyg.test_patch_messages import Pairwise
from tests.pyg.test_patch_modules import (
    MODELS,
    MODULES,
    NUM_EDGES,
    NUM_NODES,
    WIDTH,
    assert_same,
    edges,
    fell_back,
    randn,
    routed,
)

pytestmark = pytest.mark.skipif(not support.supports("cpu", torch.float32), reason="needs float32")
MAKE = {name: make for name, (make, *_) in (MODULES | MODELS).items()}


def arguments_of(name):
    further = MODULES[name][1] if name in MODULES else []
    return [x.float() if x.is_floating_point() else x for x in (make() for make in further)]


def step(module, x, *args, dtype=torch.bfloat16):
    x = x.clone().requires_grad_()
    with torch.autocast("cpu", dtype):
        out = module(x, edges(), *args)
    return [out.detach(), torch.autograd.grad(out.float().pow(2).sum(), x)[0]]


@pytest.mark.parametrize("fuse", [False, True], ids=["", "fused"])
@pytest.mark.parametrize("x_dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", MAKE)
def test_a_module_returns_what_it_returns_without_the_drop_in(name, x_dtype, fuse):
    torch.manual_seed(1)
    module, args = MAKE[name]().eval(), arguments_of(name)
    x = randn(NUM_NODES, WIDTH, seed=1).to(x_dtype)
    expected = step(module, x, *args)
    with halfgnn.pyg.accelerate(fuse=fuse):
        actual = step(module, x, *args)
    assert [a.dtype for a in actual] == [a.dtype for a in expected]
    scale = max(x.abs().max().item() for x in expected)
    # Both round to bf16 at every layer. A maximum may be another one after rounding, and then its gradient is.
    assert_same([a.double() / scale for a in actual[:1]], [a.double() / scale for a in expected[:1]], 3e-2)


# module: the dtype that it returns under autocast with half=True; PyG adds fp32 terms to what some propagate
HALF = {
    "LGConv": torch.bfloat16,
    "GATConv": torch.float32,
    "GATv2Conv": torch.float32,
    "APPNP": torch.float32,
}


@pytest.mark.parametrize("name", HALF)
def test_half(name):
    """Messages are reduced in autocast's dtype, features that no layer has projected too."""
    torch.manual_seed(1)
    module, x = MAKE[name]().eval(), randn(NUM_NODES, WIDTH, seed=1).float()
    expected = step(module, x)[0]
    with halfgnn.pyg.accelerate(half=True):
        actual = step(module, x)[0]
    assert actual.dtype is HALF[name] and not torch.equal(actual, expected), "nothing was rounded"
    torch.testing.assert_close(actual.float(), expected.float(), rtol=3e-2, atol=3e-2)
    with halfgnn.pyg.accelerate():
        assert step(module, x)[0].dtype is expected.dtype, "half ends with its block"


def test_propagations_without_a_layer_are_exact():
    """LabelPropagation and CorrectAndSmooth write into fp32 results, and would round at each of their iterations."""
    x, labels, mask = randn(NUM_NODES, 4, seed=1).float(), torch.arange(NUM_NODES) % 4, torch.arange(NUM_NODES) < 12
    soft = x.softmax(-1)

    def results():
        propagation = upstream.LabelPropagation(3, 0.9)
        smooth = [upstream.CorrectAndSmooth(3, 0.8, 3, 0.8, autoscale=autoscale) for autoscale in (True, False)]
        with torch.autocast("cpu", torch.bfloat16):
            outs = [propagation(labels, edges(), mask)]
            for model in smooth:
                outs.append(model.smooth(model.correct(soft, labels[mask], mask, edges()), labels[mask], mask, edges()))
        return outs

    expected = results()
    with halfgnn.pyg.accelerate():
        actual = results()
    assert all(a.dtype is torch.float32 for a in actual) and "gspmm:u_mul_e_sum" in routed()
    assert_same(actual, expected, 1e-5)


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("reduce", ["sum", "mean", "max"])
@pytest.mark.parametrize("layout", ["sparse_csr", "sparse_csc", "sparse_coo", "EdgeIndex"])
def test_products_of_sparse_matrices(layout, reduce, autocast):
    x = randn(NUM_NODES, WIDTH, seed=1).float()
    sparse = torch.sparse_coo_tensor(edges(), torch.ones(NUM_EDGES), (NUM_NODES, NUM_NODES)).coalesce()

    def product():
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            if layout == "EdgeIndex":
                edge_index = EdgeIndex(edges(), sparse_size=(NUM_NODES, NUM_NODES)).sort_by("row").values
                return edge_index.matmul(x, reduce=reduce)
            return utils.spmm(sparse.to_sparse(layout=getattr(torch, layout)), x, reduce)

    try:
        expected = product().dtype
    except NotImplementedError:  # autocast casts torch.sparse.mm, which the CPU has for fp32 alone
        expected = torch.bfloat16
    with halfgnn.pyg.accelerate():
        assert product().dtype is expected
    assert fell_back() == set()


MIXED = {
    "mul": lambda x, e: x * e,
    "reversed": lambda x, e: e * x,
    "add": lambda x, e: x + e,
    "sub": lambda x, e: x - e,
    "div": lambda x, e: x / e,
    "relu": lambda x, e: (x + e).relu(),
}


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("aggr", ["sum", "mean", "max"])
@pytest.mark.parametrize("width", [1, WIDTH])
@pytest.mark.parametrize("half", ["features", "edges"])
@pytest.mark.parametrize("name", MIXED)
def test_messages_of_two_types_are_not_formed(name, half, width, aggr, autocast):
    x, e = randn(NUM_NODES, WIDTH, seed=1), randn(NUM_EDGES, width, seed=2).abs() + 0.5
    x, e = (x.bfloat16(), e.float()) if half == "features" else (x.float(), e.bfloat16())
    x, e = x.requires_grad_(), e.requires_grad_()
    layer = Layer(MIXED[name], aggr=aggr)

    def results():
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            out = layer(x, edges(), e)
        return [out, *torch.autograd.grad(out.pow(2).sum(), (x, e))]

    expected = results()
    with halfgnn.pyg.accelerate():
        actual = results()
    assert fell_back() == set()
    assert [a.dtype for a in actual] == [a.dtype for a in expected] == [torch.float32, x.dtype, e.dtype]
    for a, b in zip(actual, expected):
        tolerance = 1e-5 if a.dtype is torch.float32 else 2e-2
        torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance * b.abs().max().item())


@pytest.mark.parametrize("half", [0, 1])
@pytest.mark.parametrize("name", ["mul", "add", "sub", "div", "dot"])
def test_both_ends_of_two_types(name, half):
    xs = [randn(rows, WIDTH, seed=rows).abs() + 0.5 for rows in (NUM_NODES, 40)]
    xs = [x.to(torch.bfloat16 if i == half else torch.float32).requires_grad_() for i, x in enumerate(xs)]
    message = (lambda a, b: (a * b).sum(-1, keepdim=True)) if name == "dot" else getattr(torch, name)
    layer, edge_index = Pairwise(message), edges(NUM_NODES, 40)

    def results():
        out = layer(tuple(xs), edge_index)
        return [out, *torch.autograd.grad(out.pow(2).sum(), xs)]

    expected = results()
    with halfgnn.pyg.accelerate():
        actual = results()
    operators = {f"gsddmm:u_{name}_v", f"gsddmm:v_{name}_u"} if name not in ("mul", "add") else {"gspmm:copy_u_sum"}
    assert operators & routed()
    for a, b in zip(actual, expected):
        tolerance = 1e-5 if a.dtype is torch.float32 else 2e-2
        torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance * b.abs().max().item())


@pytest.mark.parametrize("in_autocast", [True, False], ids=["autocast", ""])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_features_of_two_dtypes_are_joined_without_being_materialized(dtype, in_autocast):
    """As in PNAConv under autocast, where a layer has made the features of edges half, and those of nodes are fp32."""
    layer, stacked = torch.nn.Linear(3 * WIDTH, 4), torch.nn.Linear(2 * WIDTH, 4)
    leaves = [randn(NUM_NODES, WIDTH, seed=1).float(), *(randn(n, WIDTH, seed=n).to(dtype) for n in (NUM_EDGES, 1))]
    modules = layer.requires_grad_(), stacked.requires_grad_()

    class Joined(upstream.MessagePassing):
        def forward(self, x, modules, **of_edges):
            return self.propagate(edges(), x=x, modules=modules, **of_edges)

        def message(self, x_i, x_j, d, of_all, modules):
            of_all = of_all.expand(NUM_EDGES, -1)
            return modules[0](torch.cat([x_i, d, x_j], -1)) + modules[1](torch.stack([x_j, of_all], 1).flatten(1))

    def values(modules, leaves, **autocast):
        leaves = [x.detach().requires_grad_() for x in leaves]
        with torch.autocast("cpu", **autocast):
            out = Joined()(leaves[0], modules, d=leaves[1], of_all=leaves[2])
        read = [*leaves, *(x for module in modules for x in module.parameters())]
        return [out.detach(), *torch.autograd.grad(out.double().sin().sum(), read)]

    expected = values([copy.deepcopy(x).double() for x in modules], [x.double() for x in leaves], enabled=False)
    with halfgnn.pyg.accelerate():
        halfgnn.pyg.reset_stats()
        found = values(modules, leaves, dtype=dtype, enabled=in_autocast)
    stats = halfgnn.pyg.stats()
    assert stats["routed"]["linear"] >= 1 and "message:cat" not in stats["fell_back"], stats
    assert [x.dtype for x in found[1:4]] == [torch.float32, dtype, dtype]
    for a, b in zip(found, expected):
        torch.testing.assert_close(a.double(), b, rtol=3e-2, atol=3e-2 * b.abs().max().item())


@pytest.mark.parametrize("x_dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("reads", ["difference", "joined", "edges"])
def test_a_layer_of_a_difference_of_nearly_equal_features_is_exact_under_autocast(reads, x_dtype):
    """The layers of both ends, rounded to half, would differ by their errors alone."""
    width = {"difference": WIDTH, "joined": 2 * WIDTH, "edges": WIDTH + 2}[reads]
    layer = torch.nn.Linear(width, 4, bias=False)

    class Differences(upstream.MessagePassing):
        def forward(self, x, e, layer):
            return self.propagate(edges(), x=x, e=e, layer=layer)

        def message(self, x_i, x_j, e, layer):
            joined = {"difference": [x_i - x_j], "joined": [x_i - x_j, x_j - x_i], "edges": [x_i - x_j, e]}[reads]
            return layer(torch.cat(joined, -1) if len(joined) > 1 else joined[0])

    x = (100 + 0.5 * randn(NUM_NODES, WIDTH, seed=1)).to(x_dtype)
    e = 0.1 * randn(NUM_EDGES, 2, seed=2).to(x_dtype)
    expected = Differences()(x.double(), e.double(), copy.deepcopy(layer).double())
    with halfgnn.pyg.accelerate(), torch.autocast("cpu", torch.bfloat16):
        halfgnn.pyg.reset_stats()
        found = Differences()(x, e, layer)
    assert halfgnn.pyg.stats()["routed"], "messages are lowered"
    torch.testing.assert_close(found.double(), expected, rtol=2e-2, atol=2e-2 * expected.abs().max().item())
