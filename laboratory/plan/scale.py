"""Predicted times of a layer on 8 to 1,024 GPUs, halo exchange beside all-gather, for docs/distributed.md. Nothing is measured.

python -m laboratory.plan.scale [--nodes 1000000] [--width 128]

Ghosts are counted: a mesh (2-d, 8 neighbours, shuffled ids) is cut into communities by halfgnn.distributed's partition. A layer is
u_mul_e_sum on fp16 rows, whose time the model of the planners gives (docs/tuning.md). Rows travel by the rates below. Parts that
follow one another are on one machine of 8 GPUs.
"""

from __future__ import annotations

import argparse
import tempfile
from typing import NamedTuple

import torch
from torch import Tensor

from halfgnn import Graph
from halfgnn.distributed.partition import owners

from .planners import Device, Planners, compile_planners
from .tables import H200, HALF, ID, markdown, milliseconds

GPUS_OF_MACHINE = 8
# Bytes per second and GPU, in one direction. NVIDIA's data sheets: NVLink 4 of Hopper has 900 GB/s in both directions together, a
# DGX H100 or H200 one ConnectX-7 of 400 Gbit/s per GPU.
NVLINK, INFINIBAND = 450e9, 50e9
SHARE = 0.8  # of these rates that long messages reach; an assumption
LAUNCH, MESSAGE = 5e-6, 2e-6  # seconds of a kernel or collective, and of each message between machines; assumptions


class Part(NamedTuple):
    """What one GPU owns and reads. ghosts: of GPUs of its own machine, and of others. peers: GPUs of other machines."""

    nodes: int
    edges: int
    edges_of_own: int
    ghosts: tuple[int, int]
    peers: int


def mesh(side: int) -> Graph:
    """side^2 nodes on a torus, each with its 8 neighbours, under shuffled ids."""
    ids = torch.arange(side * side).view(side, side)
    shifts = [(i, j) for i in (-1, 0, 1) for j in (-1, 0, 1) if i or j]
    ends = torch.cat([torch.stack([ids.roll(shift, (0, 1)).flatten(), ids.flatten()]) for shift in shifts], 1)
    ends = torch.randperm(side * side, generator=torch.Generator().manual_seed(0))[ends].int()
    return Graph.from_edges(*ends, num_src=side * side, num_dst=side * side)


def parts_of(g: Graph, owner: Tensor, count: int) -> list[Part]:
    src, dst = (owner[ids.long()] for ids in g.edges())
    is_cut = src != dst
    reader, source = dst[is_cut], g.edges()[0].long()[is_cut]
    ghosts = (reader * g.num_src + source).unique()
    reader, of = ghosts // g.num_src, owner[ghosts % g.num_src]
    pairs = torch.bincount(reader * count + of, minlength=count * count).view(count, count)
    nodes, edges, of_own = (torch.bincount(x, minlength=count).tolist() for x in (owner, dst, dst[~is_cut]))
    machine = torch.arange(count) // GPUS_OF_MACHINE
    found = []
    for part, row in enumerate(pairs):
        near = machine == machine[part]
        counts = int(row[near].sum()), int(row[~near].sum())
        found.append(Part(nodes[part], edges[part], of_own[part], counts, int((row[~near] > 0).sum())))
    return found


class Clock:
    """Predicted seconds on a device, of rows of row_bytes."""

    def __init__(self, planners: Planners, device: Device, row_bytes: int) -> None:
        self._planners, self._device, self._row_bytes = planners, device, row_bytes

    def layer(self, part: Part, edges: int) -> float:
        """The sum over so many of a part's edges."""
        if not edges:
            return 0.0
        nodes, row_bytes = part.nodes + sum(part.ghosts), self._row_bytes
        _, slices = self._planners.lanes_and_slices(self._device, nodes, edges, row_bytes, stream=ID + HALF)
        times = self._planners.times(self._device, nodes, row_bytes, edges, slices, part.nodes * row_bytes)
        return LAUNCH + times.bound()

    def halo(self, part: Part) -> float:
        """Ghosts of the machine and those of others travel at the same time."""
        near, far = (ghosts * self._row_bytes for ghosts in part.ghosts)
        return LAUNCH + max(near / (SHARE * NVLINK), part.peers * MESSAGE + far / (SHARE * INFINIBAND))

    def all_gather(self, num_nodes: int, count: int) -> float:
        """Each machine gets the rows of all others through its 8 ports, and each GPU all rows by NVLink."""
        total, machines = num_nodes * self._row_bytes, count // GPUS_OF_MACHINE
        far = total * (1 - 1 / machines) / GPUS_OF_MACHINE / (SHARE * INFINIBAND)
        return LAUNCH + max(far + (machines - 1) * MESSAGE, total / (SHARE * NVLINK))


def table(planners: Planners, g: Graph, width: int, counts: list[int]) -> str:
    clock, rows = Clock(planners, planners.gpus()[H200], HALF * width), []
    whole = clock.layer(Part(g.num_dst, g.num_edges, g.num_edges, (0, 0), 0), g.num_edges)
    for count in counts:
        parts = parts_of(g, owners(g, count, "communities"), count)
        ghosts = max(sum(part.ghosts) / part.nodes for part in parts)
        sums, halo = max(clock.layer(p, p.edges) for p in parts), max(map(clock.halo, parts))
        overlapped = max(
            max(clock.layer(p, p.edges_of_own), clock.halo(p)) + clock.layer(p, p.edges - p.edges_of_own) for p in parts
        )
        gathered = clock.all_gather(g.num_dst, count) + sums
        times = [sums, halo, sums + halo, overlapped, gathered]
        efficiency = [f"{100 * whole / count / time:.0f} %" for time in (min(sums + halo, overlapped), gathered)]
        rows.append([str(count), f"{ghosts:.2f}", *map(milliseconds, times), *efficiency])
    header = ["GPUs", "ghosts per own node", "sums, ms", "halo, ms", "both", "overlapped", "sums with all-gather"]
    return markdown([*header, "efficiency", "with all-gather"], rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=1_000_000)
    parser.add_argument("--width", type=int, default=128, help="features, fp16")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        planners = Planners(compile_planners(folder))
    print(table(planners, mesh(round(args.nodes**0.5)), args.width, [8, 64, 256, 1024]))


if __name__ == "__main__":
    main()
