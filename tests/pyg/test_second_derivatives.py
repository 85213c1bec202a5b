"""Second derivatives of torch_geometric's layers under halfgnn.pyg.accelerate(): those that torch_geometric has."""

from __future__ import annotations

import pytest
import torch
from torch_geometric import nn
from torch_geometric.utils import softmax

import halfgnn.pyg
from tests.pyg.test_patch_modules import NUM_EDGES, NUM_NODES, WIDTH, edges, randn

EDGE_DIM = 3


class Attention(nn.MessagePassing):
    """Attention that messages write by hand."""

    def __init__(self):
        super().__init__(aggr="add", node_dim=0)
        self.query, self.key = torch.nn.Linear(WIDTH, WIDTH), torch.nn.Linear(WIDTH, WIDTH)

    def forward(self, x, edge_index):
        return self.propagate(edge_index, q=self.query(x), k=self.key(x), v=x)

    def message(self, q_i, k_j, v_j, index, ptr, size_i):
        return softmax((q_i * k_j).sum(-1), index, ptr, size_i).unsqueeze(-1) * v_j


class ReadAttention(Attention):
    """Attention whose weights are read, step by step."""

    def message(self, q_i, k_j, v_j, index, ptr, size_i):
        return softmax((q_i * k_j).sum(-1), index, ptr, size_i).clamp(max=0.9).unsqueeze(-1) * v_j


LAYERS = {
    "GATConv": lambda: nn.GATConv(WIDTH, 4, heads=2, dropout=0.5).eval(),
    "GATConv with edges": lambda: nn.GATConv(WIDTH, 4, heads=2, edge_dim=EDGE_DIM),
    "GATv2Conv": lambda: nn.GATv2Conv(WIDTH, 4, heads=2),
    "GATv2Conv with edges": lambda: nn.GATv2Conv(WIDTH, 4, heads=2, edge_dim=EDGE_DIM),
    "TransformerConv": lambda: nn.TransformerConv(WIDTH, 4, heads=2, dropout=0.5).eval(),
    "TransformerConv with edges": lambda: nn.TransformerConv(WIDTH, 4, heads=2, edge_dim=EDGE_DIM),
    "SAGEConv of max": lambda: nn.SAGEConv(WIDTH, 4, aggr="max"),
    "PNAConv": lambda: nn.PNAConv(WIDTH, 4, ["mean", "max", "std"], ["identity"], torch.tensor([0, 3, 2])),
    "by hand": Attention,
    "by hand, read": ReadAttention,
}


@pytest.mark.parametrize("fuse", [False, True])
@pytest.mark.parametrize("name", LAYERS)
def test_a_gradient_penalty(name, fuse):
    torch.manual_seed(5)
    layer = LAYERS[name]().double()
    attributes = [randn(NUM_EDGES, EDGE_DIM, seed=3)] if "edges" in name else []

    def run():
        inputs = [x.clone().requires_grad_() for x in (randn(NUM_NODES, WIDTH, seed=1), *attributes)]
        out = layer(inputs[0], edges(), *inputs[1:])
        slopes = torch.autograd.grad(out.sin().sum(), inputs, create_graph=True)
        loss = out.square().mean() + sum(slope.square().sum() for slope in slopes)
        leaves = [*inputs, *layer.parameters()]
        return [loss.detach(), *slopes, *torch.autograd.grad(loss, leaves, allow_unused=True, materialize_grads=True)]

    expected = run()
    with halfgnn.pyg.accelerate(fuse=fuse):
        found = run()
    assert sum(halfgnn.pyg.stats()["routed"].values())
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10)


class Rectified(nn.MessagePassing):
    def forward(self, x, edge_index, edge_attr):
        return self.propagate(edge_index, x=x, edge_attr=edge_attr)

    def message(self, x_j, edge_attr):
        return (x_j + edge_attr).relu()


@pytest.mark.parametrize("width", [WIDTH, 1])
@pytest.mark.parametrize(
    "layer", [*map(Rectified, ("sum", "mean", "max", "min")), nn.GINEConv(torch.nn.Identity())], ids=str
)
def test_forces_of_rectified_messages_are_constant(layer, width):
    """PyTorch's second derivative of relu is zeros. It is not None, which autograd.grad takes for an unused input."""

    def run():
        x, e = randn(NUM_NODES, width, seed=1).requires_grad_(), randn(NUM_EDGES, width, seed=2).requires_grad_()
        force, stress = torch.autograd.grad(layer(x, edges(), e).sum(), (x, e), create_graph=True)
        found = torch.autograd.grad(force.square().sum() + stress.sum(), (x, e), retain_graph=True)
        force.square().sum().backward()
        return [force, *found, x.grad, e.grad]

    expected = run()
    with halfgnn.pyg.accelerate():
        found = run()
    assert any("relu_add" in name for name in halfgnn.pyg.stats()["routed"])
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b)
