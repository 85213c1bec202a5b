"""Unmodified modules and models of torch_geometric under halfgnn.pyg.accelerate(): their results, and what was routed."""

from __future__ import annotations

import copy

import pytest
import torch
import torch_geometric.nn as upstream
from torch import nn

import halfgnn.pyg
from halfgnn.pyg.drop_in import thresholds
from tests import support
from tests.pyg.support_pyg import Layer

NUM_NODES, NUM_EDGES, WIDTH = 30, 200, 8
pytestmark = pytest.mark.skipif(not support.supports("cpu", torch.float64), reason="needs float64")


def randn(*shape, seed):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def edges(num_src=NUM_NODES, num_dst=NUM_NODES):
    """No edge twice: PyG divides the gradient of a maximum among equal messages. The last nodes have no in-edges."""
    ids = torch.randperm(num_src * (num_dst - 4), generator=torch.Generator().manual_seed(0))[:NUM_EDGES]
    return torch.stack([ids % num_src, ids // num_src])


def linear(width=WIDTH):
    return nn.Linear(width, 5)


def values(*shape):
    return lambda: randn(*shape, seed=7).abs() + 0.1


WEIGHT, EDGE, TYPE = values(NUM_EDGES), values(NUM_EDGES, WIDTH), lambda: torch.arange(NUM_EDGES) % 3
PNA = {
    "aggregators": ["mean", "min", "max", "std"],
    "scalers": ["identity", "amplification"],
    "deg": torch.ones(9).long(),
}
NORM = "gspmm:copy_e_sum"  # degrees

# name: (constructor, further arguments of forward, what is routed, names of what is left to PyG)
MODULES = {
    "GCNConv": (lambda: upstream.GCNConv(WIDTH, 5), [], {NORM, "gspmm:u_mul_e_sum"}, set()),
    "GCNConv-weight": (lambda: upstream.GCNConv(WIDTH, 5), [WEIGHT], {NORM, "gspmm:u_mul_e_sum"}, set()),
    "GCNConv-plain": (lambda: upstream.GCNConv(WIDTH, 5, normalize=False), [], {"gspmm:copy_u_sum"}, set()),
    "GCNConv-cached": (lambda: upstream.GCNConv(WIDTH, 5, cached=True), [], {NORM, "gspmm:u_mul_e_sum"}, set()),
    "SAGEConv-mean": (lambda: upstream.SAGEConv(WIDTH, 5), [], {"gspmm:copy_u_mean"}, set()),
    "SAGEConv-max": (lambda: upstream.SAGEConv(WIDTH, 5, aggr="max"), [], {"gspmm:copy_u_max"}, set()),
    "SAGEConv-min": (lambda: upstream.SAGEConv(WIDTH, 5, aggr="min"), [], {"gspmm:copy_u_min"}, set()),
    "SAGEConv-add": (lambda: upstream.SAGEConv(WIDTH, 5, aggr="add"), [], {"gspmm:copy_u_sum"}, set()),
    "SAGEConv-mul": (
        lambda: upstream.SAGEConv(WIDTH, 5, aggr="mul"),
        [],
        set(),
        {"gspmm:copy_e_mul", "message:copy_u"},
    ),
    "SAGEConv-reverse": (
        lambda: upstream.SAGEConv(WIDTH, 5, flow="target_to_source"),
        [],
        {"gspmm:copy_u_mean"},
        set(),
    ),
    "SAGEConv-several": (
        lambda: upstream.SAGEConv(WIDTH, 5, aggr=["mean", "max", "std"]),
        [],
        {"copy_u_reduce:mean_max_std"},
        set(),
    ),
    "GCNConv-decomposed": (
        lambda: upstream.GCNConv(WIDTH, 6, decomposed_layers=2),
        [],
        {NORM, "gspmm:u_mul_e_sum"},
        set(),
    ),
    "GINConv": (lambda: upstream.GINConv(linear()), [], {"gspmm:copy_u_sum"}, set()),
    "GINEConv": (lambda: upstream.GINEConv(linear()), [EDGE], {"gspmm:u_relu_add_e_sum"}, set()),
    "GraphConv": (lambda: upstream.GraphConv(WIDTH, 5), [], {"gspmm:copy_u_sum"}, set()),
    "GraphConv-weight": (lambda: upstream.GraphConv(WIDTH, 5), [WEIGHT], {"gspmm:u_mul_e_sum"}, set()),
    "GatedGraphConv": (lambda: upstream.GatedGraphConv(WIDTH, 2), [WEIGHT], {"gspmm:u_mul_e_sum"}, set()),
    "LGConv": (lambda: upstream.LGConv(), [], {NORM, "gspmm:u_mul_e_sum"}, set()),
    "APPNP": (lambda: upstream.APPNP(3, 0.1), [], {NORM, "gspmm:u_mul_e_sum"}, set()),
    "SGConv": (lambda: upstream.SGConv(WIDTH, 5, K=2), [], {NORM, "gspmm:u_mul_e_sum"}, set()),
    "TAGConv": (lambda: upstream.TAGConv(WIDTH, 5), [], {NORM, "gspmm:u_mul_e_sum"}, set()),
    "ChebConv": (lambda: upstream.ChebConv(WIDTH, 5, K=3), [WEIGHT], {NORM, "gspmm:u_mul_e_sum"}, set()),
    "ARMAConv": (lambda: upstream.ARMAConv(WIDTH, 5), [], {NORM, "gspmm:u_mul_e_sum"}, set()),
    "LEConv": (lambda: upstream.LEConv(WIDTH, 5), [], {"gsddmm:u_sub_v", "gspmm:copy_e_sum"}, set()),
    "ClusterGCNConv": (lambda: upstream.ClusterGCNConv(WIDTH, 5), [], {NORM}, {"message:copy_u"}),  # float weights
    "ResGatedGraphConv": (
        lambda: upstream.ResGatedGraphConv(WIDTH, 5),
        [],
        {"gsddmm:v_add_u", "gspmm:u_mul_e_sum"},
        set(),
    ),
    "GATConv": (
        lambda: upstream.GATConv(WIDTH, 5, heads=2),
        [],
        {"gsddmm:u_add_v", "edge_softmax", "gspmm:u_mul_e_sum"},
        set(),
    ),
    "GATv2Conv": (
        lambda: upstream.GATv2Conv(WIDTH, 5, heads=2),
        [],
        {"gsddmm:v_add_u", "edge_softmax", "gspmm:u_mul_e_sum"},
        set(),
    ),
    "TransformerConv": (
        lambda: upstream.TransformerConv(WIDTH, 5, heads=2),
        [],
        {"gsddmm:v_dot_u", "edge_softmax", "gspmm:u_mul_e_sum"},
        set(),
    ),
    "RGCNConv": (lambda: upstream.RGCNConv(WIDTH, 5, 3), [TYPE], {"gspmm:copy_u_mean"}, {NORM}),
    "PNAConv": (
        lambda: upstream.PNAConv(WIDTH, 5, **PNA),
        [],
        {"linear", "copy_u_reduce:mean_min_max_std"},
        set(),
    ),
    "EdgeConv": (lambda: upstream.EdgeConv(linear(16)), [], {"linear", "gsddmm:v_add_u", "gspmm:copy_e_max"}, set()),
    "GENConv": (lambda: upstream.GENConv(WIDTH, 5), [], {"edge_softmax", "gspmm:u_mul_e_sum"}, set()),
}


def model(kind, **options):
    return lambda: getattr(upstream, kind)(WIDTH, 6, 2, 5, **options)


MODELS = {
    "GCN": (model("GCN"), "gspmm:u_mul_e_sum"),
    "GraphSAGE": (model("GraphSAGE", jk="cat"), "gspmm:copy_u_mean"),
    "GIN": (model("GIN"), "gspmm:copy_u_sum"),
    "GAT": (model("GAT", heads=2), "gspmm:u_mul_e_sum"),
    "GAT-v2": (model("GAT", heads=2, v2=True), "gspmm:u_mul_e_sum"),
    "PNA": (model("PNA", **PNA), "copy_u_reduce:mean_min_max_std"),
    "EdgeCNN": (model("EdgeCNN"), "gspmm:copy_e_max"),
}


def made(make, seed=1):
    torch.manual_seed(seed)
    return make().double()


def run(module, inputs, *args):
    """Result and gradients of inputs and parameters."""
    inputs = [x.clone().requires_grad_() for x in inputs]
    out = module(inputs[0] if len(inputs) == 1 else tuple(inputs), *args)
    out = torch.cat([x.flatten() for x in out.values()]) if isinstance(out, dict) else out
    wanted = [*inputs, *(p for p in module.parameters() if p.requires_grad)]
    grad = randn(*out.shape, seed=5).to(out.dtype)
    grads = torch.autograd.grad(out, wanted, grad, allow_unused=True)
    return [out.detach(), *(torch.zeros_like(x) if grad is None else grad for x, grad in zip(wanted, grads))]


def assert_same(actual, expected, tolerance=1e-9):
    for a, b in zip(actual, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance, equal_nan=True)


def check(module, inputs, *args, fuse=False):
    expected = run(copy.deepcopy(module), inputs, *args)
    with halfgnn.pyg.accelerate(fuse=fuse):
        assert_same(run(module, inputs, *args), expected)
        assert_same(run(module, inputs, *args), expected)  # with the graph that was kept


def routed():
    return set(halfgnn.pyg.stats()["routed"])


def fell_back():
    return set(halfgnn.pyg.stats()["fell_back"])


@pytest.mark.parametrize("name", MODULES)
def test_results_are_those_of_pyg(name):
    make, further, names, left = MODULES[name]
    check(made(make), [randn(NUM_NODES, WIDTH, seed=1)], edges(), *(arg() for arg in further))
    assert (routed(), fell_back()) == (names, left)


@pytest.mark.parametrize("name", MODELS)
def test_models(name):
    make, operator = MODELS[name]
    check(made(make), [randn(NUM_NODES, WIDTH, seed=1)], edges())
    assert operator in routed()


@pytest.mark.parametrize(
    "name", ["SAGEConv-mean", "SAGEConv-max", "GraphConv", "GATConv", "GATv2Conv", "TransformerConv"]
)
def test_bipartite(name):
    kind, *own = name.split("-")
    options = {"aggr": own[0]} if own else {}
    options |= {"add_self_loops": False} if kind.startswith("GAT") else {}
    conv = made(lambda: getattr(upstream, kind)((WIDTH, 6), 5, **options))
    check(conv, [randn(NUM_NODES, WIDTH, seed=1), randn(40, 6, seed=2)], edges(NUM_NODES, 40))
    assert fell_back() == set()


def hetero():
    x = {"a": randn(12, WIDTH, seed=1), "b": randn(9, WIDTH, seed=2)}
    ids = torch.Generator().manual_seed(3)
    relations = [("a", "to", "b"), ("b", "to", "a"), ("a", "in", "a")]
    edge_index = {
        key: torch.stack(
            [torch.randint(len(x[key[0]]), (25,), generator=ids), torch.randint(len(x[key[2]]), (25,), generator=ids)]
        )
        for key in relations
    }
    return x, edge_index


def test_heterogeneous_models():
    x, edge_index = hetero()
    homogeneous = upstream.GraphSAGE(WIDTH, 6, 2, 5)
    models = [
        upstream.to_hetero(homogeneous, (list(x), list(edge_index))),
        upstream.HeteroConv({key: upstream.SAGEConv(WIDTH, 5) for key in edge_index}),
    ]

    class Called(nn.Module):
        def __init__(self, model):
            super().__init__()
            self.model = model

        def forward(self, _, x, edge_index):
            return self.model(x, edge_index)

    for hetero_model in models:
        halfgnn.pyg.reset_stats()
        check(Called(hetero_model).double(), [randn(1, seed=0)], x, edge_index)
        assert routed() == {"gspmm:copy_u_mean"} and fell_back() == set()


# ---- half precision ----------------------------------------------------------------------------------------------------------

IN_HALF = ["GCNConv", "SAGEConv-mean", "SAGEConv-max", "GINConv", "GINEConv", "GraphConv-weight", "GATConv", "PNAConv"]


@pytest.mark.parametrize("dtype", support.HALVES, ids=str)
@pytest.mark.parametrize("name", IN_HALF)
def test_half_precision(name, dtype):
    """Errors are no larger than PyG's in half, up to the rounding of the result."""
    make, further, _, _ = MODULES[name]
    x, args = randn(NUM_NODES, WIDTH, seed=1).to(dtype), [arg().to(dtype) for arg in further]
    conv = made(make).to(dtype)
    truth = run(copy.deepcopy(conv).double(), [x.double()], edges(), *(arg.double() for arg in args))
    formula = run(copy.deepcopy(conv), [x], edges(), *args)
    with halfgnn.pyg.accelerate():
        actual = run(conv, [x], edges(), *args)
    for out, pyg, exact in zip(actual, formula, truth, strict=True):
        assert out.dtype is pyg.dtype is dtype
        unit = torch.finfo(dtype).eps * exact.abs().max()
        assert (out.double() - exact).abs().max() <= 2 * (pyg.double() - exact).abs().max() + unit


@pytest.mark.parametrize("dtype", support.HALVES, ids=str)
@pytest.mark.parametrize("name", [*IN_HALF, "GATv2Conv", "TransformerConv"])
@pytest.mark.parametrize("fuse", [False, True])
def test_autocast(name, dtype, fuse):
    make, further, _, _ = MODULES[name]
    x, args = randn(NUM_NODES, WIDTH, seed=1).float(), [arg().float() for arg in further]
    conv = made(make).float()
    expected = run(copy.deepcopy(conv), [x], edges(), *args)
    with halfgnn.pyg.accelerate(fuse=fuse), torch.autocast("cpu", dtype):
        actual = run(conv, [x], edges(), *args)
    if name != "SAGEConv-max" and name != "PNAConv":  # rounding makes another message the largest
        least = 0.1 * max(x.norm() for x in expected)  # the terms of smaller gradients cancel
        for out, exact in zip(actual, expected, strict=True):
            assert (out.float() - exact).norm() <= 8 * torch.finfo(dtype).eps * max(exact.norm(), least)
    assert routed()


def test_dtypes_of_products_are_those_of_pytorch():
    x, weight = randn(NUM_NODES, WIDTH, seed=1).bfloat16(), WEIGHT().float()
    conv = upstream.SimpleConv(aggr="sum")
    expected = conv(x, edges(), weight)
    with halfgnn.pyg.accelerate():
        actual = conv(x, edges(), weight)
    assert actual.dtype is expected.dtype is torch.float32 and routed() == {"gspmm:u_mul_e_sum"}
    torch.testing.assert_close(actual, expected)


# ---- fused modules -----------------------------------------------------------------------------------------------------------

ATTENTIONS = {
    "GATConv": lambda: upstream.GATConv(WIDTH, 5, heads=2, residual=True),
    "GATConv-edge": lambda: upstream.GATConv(WIDTH, 5, heads=2, edge_dim=WIDTH),
    "GATv2Conv": lambda: upstream.GATv2Conv(WIDTH, 5, heads=2, share_weights=True),
    "GATv2Conv-edge": lambda: upstream.GATv2Conv(WIDTH, 5, heads=2, edge_dim=WIDTH, concat=False),
    "TransformerConv": lambda: upstream.TransformerConv(WIDTH, 5, heads=2, beta=True),
    "TransformerConv-edge": lambda: upstream.TransformerConv(WIDTH, 5, heads=2, edge_dim=WIDTH),
}


@pytest.mark.parametrize("name", ATTENTIONS)
def test_fused_modules(name):
    args = [EDGE()] if "edge" in name else []
    check(made(ATTENTIONS[name]), [randn(NUM_NODES, WIDTH, seed=1)], edges(), *args, fuse=True)
    assert (routed(), fell_back()) == ({f"fused:{name.split('-')[0]}"}, set())


class Louder(upstream.GATConv):
    def message(self, x_j, alpha):
        return 2 * alpha.unsqueeze(-1) * x_j


def unfused_calls():
    gat, x = ATTENTIONS["GATConv"], randn(NUM_NODES, WIDTH, seed=1)
    yield "return_attention_weights", gat, lambda conv: conv(x, edges(), return_attention_weights=True)[0]
    yield "subclass", lambda: Louder(WIDTH, 5), lambda conv: conv(x, edges())
    yield "aggregation", lambda: upstream.GATConv(WIDTH, 5, aggr="max"), lambda conv: conv(x, edges())
    yield "no edges", gat, lambda conv: conv(x, edges()[:, :0])
    yield "size", gat, lambda conv: conv(x, edges(), size=[NUM_NODES, NUM_NODES - 1])
    yield "hooks", gat, hooked(x)


@pytest.mark.parametrize("is_training", [False, True])
@pytest.mark.parametrize("name", ATTENTIONS)
def test_dropout_is_torch_geometrics(name, is_training):
    """A fused attention draws other random numbers: with dropout a module is fused if that is asked for."""
    conv, args = made(ATTENTIONS[name]), [EDGE()] if "edge" in name else []
    conv.dropout, kind = 0.5, f"fused:{name.split('-')[0]}"
    conv.train(is_training)

    def run():
        torch.manual_seed(7)
        return conv(randn(NUM_NODES, WIDTH, seed=1), edges(), *args)

    expected = run()
    with halfgnn.pyg.accelerate():
        assert_same([run()], [expected])
    is_dot = name == "TransformerConv"
    assert (kind in routed()) != (is_training or is_dot)
    halfgnn.pyg.reset_stats()
    with halfgnn.pyg.accelerate(fuse=False):
        assert_same([run()], [expected])
    assert kind not in {**halfgnn.pyg.stats()["routed"], **halfgnn.pyg.stats()["fell_back"]}
    with halfgnn.pyg.accelerate(fuse=True):
        run()
    assert kind in routed()


@pytest.mark.parametrize("limit, is_fused", [(1 << 30, True), (1, False)])
def test_dot_attention_of_few_edges_is_one_operator(monkeypatch, limit, is_fused):
    """Of many, its steps are faster."""
    monkeypatch.setattr(thresholds, "DOT_STEPS", limit)
    conv, x, edge_index = upstream.TransformerConv(WIDTH, 8, 2).double(), randn(NUM_NODES, WIDTH, seed=1), edges()
    expected = conv(x, edge_index)
    with halfgnn.pyg.accelerate():
        torch.testing.assert_close(conv(x, edge_index), expected, rtol=1e-4, atol=1e-5)
    assert ("fused:TransformerConv" in halfgnn.pyg.stats()["routed"]) == is_fused


@pytest.mark.parametrize("aggr", [["mean", "max", "std"], ["var", "sum", "min"], "var", "std"], ids=str)
@pytest.mark.parametrize("message", ["of sources", "of edges", "materialized", "with heads"])
def test_aggregations_in_one_pass(aggr, message):
    functions = {
        "of sources": lambda x, w: 2 * x,
        "of edges": lambda x, w: x * w,
        "materialized": lambda x, w: (x * w).cumsum(-1),
        "with heads": lambda x, w: (x * w).view(-1, 2, WIDTH // 2),
    }
    layer = Layer(functions[message], aggr=aggr, node_dim=0)

    def run():
        x, w = (randn(rows, WIDTH, seed=rows).requires_grad_() for rows in (NUM_NODES, NUM_EDGES))
        out = layer(x, edges(), w)
        return out, *torch.autograd.grad(out.sin().sum(), [x, w], allow_unused=True, materialize_grads=True)

    expected = run()
    with halfgnn.pyg.accelerate():
        assert_same(run(), expected)
    names = ["var"] if isinstance(aggr, str) else aggr  # of which std is the root
    if message != "with heads" or not isinstance(aggr, str):
        assert f"copy_u_reduce:{'_'.join(names)}" in routed()


class DoubledStd(upstream.aggr.StdAggregation):
    def forward(self, *args, **kwargs):
        return 2 * super().forward(*args, **kwargs)


@pytest.mark.parametrize("node_dim", [0, -2])
@pytest.mark.parametrize(
    "aggr", [["mean", "std"], ["std", "mean", "std", "sum"], "var", ["sum", DoubledStd()], ["max", "mul"]], ids=str
)
def test_aggregations_of_batches(aggr, node_dim):
    """Nodes may be another dimension than the first. torch_geometric takes repeated reductions for others."""
    layer = Layer(lambda x, w: x * w, aggr=aggr, node_dim=node_dim)
    shape = [NUM_NODES, WIDTH] if node_dim == 0 else [3, NUM_NODES, WIDTH]

    def run():
        x, w = randn(*shape, seed=1).requires_grad_(), randn(NUM_EDGES, 1, seed=2)
        out = layer(x, edges(), w)
        return out, *torch.autograd.grad(out.sin().sum(), x)

    expected = run()
    with halfgnn.pyg.accelerate():
        assert_same(run(), expected)


def hooked(x):
    def call(conv):
        handle = conv.register_message_forward_hook(lambda module, inputs, output: 3 * output)
        out = conv(x, edges())
        handle.remove()
        return out

    return call


@pytest.mark.parametrize(
    "reason, make, call", list(unfused_calls()), ids=lambda value: value if isinstance(value, str) else ""
)
def test_calls_that_are_left_to_pygs_forward(reason, make, call):
    conv = made(make)
    try:
        expected = call(conv)
    except Exception as error:
        expected = error
    with halfgnn.pyg.accelerate(fuse=True):
        if isinstance(expected, Exception):
            with pytest.raises(type(expected)):
                call(conv)
        else:
            assert_same([call(conv)], [expected])
    assert halfgnn.pyg.stats()["fell_back"]["fused:GATConv"] == {reason: 1}
    assert not any(name.startswith("fused") for name in routed())
