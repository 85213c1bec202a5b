"""Properties of a graph that decide how fast a kernel is on it: sizes, degrees, and how often gathered rows are
gathered again.

    python -m benchmarks graphs arxiv-size cora                                # prints them
    python -m benchmarks graphs arxiv-size --out benchmarks/results            # and keeps them in graphs.csv
    python -m benchmarks table --into docs/benchmarks.md                       # writes the table of kept facts

Reuse is measured on a gather that takes the rows of the in-adjacency one after another, as one core does. It is the
share of gathers that find their source among the last C distinct sources, which are what an LRU cache of C rows holds.

Reuse is estimated by the working-set model (Denning and Schwartz, 1972). The distances between gathers of the same
source give s(w), the average number of distinct sources in a window of w gathers. A cache of C rows holds the sources
that were gathered at most w gathers ago, where s(w) = C. The estimate is exact if the mixture of sources is the same
along the whole sequence. That holds if ids are random.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from halfgnn import Graph

from . import graphs, records
from .cells import markdown, number
from .graphs import BenchGraph

KEPT = "graphs.csv"
# Rows of 128 fp16 features (256 bytes) in 1 MiB, about a core's own cache, and in 50 MB, an H100's L2 cache.
NEAR_ROWS, FAR_ROWS = 4_096, 195_312
SAMPLE = 1 << 22  # gathers from which reuse is estimated


@dataclass(frozen=True)
class Facts:
    """Shares are of all edges."""

    graph: str
    num_nodes: int
    num_edges: int
    repeated: float  # edges that occurred before
    in_p0: int  # quantiles of the in-degrees
    in_p10: int
    in_p50: int
    in_p90: int
    in_p99: int
    in_max: int
    out_p50: int
    out_max: int
    gathers: float  # per source that has edges, on average
    top_share: float  # gathers from the 1 % of nodes with most out-edges
    near_share: float  # gathers that find their source among the last NEAR_ROWS distinct ones
    far_share: float  # gathers that find their source among the last FAR_ROWS distinct ones


def _gaps(graph: BenchGraph) -> tuple[Tensor, int]:
    """Takes a sample of gathers in the order of the in-adjacency. For each that is not the first of its source: how
    many gathers ago that source was gathered, ascending. Also the size of the sample."""
    indptr, indices, _ = Graph.from_edges(graph.src, graph.dst, num_src=graph.num_nodes, num_dst=graph.num_nodes).csc()
    starts, _, position = Graph.from_csc(indptr, indices, num_src=graph.num_nodes, check=False).csr()
    taken = torch.arange(0, position.numel(), -(-position.numel() // SAMPLE), device=position.device)
    source = torch.searchsorted(starts, taken.to(starts.dtype), right=True) - 1
    again = taken[taken > starts[source]]  # sorted by source, then by position
    return (position[again] - position[again - 1]).sort().values, taken.numel()


def _reuse(gaps: Tensor, count: int, sizes: Iterable[int]) -> list[float]:
    """The share of gathers that find their source among the last `size` distinct ones; gaps, count: see _gaps."""
    later = torch.arange(count - 1, count - 1 - gaps.numel(), -1, device=gaps.device)
    distinct = (gaps.double().cumsum(0) + later * gaps.double()) / count  # in a window as long as the gap
    return [int(torch.searchsorted(distinct, float(size), right=True)) / count for size in sizes]


def _repeated(graph: BenchGraph) -> float:
    keys = (graph.dst.long() * graph.num_nodes).add_(graph.src).cpu().numpy()
    keys.sort()  # in place: for a hundred million edges the indices of torch.sort would take another gigabyte
    return float((keys[1:] == keys[:-1]).sum()) / keys.size


def of(graph: BenchGraph) -> Facts:
    """The facts of a graph. Takes about 30 bytes of memory per edge."""
    last = graph.num_nodes - 1
    inward, outward = (torch.bincount(x, minlength=last + 1).sort().values for x in (graph.dst, graph.src))
    near, far = _reuse(*_gaps(graph), (NEAR_ROWS, FAR_ROWS))
    top = outward[-max(1, graph.num_nodes // 100) :]
    return Facts(
        graph.label, graph.num_nodes, graph.num_edges, round(_repeated(graph), 4),
        *(int(inward[int(q * last)]) for q in (0.0, 0.1, 0.5, 0.9, 0.99, 1.0)),
        *(int(outward[int(q * last)]) for q in (0.5, 1.0)),
        gathers=round(graph.num_edges / int((outward > 0).sum()), 2),
        top_share=round(float(top.sum()) / graph.num_edges, 4),
        near_share=round(near, 4),
        far_share=round(far, 4),
    )  # fmt: skip


def read(path: Path) -> list[Facts]:
    return records.read(path, Facts)


def keep(path: Path, found: Sequence[Facts]) -> None:
    """Writes facts to a CSV file and replaces older facts of the same graphs; small graphs come first."""
    kept = {facts.graph: facts for facts in (*(read(path) if path.exists() else []), *found)}
    path.unlink(missing_ok=True)
    records.append(path, Facts, sorted(kept.values(), key=lambda f: (f.num_edges, f.graph)))


def render(found: Sequence[Facts]) -> str:
    """The markdown table."""
    header = ["graph", "nodes", "edges", "repeated", "in-degrees 10 / 50 / 90 / 99 %", "max", "gathers per source",
              "of the top 1 %", "within 1 MiB", "within 50 MB"]  # fmt: skip
    lines = [
        [f.graph, f"{f.num_nodes:,}", f"{f.num_edges:,}", f"{f.repeated:.1%}",
         f"{f.in_p10} / {f.in_p50} / {f.in_p90} / {f.in_p99}", f"{f.in_max:,}", number(f.gathers),
         f"{f.top_share:.0%}", f"{f.near_share:.0%}", f"{f.far_share:.0%}"]
        for f in found
    ]  # fmt: skip
    return markdown(header, lines, 1) + "\n"


def add_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("names", nargs="*", choices=[*graphs.NAMES, []], default=[], metavar="NAME", help=", ".join(graphs.NAMES))
    add("--out", type=Path, metavar="FOLDER", help=f"keep the facts in FOLDER/{KEPT}")


def run(options: argparse.Namespace) -> int:
    """Prints the facts of the named graphs; without names, of all synthetic graphs of fewer than 10^7 edges."""
    for name in options.names or [name for name, recipe in graphs.RECIPES.items() if recipe.num_edges < 10**7]:
        found = of(graphs.named(name, "insertion", torch.int32))
        print(render([found]), flush=True)
        if options.out is not None:
            keep(options.out / KEPT, [found])
    return 0
