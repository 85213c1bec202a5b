"""Sums over neighbours of rows of codes of 8 bits, beside those of bf16 and fp32.

    python -m benchmarks code-sums --graph reddit-tenth --threads 1 2 --out out/cpu

The types take turns, sum by sum, and the fastest sum of each counts: on a machine that others use, the rest is their time. Results
are bf16, but of fp32's rows. Codes that are integers have zero points.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from halfgnn import ops
from halfgnn.dataloading import Codes

from . import graphs, records, rows
from .cells import markdown, number
from .optional import set_threads

KEPT = "code_sums.csv"
CODES = {
    "uint8": torch.uint8,
    "int8": torch.int8,
    "e4m3": torch.float8_e4m3fn,
    "e5m2": torch.float8_e5m2,
}
# What has a scale of its own, of the integers and of float8.
PER = {"uint8": ("tensor", "column", "row"), "int8": ("tensor",), "e4m3": ("tensor",), "e5m2": ("tensor",)}
OPERATORS = ("copy_u_sum", "u_mul_e_sum")

Kind = tuple[str, str, str]  # the operator, what is stored, and what has a scale


@dataclass(frozen=True)
class CodeSumRow:
    """Times are in milliseconds per sum."""

    graph: str
    operator: str
    stored: str
    scale: str  # what has one: row, column or tensor; empty of bf16 and fp32
    width: int
    threads: int
    ms: float  # the fastest
    ms_bf16: float  # of bf16's rows by the same operator, in the same run
    repeats: int
    date: str = ""
    commit: str = ""
    cpu: str = ""
    kernels: str = ""
    torch: str = ""
    command: str = ""


def _calls(graph: graphs.BenchGraph, width: int) -> dict[Kind, Callable[[], torch.Tensor]]:
    g = graph.halfgnn
    x = torch.randn(g.num_src, width)
    weight = torch.rand(g.num_edges).bfloat16()
    stored: dict[tuple[str, str], torch.Tensor | Codes] = {("bf16", ""): x.bfloat16(), ("fp32", ""): x}
    for name, dtype in CODES.items():
        for per in PER[name]:
            shape = {"row": (g.num_src, 1), "column": (width,), "tensor": ()}[per]
            zero = torch.full(shape, 100.0) if name in ("uint8", "int8") else None
            data = torch.empty(g.num_src, width, dtype=torch.uint8).random_(0x78).view(dtype)
            stored[name, per] = Codes(data, torch.rand(shape), zero, torch.bfloat16)
    calls: dict[Kind, Callable[[], torch.Tensor]] = {}
    for key, features in stored.items():
        calls[("copy_u_sum", *key)] = lambda features=features: ops.copy_u_sum(g, features)  # type: ignore[misc]
    for key in (("bf16", ""), ("fp32", ""), ("uint8", "tensor"), ("e5m2", "tensor")):
        features = stored[key]
        calls[("u_mul_e_sum", *key)] = lambda features=features: ops.u_mul_e_sum(g, features, weight)  # type: ignore[misc]
    return calls


def measure(options: argparse.Namespace, source: dict[str, str]) -> list[CodeSumRow]:
    torch.manual_seed(0)
    graph = graphs.named(options.graph, "sorted", torch.int32)
    calls = _calls(graph, options.width)
    found = []
    for count in options.threads:
        set_threads(count)
        seconds = dict.fromkeys(calls, float("inf"))
        for repeat in range(options.repeats + 1):  # the first is not counted
            for kind, call in calls.items():
                start = time.perf_counter()
                call()
                passed = time.perf_counter() - start
                seconds[kind] = min(seconds[kind], passed) if repeat else seconds[kind]
        for (operator, stored, scale), time_ in seconds.items():
            found.append(
                CodeSumRow(
                    options.graph, operator, stored, scale, options.width, count, time_ * 1e3,
                    seconds[operator, "bf16", ""] * 1e3, options.repeats, **source,
                )
            )  # fmt: skip
    return found


def render(found: list[CodeSumRow]) -> str:
    """The markdown table: a line for each operator, number of threads and type."""
    header = ["operator", "threads", "rows stored as", "scale per", "ms", "of bf16's time"]
    lines = []
    for row in sorted(found, key=lambda row: (OPERATORS.index(row.operator), row.threads)):
        ratio = "1" if row.stored == "bf16" else f"{row.ms / row.ms_bf16:.2f}"
        lines.append([row.operator, str(row.threads), row.stored, row.scale, number(row.ms), ratio])
    return markdown(header, lines, 4) + "\n"


def add_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--graph", default="reddit-tenth", choices=graphs.NAMES)
    add("--width", type=int, default=128)
    add("--threads", type=int, nargs="+", default=[1, 2])
    add("--repeats", type=int, default=15, help="sums that are timed")
    add("--out", type=Path, metavar="FOLDER", help=f"append the rows to FOLDER/{KEPT}")


def run(options: argparse.Namespace) -> int:
    """Prints the table."""
    threads = " ".join(map(str, options.threads))
    kept = {"date", "commit", "cpu", "kernels", "torch"}
    source = {name: text for name, text in rows.provenance([]).items() if name in kept}
    source["command"] = (
        f"python -m benchmarks code-sums --graph {options.graph} --width {options.width} --threads {threads}"
    )
    found = [records.as_kept(row) for row in measure(options, source)]
    print(render(found), flush=True)
    if options.out is not None:
        records.append(options.out / KEPT, CodeSumRow, found)
    return 0
