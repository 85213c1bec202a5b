"""What tells how a kernel will fare on a graph: sizes, degrees, and how often the rows that it gathers are gathered again.

    python -m benchmarks graphs arxiv-size cora                                # prints them
    python -m benchmarks graphs arxiv-size --out benchmarks/results            # and keeps them in graphs.csv
    python -m benchmarks table --into docs/benchmarks.md                       # the table of what is kept, among others

Reuse is of a gather that takes the rows of the in-adjacency one after another, as one core does: the share of gathers that find
their source among the last so many distinct ones, which is what an LRU cache of so many rows holds. It is estimated by the
working-set model (Denning and Schwartz, 1972): from the numbers of gathers between two of the same source follows how many
distinct sources a window of w gathers has on average, s(w); a cache of C rows holds what was gathered at most w ago where
s(w) = C. That is exact where the mixture of sources is the same all along, which it is where ids are dealt at random.
"""

from __future__ import annotations

import argparse
import csv
import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from halfgnn import Graph

from . import graphs
from .cells import markdown, number
from .graphs import BenchGraph

KEPT = "graphs.csv"
# Rows of 128 features in fp16, 256 bytes, that 1 MiB holds, about a core's own cache; and 50 MB, an H100's L2 cache.
NEAR_ROWS, FAR_ROWS = 4_096, 195_312
SAMPLE = 1 << 22  # gathers that reuse is estimated from


@dataclass(frozen=True)
class Facts:
    """Shares are of all edges."""

    graph: str
    num_nodes: int
    num_edges: int
    repeated: float  # edges that are there already
    in_p0: int  # quantiles of the in-degrees
    in_p10: int
    in_p50: int
    in_p90: int
    in_p99: int
    in_max: int
    out_p50: int
    out_max: int
    gathers: float  # of a source that has edges, on average
    top_share: float  # of the 1 % of nodes with most out-edges
    near_share: float  # that find their source among the last NEAR_ROWS distinct ones
    far_share: float  # among the last FAR_ROWS


def _gaps(graph: BenchGraph) -> tuple[Tensor, int]:
    """Of a sample of gathers, in the order of the in-adjacency: how many gathers ago that source was gathered, ascending, of
    those that are not its first; and the size of the sample."""
    indptr, indices, _ = Graph.from_edges(graph.src, graph.dst, num_src=graph.num_nodes, num_dst=graph.num_nodes).csc()
    starts, _, position = Graph.from_csc(indptr, indices, num_src=graph.num_nodes, check=False).csr()
    taken = torch.arange(0, position.numel(), -(-position.numel() // SAMPLE), device=position.device)
    source = torch.searchsorted(starts, taken.to(starts.dtype), right=True) - 1
    again = taken[taken > starts[source]]  # by source, and of a source by position
    return (position[again] - position[again - 1]).sort().values, taken.numel()


def _reuse(gaps: Tensor, count: int, sizes: Iterable[int]) -> list[float]:
    """The share of gathers that find their source among the last `size` distinct ones; gaps, count: see _gaps."""
    later = torch.arange(count - 1, count - 1 - gaps.numel(), -1, device=gaps.device)
    distinct = (gaps.double().cumsum(0) + later * gaps.double()) / count  # in a window as long as the gap
    return [int(torch.searchsorted(distinct, float(size), right=True)) / count for size in sizes]


def _repeated(graph: BenchGraph) -> float:
    keys = (graph.dst.long() * graph.num_nodes).add_(graph.src).cpu().numpy()
    keys.sort()  # in place: of a hundred million edges the indices of torch.sort would take another gigabyte
    return float((keys[1:] == keys[:-1]).sum()) / keys.size


def of(graph: BenchGraph) -> Facts:
    """Memory: about 30 bytes an edge."""
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


def describe(facts: Facts) -> str:
    """In one line."""
    f = facts
    return (
        f"{f.graph}: {f.num_nodes:,} nodes, {f.num_edges:,} edges, {f.repeated:.1%} repeated; in-degrees 0/10/50/90/99/100 %: "
        f"{f.in_p0} {f.in_p10} {f.in_p50} {f.in_p90} {f.in_p99} {f.in_max}; out-degrees 50/100 %: {f.out_p50} {f.out_max}; "
        f"a source is gathered {f.gathers:.1f} times, {f.top_share:.0%} of gathers are of the top 1 %, {f.near_share:.0%} "
        f"of one of the last {NEAR_ROWS:,} rows, {f.far_share:.0%} of the last {FAR_ROWS:,}"
    )


def read(path: Path) -> list[Facts]:
    kinds = {
        field.name: {"str": str, "int": int, "float": float}[str(field.type)] for field in dataclasses.fields(Facts)
    }
    with open(path, newline="") as file:
        return [Facts(**{name: kinds[name](text) for name, text in line.items()}) for line in csv.DictReader(file)]


def keep(path: Path, found: Sequence[Facts]) -> None:
    """Puts facts into a CSV file, in place of older ones of the same graphs; small graphs come first."""
    kept = {facts.graph: facts for facts in (read(path) if path.exists() else [])}
    kept.update({facts.graph: facts for facts in found})
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow([field.name for field in dataclasses.fields(Facts)])
        writer.writerows(
            dataclasses.astuple(facts) for facts in sorted(kept.values(), key=lambda f: (f.num_edges, f.graph))
        )


def render(found: Sequence[Facts]) -> str:
    """The markdown table."""
    header = ["graph", "nodes", "edges", "repeated", "in-degrees 10 / 50 / 90 / 99 %", "max", "gathers a source",
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
    add("--device", choices=("cpu", "cuda"), default="cpu", help="where they are drawn: other edges on a GPU")
    add("--out", type=Path, metavar="FOLDER", help=f"keep the facts in FOLDER/{KEPT}")


def run(options: argparse.Namespace) -> int:
    """Without names: what is quickly drawn."""
    for name in options.names or [name for name, recipe in graphs.RECIPES.items() if recipe.num_edges < 10**7]:
        found = of(graphs.named(name, "insertion", torch.int32, device=options.device))
        print(describe(found), flush=True)
        if options.out is not None:
            keep(options.out / KEPT, [found])
    return 0
