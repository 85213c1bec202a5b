"""All measurements on a GPU: ``python -m benchmarks gpu --out out/gpu``.

Each graph and kind of work has its own process, so that a failure does not end the others. The most important ones run
first, and as many run as the time allows. Rows go to <out>/cuda.csv, the output of the processes to <out>/bench.log,
and all tables to <out>/cuda.md. They are printed last.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from . import rows, table
from .families import families_of

ROOT = Path(__file__).resolve().parent.parent
FAMILIES = ("spmm", "attention", "sddmm", "softmax", "messages", "edges", "train", "overhead", "limits")


@dataclass(frozen=True)
class Step:
    """A run of the benchmarks: subcommand, graph, and the other options of its command line."""

    family: str
    graph: str
    options: tuple[str, ...] = ()
    seconds: float = 120.0  # at most

    def argv(self, device: str, out: Path) -> list[str]:
        graph = ["--graphs", self.graph] if self.graph else []
        return [self.family, "--device", device, *graph, *self.options, "--out", str(out)]

    @property
    def name(self) -> str:
        return f"{self.family} {self.graph}".strip()


ALONE = ("--baselines",)  # none: halfgnn and the pure gather
_AT_128 = ("--dims", "128", "--heads", "1", "8")
_FP16 = (*_AT_128, "--dtype", "fp16")
# The rivals that come nearest. The others take a second per call on a large graph (H200: half of the time of a step).
_FEW = (*_FP16, "--baselines", "dgl algorithm", "torch.sparse")
STEPS = (
    Step("of_nodes", "reddit-size", seconds=100),
    Step("of_nodes", "products-size", seconds=100),
    Step("operators", "arxiv-size", seconds=45),
    Step("operators", "arxiv-size-hub", ("--dims", "128"), seconds=35),
    Step("of_nodes", "proteins-size", _AT_128, seconds=45),
    Step("messages", "communities-400k", _AT_128, seconds=30),
    Step("operators", "arxiv-size-sym", _AT_128, seconds=35),
    Step("spmm", "reddit-size", ("--orders", "insertion", "--dims", "128", "--dtype", "fp16", *ALONE), seconds=25),
    Step("train", "reddit-size", ("--models", "GAT"), seconds=70),
    Step("train", "arxiv-size", seconds=35),
    Step("overhead", "", ("--dtype", "fp16"), seconds=40),
)
QUICK = (
    Step("of_nodes", "reddit-size", _FEW, seconds=90),
    Step("of_nodes", "products-size", (*_FP16, *ALONE), seconds=60),
    Step("operators", "arxiv-size", _FEW, seconds=45),
    Step("operators", "arxiv-size-hub", (*_FP16, *ALONE), seconds=40),
    Step("train", "reddit-size", ("--models", "GAT", "--dtype", "fp16"), seconds=60),
    Step("messages", "communities-400k", _FP16, seconds=30),
)
_TINY = ("--quick", "--dims", "16", "--heads", "1", "2", "--orders", "sorted", "--threads", "1")
REHEARSAL = (
    Step("operators", "tiny-communities", _TINY),
    Step("operators", "tiny-hub", (*_TINY, "--dtype", "fp16", *ALONE)),
    Step("train", "tiny-communities", (*_TINY, "--models", "GAT", "--hidden", "16")),
    Step("overhead", "", (*_TINY, "--eager")),
)


def add_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--out", type=Path, required=True, metavar="FOLDER", help="folder for rows, log and tables")
    add("--quick", action="store_true", help="the operators at one width, on four graphs, and the guide's GAT")
    add("--budget", type=float, default=560, help="seconds for the whole run (560)")
    add("--device", choices=("cuda", "cpu"), default="cuda", help="cpu: a rehearsal on tiny graphs")


def _measure(step: Step, device: str, out: Path, seconds: float) -> str:
    """Runs a step. Returns a line that says how it ended."""
    command = [sys.executable, "-m", "benchmarks", *step.argv(device, out)]
    start = time.monotonic()
    with open(out / "bench.log", "a") as log:
        print("#", " ".join(command[1:]), file=log, flush=True)
        try:
            done = subprocess.run(command, cwd=ROOT, stdout=log, stderr=subprocess.STDOUT, timeout=seconds, check=False)
            ended = "done" if done.returncode == 0 else f"FAILED with {done.returncode}, see bench.log"
        except subprocess.TimeoutExpired:
            ended = "cut off"
    return f"{step.name}: {ended} in {time.monotonic() - start:.0f} s"


def _left_out(steps: Sequence[Step], measured: Sequence[rows.Row]) -> list[str]:
    """What was planned and has no time: families, and cases that found no memory or no library."""
    there = {(row.family, row.graph.removesuffix(" (synthetic)")) for row in measured if row.ms is not None}
    somewhere = {family for family, _ in there}
    lines = []
    for step in steps:
        families = families_of(step.family)
        absent = [f for f in families if (f, step.graph) not in there and (step.graph or f not in somewhere)]
        lines += [f"not measured on {step.graph or 'its own graphs'}: {', '.join(absent)}"] if absent else []
    short = Counter(
        f"{row.graph}, {row.family}: {row.note}" for row in measured if row.backend == "halfgnn" and row.ms is None
    )
    return [*dict.fromkeys(lines), *(f"{count} x {what}" for what, count in short.items())]


def run(options: argparse.Namespace) -> int:
    """Runs all steps. Returns the exit status: 0 if every step was done."""
    if options.device == "cuda" and not torch.cuda.is_available():
        raise SystemExit(f"gpu-bench needs an NVIDIA GPU, and torch {torch.__version__} of {sys.executable} sees none")
    out = options.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    steps = REHEARSAL if options.device == "cpu" else QUICK if options.quick else STEPS
    end, endings = time.monotonic() + options.budget, []
    for step in steps:
        left = min(step.seconds, end - time.monotonic())
        endings.append(_measure(step, options.device, out, left) if left > 10 else f"{step.name}: no time was left")
        print(endings[-1], flush=True)
    kept = out / f"{options.device}.csv"
    measured = rows.read(kept) if kept.exists() else []
    for line in _left_out(steps, measured):
        print(line, flush=True)
    tables = table.render(measured)
    (out / f"{options.device}.md").write_text(tables)
    print(tables, end="")
    return 0 if all(": done" in ending for ending in endings) else 1
