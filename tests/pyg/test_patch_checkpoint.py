"""torch.utils.checkpoint under halfgnn.pyg.patch(): what is recomputed runs as its forward did."""

from __future__ import annotations

import contextlib
import functools

import pytest
import torch
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint
from torch_geometric.nn import MessagePassing
from torch_geometric.utils import scatter, softmax

import halfgnn.dgl
import halfgnn.pyg
from halfgnn.drop_in import checkpoint as drop_in
from halfgnn.drop_in.checkpoint import is_checkpointed
from halfgnn.pyg.drop_in import thresholds
from tests import support
from tests.pyg.support_pyg import Layer
from tests.pyg.test_patch_modules import MODULES, NUM_EDGES, NUM_NODES, WIDTH, assert_same, edges, made, randn, routed

pytestmark = pytest.mark.skipif(not support.supports("cpu", torch.float64), reason="needs float64")
# A graph is kept after the first call, and modules without edge_weight keep more.
NAMES = ["GCNConv", "GATConv", "GATv2Conv", "TransformerConv", "LGConv", "GraphConv", "GINEConv", "ResGatedGraphConv"]
NAMES += ["SAGEConv-max", "TAGConv", "ChebConv", "RGCNConv", "PNAConv"]


def gradients(module, function, args, accelerated, is_inside):
    """Of x and, where autograd.grad may ask for them, of the parameters; of two steps, the second with what the first kept."""
    results, edge_index = [], edges()
    for _ in range(2):
        x = randn(NUM_NODES, WIDTH, seed=1).requires_grad_()
        module.zero_grad()
        with accelerated() if is_inside else contextlib.nullcontext():
            with contextlib.nullcontext() if is_inside else accelerated():
                out = function(module, 1 * x, edge_index, *args)
            out.pow(2).sum().backward()
        results += [x.grad, *(p.grad for p in module.parameters() if p.grad is not None)]
    return results


@pytest.mark.parametrize("use_reentrant", [False, True])
@pytest.mark.parametrize("is_inside", [False, True], ids=["after", "inside"])
@pytest.mark.parametrize("fuse", [False, True], ids=["", "fused"])
@pytest.mark.parametrize("name", NAMES)
def test_gradients(name, fuse, is_inside, use_reentrant):
    make, further, *_ = MODULES[name]
    module, args = made(make), [arg() for arg in further]
    expected = gradients(module, lambda m, *a: m(*a), args, contextlib.nullcontext, True)

    def checkpointed(module, *args):
        return checkpoint(module, *args, use_reentrant=use_reentrant)

    actual = gradients(module, checkpointed, args, lambda: halfgnn.pyg.accelerate(fuse=fuse), is_inside)
    assert_same(actual, expected)


RESULTS = {
    "sum": (lambda x, w: x * w, {"aggr": "sum"}, (NUM_NODES, WIDTH)),
    "max": (lambda x, w: x * w, {"aggr": "max"}, (NUM_NODES, WIDTH)),
    "sum of another shape": (lambda x, w: (x * w).view(-1, 2, WIDTH // 2), {"node_dim": 0}, (NUM_NODES, WIDTH)),
    "sum of a batch of one": (lambda x, w: x * w, {"node_dim": -2}, (1, NUM_NODES, WIDTH)),
    "max of a batch of one": (lambda x, w: x.tanh() * w, {"aggr": "max", "node_dim": -2}, (1, NUM_NODES, WIDTH)),
}


@pytest.mark.parametrize("name", RESULTS)
def test_the_result_of_a_checkpoint_is_modified_in_place(name):
    """That of a reentrant one must not be a view."""
    function, options, shape = RESULTS[name]
    layer, w = Layer(function, **options), randn(NUM_EDGES, 1, seed=2)

    def run():
        x = randn(*shape, seed=1).requires_grad_()
        out = checkpoint(layer, 1 * x, edges(), w, use_reentrant=True)
        out += x.view_as(out)
        out.square().sum().backward()
        return [out.detach(), x.grad]

    expected = run()
    with halfgnn.pyg.accelerate():
        assert_same(run(), expected)


def test_a_recomputed_message_is_not_formed():
    layer, x = Layer(lambda x, w: (x + w).relu()), randn(NUM_NODES, WIDTH, seed=1).requires_grad_()
    w = randn(NUM_EDGES, WIDTH, seed=2)
    with halfgnn.pyg.accelerate():
        out = checkpoint(layer, x, edges(), w, use_reentrant=False)
    halfgnn.pyg.reset_stats()
    out.sum().backward()
    assert halfgnn.pyg.stats() == {"routed": {"gspmm:u_relu_add_e_sum": 1}, "fell_back": {}}


def test_a_checkpoint_in_a_checkpoint():
    make, *_ = MODULES["GCNConv"]
    convs = [made(make, seed=seed) for seed in (1, 2)]
    widen = torch.nn.Linear(5, WIDTH).double()
    x = randn(NUM_NODES, WIDTH, seed=1).requires_grad_()

    def inner(x):
        return convs[0](x, edges())

    def outer(x, run):
        return convs[1](widen(run(x)), edges())

    expected = torch.autograd.grad(outer(x, inner).pow(2).sum(), x)
    with halfgnn.pyg.accelerate():
        nested = checkpoint(
            lambda x: outer(x, lambda x: checkpoint(inner, x, use_reentrant=False)), x, use_reentrant=False
        )
    assert_same(torch.autograd.grad(nested.pow(2).sum(), x), expected)


def test_the_name_is_given_back():
    names = [(torch.utils.checkpoint, "checkpoint"), (__import__(__name__, fromlist=["checkpoint"]), "checkpoint")]
    before = [getattr(*name) for name in names]
    halfgnn.pyg.patch()
    with halfgnn.pyg.accelerate():
        assert all(getattr(*name) is not old for name, old in zip(names, before))
    halfgnn.pyg.unpatch()
    assert [getattr(*name) for name in names] == before


def test_a_function_that_was_replaced_meanwhile_keeps_its_replacement(monkeypatch):
    """The recomputation binds the names that it bound before, if they are still what they were."""
    import torch_geometric.utils as utils

    make, *_ = MODULES["GCNConv"]
    conv, x = made(make), randn(NUM_NODES, WIDTH, seed=1).requires_grad_()
    with halfgnn.pyg.accelerate():
        out = checkpoint(conv, x, edges(), use_reentrant=False)
    original = utils.scatter
    monkeypatch.setattr(utils, "scatter", lambda *args, **kwargs: original(*args, **kwargs))
    mine = utils.scatter
    out.sum().backward()
    assert utils.scatter is mine and "gspmm:u_mul_e_sum" in routed()


class ReadAttention(MessagePassing):
    def forward(self, x, edge_index, w):
        return self.propagate(edge_index, x=x, w=w)

    def message(self, x_i, x_j, w, index, size_i):
        logits = F.leaky_relu(x_i[:, :1] + x_j[:, :1] + w[:, :1])
        return x_j * softmax(logits, index, num_nodes=size_i).clamp(max=0.9)


CHECKPOINTS = {"by name": lambda *args: checkpoint(*args, use_reentrant=False)}
if drop_in._top_hooks is not None:
    CHECKPOINTS["held before"] = functools.partial(
        checkpoint, use_reentrant=False
    )  # PyTorch's own, whatever patch() does


@pytest.mark.parametrize("way", CHECKPOINTS)
@pytest.mark.parametrize("name", ["SAGEConv", "GCNConv", "GATConv", "GATv2Conv", "softmax that is read"])
def test_first_uses_end_in_no_recomputation(name, way, monkeypatch):
    """A graph is made when enough has gone along an edge_index. Neither that nor a softmax that is read changes a recomputation."""
    module = made(MODULES[name][0]) if name in MODULES else ReadAttention(aggr="add")
    args = [randn(NUM_EDGES, WIDTH, seed=2)] if name not in MODULES else []
    for least in range(1, 5):
        values = least * NUM_EDGES * WIDTH
        limits = thresholds.Limits((0, 0), (values, values), 1, 1)
        monkeypatch.setattr(
            thresholds, "LIMITS", dict.fromkeys(["message", "attention", "softmax", "sum", "rows"], limits)
        )
        monkeypatch.setattr(thresholds, "REUSE", 1)
        edge_index = edges().clone()
        with halfgnn.pyg.accelerate():
            for _ in range(6):
                x = randn(NUM_NODES, WIDTH, seed=1).requires_grad_()
                CHECKPOINTS[way](module, x, edge_index, *args).sum().backward()


@pytest.mark.parametrize("way", CHECKPOINTS)
def test_nothing_is_checkpointed_afterwards(way):
    x = randn(NUM_NODES, WIDTH, seed=1).requires_grad_()
    with halfgnn.pyg.accelerate():
        CHECKPOINTS[way](lambda x: x.sin() if is_checkpointed() else None, x).sum().backward()
        assert not is_checkpointed()


class ScaledEdges(MessagePassing):
    def forward(self, x, edge_index, e):
        e = self.edge_updater(edge_index, x=x, e=e)
        return self.propagate(edge_index, x=x, e=e)

    def edge_update(self, x_j, e):
        return x_j * e

    def message(self, x_j, e):
        bound = functools.partial(lambda e, a: a * e.amax(), e)
        x_j = checkpoint(lambda a: a + e.mean(), x_j, use_reentrant=False)
        return checkpoint(bound, x_j, use_reentrant=False) + checkpoint(torch.mul, x_j, other=e, use_reentrant=False)


def test_a_message_in_a_closure():
    """It would be materialized in the forward, and found as values by what is recomputed."""

    def run():
        x, e = (randn(n, WIDTH, seed=n).requires_grad_() for n in (NUM_NODES, NUM_EDGES))
        out = ScaledEdges()(1 * x, edges(), e)
        return [out.detach(), *torch.autograd.grad(out.square().sum(), [x, e])]

    expected = run()
    with halfgnn.pyg.accelerate():
        assert_same(run(), expected)


@pytest.mark.parametrize("aggr", ["sum", "max"])
def test_an_edge_index_that_is_known_after_the_forward(aggr):
    """What is recomputed finds the graph of the index that its forward found."""
    src, dst = torch.tensor([[0, 2, 1], [1, 2, 2]])

    def step(x):
        return scatter(x.index_select(0, src), dst, dim_size=3, reduce=aggr)

    def run():
        x = randn(3, WIDTH, seed=1).requires_grad_()
        out = step(checkpoint(step, 1 * x, use_reentrant=False))
        return [out.detach(), *torch.autograd.grad(out.square().sum(), x)]

    expected = run()
    with halfgnn.pyg.accelerate(fuse=True):
        assert_same(run(), expected)
