"""Attention that messages write by hand, under halfgnn.pyg.patch(): one operator where it is one, PyG's results always."""

from __future__ import annotations

import gc
import math
import weakref

import pytest
import torch
from torch.nn import functional as F
from torch_geometric.nn import MessagePassing
from torch_geometric.utils import softmax

import halfgnn.pyg
from halfgnn.expressions import attention as _attention
from halfgnn.pyg.drop_in.adapters import softmax as _softmax
from tests import support
from tests.pyg.test_patch_modules import NUM_EDGES, NUM_NODES, assert_same, edges, randn, routed

pytestmark = pytest.mark.skipif(not support.supports("cpu", torch.float64), reason="needs float64")
HEADS, DIM = 3, 4


class Attention(MessagePassing):
    def __init__(self, function, **options):
        super().__init__(aggr="add", node_dim=0, **options)
        self.function = function

    def forward(self, q, k, v, e, b, edge_index):
        return self.propagate(edge_index, q=q, k=k, v=v, e=e, b=b)

    def message(self, q_i, k_j, v_j, e, b, index, ptr, size_i):
        return self.function(q_i, k_j, v_j, e, b, lambda logits: softmax(logits, index, ptr, size_i))


def transformer(q, k, v, e, b, normalise):
    """anemoi's and TransformerConv's."""
    alpha = F.dropout(normalise((q * (k + e)).sum(-1) / math.sqrt(DIM)), 0.5, training=False)
    return (v + e) * alpha.view(-1, HEADS, 1)


def read_again(q, k, v, e, b, normalise):
    alpha = normalise((q * k).sum(-1))
    return v * alpha.unsqueeze(-1) + alpha.exp().unsqueeze(-1)


def written(q, k, v, e, b, normalise):
    alpha = normalise((q * k).sum(-1))
    alpha *= 2
    return v * alpha.unsqueeze(-1)


def gatv2(q, k, v, e, b, normalise):
    """Of which k are the values too."""
    attention = torch.linspace(-1, 1, HEADS * DIM, dtype=k.dtype).view(1, HEADS, DIM)
    return k * normalise((F.leaky_relu(q + k + e, 0.1) * attention).sum(-1)).unsqueeze(-1)


def gatv2_views(q, k, v, e, b, normalise):
    """No terms of edges but a bias, and a slope that is negative."""
    q, k, again = (x.flatten(1).view(-1, HEADS, DIM) for x in (q, k, k))
    logits = (F.leaky_relu(k + q, -0.3) * e[0]).sum(-1, keepdim=True) * 0.5 + b.unsqueeze(-1)
    return normalise(logits.squeeze(-1)).view(-1, HEADS, 1) * again


def gat(q, k, v, e, b, normalise):
    logits = F.leaky_relu(q[..., 0] + k[..., 1] + b, 0.2)
    return v * normalise(logits).unsqueeze(-1)


def frozen(make):
    with torch.no_grad():
        return make()


def heads_exchanged(q, k, v, e, b, normalise):
    q, k, v = (x.flatten(1).view(-1, 4, HEADS) for x in (q, k, v))
    return v * normalise(F.leaky_relu(q[..., 0] + k[..., 1]).view(-1, 2, 2).transpose(1, 2)).reshape(-1, 4, 1)


def frozen_softmax(q, k, v, e, b, normalise):
    logits = F.leaky_relu(q[..., 0] + k[..., 1])
    return v * frozen(lambda: normalise(logits)).unsqueeze(-1)


def with_a_hook(q, k, v, e, b, normalise):
    alpha = normalise((q * k).sum(-1))
    if alpha.requires_grad:
        alpha.register_hook(lambda grad: 2 * grad)
    return v * alpha.unsqueeze(-1)


FUSED = {
    "plain": lambda q, k, v, e, b, s: v * s((q * k).sum(-1)).unsqueeze(-1),
    "from the left": lambda q, k, v, e, b, s: s((k * q).sum(-1, keepdim=True)) * v,
    "transformer": transformer,
    "terms of keys": lambda q, k, v, e, b, s: s((q * (e + k)).sum(-1) * 0.3).unsqueeze(-1) * v,
    "terms of values": lambda q, k, v, e, b, s: s((q * k).sum(-1)).unsqueeze(-1) * (e + v),
    "bias": lambda q, k, v, e, b, s: v * s((q * k).sum(-1) / 2 + b).unsqueeze(-1),
    "bias before the scale": lambda q, k, v, e, b, s: v * s((b + (q * k).sum(-1)) / 2).unsqueeze(-1),
    "features first": lambda q, k, v, e, b, s: (2 * v).relu() * s((q * k.tanh()).sum(-1)).unsqueeze(-1),
    "heads joined": lambda q, k, v, e, b, s: (v * s((q * k).sum(-1)).unsqueeze(-1)).view(-1, HEADS * DIM),
    "GATv2": gatv2,
    "GATv2, views": gatv2_views,
    "GAT": gat,
    "GAT, no edges": lambda q, k, v, e, b, s: s(F.leaky_relu((k + 1)[:, :, 0] + q[:, :, 3])).unsqueeze(-1) * v.relu(),
    "GAT, one head": lambda q, k, v, e, b, s: s(F.leaky_relu(q[:, 0, 0] + k[:, 0, 1])).unsqueeze(-1) * v[:, 2],
    "one head": lambda q, k, v, e, b, s: v[:, 0] * s((q[:, 0] * k[:, 0]).sum(-1)).view(-1, 1),
}
OPERATORS = {"GATv2": "gatv2_attention", "GATv2, views": "gatv2_attention"}
OPERATORS |= {name: "gat_attention" for name in FUSED if name.startswith("GAT") and name not in OPERATORS}
NO_FASTER = {
    "plain",
    "terms of values",
    "from the left",
    "features first",
    "heads joined",
    "one head",
    "bias",
    "bias before the scale",
}
UNFUSED = {
    "GATv2 of other values": lambda q, k, v, e, b, s: v * s((F.leaky_relu(q + k) * e[:1]).sum(-1)).unsqueeze(-1),
    "GATv2 with an attention per edge": lambda q, k, v, e, b, s: k * s((F.leaky_relu(q + k) * e).sum(-1)).unsqueeze(-1),
    "GATv2 of three": lambda q, k, v, e, b, s: k * s((F.leaky_relu(q + k + v) * e[:1]).sum(-1)).unsqueeze(-1),
    "GATv2 of a difference": lambda q, k, v, e, b, s: k * s((F.leaky_relu(q - k) * e[:1]).sum(-1)).unsqueeze(-1),
    "GAT, scaled": lambda q, k, v, e, b, s: v * s(F.leaky_relu(q[..., 0] + k[..., 0]) * 3).unsqueeze(-1),
    "GAT of one side": lambda q, k, v, e, b, s: v * s(F.leaky_relu(k[..., 0] + k[..., 1] + b)).unsqueeze(-1),
    "GAT of the nodes' values": lambda q, k, v, e, b, s: q * s(F.leaky_relu(q[..., 0] + k[..., 1])).unsqueeze(-1),
    "read again": read_again,
    "written": written,
    "hook": with_a_hook,
    "the other ends' queries": lambda q, k, v, e, b, s: v * s((k * v).sum(-1)).unsqueeze(-1),
    "logits of both ends' sums": lambda q, k, v, e, b, s: v * s((q + k).tanh().sum(-1)).unsqueeze(-1),
    "values of the node": lambda q, k, v, e, b, s: q * s((q * k).sum(-1)).unsqueeze(-1),
    "transposed": lambda q, k, v, e, b, s: v * s((q * k).sum(-1)).unsqueeze(-1).transpose(1, 2)[:, :, :1],
    "weights twice": lambda q, k, v, e, b, s: v * (lambda a: a * a)(s((q * k).sum(-1))).unsqueeze(-1),
    "detached keys": lambda q, k, v, e, b, s: v * s((q * k.detach()).sum(-1)).unsqueeze(-1),
    "detached weights": lambda q, k, v, e, b, s: v * s((q * (k + e)).sum(-1)).detach().unsqueeze(-1),
    "detached logits": lambda q, k, v, e, b, s: v * s((q * (k + e)).sum(-1).detach()).unsqueeze(-1),
    "detached products": lambda q, k, v, e, b, s: k * s((F.leaky_relu(q + k) * e[:1]).detach().sum(-1)).unsqueeze(-1),
    "detached values": lambda q, k, v, e, b, s: (v + e).detach() * s((q * (k + e)).sum(-1)).unsqueeze(-1),
    "frozen softmax": frozen_softmax,
    "frozen keys": lambda q, k, v, e, b, s: v * s((q * frozen(lambda: k + e)).sum(-1)).unsqueeze(-1),
    "a head for all": lambda q, k, v, e, b, s: v * s((q * (k + e)).sum(-1))[:, :1].expand(-1, HEADS).unsqueeze(-1),
    "heads exchanged": heads_exchanged,
    "infinite scale": lambda q, k, v, e, b, s: v * s((q * (k + e)).sum(-1) * math.inf).unsqueeze(-1),
    "divided by 0": lambda q, k, v, e, b, s: v * s((q * (k + e)).sum(-1) / 0).unsqueeze(-1),
    "bias of a product": lambda q, k, v, e, b, s: v * s((q * k).sum(-1) * b).unsqueeze(-1),
}


SHAPES = [(NUM_NODES, HEADS, DIM)] * 3 + [(NUM_EDGES, HEADS, DIM), (NUM_EDGES, HEADS)]


def run(function, **options):
    inputs = [randn(*shape, seed=seed).requires_grad_() for seed, shape in enumerate(SHAPES)]
    layer = Attention(function, **options)
    with torch.no_grad():
        without = layer(*inputs, edges())
    halfgnn.pyg.reset_stats()
    out = layer(*inputs, edges())
    assert_same([without], [out])
    return out, *torch.autograd.grad(out, inputs, randn(*out.shape, seed=9), materialize_grads=True, allow_unused=True)


@pytest.mark.parametrize("flow", ["source_to_target", "target_to_source"])
@pytest.mark.parametrize("name", [*FUSED, *UNFUSED])
def test_attention_by_hand(name, flow):
    function = {**FUSED, **UNFUSED}[name]
    expected = run(function, flow=flow)
    operators = {OPERATORS.get(name, "dot_attention")} if name in FUSED else set()
    for fuse in (None, True, False):
        with halfgnn.pyg.accelerate(fuse=fuse):
            assert_same(run(function, flow=flow), expected)
        is_fused = fuse is not False and not (fuse is None and name in NO_FASTER)
        assert {x for x in routed() if x.endswith("attention")} == (operators if is_fused else set())


@pytest.mark.parametrize("is_training", [False, True])
def test_a_softmax_that_is_read(is_training):
    """Its module is not fused again in that mode: what is put off in vain costs more."""
    layer, other = (
        Attention(lambda q, k, v, e, b, s: transformer(q, k, v, e, b, lambda x: keep(s(x)))),
        Attention(transformer),
    )
    weights = []

    def keep(x):
        if layer.training:
            weights.append(x.sum())
        return x

    inputs = [randn(*shape, seed=seed) for seed, shape in enumerate(SHAPES)]
    layer.train(is_training)
    expected = layer(*inputs, edges()), other(*inputs, edges())
    with halfgnn.pyg.accelerate():
        for _ in range(2):
            halfgnn.pyg.reset_stats()
            assert_same([layer(*inputs, edges())], expected[:1])
        assert ("dot_attention" in routed()) != is_training
        assert ("edge_softmax" in routed()) == is_training
        layer.train(not is_training)
        halfgnn.pyg.reset_stats()
        assert_same([layer(*inputs, edges())], expected[:1])
        assert "dot_attention" in routed()  # at a first call in training too
        halfgnn.pyg.reset_stats()
        assert_same([other(*inputs, edges())], expected[1:])
        assert "dot_attention" in routed()


@pytest.mark.parametrize("fuse", [None, True, False])
@pytest.mark.parametrize("name", [*FUSED, *UNFUSED])
def test_nothing_outlives_a_step(name, fuse):
    layer = Attention({**FUSED, **UNFUSED}[name])

    def step():
        inputs = [randn(*shape, seed=seed).requires_grad_() for seed, shape in enumerate(SHAPES)]
        out = layer(*inputs, edge_index)
        if out.requires_grad:
            out.sum().backward()
        return [weakref.ref(x) for x in inputs]

    edge_index = edges()
    gc.disable()  # what waits for a collection takes memory until then
    try:
        with halfgnn.pyg.accelerate(fuse=fuse):
            references = step()
    finally:
        gc.enable()
    assert [x() is None for x in references] == [True] * len(SHAPES)


@pytest.mark.parametrize("aggr", ["mean", "max"])
def test_other_reductions(aggr):
    def build():
        layer = Attention(transformer)
        layer.aggr_module = halfgnn.pyg.SAGEConv(1, 1, aggr=aggr).aggr_module
        return layer

    inputs = [randn(NUM_NODES, HEADS, DIM, seed=seed) for seed in range(3)]
    inputs += [randn(NUM_EDGES, HEADS, DIM, seed=3), randn(NUM_EDGES, HEADS, seed=4)]
    expected = build()(*inputs, edges())
    with halfgnn.pyg.accelerate(fuse=True):
        assert_same([build()(*inputs, edges())], [expected])


@pytest.mark.parametrize("dtype", support.HALVES, ids=str)
def test_half(dtype):
    """Results have PyG's dtype, and are not farther from float64."""
    inputs = [randn(NUM_NODES, HEADS, DIM, seed=seed) for seed in range(3)]
    inputs += [randn(NUM_EDGES, HEADS, DIM, seed=3), randn(NUM_EDGES, HEADS, seed=4)]
    layer = Attention(transformer)
    exact = layer(*inputs, edges())
    halves = [x.to(dtype) for x in inputs]
    theirs = layer(*halves, edges())
    with halfgnn.pyg.accelerate(fuse=True):
        ours = layer(*halves, edges())
    assert ours.dtype is theirs.dtype and "dot_attention" in routed()
    assert (ours - exact).abs().max() <= 1.5 * (theirs - exact).abs().max()


def test_frozen_terms():
    """What needs no gradient in torch_geometric needs none here, whatever its terms need."""
    inputs = [randn(*shape, seed=seed) for seed, shape in enumerate(SHAPES)]
    inputs[3].requires_grad_()
    with halfgnn.pyg.accelerate():
        out = Attention(lambda *args: frozen(lambda: transformer(*args)))(*inputs, edges())
    assert "dot_attention" in routed() and not out.requires_grad


WRITTEN = {
    "bias": lambda q, k, x, b, s: (s((q * (k + x)).sum(-1) + b), b),
    "attention": lambda q, k, x, b, s: (s((F.leaky_relu(q + k) * x[:1]).sum(-1)), x),
    "term": lambda q, k, x, b, s: (s((q * (k + x)).sum(-1)), x),
    "term of GAT": lambda q, k, x, b, s: (s(F.leaky_relu(q[..., 0] + k[..., 0] + b)), b),
}


@pytest.mark.parametrize("name", WRITTEN)
def test_operands_that_are_written_to(name):
    """After the softmax, whose values are not materialized yet."""

    def function(q, k, v, e, b, normalise):
        weights, operand = WRITTEN[name](q, k, e, b, normalise)
        operand.mul_(2)
        return k * weights.unsqueeze(-1)

    with halfgnn.pyg.accelerate(), pytest.raises(RuntimeError, match="modified in place"):
        Attention(function)(*(randn(*shape, seed=seed) for seed, shape in enumerate(SHAPES)), edges())


@pytest.mark.parametrize("name", ["GATv2", "GAT", "terms of keys", "terms of values", "bias"])
def test_operands_that_are_written_to_after_the_call(name):
    """As in x += conv(x, edge_index). The backward reads what they were."""
    leaves = [randn(*shape, seed=seed).requires_grad_() for seed, shape in enumerate(SHAPES)]
    layer = Attention(FUSED[name])

    def run(is_written):
        operands = [2 * x for x in leaves]
        out = layer(*operands, edges())
        for x in operands if is_written else []:
            x.mul_(3)
        return torch.autograd.grad(out.sin().sum(), leaves, allow_unused=True, materialize_grads=True)

    expected = run(False)
    with halfgnn.pyg.accelerate(fuse=True):
        assert_same(run(True), expected)
    assert OPERATORS.get(name, "dot_attention") in routed()


def test_sizes_that_are_equal():
    """An attention per edge, for as many edges as heads; batches of as many graphs as nodes."""
    index, ids = torch.tensor([[0, 1, 2], [1, 1, 0]]), torch.arange(HEADS)
    nodes = [randn(HEADS, HEADS, DIM, seed=seed) for seed in range(3)]

    def of_edges(q, k, v, e, b, normalise):
        return k * normalise((F.leaky_relu(q + k) * e[:, :1]).sum(-1)).unsqueeze(-1)

    class OfBatches(MessagePassing):
        def forward(self, q, k, edge_index):
            return self.propagate(edge_index, q=q, k=k)

        def message(self, q_i, k_j, index, size_i):
            return k_j * softmax(F.leaky_relu(q_i[..., :1] + k_j[..., :1]), index, num_nodes=size_i, dim=-2)

    def run():
        by_edge = Attention(of_edges)(*nodes, nodes[0], nodes[1][..., 0], index)
        return by_edge, OfBatches(aggr="add", node_dim=-2)(*nodes[:2], torch.stack([ids, ids.roll(1)]))

    expected = run()
    with halfgnn.pyg.accelerate():
        assert_same(run(), expected)


@pytest.mark.parametrize("dtype", support.HALVES, ids=str)
def test_weights_in_fp32(dtype):
    """Of halves: torch_geometric does not round what they weight."""
    inputs = [randn(*shape, seed=seed).to(dtype) for seed, shape in enumerate(SHAPES)]
    layer = Attention(lambda q, k, v, e, b, s: v * s(F.leaky_relu(q.float()[..., 0] + k.float()[..., 0])).unsqueeze(-1))
    exact, theirs = layer(*(x.double() for x in inputs), edges()), layer(*inputs, edges())
    with halfgnn.pyg.accelerate():
        ours = layer(*inputs, edges())
    assert ours.dtype is theirs.dtype is torch.float32
    assert_same([ours.double(), theirs.double()], [exact, exact], tolerance=1e-6)


@pytest.mark.parametrize("name", ["GAT", "terms of keys", "read again"])
def test_exp_in_fp32(name, monkeypatch):
    """As autocast takes it on CUDA: weights of half logits are fp32, and what they weight."""
    for module in (_attention, _softmax):
        monkeypatch.setattr(module, "is_exp_wide", lambda x: x.dtype is torch.bfloat16)
    inputs = [randn(*shape, seed=seed).bfloat16().requires_grad_() for seed, shape in enumerate(SHAPES)]
    exact = [x.detach().double().requires_grad_() for x in inputs]
    layer = Attention({**FUSED, **UNFUSED}[name])
    results = []
    for operands in (exact, inputs):
        with halfgnn.pyg.accelerate(), torch.autocast("cpu", torch.bfloat16):
            out = layer(*operands, edges())
        results.append((out, *torch.autograd.grad(out.square().sum(), operands[:3], allow_unused=True)))
    expected, found = results
    assert found[0].dtype is torch.float32
    for a, b in zip(found, expected, strict=True):
        assert (a is None) == (b is None)
        assert a is None or (a.double() - b).norm() <= 0.02 * b.norm()
