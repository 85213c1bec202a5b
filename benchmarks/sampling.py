"""Sampling of blocks: halfgnn.dataloading.NeighborSampler beside dgl.dataloading.NeighborSampler.

    python -m benchmarks sampling arxiv-size-sym products-size --threads 1 2 --out out/cpu

The samplers take turns, batch by batch, with the same seeds. They sample without replacement and make blocks, without
features and without the out-edges that a backward pass reads. halfgnn samples from int64 ids, as DGL does, and from
int32 ids. dgl 1.1.3 samples wrong blocks from int32 ids. The samples differ, but their sizes must agree on average.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from halfgnn import Graph
from halfgnn.dataloading import NeighborSampler

from . import graphs, records, rows
from .cells import faster, markdown, number
from .optional import Unavailable, import_dgl, set_threads

KEPT = "sampling.csv"
WARM_UP = 5  # batches that are not counted
MOST_APART = 0.01  # by which mean numbers of nodes may differ

Sample = Callable[[Tensor], tuple[int, int]]  # of seeds: numbers of input nodes and of edges


@dataclass(frozen=True)
class SamplingRow:
    """Times are in milliseconds per batch."""

    backend: str
    graph: str
    num_nodes: int
    num_edges: int
    idtype: str
    fanouts: str  # input layer first
    batch_size: int
    threads: int
    clock: str  # passed: time that passes; cpu: seconds of the process on the CPU
    ms: float | None  # median
    ms_p20: float | None
    ms_p80: float | None
    batches: int
    input_nodes: float | None  # per batch, on average
    sampled_edges: float | None
    date: str = ""
    commit: str = ""
    cpu: str = ""
    torch: str = ""
    dgl: str = ""
    command: str = ""


def _csc(name: str) -> Graph:
    """With int32 ids and edges in CSC order."""
    made = graphs.named(name, "insertion", torch.int32)
    graph, _ = Graph.from_edges(made.src, made.dst, num_src=made.num_nodes, num_dst=made.num_nodes, sort=True)
    return graph


def _halfgnn(graph: Graph, fanouts: Sequence[int]) -> Sample:
    sampler = NeighborSampler(graph, fanouts)

    def sample(seeds: Tensor) -> tuple[int, int]:
        batch = sampler.sample(seeds)
        return len(batch.input_nodes), sum(block.topology.num_edges for block in batch.blocks)

    return sample


def _dgl(graph: Graph, fanouts: Sequence[int]) -> Sample:
    dgl = import_dgl()
    indptr, indices, _ = graph.csc()
    whole = dgl.graph(("csc", (indptr, indices, indptr[:0])), num_nodes=graph.num_dst)
    sampler = dgl.dataloading.NeighborSampler(list(fanouts))

    def sample(seeds: Tensor) -> tuple[int, int]:
        input_nodes, _, blocks = sampler.sample_blocks(whole, seeds)
        return len(input_nodes), sum(block.num_edges() for block in blocks)

    return sample


def _samplers(graph: Graph, fanouts: Sequence[int]) -> Iterator[tuple[str, str, Sample]]:
    """(backend, type of ids, sampler)"""
    yield "halfgnn", "int32", _halfgnn(graph, fanouts)
    graph = graph.long()
    yield "halfgnn", "int64", _halfgnn(graph, fanouts)
    try:
        yield "dgl", "int64", _dgl(graph, fanouts)
    except Unavailable as error:
        print(f"without DGL: {error}")


def measure(
    name: str, threads: Sequence[int], options: argparse.Namespace, source: dict[str, str]
) -> list[SamplingRow]:
    """Raises ValueError if the samplers disagree on the mean number of input nodes."""
    graph, found = _csc(name), []
    samplers = list(_samplers(graph, options.fanouts))
    for count in threads:
        set_threads(count)
        sizes: list[list[tuple[int, int]]] = [[] for _ in samplers]
        seconds: list[list[float]] = [[] for _ in samplers]
        generator = torch.Generator().manual_seed(0)
        for number_of_batch in range(WARM_UP + options.batches):
            seeds = torch.randint(graph.num_dst, (options.batch_size,), generator=generator).unique()
            for (_, _, sample), size, times in zip(samplers, sizes, seconds):
                start = options.clock()
                taken = sample(seeds)
                if number_of_batch >= WARM_UP:
                    times.append(options.clock() - start)
                    size.append(taken)
        for (backend, idtype, _), size, times in zip(samplers, sizes, seconds):
            fifths = statistics.quantiles(times, n=5)
            nodes, edges = (statistics.mean(numbers) for numbers in zip(*size))
            found.append(
                SamplingRow(
                    backend, name, graph.num_dst, graph.num_edges, idtype, " ".join(map(str, options.fanouts)),
                    options.batch_size, count, "cpu" if options.cpu_time else "passed", statistics.median(times) * 1e3,
                    fifths[0] * 1e3, fifths[-1] * 1e3, len(times), nodes, edges, **source,
                )
            )  # fmt: skip
        _check_sizes(found[-len(samplers) :])
    return found


def _check_sizes(found: Sequence[SamplingRow]) -> None:
    nodes = [row.input_nodes or 0.0 for row in found]
    if max(nodes) > (1 + MOST_APART) * min(nodes):
        raise ValueError(f"{[row.backend for row in found]} sample {nodes} nodes per batch; expected about the same")


def render(found: Sequence[SamplingRow]) -> str:
    """The markdown table, a line per graph and number of threads."""
    cases: dict[tuple[Any, ...], dict[tuple[str, str], SamplingRow]] = {}
    for row in found:
        case = row.graph, row.threads, row.fanouts, row.batch_size, row.clock, row.cpu
        cases.setdefault(case, {})[row.backend, row.idtype] = row
    header = ["graph", "nodes", "edges", "threads", "halfgnn, int32", "halfgnn, int64", "dgl, int64",
              "faster, both int64", "nodes: halfgnn", "dgl"]  # fmt: skip
    lines = []
    for by_name in cases.values():
        narrow, ours, theirs = (
            by_name.get(key) for key in (("halfgnn", "int32"), ("halfgnn", "int64"), ("dgl", "int64"))
        )
        assert narrow is not None and ours is not None
        times = [number(row.ms) if row else "-" for row in (narrow, ours, theirs)]
        nodes = [f"{row.input_nodes:,.0f}" if row else "-" for row in (ours, theirs)]
        clock = ", CPU time" if ours.clock == "cpu" else ""
        sizes = [f"{ours.num_nodes:,}", f"{ours.num_edges:,}", f"{ours.threads}{clock}"]
        lines.append([ours.graph, *sizes, *times, faster(ours.ms, theirs.ms if theirs else None), *nodes])
    return markdown(header, lines, 1) + "\n"


def add_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("names", nargs="+", choices=graphs.NAMES, metavar="NAME", help=", ".join(graphs.NAMES))
    add("--fanouts", type=int, nargs="+", default=[15, 10, 5], help="input layer first")
    add("--batch-size", type=int, default=1024)
    add("--batches", type=int, default=50, help="that are timed")
    add("--threads", type=int, nargs="+", default=[1, 2])
    add("--cpu-time", action="store_true", help="seconds of the process, for a machine that others use; one thread")
    add("--out", type=Path, metavar="FOLDER", help=f"append the rows to FOLDER/{KEPT}")


def run(options: argparse.Namespace) -> int:
    """Prints the table of each graph."""
    options.clock = time.process_time if options.cpu_time else time.perf_counter
    arguments = (
        f"python -m benchmarks sampling {' '.join(options.names)} --threads {' '.join(map(str, options.threads))}"
    )
    arguments += " --cpu-time" if options.cpu_time else ""
    set_threads(1)  # imports DGL, whose version the rows have
    kept = {"date", "commit", "cpu", "torch", "dgl"}
    source = {name: text for name, text in rows.provenance([]).items() if name in kept} | {"command": arguments}
    for name in options.names:
        found = measure(name, options.threads, options, source)
        print(render(found), flush=True)
        if options.out is not None:
            records.append(options.out / KEPT, SamplingRow, found)
    return 0
