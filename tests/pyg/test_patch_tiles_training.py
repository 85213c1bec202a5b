"""Training in tiles, halfgnn.pyg.accelerate(tile=...), as programs do it: in several processes, and in half precision."""

from __future__ import annotations

import copy
import socket

import pytest
import torch
import torch_geometric.nn as upstream
from torch import nn
from torch_geometric import utils

import halfgnn.pyg
from tests import support_processes

NUM_NODES, WIDTH, TILE = 30, 8, 24


class MeshLayer(upstream.MessagePassing):
    """New features of edges and nodes, with residuals: a network on each edge, whose results are summed and returned."""

    def __init__(self):
        super().__init__()
        self.of_edges = nn.Sequential(
            nn.Linear(3 * WIDTH, WIDTH), nn.SiLU(), nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH)
        )
        self.of_nodes = nn.Sequential(nn.Linear(2 * WIDTH, WIDTH), nn.SiLU(), nn.Linear(WIDTH, WIDTH))

    def forward(self, x, edge_index, e):
        sums, e = self.propagate(edge_index, x=x, e=e)
        return x + self.of_nodes(torch.cat([x, sums.to(x.dtype)], -1)), e

    def message(self, x_i, x_j, e):
        return self.of_edges(torch.cat([x_i, x_j, e], -1)) + e

    def aggregate(self, e, index, dim_size):
        return utils.scatter(e, index, 0, dim_size), e


class Network(nn.Module):
    """Layers whose messages are materialized, one after the other; the head reads nodes alone."""

    def __init__(self):
        super().__init__()
        network = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH * WIDTH))
        kinds = {
            "aggregators": ["mean", "max", "std"],
            "scalers": ["identity", "amplification"],
            "deg": torch.ones(9).long(),
        }
        self.layers = nn.ModuleList(
            [
                upstream.PNAConv(WIDTH, WIDTH, **kinds, edge_dim=WIDTH, towers=2),
                upstream.GENConv(WIDTH, WIDTH, aggr="softmax", edge_dim=WIDTH, learn_t=True),
                upstream.NNConv(WIDTH, WIDTH, network, aggr="mean"),
            ]
        )
        self.mesh = nn.ModuleList([MeshLayer(), MeshLayer()])
        self.head = nn.Linear(WIDTH, 1)

    def forward(self, x, edge_index, e):
        for layer in self.layers:
            x = x + layer(x, edge_index, e).relu()
        for layer in self.mesh:
            x, e = layer(x, edge_index, e)
        return self.head(x)


def part_of(rank, dtype=torch.float64):
    """A network that is the same in all ranks, with a graph and features of this one."""
    torch.manual_seed(9)
    network = Network().to(dtype)
    torch.manual_seed(rank)
    edge_index = torch.randint(NUM_NODES - 2, (2, 200 + 50 * rank))
    x, e = torch.randn(NUM_NODES, WIDTH, dtype=dtype), torch.randn(edge_index.shape[1], WIDTH, dtype=dtype)
    return network, x, edge_index, e


# ---- several processes -------------------------------------------------------------------------------------------------------


OPTIONS = {}, {"find_unused_parameters": True}, {"static_graph": True, "gradient_as_bucket_view": True}


def gradients_of_rank(rank, port):
    """Of each of OPTIONS, and how many calls were in tiles."""
    torch.distributed.init_process_group("gloo", f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    found = []
    with halfgnn.pyg.accelerate(tile=TILE):
        for options in OPTIONS:
            network, *args = part_of(rank)
            parallel = nn.parallel.DistributedDataParallel(network, **options)
            for _ in range(2):  # planned, and by the plan
                parallel.zero_grad()
                parallel(*args).square().sum().backward()
            found.append([x.grad.clone() for x in network.parameters()])
    torch.distributed.destroy_process_group()
    return found, halfgnn.pyg.stats()["routed"]["tile:propagate"]


def save_gradients(_, port, path):
    torch.set_num_threads(1)
    torch.save(gradients_of_rank(1, port), path)


@pytest.mark.skipif(not torch.distributed.is_available(), reason="torch was built without torch.distributed")
def test_two_processes_average_gradients(tmp_path):
    """The other process is a new one, whose imports take the time."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    other = support_processes.start(save_gradients, (port, tmp_path / "1.pt"), 1, join=False, daemon=True)
    found = gradients_of_rank(0, port)
    while not other.join():
        pass
    found_there = torch.load(tmp_path / "1.pt")
    assert found[1] == found_there[1] == 2 * 5 * len(OPTIONS)
    alone = []
    for rank in (0, 1):
        network, *args = part_of(rank)
        network(*args).square().sum().backward()
        alone.append([x.grad for x in network.parameters()])
    wanted = [(first + second) / 2 for first, second in zip(*alone)]
    for here, there in zip(found[0], found_there[0], strict=True):
        for got, same, expected in zip(here, there, wanted, strict=True):
            assert torch.equal(got, same)
            torch.testing.assert_close(got, expected)


# ---- half precision ----------------------------------------------------------------------------------------------------------


def losses(network, args, dtype, **options):
    """Of ten steps: fp16 with a GradScaler, whose first scale is too large."""
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**40, backoff_factor=2.0**-15, enabled=dtype == torch.float16)
    optimizer, found = torch.optim.AdamW(network.parameters(), 1e-2), []
    target = torch.linspace(-1, 1, NUM_NODES).view(-1, 1)
    with halfgnn.pyg.accelerate(**options):
        for _ in range(10):
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype):
                out = network(*args)
            loss = (out.float() - target).square().mean()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            found.append(loss.item())
    return torch.tensor(found), scaler.get_scale()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_steps_under_autocast(dtype):
    network, *args = part_of(0, torch.float32)
    expected, scale = losses(copy.deepcopy(network), args, dtype)
    halfgnn.pyg.reset_stats()
    found, scale_in_tiles = losses(network, args, dtype, tile=TILE)
    assert halfgnn.pyg.stats()["routed"]["tile:propagate"] == 50
    assert scale_in_tiles == scale and found[-1] < 0.7 * found[0]
    torch.testing.assert_close(found, expected, rtol=3e-2, atol=3e-2)
