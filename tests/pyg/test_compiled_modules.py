"""Modules of halfgnn.pyg under torch.compile, without the drop-in: one graph each, which sorts edges once per edge_index."""

import pytest
import torch
from torch import nn
from torch._dynamo.utils import counters

import halfgnn.pyg as ours
from tests.support_compiled import count_graphs

N, C, D = 30, 8, 4


def mlp(width):
    return nn.Sequential(nn.Linear(width, C), nn.ReLU(), nn.Linear(C, C))


DEGREES = torch.arange(1, 12)
MODULES = {
    "GCN": lambda: ours.GCNConv(C, C),
    "GCN, improved": lambda: ours.GCNConv(C, C, improved=True),
    "GCN, weights": lambda: ours.GCNConv(C, C),
    "GCN, without loops": lambda: ours.GCNConv(C, C, add_self_loops=False),
    "LG": lambda: ours.LGConv(),
    "LG, weights": lambda: ours.LGConv(),
    "GAT": lambda: ours.GATConv(C, D, 2),
    "GAT, edges": lambda: ours.GATConv(C, D, 2, edge_dim=D),
    "GAT, edges, mul": lambda: ours.GATConv(C, D, 2, edge_dim=D, fill_value="mul"),
    "GATv2, edges": lambda: ours.GATv2Conv(C, D, 2, edge_dim=D, fill_value=0.5),
    "Transformer, edges": lambda: ours.TransformerConv(C, D, 2, edge_dim=D),
    "SAGE": lambda: ours.SAGEConv(C, C),
    "SAGE, max": lambda: ours.SAGEConv(C, C, aggr="max"),
    "GIN": lambda: ours.GINConv(mlp(C)),
    "GINE, edges": lambda: ours.GINEConv(mlp(C), edge_dim=D),
    "Graph, weights": lambda: ours.GraphConv(C, C),
    "ResGated, edges": lambda: ours.ResGatedGraphConv(C, C, edge_dim=D),
    "PNA, edges": lambda: ours.PNAConv(C, C, ["mean", "std"], ["identity", "linear"], DEGREES, edge_dim=D),
    "Edge": lambda: ours.EdgeConv(mlp(2 * C)),
}


def inputs(name, num_edges, num_loops, seed=0):
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(N, (2, num_edges), generator=generator)
    ids[0, ids[0] == ids[1]] = (ids[0, ids[0] == ids[1]] + 1) % N
    ids[:, :num_loops] = torch.randint(N, (num_loops,), generator=generator)
    x = torch.randn(N, C, generator=generator)
    if "weights" in name:
        return x, ids, torch.rand(num_edges, generator=generator)
    return (x, ids, torch.randn(num_edges, D, generator=generator)) if "edges" in name else (x, ids)


def step(run, parameters, x, ids, *edge_data):
    leaves = [tensor.detach().requires_grad_() for tensor in (x, *edge_data)]
    out = run(leaves[0], ids, *leaves[1:])
    gradients = torch.autograd.grad(out.square().sum(), [*leaves, *parameters])
    return out.detach(), *gradients


@pytest.mark.parametrize("name", MODULES)
def test_modules_are_one_graph_which_sorts_once(name, monkeypatch):
    conv = MODULES[name]()
    parameters = list(conv.parameters())
    torch.compiler.reset()
    counters.clear()
    run = torch.compile(conv, fullgraph=True, dynamic=True, backend="eager")
    for seed, (num_edges, num_loops) in enumerate([(200, 5), (150, 0), (151, 3)]):
        data = inputs(name, num_edges, num_loops, seed)
        torch.testing.assert_close(step(run, parameters, *data), step(conv, parameters, *data))
        made = [count_graphs(monkeypatch, how) for how in ("from_edge_index", "from_edges")]
        step(run, parameters, *data)
        assert made == [[], []]
    assert counters["stats"]["unique_graphs"] == 1


def test_ends_of_two_sizes():
    """Loops are added at the nodes that both sides have."""
    conv, ids = ours.GATConv((C, C), D, 2, edge_dim=D), torch.stack([torch.arange(60) % N, torch.arange(60) % 20])
    x, e = torch.randn(N, C), torch.randn(60, D)
    torch.compiler.reset()
    run = torch.compile(conv, fullgraph=True, dynamic=True, backend="eager")
    for given in (x, x[:20]), (x, None):
        size = (N, 20)
        torch.testing.assert_close(run(given, ids, e, size=size), conv(given, ids, e, size=size))


def test_edges_that_are_modified_in_place():
    conv, (x, ids) = ours.GCNConv(C, C), inputs("GCN", 200, 5)
    torch.compiler.reset()
    run = torch.compile(conv, dynamic=True, backend="eager")
    run(x, ids)
    ids.copy_(ids.flip(0).roll(3, 1))
    torch.testing.assert_close(run(x, ids), conv(x, ids.clone()))
