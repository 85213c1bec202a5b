"""Rows of results, one per backend and case, with their source. They are kept as CSV."""

from __future__ import annotations

import datetime
import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from halfgnn import _library

from . import records

WRONG = 0.1  # a relative error beyond rounding in any dtype
RESULTS = Path(__file__).parent / "results"
Entry = tuple[str, str]  # backend, dtype
FASTEST_COPY = "fastest copy_u_sum"  # of the competitors, in cases of other operators: see baselines/fastest.py
INDEXED_COPY = "indexed copy"
# Backends that do not compute the operator of their case: they are no rivals.
YARDSTICKS = (FASTEST_COPY, INDEXED_COPY, "dgl copy_u_sum", "gather limit", "gather limit, resident")
# Of /proc/cpuinfo: what kernels may depend on.
VECTOR_FLAGS = (
    "avx", "avx2", "fma", "f16c", "avx_vnni", "avx512f", "avx512bw", "avx512vl", "avx512dq", "avx512_bf16", "avx512_fp16",
    "amx_bf16", "amx_fp16", "asimd", "asimdhp", "fphp", "bf16", "sve", "sve2",
)  # fmt: skip


@dataclass(frozen=True)
class Row:
    """Times are in milliseconds per call. An empty field is not applicable, or was not measured (see note)."""

    # what
    family: str
    op: str
    direction: str  # forward, backward, forward+backward, or step (of training)
    backend: str
    dtype: str
    graph: str
    num_nodes: int
    num_edges: int
    order: str  # of edge data: insertion or sorted
    heads: int
    dim: int  # per head
    idtype: str
    device: str
    threads: int
    cache: str  # state of a GPU's cache before a call: warm (calls follow one another) or cold (flushed)
    # result
    ms: float | None = None  # median
    ms_p20: float | None = None
    ms_p80: float | None = None
    runs: int = 0
    gb_per_s: float | None = None  # counts the bytes that the case must move at least once per edge
    limit_share: float | None = None  # time of the pure gather over the same indices, divided by this time
    peak_mb: float | None = (
        None  # MiB at the peak of a call on a GPU without inputs; of training with them, also on a CPU
    )
    kept_mb: float | None = None  # MiB that a forward saves for its backward, beyond inputs and parameters
    losses: str = ""  # of training, one per step; the first is computed before any update
    error: float | None = None  # largest error against float64, relative to the largest value
    note: str = ""
    # source
    date: str = ""
    commit: str = ""
    cpu: str = ""
    cpu_flags: str = ""  # its vector extensions
    kernels: str = ""  # halfgnn's table of CPU kernels, as HALFGNN_CPU names it
    gpu: str = ""
    driver: str = ""
    torch: str = ""
    dgl: str = ""
    command: str = ""
    memory: str = ""  # "kept" if the C library keeps freed memory (halfgnn.keep_memory)

    @property
    def case(self) -> tuple:
        """Rows of one case are compared with one another; they were timed in turns."""
        return (
            self.family, self.op, self.direction, self.graph, self.order, self.heads, self.dim,
            self.idtype, self.device, self.threads, self.cpu, self.kernels, self.memory, self.cache,
        )  # fmt: skip

    @property
    def is_wrong(self) -> bool:
        return self.error is not None and not self.error <= WRONG  # not: NaN is wrong


def read(path: Path) -> list[Row]:
    return records.read(path, Row)


def append(path: Path, rows: Sequence[Row]) -> None:
    """Adds rows to a CSV file."""
    records.append(path, Row, rows)


def latest(rows: Sequence[Row]) -> list[Row]:
    """The rows of the last run of each case, in file order.

    A case is never combined from several runs, because its backends are comparable only within one run.
    """
    last: dict[tuple, str] = {}
    for row in rows:
        last[row.case] = max(last.get(row.case, ""), row.date)
    return [row for row in rows if row.date == last[row.case]]


class Measured(dict[Entry, Row]):
    """The rows of a case from one run, by backend and dtype."""

    @property
    def first(self) -> Row:
        return next(iter(self.values()))

    def row(self, names: Sequence[str], dtype: str) -> Row | None:
        """The row of the first of these backends that was timed."""
        found = (self.get((name, dtype)) for name in names)
        return next((row for row in found if row is not None and row.ms is not None), None)

    def ms(self, names: Sequence[str], dtype: str) -> float | None:
        row = self.row(names, dtype)
        return None if row is None else row.ms

    def fastest(self, dtype: str, names: Sequence[str] | None = None) -> Row | None:
        """The fastest right result of these backends, by default of all that are not halfgnn's."""
        found = [
            row
            for (name, kind), row in self.items()
            if kind == dtype and row.ms is not None and not row.is_wrong and (names is None or name in names)
        ]
        if names is None:
            found = [r for r in found if not r.backend.startswith("halfgnn") and r.backend not in YARDSTICKS]
        return min(found, key=lambda row: row.ms or 0.0, default=None)

    def has(self, names: Sequence[str]) -> bool:
        return any(backend in names for backend, _ in self)


def by_case(rows: Sequence[Row]) -> dict[tuple, Measured]:
    """The last run of every case."""
    cases: dict[tuple, Measured] = {}
    for row in latest(rows):
        cases.setdefault(row.case, Measured())[row.backend, row.dtype] = row
    return cases


def _git(*arguments: str) -> str:
    root = Path(__file__).resolve().parent.parent
    try:
        done = subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return ""
    return done.stdout.strip()


def commit() -> str:
    """Abbreviated commit, with "+" if the code differs from it. Outside a repository HALFGNN_COMMIT, or "unknown"."""
    name = _git("rev-parse", "--short=12", "--verify", "HEAD")
    if not name:
        return os.environ.get("HALFGNN_COMMIT", "unknown")
    code = ("halfgnn", "csrc", "benchmarks/*.py", "benchmarks/yardsticks", "setup.py", "build_sources.py")
    changed = _git("status", "--porcelain", "--", *code)
    return name + ("+" if changed else "")


def _cpu_info() -> dict[str, str]:
    """What Linux reports of the first core."""
    found: dict[str, str] = {}
    try:
        with open("/proc/cpuinfo") as file:
            for line in file:
                key, _, value = line.partition(":")
                found.setdefault(key.strip(), value.strip())
    except OSError:
        pass
    return found


def cpu_name() -> str:
    """Model name, family and model of the CPU."""
    found = _cpu_info()
    if "model name" not in found:
        return platform.processor() or platform.machine()
    family, model = found.get("cpu family", "?"), found.get("model", "?")
    return f"{found['model name']} (family {family} model {model})"


def cpu_flags() -> str:
    found = _cpu_info()
    present = found.get("flags", found.get("Features", "")).split()
    return " ".join(flag for flag in VECTOR_FLAGS if flag in present)


def gpu_facts(device: str) -> dict[str, str]:
    """Name and driver of the GPU that a run on `device` uses."""
    if device != "cuda":
        return {"gpu": "", "driver": ""}
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        driver = subprocess.run(query, capture_output=True, text=True, check=True).stdout.split("\n")[0].strip()
    except (OSError, subprocess.CalledProcessError):
        driver = "unknown"
    return {"gpu": torch.cuda.get_device_name(), "driver": driver}


def _measuring(argv: Sequence[str]) -> list[str]:
    """Arguments without --out: a folder for rows is of one machine, and not of what is measured."""
    return [
        text
        for before, text in zip(["", *argv], argv)
        if "--out" not in (before, text) and not text.startswith("--out=")
    ]


def provenance(argv: Sequence[str], device: str = "cpu") -> dict[str, str]:
    """The fields of Row for the source of a run. argv: the arguments of the command line."""
    dgl = sys.modules.get("dgl")
    return {
        **gpu_facts(device),
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "commit": commit(),
        "cpu": cpu_name(),
        "cpu_flags": cpu_flags(),
        "kernels": _library.cpu_kernels(),
        "torch": torch.__version__,
        "dgl": getattr(dgl, "__version__", "absent"),
        "command": f"python -m benchmarks {shlex.join(_measuring(argv))}",
    }
