"""Layers whose aggregate() calls torch_scatter, by halfgnn.compat: their messages are reduced without being materialized.

The layer is as GraphGPS's GatedGCNLayer (rampasek/GraphGPS at 28015707, torch_scatter 2.1.2), with torch_geometric 2.8.1.
"""

from __future__ import annotations

import pytest
import torch
from torch_geometric.nn import MessagePassing

import halfgnn.pyg
from halfgnn.compat import torch_scatter
from tests.pyg.support_pyg import make_edge_index
from tests.support_nn import NUM_NODES, randn


class Gated(MessagePassing):
    def __init__(self, reduce, dim, by_out):
        super().__init__(node_dim=dim)
        self.reduce, self.by_out = reduce, by_out

    def forward(self, x, edge_index, e):
        return self.propagate(edge_index, x=x, e=e)

    def message(self, x_i, x_j, e):
        return torch.sigmoid(x_i + x_j + e)

    def aggregate(self, inputs, index, x_j, x):
        out = torch.zeros_like(x) if self.by_out else None
        num_rows = None if self.by_out else x.shape[self.node_dim]
        return torch_scatter.scatter(inputs * x_j, index, self.node_dim, out, num_rows, self.reduce)


def outcome(layer, *inputs):
    leaves = [x.clone().requires_grad_() if x.is_floating_point() else x for x in inputs]
    out = layer(*leaves)
    out.backward(torch.linspace(-1, 1, out.numel()).view(out.shape).to(out.dtype))
    return [out.detach(), *(x.grad for x in leaves if x.grad is not None)]


@pytest.mark.parametrize("by_out", [False, True], ids=["new", "out"])
@pytest.mark.parametrize("dim", [0, -2])
@pytest.mark.parametrize("reduce", ["sum", "mean"])
def test_messages_are_reduced_along_their_edges(reduce, dim, by_out):
    shape = (8,) if dim == 0 else (1, 8)
    edge_index = make_edge_index()
    x, e = (randn(n, *shape).movedim(0, dim).contiguous() for n in (NUM_NODES, edge_index.shape[1]))
    layer = Gated(reduce, dim, by_out and reduce == "sum")
    expected = outcome(layer, x, edge_index, e)
    with halfgnn.pyg.accelerate():
        actual = outcome(layer, x, edge_index, e)
        found = halfgnn.pyg.stats()
    torch.testing.assert_close(actual, expected)
    assert found["routed"][f"gspmm:u_mul_e_{reduce}"] == 1
    assert "message:u_mul_e" not in found["fell_back"]


class Read(MessagePassing):
    def __init__(self, reduce, by_other_index):
        super().__init__()
        self.reduce, self.by_other_index = reduce, by_other_index

    def forward(self, x, edge_index):
        return self.propagate(edge_index, x=x)

    def message(self, x_j):
        return x_j * 2

    def aggregate(self, inputs, index):
        groups = index.flip(0) if self.by_other_index else index
        return torch_scatter.scatter(inputs, groups, 0, None, NUM_NODES, self.reduce)


@pytest.mark.parametrize(("reduce", "by_other_index"), [("max", False), ("sum", True)])
def test_maxima_and_other_indices_read_the_values(reduce, by_other_index):
    x, edge_index, layer = randn(NUM_NODES, 8), make_edge_index(), Read(reduce, by_other_index)
    expected = outcome(layer, x, edge_index)
    with halfgnn.pyg.accelerate():
        torch.testing.assert_close(outcome(layer, x, edge_index), expected)
        assert any(name.startswith("message:") for name in halfgnn.pyg.stats()["fell_back"])
