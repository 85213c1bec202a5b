"""Streamed training of a graph whose rows do not fit into memory, beside training in memory.

    python -m benchmarks.streamed make FOLDER --side 1000     cuts a mesh of side * side nodes, 8 neighbours each, ids shuffled
    python -m benchmarks.streamed step FOLDER                 a step of Streamed: seconds, seconds per edge, largest memory
    python -m benchmarks.streamed memory --side 500           a step of the same layers in memory, on a mesh that fits

Three SAGEConv, fp32. Run `step` under a limit of memory, which counts the pages of files too:

    export MALLOC_MMAP_THRESHOLD_=1000000 THP_MEM_ALLOC_ENABLE=1  # freed blocks go back at once, and come as large pages
    systemd-run --user --scope -p MemoryMax=768M -p MemorySwapMax=0 python -m benchmarks.streamed step FOLDER --width 768
"""

from __future__ import annotations

import argparse
import resource
import time
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

import halfgnn
from halfgnn.distributed import Streamed, cut_features, partition
from halfgnn.nn import SAGEConv

CLASSES = 16


def mesh(side: int) -> halfgnn.Graph:
    """Each node has edges from its 8 neighbours; the ids of nodes are shuffled."""
    grid = torch.randperm(side * side, generator=torch.Generator().manual_seed(1)).view(side, side)
    edges = []
    for dy, dx in [(0, 1), (1, 0), (1, 1), (1, -1)]:
        columns = slice(max(-dx, 0), side - max(dx, 0)), slice(max(dx, 0), side + min(dx, 0))
        a, b = grid[: side - dy, columns[0]].reshape(-1), grid[dy:, columns[1]].reshape(-1)
        edges += [torch.stack([a, b]), torch.stack([b, a])]
    return halfgnn.Graph.from_edge_index(torch.cat(edges, 1), num_src=side * side, num_dst=side * side)


def layers(width: int) -> tuple[torch.nn.ModuleList, list]:
    torch.manual_seed(0)
    made = torch.nn.ModuleList(SAGEConv(width, out, "mean") for out in (width, width, CLASSES))
    *hidden, last = made
    return made, [*(lambda g, x, layer=layer: layer(g, x).relu() for layer in hidden), last]


def labels(nodes: Tensor) -> Tensor:
    return nodes % CLASSES


def make(folder: Path, side: int, width: int, parts: int) -> None:
    partition(mesh(side), parts, out=folder)
    rows = np.lib.format.open_memmap(folder / "all.npy", "w+", np.float32, (side * side, width))
    for start in range(0, side * side, 65_536):
        rows[start : start + 65_536] = torch.randn(min(65_536, side * side - start), width).numpy()
    rows.flush()
    cut_features(folder, "x", rows)
    (folder / "all.npy").unlink()


def step(folder: Path, width: int, repeats: int) -> None:
    stream = Streamed(folder, scratch=folder)
    modules, functions = layers(width)
    print(f"{stream}: rows of a layer {stream.num_nodes * width * 4 / 2**20:.0f} MiB")
    for _ in range(repeats):
        modules.zero_grad()
        start = _now()
        loss = stream.step(
            functions,
            "x",
            lambda out, nodes: functional.cross_entropy(out, labels(nodes), reduction="sum") / stream.num_nodes,
        )
        _show(start, stream.num_edges, loss)


def memory(side: int, width: int, repeats: int) -> None:
    g, x = mesh(side), torch.randn(side * side, width)
    modules, functions = layers(width)
    for _ in range(repeats):
        modules.zero_grad()
        start = _now()
        out = x
        for function in functions:
            out = function(g, (out, out))
        loss = functional.cross_entropy(out, labels(torch.arange(side * side)))
        loss.backward()
        _show(start, g.num_edges, loss)


def _now() -> tuple[float, float]:
    """Seconds, and those of processors."""
    return time.perf_counter(), time.process_time()


def _show(start: tuple[float, float], num_edges: int, loss: Tensor) -> None:
    seconds, of_processors = (end - begin for begin, end in zip(start, _now()))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024  # MiB
    print(
        f"{seconds:.1f} s ({of_processors:.1f} s of processors), {seconds / num_edges * 1e6:.2f} us per edge, "
        f"loss {float(loss.detach()):.4f}, at most {peak:.0f} MiB",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=["make", "step", "memory"])
    parser.add_argument("folder", nargs="?", type=Path)
    parser.add_argument("--side", type=int, default=1000)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--parts", type=int, default=128)
    parser.add_argument("--repeats", type=int, default=2)
    args = parser.parse_args()
    if (args.folder is None) == (args.action != "memory"):
        parser.error("make and step need a FOLDER, memory has none")
    if args.action == "make":
        make(args.folder, args.side, args.width, args.parts)
    elif args.action == "step":
        step(args.folder, args.width, args.repeats)
    else:
        memory(args.side, args.width, args.repeats)


if __name__ == "__main__":
    main()
