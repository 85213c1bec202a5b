"""Every layer of every module: hooked, pruned, normalised, wrapped, frozen, quantised. A module calls it as DGL's does."""

from __future__ import annotations

import inspect
import warnings

import pytest
import torch
from torch import nn

import halfgnn
import halfgnn.nn
from halfgnn.nn import relation_attention
from tests import support_layers
from tests.nn.support_modules import dglnn, make_dgl_graph, make_graph, needs_dgl
from tests.support_layers import (
    CHANGES,
    OF_WEIGHTS,
    assert_near_quantised,
    change,
    check_changes,
    check_own_parameters,
    layers_of,
    only_called,
)
from tests.support_nn import IN_FEATS, NUM_EDGES, NUM_NODES, randn, seeded

pytestmark = pytest.mark.filterwarnings("ignore:.*deprecated.*", "ignore:.*quantized engine.*")
EDGE_FEATS = 6
PRINCIPAL = (["mean", "max", "std"], ["identity", "amplification"], 1.7)


def mlp():
    return nn.Sequential(nn.Linear(IN_FEATS, 8), nn.ReLU(), nn.Linear(8, 5))


# name: (module of a library, the widths of its features of edges)
MODULES = {
    "GATConv": (lambda lib: lib.GATConv(IN_FEATS, 5, 3, residual=True), ()),
    "GATConv-pair": (lambda lib: lib.GATConv((IN_FEATS, IN_FEATS), 5, 3), ()),
    "GATv2Conv": (lambda lib: lib.GATv2Conv(IN_FEATS, 5, 3, residual=True), ()),
    "GATv2Conv-shared": (lambda lib: lib.GATv2Conv(IN_FEATS, 5, 3, share_weights=True), ()),
    "DotGatConv": (lambda lib: lib.DotGatConv(IN_FEATS, 5, 3), ()),
    "EdgeGATConv": (lambda lib: lib.EdgeGATConv(IN_FEATS, EDGE_FEATS, 5, 3), (EDGE_FEATS,)),
    "EGATConv": (lambda lib: lib.EGATConv(IN_FEATS, EDGE_FEATS, 5, 4, 3), (EDGE_FEATS,)),
    "GraphConv": (lambda lib: lib.GraphConv(IN_FEATS, 5), ()),
    "SAGEConv-mean": (lambda lib: lib.SAGEConv(IN_FEATS, 5, "mean"), ()),
    "SAGEConv-gcn": (lambda lib: lib.SAGEConv(IN_FEATS, 5, "gcn"), ()),
    "SAGEConv-pool": (lambda lib: lib.SAGEConv(IN_FEATS, 20, "pool"), ()),
    "SAGEConv-lstm": (lambda lib: lib.SAGEConv(IN_FEATS, 5, "lstm"), ()),
    "GINConv": (lambda lib: lib.GINConv(mlp(), "sum", learn_eps=True), ()),
    "GINConv-linear": (lambda lib: lib.GINConv(nn.Linear(IN_FEATS, 5), "max"), ()),
    "GINEConv": (lambda lib: lib.GINEConv(mlp()), (IN_FEATS,)),
    "PNAConv": (lambda lib: lib.PNAConv(IN_FEATS, IN_FEATS, *PRINCIPAL, num_towers=2), ()),
    "PNAConv-edge": (lambda lib: lib.PNAConv(IN_FEATS, 5, *PRINCIPAL, edge_feat_size=EDGE_FEATS), (EDGE_FEATS,)),
}
ETYPES = [("a", "x", "b"), ("b", "y", "a"), ("a", "z", "a")]
# Modules without a counterpart in DGL. TransformerConv is among those of torch_geometric.
OWN = {
    "GatedGCNConv": (lambda lib: lib.GatedGCNConv(IN_FEATS, EDGE_FEATS, 5), (EDGE_FEATS,)),
    "RGAT": (lambda lib: lib.RGAT(IN_FEATS, 6, 3, ETYPES, "a", num_heads=2, dropout=0.0), None),
    "HeteroGraphConv": (lambda lib: lib.HeteroGraphConv({e: lib.GATConv(IN_FEATS, 5, 2) for e in ETYPES}), None),
}
WITHOUT_LAYERS = {"EdgeNetwork", "EdgeWeightNorm", "TransformerConv"}
FUSED = ["GATConv", "GATConv-pair", "GATv2Conv", "GATv2Conv-shared", "DotGatConv"]


def test_all_modules_are_here():
    classes = {name for name in halfgnn.nn.__all__ if inspect.isclass(getattr(halfgnn.nn, name))}
    assert classes - WITHOUT_LAYERS == {name.partition("-")[0] for name in (*MODULES, *OWN)}


def inputs_of(name, dtype=torch.float64):
    _, widths = MODULES.get(name) or OWN[name]
    if widths is None:
        return [randn(NUM_NODES, IN_FEATS, dtype=dtype, seed=i) for i in range(2)]
    num_edges = NUM_EDGES + NUM_NODES
    return [
        randn(NUM_NODES, IN_FEATS, dtype=dtype),
        *(randn(num_edges, width, dtype=dtype, seed=9) for width in widths),
    ]


def caller(name, graph):
    def call(module, x, *edges):
        return module(graph, (x, x) if "pair" in name else x, *edges)

    def call_on_types(module, a, b):
        out = module(heterograph(), {"a": a, "b": b})
        return tuple(out.values()) if isinstance(out, dict) else out

    return call_on_types if (MODULES.get(name) or OWN[name])[1] is None else call


def heterograph():
    one = make_graph()
    return halfgnn.HeteroGraph({etype: one for etype in ETYPES})


def maker(lib, name, dtype=torch.float64):
    make, _ = MODULES.get(name) or OWN[name]
    return lambda: seeded(lambda: make(lib)).to(dtype)


@needs_dgl
@pytest.mark.parametrize("how", CHANGES)
@pytest.mark.parametrize("name", MODULES)
def test_changed_layers(name, how):
    graph = make_dgl_graph()
    theirs, ours = maker(dglnn, name), maker(halfgnn.nn, name)
    check_changes(theirs, ours, how, *[caller(name, graph)] * 2, inputs_of(name))


@needs_dgl
@pytest.mark.parametrize("how", CHANGES)
@pytest.mark.parametrize("name", FUSED)
def test_changed_layers_under_the_drop_in(name, how):
    import halfgnn.dgl

    call = caller(name, make_dgl_graph())

    def routed(*args):
        with halfgnn.dgl.accelerate(fuse=True):
            return call(*args)

    check_changes(*[maker(dglnn, name)] * 2, how, call, routed, inputs_of(name))


@pytest.mark.parametrize("gather", [16, -1], ids=["first", "last"])
@pytest.mark.parametrize("how", CHANGES)
@pytest.mark.parametrize("name", OWN)
def test_changed_layers_of_own_modules(name, how, gather, monkeypatch):
    """Beside the module whose layers can only be called. gather: relations project their sources or, below 0, their sums."""
    monkeypatch.setitem(relation_attention._GATHER, "cpu", gather)
    call = caller(name, make_graph())
    for layer in layers_of(maker(halfgnn.nn, name)(), how):
        ours, reference = (maker(halfgnn.nn, name)() for _ in range(2))
        for module in (ours, reference):
            change(module, layer, how)
        only_called(reference)
        support_layers.check_steps(reference, ours, call, call, inputs_of(name), f"{how} of {layer}")


@needs_dgl
@pytest.mark.parametrize("how", OF_WEIGHTS)
@pytest.mark.parametrize("name", MODULES)
def test_changed_parameters(name, how):
    call = caller(name, make_dgl_graph())
    check_own_parameters(maker(dglnn, name), maker(halfgnn.nn, name), how, call, call, inputs_of(name))


@needs_dgl
@pytest.mark.parametrize("how", OF_WEIGHTS)
@pytest.mark.parametrize("name", FUSED)
def test_changed_parameters_under_the_drop_in(name, how):
    import halfgnn.dgl

    call = caller(name, make_dgl_graph())

    def routed(*args):
        with halfgnn.dgl.accelerate(fuse=True):
            return call(*args)

    check_own_parameters(*[maker(dglnn, name)] * 2, how, call, routed, inputs_of(name))


def quantised(module):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.ao.quantization.quantize_dynamic(module, {nn.Linear, nn.LSTM}, dtype=torch.qint8)


@needs_dgl
@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("name", MODULES)
def test_quantised_layers(name, autocast):
    graph, inputs = make_dgl_graph(), inputs_of(name, torch.float32)
    theirs, ours = (quantised(maker(lib, name, torch.float32)().eval()) for lib in (dglnn, halfgnn.nn))
    expected = caller(name, graph)(theirs, *inputs)
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        actual = caller(name, graph)(ours, *inputs)
    assert_near_quantised(actual, expected)
