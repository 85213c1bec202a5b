"""torch.export and torch.jit.script of the modules, and of torch_geometric's own under the drop-in."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.export import Dim

pytest.importorskip("torch_geometric")

import torch_geometric.nn as theirs

import halfgnn.pyg
from halfgnn.pyg import _worth

NODES, EDGES, WIDTH = 30, 120, 8
MLP = lambda inputs: nn.Sequential(nn.Linear(inputs, 6), nn.ReLU(), nn.Linear(6, 6))  # noqa: E731
DEGREES = torch.ones(5, dtype=torch.long)

# (the module of a package, its arguments behind x and edge_index)
MODULES = {
    "GCNConv": (lambda k: k.GCNConv(WIDTH, 6), ["weight"]),
    "GATConv": (lambda k: k.GATConv(WIDTH, 6, heads=2, edge_dim=5), ["features"]),
    "GATv2Conv": (lambda k: k.GATv2Conv(WIDTH, 6, heads=2), []),
    "TransformerConv": (lambda k: k.TransformerConv(WIDTH, 6, heads=2, edge_dim=5), ["features"]),
    "SAGEConv": (lambda k: k.SAGEConv(WIDTH, 6), []),
    "GINEConv": (lambda k: k.GINEConv(nn.Linear(WIDTH, 6), edge_dim=5), ["features"]),
    "LGConv": (lambda k: k.LGConv(), []),
    "PNAConv": (lambda k: k.PNAConv(WIDTH, 6, ["mean", "max"], ["identity"], DEGREES), []),
    "EdgeConv": (lambda k: k.EdgeConv(MLP(2 * WIDTH)), []),
}
SCRIPTED = ["GCNConv", "SAGEConv", "GINEConv", "LGConv", "EdgeConv"]  # those of torch_geometric that compile


def inputs(names, num_nodes, num_edges):
    draw = torch.Generator().manual_seed(num_nodes)
    edges = {"weight": (num_edges,), "features": (num_edges, 5)}
    return (
        torch.randn(num_nodes, WIDTH, generator=draw),
        torch.randint(num_nodes, (2, num_edges), generator=draw),
        *(torch.rand(edges[name], generator=draw) for name in names),
    )


def exported(module, names, strict=False):
    """The program of a module, for any numbers of nodes and edges."""
    shapes = {0: Dim("nodes", min=2, max=2**20)}, {1: Dim("edges", min=2, max=2**20)}
    shapes = (*shapes, *[{0: shapes[1][1]}] * len(names))
    with torch.no_grad():
        program = torch.export.export(module, inputs(names, NODES, EDGES), dynamic_shapes=tuple(shapes), strict=strict)
    return program


def check(program, module, names):
    for size in ((NODES, EDGES), (NODES + 3, EDGES + 7)):
        args = inputs(names, *size)
        torch.testing.assert_close(program.module()(*args), module(*args))


@pytest.mark.parametrize("name", MODULES)
def test_modules_export(name):
    make, names = MODULES[name]
    module = make(halfgnn.pyg).eval()
    program = exported(module, names)
    assert "halfgnn." in program.graph_module.code and "halfgnn_pyg" not in program.graph_module.code  # without Python
    check(program, module, names)


@pytest.mark.parametrize("name", ["GCNConv", "GATConv"])
def test_modules_export_strictly(name):
    make, names = MODULES[name]
    module = make(halfgnn.pyg).eval()
    check(exported(module, names, strict=True), module, names)


@pytest.mark.parametrize("name", ["GCNConv", "GATv2Conv", "TransformerConv"])
def test_unmodified_modules_export_under_the_drop_in(name, monkeypatch):
    monkeypatch.setattr(_worth, "LIMITS", {})
    make, names = MODULES[name]
    module = make(theirs).eval()
    with halfgnn.pyg.accelerate(fuse=True):
        program = exported(module, names)
    check(program, module, names)


def test_an_exported_program_refuses_ids_out_of_range():
    module = halfgnn.pyg.SAGEConv(WIDTH, 6).eval()
    program = exported(module, []).module()
    x, edge_index = inputs([], NODES, EDGES)
    for row, wrong in ((0, NODES), (1, NODES), (0, -1), (1, -1)):
        bad = edge_index.clone()
        bad[row, 3] = wrong
        with pytest.raises(RuntimeError, match="edge_index holds an id that is no row of x"):
            program(x, bad)


@pytest.mark.parametrize("patched", [False, True])
@pytest.mark.parametrize("name", SCRIPTED)
def test_modules_script_where_torch_geometrics_do(name, patched):
    make, names = MODULES[name]
    module, args = make(theirs if patched else halfgnn.pyg).eval(), inputs(names, NODES, EDGES)
    expected = module(*args)
    if patched:
        with halfgnn.pyg.accelerate(fuse=True):
            script = torch.jit.script(module)
    else:
        script = torch.jit.script(module)
    torch.testing.assert_close(script(*args), expected)
    torch.testing.assert_close(module(*args), expected)  # the module itself is what it was
