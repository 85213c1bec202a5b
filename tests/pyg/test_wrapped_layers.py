"""Every layer of every module: hooked, pruned, normalised, wrapped, frozen, quantised. It is called as by torch_geometric."""

from __future__ import annotations

import inspect
import warnings

import pytest
import torch
import torch_geometric.nn as upstream
from torch import nn

import halfgnn.nn
import halfgnn.pyg
from tests.pyg.support_pyg import EDGE_DIM, make_edge_index, network
from tests.support_layers import CHANGES, OF_WEIGHTS, assert_near_quantised, check_changes, check_own_parameters
from tests.support_nn import IN_FEATS, NUM_NODES, randn, seeded

pytestmark = pytest.mark.filterwarnings("ignore:.*deprecated.*", "ignore:.*Full backward hook.*")
PRINCIPAL = (["mean", "max", "std"], ["identity", "amplification"], torch.tensor([2, 3, 9, 12, 8, 6]))
ETYPES = [("a", "x", "b"), ("b", "y", "a"), ("a", "z", "a")]


def several(lib, kind, **options):
    return lib.HeteroConv({etype: getattr(lib, kind)(IN_FEATS, 5, **options) for etype in ETYPES})


# name: the module of a library. Those with edge_dim are given features of edges.
MODULES = {
    "GATConv": lambda lib: lib.GATConv(IN_FEATS, 5, 3, residual=True),
    "GATConv-pair": lambda lib: lib.GATConv((IN_FEATS, IN_FEATS), 5, 3, add_self_loops=False),
    "GATConv-edge": lambda lib: lib.GATConv(IN_FEATS, 5, 3, edge_dim=EDGE_DIM),
    "GATv2Conv": lambda lib: lib.GATv2Conv(IN_FEATS, 5, 3, residual=True),
    "GATv2Conv-shared": lambda lib: lib.GATv2Conv(IN_FEATS, 5, 3, share_weights=True),
    "GATv2Conv-edge": lambda lib: lib.GATv2Conv(IN_FEATS, 5, 3, edge_dim=EDGE_DIM, add_self_loops=False),
    "TransformerConv": lambda lib: lib.TransformerConv(IN_FEATS, 5, 3, beta=True),
    "TransformerConv-edge": lambda lib: lib.TransformerConv(IN_FEATS, 5, 3, edge_dim=EDGE_DIM),
    "SAGEConv": lambda lib: lib.SAGEConv(IN_FEATS, 5),
    "SAGEConv-project": lambda lib: lib.SAGEConv(IN_FEATS, 20, aggr="max", project=True),
    "GCNConv": lambda lib: lib.GCNConv(IN_FEATS, 5),
    "GCNConv-no-bias": lambda lib: lib.GCNConv(IN_FEATS, 20, bias=False),
    "GraphConv": lambda lib: lib.GraphConv(IN_FEATS, 5),
    "GINConv": lambda lib: lib.GINConv(network(), train_eps=True),
    "GINEConv-edge": lambda lib: lib.GINEConv(network(), edge_dim=EDGE_DIM),
    "LGConv": lambda lib: lib.LGConv(),
    "ResGatedGraphConv": lambda lib: lib.ResGatedGraphConv(IN_FEATS, 5),
    "ResGatedGraphConv-edge": lambda lib: lib.ResGatedGraphConv(IN_FEATS, 5, edge_dim=EDGE_DIM),
    "PNAConv": lambda lib: lib.PNAConv(IN_FEATS, 6, *PRINCIPAL, towers=2),
    "PNAConv-edge": lambda lib: lib.PNAConv(IN_FEATS, 6, *PRINCIPAL, edge_dim=EDGE_DIM, pre_layers=2, post_layers=2),
    "RGCNConv": lambda lib: lib.RGCNConv(IN_FEATS, 5, 3, num_bases=2),
    "HeteroConv-GAT": lambda lib: several(lib, "GATConv", add_self_loops=False),
    "HeteroConv-SAGE": lambda lib: several(lib, "SAGEConv"),
    "HeteroLinear": lambda lib: lib.HeteroLinear(IN_FEATS, 5, 3),
}
OTHERS = {"CFConv", "EdgeConv", "PadToBuckets", "ToGraph"}
FUSED = [name for name in MODULES if name.startswith(("GAT", "Transformer"))]


def test_all_modules_are_here():
    classes = {name for name in halfgnn.pyg.__all__ if inspect.isclass(getattr(halfgnn.pyg, name))}
    assert classes - OTHERS == {name.partition("-")[0] for name in MODULES}


def inputs_of(name, edge_index, dtype=torch.float64):
    if name.startswith("HeteroConv"):
        return [randn(NUM_NODES, IN_FEATS, dtype=dtype, seed=i) for i in range(2)]
    edges = [randn(edge_index.shape[1], EDGE_DIM, dtype=dtype, seed=9)] if name.endswith("-edge") else []
    return [randn(NUM_NODES, IN_FEATS, dtype=dtype), *edges]


def caller(name, edge_index):
    def call(module, x, *edges):
        if name == "RGCNConv":
            return module(x, edge_index, torch.arange(edge_index.shape[1]) % 3)
        if name == "HeteroLinear":
            return module(x, torch.arange(NUM_NODES) % 3)
        return module((x, x.cos()) if "pair" in name else x, edge_index, *edges)

    def call_on_types(module, a, b):
        return tuple(module({"a": a, "b": b}, dict.fromkeys(ETYPES, edge_index)).values())

    return call_on_types if name.startswith("HeteroConv") else call


def routed(call):
    def run(*args):
        with halfgnn.pyg.drop_in.table._switch.accelerate(
            is_again=True, fuse=True
        ):  # quickly: it is on and off four times per test
            return call(*args)

    return run


def maker(lib, name, dtype=torch.float64):
    return lambda: seeded(lambda: MODULES[name](lib)).to(dtype)


@pytest.mark.parametrize("how", CHANGES)
@pytest.mark.parametrize("name", MODULES)
def test_changed_layers(name, how):
    edge_index = make_edge_index()
    call = caller(name, edge_index)
    check_changes(maker(upstream, name), maker(halfgnn.pyg, name), how, call, call, inputs_of(name, edge_index))


@pytest.mark.parametrize("how", CHANGES)
@pytest.mark.parametrize("name", FUSED)
def test_changed_layers_under_the_drop_in(name, how):
    edge_index = make_edge_index()
    call = caller(name, edge_index)
    check_changes(*[maker(upstream, name)] * 2, how, call, routed(call), inputs_of(name, edge_index))


@pytest.mark.parametrize("how", CHANGES)
@pytest.mark.parametrize("name", ["TransformerConv", "TransformerConv-edge"])
def test_changed_layers_of_the_transformer_of_nn(name, how):
    edge_index = make_edge_index()
    graph = halfgnn.Graph.from_edge_index(edge_index, num_nodes=NUM_NODES)

    def call(module, x, *edges):
        return module(graph, x, *edges)

    def make_theirs():
        """Without what halfgnn.nn's has not: a module of its own for the aggregation."""
        module = maker(upstream, name)()
        del module._modules["aggr_module"]
        module.aggr_module = _sum
        return module

    makers = make_theirs, maker(halfgnn.nn, name)
    check_changes(*makers, how, caller(name, edge_index), call, inputs_of(name, edge_index))


def _sum(inputs, index, ptr=None, dim_size=None, dim=-2):
    return upstream.SumAggregation()(inputs, index, ptr, dim_size, dim)


@pytest.mark.parametrize("how", OF_WEIGHTS)
@pytest.mark.parametrize("name", MODULES)
def test_changed_parameters(name, how):
    edge_index = make_edge_index()
    call = caller(name, edge_index)
    check_own_parameters(maker(upstream, name), maker(halfgnn.pyg, name), how, call, call, inputs_of(name, edge_index))


@pytest.mark.parametrize("how", OF_WEIGHTS)
@pytest.mark.parametrize("name", FUSED)
def test_changed_parameters_under_the_drop_in(name, how):
    edge_index = make_edge_index()
    call = caller(name, edge_index)
    check_own_parameters(*[maker(upstream, name)] * 2, how, call, routed(call), inputs_of(name, edge_index))


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("name", MODULES)
def test_quantised_layers(name, autocast):
    edge_index, results = make_edge_index(), []
    for lib in (upstream, halfgnn.pyg):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            module = torch.ao.quantization.quantize_dynamic(maker(lib, name, torch.float32)().eval(), {nn.Linear})
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast and lib is halfgnn.pyg):
            results.append(caller(name, edge_index)(module, *inputs_of(name, edge_index, torch.float32)))
    assert_near_quantised(*results[::-1])
