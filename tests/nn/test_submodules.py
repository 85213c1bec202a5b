"""Dropout and LeakyReLU of the attention modules: replaced, hooked, and never skipped."""

from __future__ import annotations

import copy

import pytest
import torch

import halfgnn
import halfgnn.nn
import halfgnn.pyg
from halfgnn import ops, reference
from halfgnn.nn import relation_attention
from tests.support_nn import IN_FEATS, NUM_NODES, assert_close, randn, random_edges, seeded, with_gradients

try:
    import dgl
    import dgl.nn as dglnn
except ImportError:
    dgl = dglnn = None

needs_dgl = pytest.mark.skipif(dgl is None, reason="dgl is not installed")
NAMES = ["GATConv", "GATv2Conv"]


class HalfDropout(torch.nn.Dropout):
    """A subclass, whose own forward must run."""

    def forward(self, x):
        return x * 0.5


class Twice(torch.nn.LeakyReLU):
    def forward(self, x):
        return 2 * super().forward(x)


def hooked(layer):
    layer.register_forward_hook(lambda module, inputs, out: 3 * out)
    return layer


def pre_hooked(layer):
    layer.register_forward_pre_hook(lambda module, inputs: (inputs[0] + 0.5,))
    return layer


def with_own_forward(layer):
    plain = layer.forward
    layer.forward = lambda x: 0.25 * plain(x)
    return layer


# name: (attribute, its replacement, the reason in stats())
CHANGES = {
    "drop-identity": ("attn_drop", torch.nn.Identity, "exchanged submodule"),
    "drop-subclass": ("attn_drop", HalfDropout, "exchanged submodule"),
    "drop-hook": ("attn_drop", lambda: hooked(torch.nn.Dropout(0.0)), "hooked submodule"),
    "drop-forward": ("attn_drop", lambda: with_own_forward(torch.nn.Dropout(0.0)), "hooked submodule"),
    "relu-elu": ("leaky_relu", torch.nn.ELU, "exchanged submodule"),
    "relu-prelu": ("leaky_relu", lambda: torch.nn.PReLU(3, init=0.4), "exchanged submodule"),
    "relu-subclass": ("leaky_relu", Twice, "exchanged submodule"),
    "relu-hook": ("leaky_relu", lambda: hooked(torch.nn.LeakyReLU(0.2)), "hooked submodule"),
    "relu-pre-hook": ("leaky_relu", lambda: pre_hooked(torch.nn.LeakyReLU(0.2)), "hooked submodule"),
    "relu-forward": ("leaky_relu", lambda: with_own_forward(torch.nn.LeakyReLU(0.2)), "hooked submodule"),
}
every_change = pytest.mark.parametrize("change", CHANGES)


def changed(lib, name, change, **options):
    conv = seeded(lambda: getattr(lib, name)(IN_FEATS, 5, 3, **options))
    attribute, make, _ = CHANGES[change]
    setattr(conv, attribute, make())
    return conv


def make_graph():
    return halfgnn.Graph.from_edges(*random_edges(), num_src=NUM_NODES, num_dst=NUM_NODES)


def make_dgl_graph():
    return dgl.graph(random_edges(), num_nodes=NUM_NODES)


# ---- exchanged and hooked --------------------------------------------------------------------------


@needs_dgl
@every_change
@pytest.mark.parametrize("name", NAMES)
def test_as_dgl(name, change):
    g, x = make_dgl_graph(), randn(NUM_NODES, IN_FEATS)
    theirs, ours = (changed(lib, name, change) for lib in (dglnn, halfgnn.nn))
    expected = with_gradients(theirs, lambda x: theirs(g, x), [x])
    assert_close(with_gradients(ours, lambda x: ours(g, x), [x]), expected, 1e-4)
    plain = seeded(lambda: getattr(halfgnn.nn, name)(IN_FEATS, 5, 3))
    if change != "drop-identity":
        assert not torch.allclose(plain(g, x), expected[0], rtol=1e-2, atol=1e-2), "the change shows"
    (out, weights), (their_out, their_weights) = (conv(g, x, get_attention=True) for conv in (ours, theirs))
    assert_close([out, weights], [their_out, their_weights], 1e-4)


@needs_dgl
@every_change
@pytest.mark.parametrize("name", NAMES)
def test_not_fused_under_the_drop_in(name, change):
    import halfgnn.dgl

    g, x = make_dgl_graph(), randn(NUM_NODES, IN_FEATS)
    conv = changed(dglnn, name, change)
    expected = with_gradients(conv, lambda x: conv(g, x), [x])
    halfgnn.dgl.reset_stats()
    with halfgnn.dgl.accelerate(fuse=True):
        assert_close(with_gradients(conv, lambda x: conv(g, x), [x]), expected, 1e-4)
    assert halfgnn.dgl.stats()["fell_back"] == {f"fused:{name}": {CHANGES[change][2]: 1}}


@needs_dgl
@pytest.mark.parametrize("name", NAMES)
def test_what_submodules_are_called_with(name):
    """They are called on tensors of the same shapes as in DGL."""
    g, x = make_dgl_graph(), randn(NUM_NODES, IN_FEATS)
    seen = []
    for lib in (dglnn, halfgnn.nn):
        conv, shapes = seeded(lambda lib=lib: getattr(lib, name)(IN_FEATS, 5, 3)), []
        for layer in (conv.leaky_relu, conv.attn_drop):
            layer.register_forward_hook(lambda module, inputs, out, s=shapes: s.append(inputs[0].shape))
        conv(g, x)
        seen.append(shapes)
    assert seen[0] == seen[1] and len(seen[0]) == 2


@pytest.mark.parametrize("name", NAMES)
def test_parameters_in_half(name):
    """Of an exchanged submodule, beside logits that are fp32: under autocast it has fp32 parameters, in a half module half ones."""
    g, x = make_graph(), randn(NUM_NODES, IN_FEATS)
    conv = changed(halfgnn.nn, name, "relu-prelu")
    expected = conv(g, x)
    with torch.autocast("cpu", torch.bfloat16):
        out = conv(g, x)
    torch.testing.assert_close(out.float(), expected, rtol=0.05, atol=0.05)
    conv = conv.bfloat16()
    out = conv(g, x.bfloat16())
    assert out.dtype == torch.bfloat16
    torch.testing.assert_close(out.float(), expected, rtol=0.05, atol=0.05)
    out.float().square().sum().backward()
    assert conv.leaky_relu.weight.grad.abs().sum() > 0


def test_hooks_on_every_module_do_not_unfuse():
    """Global hooks, as set by profilers. Otherwise they would change what they measure."""
    g, x, conv = make_graph(), randn(NUM_NODES, IN_FEATS), seeded(lambda: halfgnn.nn.GATConv(IN_FEATS, 5, 3))
    calls, fused = [], ops.gat_attention
    handle = torch.nn.modules.module.register_module_forward_hook(lambda module, inputs, out: None)
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(ops, "gat_attention", lambda *a, **k: calls.append(1) or fused(*a, **k))
            conv(g, x)
    finally:
        handle.remove()
    assert calls == [1]


# ---- relations -------------------------------------------------------------------------------------

ETYPES = [("a", "x", "b"), ("b", "y", "a"), ("a", "z", "a"), ("b", "w", "b")]
COUNTS = {"a": 20, "b": 15}


def heterograph():
    graphs = {}
    for source, relation, destination in ETYPES:
        sizes = COUNTS[source], COUNTS[destination]
        graphs[source, relation, destination] = halfgnn.Graph.from_edges(
            *random_edges(*sizes, num_edges=90), num_src=sizes[0], num_dst=sizes[1]
        )
    return halfgnn.HeteroGraph(graphs)


def features():
    return {ntype: randn(count, IN_FEATS, seed=count) for ntype, count in COUNTS.items()}


def convs_of(**options):
    return {etype: seeded(lambda: halfgnn.nn.GATConv(IN_FEATS, 5, 3, **options), i) for i, etype in enumerate(ETYPES)}


def apart(convs, g, feats):
    """The sum over relations of the results of each module alone."""
    out = {}
    for etype, conv in convs.items():
        rst = conv(g[etype], (feats[etype[0]], feats[etype[2]]))
        out[etype[2]] = out[etype[2]] + rst if etype[2] in out else rst
    return [out[ntype] for ntype in COUNTS]


def different_slope(conv):
    conv.leaky_relu.negative_slope = 0.9


def exchanged(conv):
    conv.leaky_relu = torch.nn.ELU()


@pytest.mark.parametrize("last", [False, True], ids=["first", "last"])
@pytest.mark.parametrize(
    "change",
    [
        None,
        different_slope,
        exchanged,
        lambda conv: hooked(conv.attn_drop),
        lambda conv: hooked(conv.feat_drop),
        lambda conv: setattr(conv, "feat_drop", torch.nn.BatchNorm1d(IN_FEATS, affine=False)),
    ],
)
def test_relations_that_differ(change, last, monkeypatch):
    """Modules are one attention only if they differ only in parameters. The sum equals that of modules run one by
    one."""
    monkeypatch.setattr(relation_attention, "_saves_to_project_last", lambda *args: last)
    g, feats, convs = heterograph(), features(), convs_of()
    if change is not None:
        change(convs[ETYPES[2]])
        assert not relation_attention.may_attend_together(convs.values())
    actual = halfgnn.nn.HeteroGraphConv(convs)(g, feats)
    assert_close([actual[ntype] for ntype in COUNTS], apart(convs, g, feats), 1e-4)


def test_relations_of_different_dropout():
    """One module drops every weight, and the others drop none."""
    g, feats, convs = heterograph(), features(), convs_of(bias=False)
    convs[ETYPES[2]].attn_drop.p = 1.0
    actual = halfgnn.nn.HeteroGraphConv(convs)(g, feats)
    assert_close([actual[ntype] for ntype in COUNTS], apart(convs, g, feats), 1e-4)
    rest = {etype: conv for etype, conv in convs.items() if etype != ETYPES[2]}
    assert_close([actual[ntype] for ntype in COUNTS], apart(rest, g, feats), 1e-4)


@pytest.mark.parametrize("last", [False, True], ids=["first", "last"])
@pytest.mark.parametrize("option", ["attn_drop", "feat_drop"])
def test_dropout_of_relations(option, last, monkeypatch):
    """With a probability of 1 nothing is left. In evaluation everything is kept."""
    monkeypatch.setattr(relation_attention, "_saves_to_project_last", lambda *args: last)
    g, feats, convs = heterograph(), features(), convs_of(bias=False, **{option: 1.0})
    assert relation_attention.may_attend_together(convs.values())
    module = halfgnn.nn.HeteroGraphConv(convs)
    assert all((out == 0).all() for out in module(g, feats).values())
    plain = halfgnn.nn.HeteroGraphConv(convs_of(bias=False))
    module.eval()
    assert_close([module(g, feats)[n] for n in COUNTS], [plain(g, feats)[n] for n in COUNTS], 1e-4)


@pytest.mark.parametrize("last", [False, True], ids=["first", "last"])
def test_dropped_weights_of_relations_are_scaled(last, monkeypatch):
    """Each destination has equal weights on features of ones, so weights that stay count twice."""
    monkeypatch.setattr(relation_attention, "_saves_to_project_last", lambda *args: last)
    degree, count = 16, 30
    dst = torch.arange(count).repeat_interleave(degree)
    one = halfgnn.Graph.from_edges(torch.arange(count * degree) % count, dst, num_src=count, num_dst=count)
    g = halfgnn.HeteroGraph({("a", "x", "a"): one, ("a", "y", "a"): one})
    convs = {etype: halfgnn.nn.GATConv(4, 4, 2, attn_drop=0.5, bias=False) for etype in g.canonical_etypes}
    for conv in convs.values():
        torch.nn.init.constant_(conv.fc.weight, 0.25)
    out = halfgnn.nn.HeteroGraphConv(convs, "stack")(g, {"a": torch.ones(count, 4)})["a"]
    stay = out[..., 0] * degree / 2
    torch.testing.assert_close(stay, stay.round(), rtol=0, atol=1e-3)
    assert stay.unique().numel() > 5 and abs(stay.mean().item() / degree - 0.5) < 0.05


# ---- RGAT ------------------------------------------------------------------------------------------


def rgat(dropout=0.0):
    return seeded(lambda: halfgnn.nn.RGAT(IN_FEATS, 8, 3, ETYPES, "a", num_heads=2, norm="none", dropout=dropout))


def test_rgat_drops_after_each_layer():
    """With a probability of 1 the MLP gets zeros. The MLP has its own dropout."""
    g, feats, model = heterograph(), features(), rgat(dropout=1.0)
    model.mlp[3].p = 0.0
    with torch.no_grad():
        expected = model.mlp(torch.zeros(COUNTS["a"], 8))
        torch.testing.assert_close(model(g, feats), expected)
        assert not torch.allclose(model.eval()(g, feats), expected, rtol=1e-3, atol=1e-3)
        torch.testing.assert_close(model(g, feats), rgat()(g, feats))


def test_rgat_drops_in_its_mlp():
    g, feats, model = heterograph(), features(), rgat(dropout=1.0)
    model.dropout.p = 0.0
    bias = model.mlp[4].bias.detach()
    torch.testing.assert_close(model(g, feats).detach(), bias.expand(COUNTS["a"], 3))


@pytest.mark.parametrize("change", [different_slope, exchanged, lambda conv: hooked(conv.attn_drop)])
def test_rgat_of_changed_modules(change):
    """Changed modules run one by one, and the change affects the results."""
    g, feats = heterograph(), features()
    model, plain = rgat(), rgat()
    for layer in model.convs:
        change(layer[str(("a", "z", "a"))])
    together = relation_attention.attend_together
    calls = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(relation_attention, "attend_together", lambda *a: calls.append(1) or together(*a))
        out, before = model(g, feats), plain(g, feats)
    assert len(calls) == len(plain.convs) and not torch.allclose(out, before, rtol=1e-3, atol=1e-3)
    same = copy.deepcopy(plain)
    for layer in same.convs:
        for conv in layer.values():
            conv.attn_drop = torch.nn.Identity()  # one by one, without an effect
    assert_close([same(g, feats)], [before], 1e-4)


# ---- dropout of the separate operators -----------------------------------------------------------


def dropped_call(name, p):
    """A module with attention dropout p and the call that gives (result, weights)."""
    g, x = make_graph(), randn(NUM_NODES, IN_FEATS)
    edge = randn(g.num_edges, 4, seed=8)
    if name in NAMES:
        conv = seeded(lambda: getattr(halfgnn.nn, name)(IN_FEATS, 5, 3, attn_drop=p))
        return conv, g, lambda: conv(g, x, get_attention=True)
    kind, has_edges = name.removesuffix("-edge"), name.endswith("-edge")
    options = {"edge_dim": 4} if has_edges else {}
    edges = (edge,) if has_edges else ()
    if kind == "TransformerConv":
        conv = seeded(lambda: halfgnn.nn.TransformerConv(IN_FEATS, 5, 3, dropout=p, root_weight=False, **options))
        return conv, g, lambda: conv(g, x, *edges, get_attention=True)
    cls = getattr(halfgnn.pyg, kind.removeprefix("pyg."))
    conv = seeded(lambda: cls(IN_FEATS, 5, 3, dropout=p, bias=False, add_self_loops=False, **options))

    def call():
        out, (_, weights) = conv(x, g, *edges, return_attention_weights=True)
        return out, weights.unsqueeze(-1)

    return conv, g, call


AFTER = [*NAMES, "pyg.GATConv", "pyg.GATConv-edge", "pyg.GATv2Conv", "pyg.GATv2Conv-edge"]
BEFORE = ["TransformerConv", "TransformerConv-edge"]  # as torch_geometric, they return weights before dropout


@pytest.mark.parametrize("name", [*AFTER, *BEFORE])
def test_dropout_of_weights(name):
    p = 0.5
    conv, _, call = dropped_call(name, p)
    plain = dropped_call(name, 0.0)[2]()[1]
    assert_close([conv.eval() and call()[1]], [plain])
    conv.train()
    _, weights = call()
    if name in BEFORE:
        assert_close([weights], [plain])
    else:
        stays = weights != 0
        assert_close([weights], [plain / (1 - p) * stays])
        assert 0.3 < stays.float().mean() < 0.7
    assert_close([seeded(call)[0]], [seeded(call)[0]])
    assert not torch.allclose(seeded(call)[0], seeded(call, 2)[0], rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("name", [*AFTER, *BEFORE])
def test_dropping_every_weight(name):
    """Only a bias of zeros is left of the result."""
    _, _, call = dropped_call(name, 1.0)
    assert (call()[0] == 0).all()


def test_dropout_with_edge_weights():
    g, x = make_graph(), randn(NUM_NODES, IN_FEATS)
    conv = seeded(lambda: halfgnn.nn.GATConv(IN_FEATS, 5, 3, attn_drop=1.0))
    assert (conv(g, x, edge_weight=torch.ones(g.num_edges)) == 0).all()
    assert (conv.eval()(g, x, edge_weight=torch.ones(g.num_edges)) != 0).any()


# ---- features --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_dropout_of_both_sides(name):
    """The residual uses the destinations' features after dropout. With a probability of 1 nothing is left."""
    g = halfgnn.Graph.from_edges(*random_edges(30, 7), num_src=30, num_dst=7)
    conv = seeded(lambda: getattr(halfgnn.nn, name)((IN_FEATS, 6), 5, 3, feat_drop=1.0, residual=True))
    feats = randn(30, IN_FEATS), randn(7, 6)
    assert (conv(g, feats) == 0).all() and (conv.eval()(g, feats) != 0).any()


def test_an_identity_residual_is_not_rounded():
    """Under autocast the input is fp32, and so is the added residual."""
    g, x = make_graph(), randn(NUM_NODES, IN_FEATS)
    conv = halfgnn.nn.GATConv(IN_FEATS, 6, 2, residual=True, bias=False)
    torch.nn.init.zeros_(conv.fc.weight)
    with torch.autocast("cpu", torch.bfloat16):
        out = conv(g, x)
    assert torch.equal(out, x.view(NUM_NODES, 2, 6))


def test_shared_weights_of_a_pair():
    """One projection for two sets of features."""
    sizes = 30, 7
    edge_index = torch.stack(random_edges(*sizes))
    conv = seeded(lambda: halfgnn.pyg.GATv2Conv(IN_FEATS, 5, 3, share_weights=True, add_self_loops=False))
    feats = randn(30, IN_FEATS), randn(7, IN_FEATS, seed=4)
    g = halfgnn.Graph.from_edges(*edge_index, num_src=30, num_dst=7)
    left, right = (conv.lin_l(x).view(-1, 3, 5) for x in feats)
    expected = reference.gatv2_attention(g, left, right, conv.att[0], 0.2).flatten(1) + conv.bias
    assert_close([conv(feats, edge_index)], [expected])
