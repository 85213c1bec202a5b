"""EdgeConv and CFConv: torch_geometric's modules on edge_network, beside the originals."""

from __future__ import annotations

import pytest
import torch
from torch import nn

pytest.importorskip("torch_geometric")

import torch_geometric.nn as pyg
from torch_geometric.nn.models import schnet

import halfgnn.pyg
from tests.support_nn import assert_near

NODES, EDGES, WIDTH = 60, 400, 8


def network(inputs, outputs=6, activation=nn.ReLU):
    return nn.Sequential(nn.Linear(inputs, 12), activation(), nn.Linear(12, outputs))


@pytest.fixture
def edge_index():
    return torch.randint(0, NODES, (2, EDGES), generator=torch.Generator().manual_seed(2))


def results_of(module, inputs, edge_index, dtype):
    """The output and the gradients of inputs and parameters."""
    module = module.to(dtype)
    leaves = [x.detach().to(dtype).requires_grad_() for x in inputs]
    out = module(leaves[0], edge_index, *leaves[1:])
    torch.manual_seed(3)
    upstream = torch.randn(out.shape).to(out)
    return [out.detach(), *torch.autograd.grad(out, [*leaves, *module.parameters()], upstream)]


def compare(make, inputs, edge_index, dtype):
    """make(classes): the module, of torch_geometric or of halfgnn.pyg."""
    original, ours = make(False), make(True)
    ours.load_state_dict(original.state_dict())
    halfgnn.pyg.reset_stats()
    actual = results_of(ours, inputs, edge_index, dtype)
    assert not halfgnn.pyg.stats()["fell_back"]
    formula = results_of(make_copy(make, original), inputs, edge_index, dtype)
    truth = results_of(make_copy(make, original), inputs, edge_index, torch.float64)
    if dtype == torch.float32:
        for a, b in zip(actual, truth):
            torch.testing.assert_close(a.double(), b, rtol=1e-4, atol=1e-4 * max(1, b.abs().max().item()))
    else:
        assert_near(actual, truth, formula, dtype, most=None)


def make_copy(make, original):
    copy = make(False)
    copy.load_state_dict(original.state_dict())
    return copy


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("aggr", ["max", "add", "mean"])
def test_edge_conv(aggr, dtype, edge_index):
    make = lambda ours: (halfgnn.pyg.EdgeConv if ours else pyg.EdgeConv)(network(2 * WIDTH), aggr=aggr)  # noqa: E731
    compare(make, [torch.randn(NODES, WIDTH)], edge_index, dtype)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_neighbours_that_are_near(dtype, edge_index):
    """Projections of both ends cancel: they are made in fp32."""
    make = lambda ours: (halfgnn.pyg.EdgeConv if ours else pyg.EdgeConv)(network(2 * WIDTH), aggr="max")  # noqa: E731
    compare(make, [50 + torch.randn(NODES, WIDTH)], edge_index, dtype)


def test_wrong_arguments(edge_index):
    conv = halfgnn.pyg.EdgeConv(network(2 * WIDTH))
    with pytest.raises(ValueError, match=r"x has shape \(60, 3\); expected \(60, 8\)"):
        conv(torch.randn(NODES, 3), edge_index)
    with pytest.raises(TypeError, match=r"x has dtype torch\.float16"):
        conv(torch.randn(NODES, WIDTH).half(), edge_index)
    filters = halfgnn.pyg.CFConv(WIDTH, 5, 10, network(7, 10), cutoff=4.0)
    x, distances, attr = torch.randn(NODES, WIDTH), torch.rand(EDGES), torch.randn(EDGES, 7)
    with pytest.raises(ValueError, match="edge_weight has shape"):
        filters(x, edge_index, distances[:3], attr)
    with pytest.raises(ValueError, match=r"edge_attr has shape \(400, 3\); expected \(400, 7\)"):
        filters(x, edge_index, distances, attr[:, :3])


def test_filters_that_broadcast_are_torch_geometrics(edge_index):
    conv = halfgnn.pyg.CFConv(WIDTH, 5, 10, network(7, 1), cutoff=4.0)
    halfgnn.pyg.reset_stats()
    conv(torch.randn(NODES, WIDTH), edge_index, torch.rand(EDGES, 1), torch.randn(EDGES, 7))
    assert halfgnn.pyg.stats()["fell_back"] == {"forward:CFConv": {"network": 1}}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("activation", [schnet.ShiftedSoftplus, nn.SiLU])
def test_cf_conv(activation, dtype, edge_index):
    kinds = {False: schnet.CFConv, True: halfgnn.pyg.CFConv}
    make = lambda ours: kinds[ours](WIDTH, 5, 10, network(7, 10, activation), cutoff=4.0)  # noqa: E731
    inputs = [torch.randn(NODES, WIDTH), 4 * torch.rand(EDGES), torch.randn(EDGES, 7)]
    compare(make, inputs, edge_index, dtype)


def test_other_networks_are_torch_geometrics(edge_index):
    net = nn.Sequential(nn.Linear(2 * WIDTH, 12), nn.BatchNorm1d(12), nn.ReLU(), nn.Linear(12, 6))
    conv, x = halfgnn.pyg.EdgeConv(net), torch.randn(NODES, WIDTH)
    halfgnn.pyg.reset_stats()
    conv(x, edge_index)
    assert halfgnn.pyg.stats()["fell_back"] == {"forward:EdgeConv": {"network": 1}}


def test_hooks_run(edge_index):
    """Of the network and of its layers, in torch_geometric's forward."""
    for pick in (lambda net: net, lambda net: net[0]):
        conv, calls = halfgnn.pyg.EdgeConv(network(2 * WIDTH)), []
        pick(conv.nn).register_forward_hook(lambda *_, c=calls: c.append(1))
        conv(torch.randn(NODES, WIDTH), edge_index)
        assert calls


def test_other_filters_are_torch_geometrics(edge_index):
    conv = halfgnn.pyg.CFConv(WIDTH, 5, 10, nn.Sequential(nn.Linear(7, 10), nn.Sigmoid()), cutoff=4.0)
    halfgnn.pyg.reset_stats()
    conv(torch.randn(NODES, WIDTH), edge_index, torch.rand(EDGES), torch.randn(EDGES, 7))
    assert halfgnn.pyg.stats()["fell_back"] == {"forward:CFConv": {"network": 1}}


def test_pairs_and_graphs(edge_index):
    conv = halfgnn.pyg.EdgeConv(network(2 * WIDTH))
    original = make_copy(lambda _: pyg.EdgeConv(network(2 * WIDTH)), conv)
    pair = torch.randn(NODES, WIDTH), torch.randn(NODES, WIDTH)
    g = halfgnn.pyg.graph_of(edge_index, NODES, NODES)
    for given in (edge_index, g):
        torch.testing.assert_close(conv(pair, given), original(pair, edge_index))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_drop_in_fuses_if_asked(dtype, edge_index):
    """The modules of torch_geometric compute under fuse=True what they compute without, and keep nothing per edge."""
    torch.manual_seed(0)
    edge_conv, x = pyg.EdgeConv(network(2 * WIDTH), aggr="mean"), torch.randn(NODES, WIDTH)
    filters, distance = schnet.CFConv(WIDTH, 5, 10, network(7, 10), cutoff=4.0), torch.rand(EDGES)
    calls = [(edge_conv, [x]), (filters, [x, distance, torch.randn(EDGES, 7)])]
    for module, inputs in calls:
        formula = results_of(module, inputs, edge_index, dtype)
        truth = results_of(module, inputs, edge_index, torch.float64)
        with halfgnn.pyg.accelerate(fuse=True):
            actual = results_of(module, inputs, edge_index, dtype)
        assert_near(actual, truth, formula, dtype, most=None)
    assert halfgnn.pyg.stats()["routed"] == {"fused:EdgeConv": 1, "fused:CFConv": 1}
    assert not halfgnn.pyg.stats()["fell_back"]


def test_drop_in_fuses_nothing_else(edge_index):
    conv, x = pyg.EdgeConv(network(2 * WIDTH)), torch.randn(NODES, WIDTH)
    with halfgnn.pyg.accelerate():
        conv(x, edge_index)
    assert "fused:EdgeConv" not in halfgnn.pyg.stats()["routed"]
    refused = {
        "network": (pyg.EdgeConv(nn.Sequential(nn.Linear(2 * WIDTH, 6), nn.Dropout(0.0))), edge_index),
        "aggregation": (pyg.EdgeConv(network(2 * WIDTH), aggr="min"), edge_index),
        "no edges": (conv, edge_index[:, :0]),
    }
    for reason, (module, edges) in refused.items():
        expected = module(x, edges)
        halfgnn.pyg.reset_stats()
        with halfgnn.pyg.accelerate(fuse=True):
            torch.testing.assert_close(module(x, edges), expected)
        assert halfgnn.pyg.stats()["fell_back"]["fused:EdgeConv"] == {reason: 1}
    with halfgnn.pyg.accelerate(fuse=True), pytest.raises(RuntimeError, match="mat1 and mat2"):
        conv(x[:, 1:], edge_index)  # torch_geometric's error
