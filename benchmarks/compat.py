"""halfgnn.compat beside the libraries whose interfaces it has: torch_scatter, torch_sparse and dgl, and PyTorch's own functions.

    python -m benchmarks compat --out out/cpu

Backends take turns, sample by sample. Results are first compared with float64: PyTorch's for functions of torch_scatter and
torch_sparse, DGL's for its own. torch_scatter, torch_sparse and dgl take part if they are installed; none of them is replaced.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import time
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor
from tqdm import tqdm

from . import compat_cases, records, rows
from .cells import faster, markdown, number, wrapped
from .compat_cases import HALFGNN, PYTORCH, Case
from .optional import Unavailable, first_line, import_package, set_threads
from .programs.step import Values
from .rows import WRONG
from .timing import QUICK, Effort, HostClock, Runner, measure, plan, quantile

KEPT = "compat.csv"
EFFORT = Effort(budget_s=0.25, min_runs=5, slow_s=0.8)


@dataclass(frozen=True)
class CompatRow:
    """Times are in milliseconds per call. Without a time, the note says why."""

    interface: str
    what: str  # a function, a call, or the layer of which a model has two
    size: str
    direction: str  # forward, backward, call, or step: forward, backward, Adam
    dtype: str  # of a step bf16 is autocast
    backend: str  # halfgnn, pytorch, or the library of the interface
    threads: int
    clock: str  # passed: time that passes; cpu: seconds of the process on the CPU
    ms: float | None  # the fastest
    ms_p50: float | None
    runs: int
    error: float | None  # largest relative error of a result or gradient, in norms, against float64
    others: float | None  # processors that other processes kept busy meanwhile, on average
    note: str = ""
    date: str = ""
    commit: str = ""
    cpu: str = ""
    kernels: str = ""
    torch: str = ""
    library: str = ""  # the version of the interface's library; absent
    command: str = ""

    @property
    def case(self) -> tuple[Any, ...]:
        return self.interface, self.what, self.size, self.direction, self.dtype, *self.machine

    @property
    def machine(self) -> tuple[Any, ...]:
        return self.cpu, self.kernels, self.threads, self.clock


# ---- measuring -------------------------------------------------------------------------------------------------------------------


def tensors_in(result: Any) -> list[Tensor]:
    """The tensors of a result. Those of a graph are the ends of its edges."""
    if isinstance(result, Tensor):
        return [result]
    parts = result if isinstance(result, (list, tuple)) else result.edges()
    return [tensor for part in parts for tensor in tensors_in(part)]


def _busy_s() -> float | None:
    """Seconds that processors have been busy since the machine started, without this process; None if Linux does not say."""
    try:
        with open("/proc/stat") as file:
            user, nice, system, _, _, *interrupts = map(int, file.readline().split()[1:9])
    except (OSError, ValueError):
        return None
    return (user + nice + system + sum(interrupts)) / os.sysconf("SC_CLK_TCK") - time.process_time()


class _Others:
    """How many processors other processes have kept busy since this was made, on average."""

    def __init__(self) -> None:
        self.busy, self.start = _busy_s(), time.perf_counter()

    def mean(self) -> float | None:
        busy, passed = _busy_s(), time.perf_counter() - self.start
        return None if busy is None or self.busy is None else max(0.0, busy - self.busy) / passed


def _expected(case: Case) -> Values | None:
    try:
        return Values(tensors_in(case.compared(case.make(case.truth, "fp64")())), [])
    except Unavailable:
        return None


def measure_case(case: Case, options: argparse.Namespace, source: dict[str, str]) -> Iterator[CompatRow]:
    """The rows of a case, dtype by dtype. A backend whose package is not installed has none."""
    expected, clock = _expected(case), HostClock(now=time.process_time if options.cpu_time else time.perf_counter)
    try:
        version = getattr(import_package(case.interface), "__version__", "unknown")
    except Unavailable:
        version = "absent"
    for dtype in case.dtypes:
        made = CompatRow(
            case.interface, case.what, case.size, case.direction, dtype, "", options.threads,
            "cpu" if options.cpu_time else "passed", None, None, 0, None, None, library=version, **source,
        )  # fmt: skip
        runners: dict[str, Runner] = {}
        found: dict[str, CompatRow] = {}
        for backend in case.backends:
            try:
                runner = Runner(case.make(backend, dtype), clock=clock)
                first, result = runner.first()
            except Unavailable:
                continue
            except Exception as refusal:  # a library refuses a dtype with any error
                found[backend] = dataclasses.replace(made, backend=backend, note=first_line(refusal)[:160])
                continue
            error = max(Values(tensors_in(case.compared(result)), []).errors(expected)) if expected else None
            del result
            plan(runner, options.effort, first)
            runners[backend], found[backend] = runner, dataclasses.replace(made, backend=backend, error=error)
        others = _Others()
        measure(list(runners.values()), options.effort, lambda: None)
        busy = others.mean()
        for backend, row in found.items():
            seconds = runners[backend].seconds if backend in runners else []
            fastest, median = (1e3 * quantile(seconds, q) if seconds else None for q in (0.0, 0.5))
            yield dataclasses.replace(row, ms=fastest, ms_p50=median, runs=len(seconds), others=busy)


# ---- tables ----------------------------------------------------------------------------------------------------------------------

Found = dict[tuple[str, str, str], CompatRow]  # of a line: by direction, dtype and backend


def latest(found: Sequence[CompatRow]) -> list[CompatRow]:
    """The rows of the last run of each case: backends of one run are comparable."""
    last: dict[tuple[Any, ...], str] = {}
    for row in found:
        last[row.case] = max(last.get(row.case, ""), row.date)
    return [row for row in found if row.date == last[row.case]]


def _cell(row: CompatRow | None) -> str:
    wrong = row is not None and row.error is not None and not row.error <= WRONG
    return number(row.ms if row else None) + ("*" if wrong else "")


def _about(found: Sequence[CompatRow]) -> str:
    """The conditions of one machine's rows."""
    row = found[0]
    clock = "the process's CPU time" if row.clock == "cpu" else "time that passes"
    libraries = dict.fromkeys(f"{row.interface} {row.library}" for row in found)
    busy = [row.others for row in found if row.others is not None]
    others = f"; other processes kept {sum(busy) / len(busy):.1f} processors busy on average" if busy else ""
    commands = "; ".join(dict.fromkeys(f"commit {row.commit}, `{row.command}`" for row in found))
    text = (f"Milliseconds, {clock}, the fastest call; {row.cpu.split(' (')[0]}, kernels {row.kernels}, "
            f"{row.threads} thread{'s' if row.threads > 1 else ''}; {row.date[:10]}, torch {row.torch}, "
            f"{', '.join(libraries)}{others}; {commands}.")  # fmt: skip
    return wrapped(text)


def _tables(found: Sequence[CompatRow], interfaces: Sequence[str], header: Sequence[str], cells: Any) -> str:
    """One per machine. cells: of a line's rows."""
    machines: dict[tuple[Any, ...], list[CompatRow]] = {}
    for row in latest(found):
        if row.interface in interfaces:
            machines.setdefault(row.machine, []).append(row)
    parts = []
    for of_machine in machines.values():
        lines: dict[tuple[str, str], Found] = {}
        for row in of_machine:
            lines.setdefault((row.what, row.size), {})[row.direction, row.dtype, row.backend] = row
        table = markdown(header, [[*line, *cells(of)] for line, of in lines.items()], 2)
        parts.append(f"{table}\n\n{_about(of_machine)}\n")
    return "\n".join(parts)


def _of_rows(of: Found) -> Iterator[str]:
    library = next((row.interface for row in of.values()), "")
    for dtype in ("fp32", "bf16"):
        for backend in (HALFGNN, library, PYTORCH):
            rows_ = (of.get((direction, dtype, backend)) for direction in ("forward", "backward"))
            yield " / ".join(_cell(row) for row in rows_)


def render_rows(found: Sequence[CompatRow]) -> str:
    """The table of torch_scatter and torch_sparse: forward / backward of each backend."""
    backends = ("halfgnn", "the library", "PyTorch")
    header = ["function", "size", *(f"{backend}, {dtype}" for dtype in ("fp32", "bf16") for backend in backends)]
    return _tables(found, ("torch_scatter", "torch_sparse"), header, _of_rows)


def _of_graphs(of: Found) -> Iterator[str]:
    direction = next(iter(of))[0]
    for dtype in ("fp32", "bf16"):
        upstream, halfgnn = (of.get((direction, dtype, backend)) for backend in ("dgl", HALFGNN))
        yield from (_cell(upstream), _cell(halfgnn))
        yield faster(halfgnn.ms if halfgnn else None, upstream.ms if upstream else None)


def render_graphs(found: Sequence[CompatRow]) -> str:
    """The table of dgl: a step of each model, and calls."""
    header = ["layer or call", "size", "dgl, fp32", "halfgnn", "faster", "dgl, bf16", "halfgnn", "faster"]
    return _tables(found, ("dgl",), header, _of_graphs)


# ---- command ---------------------------------------------------------------------------------------------------------------------


def add_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--only", nargs="+", metavar="NAME", default=[], help="functions, layers and calls whose name has NAME in it")
    add("--threads", type=int, default=1)
    add("--cpu-time", action="store_true", help="seconds of the process, for a machine that others use; one thread")
    add("--quick", action="store_true", help="a smoke test: small sizes, almost no repetition")
    add("--out", type=Path, metavar="FOLDER", help=f"append the rows to FOLDER/{KEPT}")


def run(options: argparse.Namespace) -> int:
    """Prints both tables."""
    set_threads(options.threads)
    options.effort = QUICK if options.quick else EFFORT
    sizes = compat_cases.QUICK if options.quick else compat_cases.SIZES
    cases = [*compat_cases.of_rows(sizes), *compat_cases.of_graphs(sizes)]
    cases = [case for case in cases if not options.only or any(name in case.what for name in options.only)]
    if not cases:
        raise SystemExit(f"--only {' '.join(options.only)}: nothing has such a name")
    kept = {"date", "commit", "cpu", "kernels", "torch"}
    source = {name: text for name, text in rows.provenance([]).items() if name in kept}
    source["command"] = f"python -m benchmarks compat --threads {options.threads}"
    source["command"] += (" --cpu-time" if options.cpu_time else "") + (" --quick" if options.quick else "")
    found = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # for example, sparse tensors warn that they are in beta
        for case in tqdm(cases, disable=None):
            found += [records.as_kept(row) for row in measure_case(case, options, source)]
    if options.out is not None:
        records.append(options.out / KEPT, CompatRow, found)
    print(f"{render_rows(found)}\n{render_graphs(found)}", flush=True)
    return 0
