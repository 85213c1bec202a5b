"""Networks of layers with edge features, trained under bf16 autocast, learn what torch_geometric's learn in fp32."""

import pytest
import torch
from torch import nn

from halfgnn import pyg
from tests.pyg.support_pyg import theirs

NODES, EDGES, WIDTH, EDGE_DIM, STEPS = 100, 600, 16, 16, 30


def problem():
    """Targets are made of messages that need both ends of an edge and its features."""
    torch.manual_seed(1)
    x, edge_attr = torch.randn(NODES, WIDTH), torch.randn(EDGES, EDGE_DIM)
    edge_index = torch.randint(NODES, (2, EDGES))
    messages = torch.relu(x[edge_index[0]] + edge_attr)
    target = torch.zeros(NODES, WIDTH).index_add(0, edge_index[1], messages) / EDGES**0.25 - x
    return x, edge_index, edge_attr, target


class Network(nn.Module):
    def __init__(self, modules, name):
        super().__init__()
        self.layers = nn.ModuleList(self._layer(modules, name) for _ in range(2))

    @staticmethod
    def _layer(modules, name):
        if name == "GINEConv":
            return modules.GINEConv(
                nn.Sequential(nn.Linear(WIDTH, 32), nn.ReLU(), nn.Linear(32, WIDTH)), edge_dim=EDGE_DIM
            )
        return modules.TransformerConv(WIDTH, WIDTH // 2, heads=2, edge_dim=EDGE_DIM)

    def forward(self, x, edge_index, edge_attr):
        for layer in self.layers:
            x = x + layer(x, edge_index, edge_attr)
        return x


def losses(model, autocast):
    x, edge_index, edge_attr, target = problem()
    optimizer, found = torch.optim.Adam(model.parameters(), lr=1e-2), []
    for _ in range(STEPS):
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            out = model(x, edge_index, edge_attr)
        loss = nn.functional.mse_loss(out.float(), target)
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    return found


@pytest.mark.parametrize("name", ["GINEConv", "TransformerConv"])
def test_training(name):
    torch.manual_seed(2)
    ours, other = Network(pyg, name), Network(theirs, name)
    other.load_state_dict(ours.state_dict())
    half, single = losses(ours, autocast=True), losses(other, autocast=False)
    assert single[-1] < 0.5 * single[0]
    assert half[0] == pytest.approx(single[0], rel=0.01)
    assert half[-1] == pytest.approx(single[-1], rel=0.1)
