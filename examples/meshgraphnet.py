"""Trains a MeshGraphNet (Pfaff et al., 2021) on waves of a cloth, with halfgnn's networks on edges and with plain ones.

The cloth is a triangulated square, drawn by a seed and held at its border. It is simulated by springs between neighbours, and the
model learns the change of every node's velocity in a step. Both models have the same parameters; a plain one makes the rows of
all edges in each layer.

    python examples/meshgraphnet.py --side 60 --layers 6 --dtype bf16

Prints a table of the runs (loss, time of a step, what the forward saves for the backward, peak memory of a step) and, with
matplotlib, draws their loss curves.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path
from types import SimpleNamespace

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.append(str(Path(__file__).resolve().parents[1]))  # a checkout that is not installed

# Otherwise the profiler reports an error if there is no GPU. torch reads the variable when it is imported.
os.environ.setdefault("KINETO_LOG_LEVEL", "99")

import torch
from arguments import number
from backends import Mode
from packages import explained
from report import Run, draw, measure_step
from torch import Tensor, nn
from training import DTYPES, History, autocast, make_scaler, synchronize

BACKENDS = ("plain", "halfgnn")
TIME_STEP, STIFFNESS, DAMPING = 0.1, 1.0, 0.02


# ---- the cloth ---------------------------------------------------------------------------------------------------------------


class Cloth:
    """A triangulated square of side x side nodes, whose inner nodes are moved a little at random.

    src, dst: its edges, both ways. edges: (E, 3), offsets and lengths. border: (N, 1), 1 at the border.
    """

    def __init__(self, side: int, seed: int):
        generator = torch.Generator().manual_seed(seed)
        grid = torch.arange(side)
        rows, columns = (x.reshape(-1) for x in torch.meshgrid(grid, grid, indexing="ij"))
        is_border = (rows == 0) | (rows == side - 1) | (columns == 0) | (columns == side - 1)
        self.position = torch.stack([columns, rows], 1).float()
        self.position += 0.2 * torch.rand(self.position.shape, generator=generator) * ~is_border.unsqueeze(1)
        self.border = is_border.float().unsqueeze(1)
        node = rows * side + columns
        ends = [(node[(columns < side - 1 if dx else columns >= 0) & (rows < side - 1 if dy else rows >= 0)], dy * side + dx)
                for dx, dy in ((1, 0), (0, 1), (1, 1))]  # fmt: skip
        one_way = torch.cat([torch.stack([nodes, nodes + step]) for nodes, step in ends], 1)
        self.src, self.dst = torch.cat([one_way, one_way.flip(0)], 1)
        offset = self.position[self.src] - self.position[self.dst]
        self.edges = torch.cat([offset, offset.norm(dim=1, keepdim=True)], 1)

    def waves(self, steps: int, seed: int) -> tuple[Tensor, Tensor]:
        """(states (steps, N, 3): height, velocity, border; changes of the velocity (steps, N, 1)), with unit variance."""
        generator = torch.Generator().manual_seed(seed)
        centre = self.position[torch.randint(len(self.position), (1,), generator=generator)]
        height = torch.exp(-(self.position - centre).square().sum(1, keepdim=True) / 8) * (1 - self.border)
        velocity, states, changes = torch.zeros_like(height), [], []
        for _ in range(steps):
            stretch = (height[self.src] - height[self.dst]) / self.edges[:, 2:]
            force = torch.zeros_like(height).index_add_(0, self.dst, STIFFNESS * stretch) - DAMPING * velocity
            change = TIME_STEP * force * (1 - self.border)
            states.append(torch.cat([height, velocity, self.border], 1))
            changes.append(change)
            velocity = velocity + change
            height = height + TIME_STEP * velocity
        states, changes = torch.stack(states), torch.stack(changes)
        return states, changes / changes.std()


# ---- the model ---------------------------------------------------------------------------------------------------------------


def mlp(inputs: int, hidden: int, outputs: int, norm: bool = True) -> list[nn.Module]:
    """Two hidden layers, as MeshGraphNet has them."""
    layers = [nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, outputs)]
    return [*layers, nn.LayerNorm(outputs)] if norm else layers


class PlainEdges(nn.Sequential):
    """What EdgeNetwork computes, on rows of all edges."""

    def forward(self, g, x, edges):
        src, dst = g.edges()
        message = super().forward(torch.cat([x[src], x[dst], edges], 1))
        total = torch.zeros(x.shape[0], message.shape[1], dtype=message.dtype, device=x.device)
        return total.index_add_(0, dst, message), edges + message


def edge_network(backend: str, hidden: int) -> nn.Module:
    from halfgnn.nn import EdgeNetwork

    layers = mlp(3 * hidden, hidden, hidden)
    return PlainEdges(*layers) if backend == "plain" else EdgeNetwork(*layers, return_edges=True, residual=True)


class MeshGraphNet(nn.Module):
    def __init__(self, backend: str, layers: int, hidden: int):
        super().__init__()
        self.of_nodes, self.of_edges = (nn.Sequential(*mlp(3, hidden, hidden)) for _ in range(2))
        self.edge_nets = nn.ModuleList(edge_network(backend, hidden) for _ in range(layers))
        self.node_nets = nn.ModuleList(nn.Sequential(*mlp(2 * hidden, hidden, hidden)) for _ in range(layers))
        self.decoder = nn.Sequential(*mlp(hidden, hidden, 1, norm=False))

    def forward(self, g, state, edges):
        x, edges = self.of_nodes(state), self.of_edges(edges)
        for edge_net, node_net in zip(self.edge_nets, self.node_nets):
            total, edges = edge_net(g, x, edges)
            x = x + node_net(torch.cat([x, total], 1))
        return self.decoder(x)


# ---- runs --------------------------------------------------------------------------------------------------------------------


def run_backend(backend: str, args) -> tuple[Run, float]:
    """Trains from --seed. Also the MiB that a forward saves for its backward."""
    from tqdm import tqdm

    import halfgnn
    from halfgnn.common.saved import SavedMemory

    device, dtype = args.device, DTYPES[args.dtype]
    cloth = Cloth(args.side, args.seed)
    states, changes = (x.to(device) for x in cloth.waves(args.waves, args.seed))
    g, order = halfgnn.Graph.from_edges(cloth.src, cloth.dst, num_src=args.side**2, num_dst=args.side**2, sort=True)
    g, edges = g.to(device), cloth.edges[order].to(device)
    torch.manual_seed(args.seed)
    model = MeshGraphNet(backend, args.layers, args.hidden).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    scaler = make_scaler(device.type, dtype)

    def loss_of(step: int) -> Tensor:
        with autocast(device.type, dtype):
            predicted = model(g, states[step % args.waves], edges)
        return (predicted.float() - changes[step % args.waves]).square().mean()

    def train_step(step: int) -> float:
        optimizer.zero_grad(set_to_none=True)
        loss = loss_of(step)
        (loss if scaler is None else scaler.scale(loss)).backward()
        optimizer.step() if scaler is None else scaler.step(optimizer)
        if scaler is not None:
            scaler.update()
        return loss.item()

    history = History()
    for step in (bar := tqdm(range(args.steps), desc=f"{backend} {args.dtype}", unit="step")):
        begin = time.perf_counter()
        history.losses.append(train_step(step))
        synchronize(device)
        history.seconds.append(time.perf_counter() - begin)
        bar.set_postfix(loss=f"{history.losses[-1]:.4f}")
    with SavedMemory() as kept:
        loss_of(0)
    nothing = torch.empty(0)
    data = SimpleNamespace(features=states, labels=changes, train=nothing, val=nothing, test=nothing)
    measured = measure_step(lambda: train_step(0), model, data, optimizer)
    return Run(backend, Mode(device, dtype), history, *measured), kept.mebibytes


def table(runs: list[tuple[Run, float]]) -> str:
    lines = [f"{'run':24} {'first loss':>10} {'last loss':>10} {'ms/step':>9} {'kept MiB':>9} {'peak MiB':>9}"]
    for run, kept in runs:
        losses, ms = run.history.losses, 1e3 * run.history.epoch_seconds
        lines.append(
            f"{run.label:24} {losses[0]:10.4f} {losses[-1]:10.4f} {ms:9.1f} {kept:9.1f} {run.peak_bytes / 2**20:9.1f}"
        )
    return "\n".join(lines)


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    p = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    count = number(int, 1)
    p.add_argument("--backend", choices=(*BACKENDS, "both"), default="both", help="default: %(default)s")
    p.add_argument("--dtype", choices=DTYPES, default="fp32", help="fp16 and bf16 by autocast; default: %(default)s")
    p.add_argument("--device", choices=("cpu", "cuda"), default="cuda" if torch.cuda.is_available() else "cpu")
    p.add_argument("--side", type=number(int, 3), default=40, help="nodes of a side; default: %(default)s")
    p.add_argument("--waves", type=count, default=50, help="simulated steps; default: %(default)s")
    p.add_argument("--steps", type=count, default=100, help="optimizer steps; default: %(default)s")
    p.add_argument("--layers", type=count, default=4, help="default: %(default)s")
    p.add_argument("--hidden", type=count, default=64, help="default: %(default)s")
    p.add_argument("--lr", type=number(float, 0.0, open_low=True), default=1e-3, help="default: %(default)s")
    p.add_argument("--seed", type=int, default=0, help="default: %(default)s")
    p.add_argument("--out", type=Path, default=Path("out/meshgraphnet.png"), help="the picture; default: %(default)s")
    args = p.parse_args(argv)
    if args.device == "cuda" and not torch.cuda.is_available():
        p.error("argument --device: cuda was requested, but PyTorch sees no GPU")
    args.device = torch.device(args.device)
    return args


def main(argv: list[str] | None = None) -> list[tuple[Run, float]]:
    args = parse(argv)
    try:
        runs = [run_backend(backend, args) for backend in (BACKENDS if args.backend == "both" else (args.backend,))]
    except ImportError as error:
        sys.exit(explained(error))
    print(table(runs))
    draw([run for run, _ in runs], f"MeshGraphNet on a cloth of {args.side**2:,} nodes", args.out)
    return runs


if __name__ == "__main__":
    main()
