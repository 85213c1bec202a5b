"""What an order of nodes does to a GPU's L2 cache, predicted: the share of gathers that miss it, before and after
halfgnn.reorder.

    python -m benchmarks.l2 reddit-size products-size --dims 128 256

Gathers go through an LRU cache of the rows that fit into a part of the L2 cache, 0.75 of it, as in the model of
docs/tuning.md. A GPU works on many rows at once. So rows of the adjacency are taken in groups of as many as its warps,
and each row of a group reads one source in turn. Features are 2 bytes. A graph of 10^8 edges takes minutes and 10 GB.
"""

from __future__ import annotations

import argparse
import time

import torch
from torch import Tensor

import halfgnn
from halfgnn import Graph

from . import graphs
from .cells import markdown

L2_BYTES, SHARE = 50 << 20, 0.75  # of an H100; what is left to gathered rows
SKEW = 0.36  # of the popularity of rows, if it is not known
WARPS = 132 * 64  # rows at once
SAMPLE_WINDOWS = 65  # gathers per row of the cache: more than locality looks at


def modelled_miss_rate(held: float, skew: float) -> float:
    """As csrc/cuda/kernels/plan/slices.h has it, of a cache of a share `held` of the rows."""
    return 1 - held ** (1 - 1.2 * skew**2)


def in_turns(graph: Graph, gathers: int) -> Tensor:
    """Sources in the order in which WARPS rows at once gather them, of about `gathers` edges from the middle on."""
    indptr, indices, _ = graph.csc()
    first = int(torch.searchsorted(indptr, max(0, graph.num_edges - gathers) // 2))
    last = min(graph.num_dst, int(torch.searchsorted(indptr, int(indptr[first]) + gathers)))
    degrees = indptr[first : last + 1].diff().long()
    rows = torch.repeat_interleave(torch.arange(last - first), degrees)
    turn = torch.arange(rows.numel()) - (indptr[first:last].long() - int(indptr[first]))[rows]
    key = (rows // WARPS * (int(degrees.max()) + 1) + turn) * WARPS + rows % WARPS
    return indices[int(indptr[first]) : int(indptr[last])][key.argsort()]


def miss_rate(graph: Graph, cached_rows: int) -> float:
    """Of an LRU cache of so many rows."""
    cached_rows = min(cached_rows, graph.num_src)
    sources = in_turns(graph, max(1 << 22, SAMPLE_WINDOWS * cached_rows))
    indptr = torch.tensor([0, sources.numel()], dtype=sources.dtype)
    return 1 - halfgnn.locality(Graph.from_csc(indptr, sources, num_src=graph.num_src, check=False), cached_rows)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.l2", description=__doc__)
    parser.add_argument("names", nargs="+", choices=graphs.NAMES, metavar="NAME", help=", ".join(graphs.NAMES))
    parser.add_argument("--dims", nargs="+", type=int, default=[128], metavar="F")
    options = parser.parse_args()
    lines = []
    for name in options.names:
        drawn = graphs.named(name, "insertion", torch.int32)
        g = Graph.from_edges(drawn.src, drawn.dst, num_src=drawn.num_nodes, num_dst=drawn.num_nodes, check=False)
        del drawn
        start = time.process_time()
        r = halfgnn.reorder(g, least_gain=-1)
        print(f"{name}: {r}, {time.process_time() - start:.0f} s of the CPU", flush=True)
        for dim in options.dims:
            rows = int(SHARE * L2_BYTES) // (2 * dim)
            modelled = modelled_miss_rate(
                min(1.0, rows / g.num_src), getattr(graphs.RECIPES.get(name), "src_skew", SKEW)
            )
            shares = (modelled, miss_rate(g, rows), miss_rate(r.graph, rows))
            lines.append([name, str(dim), *(f"{share:.1%}" for share in shares)])
    print(markdown(["graph", "F", "misses, model", "misses, LRU, as drawn", "misses, LRU, reordered"], lines, 1))


if __name__ == "__main__":
    main()
