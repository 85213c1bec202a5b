"""Modes of PyTorch that watch or keep the operators of a step, and explain mode, under halfgnn.pyg.patch()."""

from __future__ import annotations

import contextlib
import functools

import pytest
import torch
import torch_geometric.nn as upstream
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts
from torch.utils.flop_counter import FlopCounterMode
from torch_geometric.explain.algorithm.captum import CaptumModel, MaskLevelType
from torch_geometric.explain.config import ModelConfig

import halfgnn.pyg
from halfgnn.drop_in import gate
from halfgnn.pyg.drop_in import thresholds
from tests import support
from tests.pyg.support_pyg import Layer
from tests.pyg.test_patch_modules import NUM_EDGES, NUM_NODES, WIDTH, assert_same, edges, randn

pytestmark = pytest.mark.skipif(not support.supports("cpu", torch.float64), reason="needs float64")
LIMITS = {name: getattr(thresholds, name) for name in ("LIMITS", *support.ROUTED_FROM)}  # of users, not of tests


class ByHand(torch.nn.Module):
    def forward(self, x, edge_index):
        src, dst = edge_index
        return torch.zeros_like(x).index_add_(0, dst, x[src] * 2)


class Weighted(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = Layer(lambda x_j, w: (x_j * w).relu())

    def forward(self, x, edge_index):
        return self.layer(x, edge_index, x[edge_index[0], :1])


MODELS = {
    "SAGEConv": lambda: upstream.SAGEConv(WIDTH, WIDTH),
    "SAGEConv, max": lambda: upstream.SAGEConv(WIDTH, WIDTH, aggr="max"),
    "GCNConv": lambda: upstream.GCNConv(WIDTH, WIDTH),
    "GATConv": lambda: upstream.GATConv(WIDTH, WIDTH, heads=2),
    "GATv2Conv": lambda: upstream.GATv2Conv(WIDTH, WIDTH, heads=2),
    "TransformerConv": lambda: upstream.TransformerConv(WIDTH, WIDTH, heads=2),
    "EdgeConv": lambda: upstream.EdgeConv(torch.nn.Linear(2 * WIDTH, WIDTH)),
    "PNAConv": lambda: upstream.PNAConv(WIDTH, WIDTH, ["mean", "std", "max"], ["identity"], deg=torch.ones(9).long()),
    "SoftmaxAggregation": lambda: upstream.SAGEConv(WIDTH, WIDTH, aggr=upstream.SoftmaxAggregation(learn=True)),
    "weighted": Weighted,
    "by hand": ByHand,
}


def saves(*names):
    """A policy that saves the results of some operators, or of all operators of halfgnn."""

    def policy(context, operator, *args, **kwargs):
        is_saved = operator.name() in names or operator.namespace in names
        return CheckpointPolicy.MUST_SAVE if is_saved else CheckpointPolicy.PREFER_RECOMPUTE

    return policy


POLICIES = {
    "products": saves("aten::mm", "aten::addmm"),
    "halfgnn": saves("halfgnn"),
    "rows": saves("aten::index_select", "aten::index.Tensor"),
}


class Watcher(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.operators = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.operators.append(func.name())
        return func(*args, **(kwargs or {}))


def step(model, edge_index, run=lambda function, x: function(x)):
    x = randn(NUM_NODES, WIDTH, seed=1).requires_grad_()
    out = run(lambda y: model(y * 1, edge_index).sin(), x)
    inputs = [x, *model.parameters()]
    grads = torch.autograd.grad(out.pow(2).sum(), inputs, allow_unused=True)
    return [out.detach(), *(grad for grad in grads if grad is not None)]


def routed():
    return halfgnn.pyg.stats()["routed"]


def model_of(name):
    torch.manual_seed(1)
    return MODELS[name]().double()


@pytest.mark.parametrize("fuse", [None, True])
@pytest.mark.parametrize("policy", POLICIES)
def test_selective_checkpoints(policy, fuse):
    """In the forward and in its recomputation the same operators run, of which policies see halfgnn's."""
    contexts = functools.partial(create_selective_checkpoint_contexts, POLICIES[policy])
    run = functools.partial(checkpoint, use_reentrant=False, context_fn=contexts)
    models, edge_index = {name: model_of(name) for name in MODELS}, edges().clone()
    if policy == "halfgnn":
        del models["GCNConv"]  # writes into its degrees, a sum, which PyTorch refuses of what a policy saves
    expected = {name: step(model, edge_index) for name, model in models.items()}
    with halfgnn.pyg.accelerate(fuse=fuse):
        for name, model in models.items():
            halfgnn.pyg.reset_stats()
            for _ in range(2):
                assert_same(step(model, edge_index, run), expected[name])
            assert sum(routed().values()) >= 4, name


MODES = {
    "FlopCounterMode": lambda: FlopCounterMode(display=False),
    "allow_mutation_on_saved_tensors": torch.autograd.graph.allow_mutation_on_saved_tensors,
}


@pytest.mark.parametrize("mode", MODES)
def test_modes_that_watch(mode):
    models, edge_index = {name: model_of(name) for name in MODELS}, edges()
    expected = {name: step(model, edge_index) for name, model in models.items()}
    with halfgnn.pyg.accelerate():
        for name, model in models.items():
            halfgnn.pyg.reset_stats()
            with MODES[mode]():
                assert_same(step(model, edge_index), expected[name])
            assert routed(), name


def test_a_mode_sees_the_same_operators_at_every_call(monkeypatch):
    """A selective checkpoint takes what it kept by the operator's name and turn. What is kept of an index is made unseen."""
    name = f"{Watcher.__module__}.{Watcher.__qualname__}"
    monkeypatch.setattr(gate, "_WATCHING_MODES", gate._WATCHING_MODES | {name})
    models = {name: model_of(name) for name in MODELS}
    with halfgnn.pyg.accelerate():
        for name, model in models.items():
            seen, edge_index = [], edges().clone()
            for _ in range(3):
                with Watcher() as watcher:
                    step(model, edge_index)
                seen.append(watcher.operators)
            assert seen[0] == seen[1] == seen[2], name
            assert any("halfgnn::" in operator for operator in seen[0]), name


def test_saved_tensors_may_be_mutated():
    x, edge_index = randn(NUM_NODES, WIDTH, seed=1).requires_grad_(), edges()
    model = Weighted()

    def run():
        with torch.autograd.graph.allow_mutation_on_saved_tensors():
            features = x * 1
            out = model(features, edge_index)
            features.mul_(3)
            out = out.exp()
            loss = out.sum()
            out.zero_()
            return torch.autograd.grad(loss, x)

    expected = run()
    with halfgnn.pyg.accelerate():
        assert_same(run(), expected)


def test_flops_of_products_are_counted():
    model, edge_index = model_of("SAGEConv"), edges()
    counts = []
    for way in (contextlib.nullcontext, halfgnn.pyg.accelerate):
        with way(), FlopCounterMode(display=False) as counter:
            step(model, edge_index)
        counts.append(counter.get_total_flops())
    assert counts[0] == counts[1] > 0


def test_other_modes_are_left_alone():
    model, edge_index, x = model_of("SAGEConv"), edges(), randn(NUM_NODES, WIDTH, seed=1)
    with halfgnn.pyg.accelerate(), torch.no_grad():
        with Watcher():
            model(x, edge_index)
        assert halfgnn.pyg.stats()["fell_back"]["propagate"] == {"dispatch mode Watcher": 1}
        with FakeTensorMode(allow_non_fake_inputs=True):
            model(x, edge_index)
    assert not routed()


TRANSFORMED = {
    "grad": lambda x: torch.func.grad(lambda y: (y * y).sum())(x),
    "grad of what is read again": lambda x: torch.func.grad(lambda y: (y * y * x).sum())(x) * x,
    "grad of a view": lambda x: torch.func.grad(lambda y: (y * y).sum())(x[:, :2]) * x[:, 2:4],
    "vmap of what is read again": lambda x: torch.vmap(lambda y: y * x[0])(x) * x,
    "jvp": lambda x: torch.func.jvp(torch.sin, (x,), (x,))[1],
}


@pytest.mark.parametrize("name", TRANSFORMED)
def test_messages_that_a_transform_reads_first(name):
    layer, w, edge_index = Layer(lambda x, w: TRANSFORMED[name](x)), randn(NUM_EDGES, 1, seed=2), edges()

    def run():
        x = randn(NUM_NODES, WIDTH, seed=1).requires_grad_()
        out = layer(1 * x, edge_index, w)
        return [out.detach(), *torch.autograd.grad(out.square().sum(), x)]

    expected = run()
    with halfgnn.pyg.accelerate():
        assert_same(run(), expected)


# ---- explain mode ------------------------------------------------------------------------------------------------------------


@pytest.fixture(params=["limits", "no limits"])
def sizes(request, monkeypatch, _routes_small_calls):
    if request.param == "limits":
        for name, value in LIMITS.items():
            monkeypatch.setattr(thresholds, name, value)


@pytest.mark.parametrize("num_edges", [NUM_EDGES, 20_000])
@pytest.mark.parametrize("name", ["GATConv", "GATv2Conv", "TransformerConv", "SoftmaxAggregation"])
def test_modules_in_explain_mode_are_pygs(name, num_edges, sizes):
    torch.manual_seed(1)
    edge_index, x = torch.randint(0, NUM_NODES, (2, num_edges)), randn(NUM_NODES, WIDTH, seed=1)
    config = ModelConfig(mode="multiclass_classification", task_level="node", return_type="raw")
    model = CaptumModel(model_of(name), MaskLevelType.edge, torch.arange(5), config)

    def run():
        mask = randn(1, num_edges, seed=2).sigmoid().requires_grad_()
        out = model(mask, x, edge_index)
        return [out.detach(), *torch.autograd.grad(out.pow(2).sum(), mask)]

    expected = run()
    with halfgnn.pyg.accelerate():
        assert_same(run(), expected)
    assert routed().keys() <= {"x[index]", "coo_softmax"}, "of the nodes that are explained, and no messages"
