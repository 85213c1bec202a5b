"""Nodes without in-edges, dropout, and what every torch.nn.Module can do: compiled, copied, wrapped, parametrized."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch

import halfgnn
import halfgnn.nn
from halfgnn.common import degrees
from tests.nn.support_modules import (
    MODULES,
    make_graph,
    make_module,
)
from tests.support_nn import (
    IN_FEATS,
    NUM_NODES,
    assert_close,
    randn,
    seeded,
    with_gradients,
)

# ---- nodes without in-edges --------------------------------------------------------------------


REFUSING = ["GATConv", "GATv2Conv", "DotGatConv", "GraphConv-both-5"]


@pytest.mark.parametrize("name", REFUSING)
def test_nodes_without_in_edges(name):
    g, x = make_graph(loops=False), randn(NUM_NODES, IN_FEATS)
    isolated = g.in_degrees() == 0
    assert isolated.any()
    module = make_module(name)
    for _ in range(2):
        with pytest.raises(ValueError, match="0-in-degree"):
            module(g, x)
    module.set_allow_zero_in_degree(True)
    assert (module(g, x)[isolated] == 0).all() and (module(g, x)[~isolated] != 0).any()


def test_in_degrees_are_looked_at_once(monkeypatch):
    calls = []
    look = degrees._any_empty
    monkeypatch.setattr(degrees, "_any_empty", lambda indptr: calls.append(1) or look(indptr))
    g, x = make_graph(), randn(NUM_NODES, IN_FEATS)
    for name in REFUSING:
        make_module(name)(g, x)
        make_module(name)(g, x)
    assert len(calls) == 1
    make_module("GATConv")(make_graph(), x)
    assert len(calls) == 2


# ---- dropout -----------------------------------------------------------------------------------


def test_attention_dropout():
    """With equal logits and features of ones, the output of a node is the share of in-edges that are kept, times 1 / (1
    - p)."""
    degree, count, p = 50, 200, 0.3
    dst = torch.arange(count).repeat_interleave(degree)
    g = halfgnn.Graph.from_edges(torch.arange(count * degree) % count, dst, num_src=count, num_dst=count)
    conv = halfgnn.nn.GATConv(4, 4, 2, attn_drop=p)
    with torch.no_grad():
        conv.fc.weight.fill_(0.25)
    x = torch.ones(count, 4)
    stays = conv(g, x)[..., 0] * (1 - p) * degree
    torch.testing.assert_close(stays, stays.round(), rtol=0, atol=1e-3)
    share = (stays / degree).mean().item()
    assert abs(share - (1 - p)) < 5 * (p * (1 - p) / (count * degree * 2)) ** 0.5
    assert stays.round().unique().numel() > 10 and not torch.equal(stays[:, 0], stays[:, 1])
    assert torch.equal(seeded(lambda: conv(g, x)), seeded(lambda: conv(g, x)))
    assert not torch.equal(seeded(lambda: conv(g, x)), seeded(lambda: conv(g, x), 2))
    torch.testing.assert_close(conv.eval()(g, x), torch.ones(count, 2, 4))


@pytest.mark.parametrize("name", ["GATConv", "GATv2Conv"])
def test_feature_dropout(name):
    g, x = make_graph(), randn(NUM_NODES, IN_FEATS)
    conv, plain = (seeded(lambda p=p: getattr(halfgnn.nn, name)(IN_FEATS, 5, 3, feat_drop=p)) for p in (0.5, 0.0))
    dropped = seeded(lambda: torch.nn.functional.dropout(x, 0.5))
    assert torch.equal(seeded(lambda: conv(g, x)), plain(g, dropped))
    assert torch.equal(conv.eval()(g, x), plain(g, x))


def test_transformer_dropout():
    g, x = make_graph(), randn(NUM_NODES, IN_FEATS)
    conv, plain = (seeded(lambda p=p: halfgnn.nn.TransformerConv(IN_FEATS, 5, dropout=p)) for p in (0.5, 0.0))
    assert not torch.allclose(conv(g, x), plain(g, x))
    assert torch.equal(conv.eval()(g, x), plain(g, x))


# ---- as modules --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name, dtype, region",
    [
        ("GATConv", torch.bfloat16, None),
        ("GATConv", torch.float32, torch.float16),
        ("GATv2Conv", torch.float32, None),
        ("GraphConv-both-5", torch.float32, torch.float16),
        ("TransformerConv", torch.bfloat16, None),
    ],
)
def test_compiled(name, dtype, region, device):
    torch._dynamo.reset()
    g, x = make_graph().to(device), randn(NUM_NODES, IN_FEATS).to(device, dtype)
    module = make_module(name).to(device, dtype)
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
    # Compiled code may merge several products into one, or round once more. A gradient is a sum of many products.
    tolerance = 1e-6 if dtype == torch.float32 and region is None else 4 * torch.finfo(region or dtype).eps
    for graph in (g, make_graph().to(device)):  # the second has nothing cached
        with torch.autocast(device, region, enabled=region is not None):
            actual = with_gradients(module, lambda x, graph=graph: compiled(graph, x), [x])
            expected = with_gradients(module, lambda x: module(g, x), [x])
        assert [a.dtype for a in actual] == [b.dtype for b in expected]
        assert_close(actual, expected, tolerance)


def test_compiled_code_refuses_nodes_without_in_edges():
    torch._dynamo.reset()
    compiled = torch.compile(make_module("GATConv"), fullgraph=True, backend="aot_eager")
    # torch 2.4 and 2.8 show the line that raised the error, but not its message.
    with pytest.raises(Exception, match=r"0-in-degree|Observed exception(.|\n)*from user code:(.|\n)*checked_graph"):
        compiled(make_graph(loops=False), randn(NUM_NODES, IN_FEATS))


@pytest.mark.parametrize("name", [*MODULES, "TransformerConv"])
def test_copies(name):
    g, x = make_graph(), randn(NUM_NODES, IN_FEATS)
    module = make_module(name)
    out = module(g, x)
    for copied in (copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        assert torch.equal(copied(g, x), out)
    assert ("(" in repr(module) and str(IN_FEATS) in repr(module)) or name.startswith("GIN")


@pytest.mark.parametrize("name", ["GATConv", "GATv2Conv", "DotGatConv", "SAGEConv-mean-5"])
def test_projections_may_be_wrapped(name, always_padded):
    """A projection that does more than a matrix product is called as a module. A plain one gives the same result."""

    class Wrapped(torch.nn.Module):
        def __init__(self, linear):
            super().__init__()
            self.inner = linear

        def forward(self, x):
            return 2 * self.inner(x)

    g, x = make_graph(), randn(NUM_NODES, IN_FEATS)
    attribute = {"GATv2Conv": "fc_src", "SAGEConv-mean-5": "fc_neigh"}.get(name, "fc")
    doubled, wrapped, hooked = make_module(name), make_module(name), make_module(name)
    with torch.no_grad():
        for parameter in getattr(doubled, attribute).parameters():
            parameter.mul_(2)
    setattr(wrapped, attribute, Wrapped(getattr(wrapped, attribute)))
    getattr(hooked, attribute).register_forward_hook(lambda module, inputs, out: 2 * out)
    for module in (wrapped, hooked):
        assert_close([module(g, x)], [doubled(g, x)])


def test_parametrized_projection():
    g, x = make_graph(), randn(NUM_NODES, IN_FEATS)
    conv, plain = make_module("GATConv"), make_module("GATConv")
    torch.nn.utils.parametrizations.weight_norm(conv.fc)
    assert_close([conv(g, x)], [plain(g, x)])


def test_projection_with_a_forward_of_its_own():
    """A forward set on the instance, as wrappers of other libraries do."""
    expected, module = make_module("GATConv"), make_module("GATConv")
    with torch.no_grad():
        expected.fc.weight *= 2
    plain = module.fc.forward
    module.fc.forward = lambda x: 2 * plain(x)
    g, x = make_graph(), randn(NUM_NODES, IN_FEATS)
    assert_close(module(g, x), expected(g, x))


def test_parametrized_weights_are_made_once():
    class Counted(torch.nn.Module):
        calls = 0

        def forward(self, weight):
            self.calls += 1
            return weight * 1

    module, counted = make_module("GATConv"), Counted()
    torch.nn.utils.parametrize.register_parametrization(module.fc, "weight", counted)
    counted.calls = 0
    module(make_graph(), randn(NUM_NODES, IN_FEATS))
    assert counted.calls == 1
