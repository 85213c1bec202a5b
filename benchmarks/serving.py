"""Inference of one request after the other, and of several at once: torch_geometric and halfgnn, eager and ahead of time.

    python -m benchmarks serving --out out/cpu             latencies and calls per second
    python -m benchmarks serving --soak 600 --out out/cpu  8 threads call packages for 10 minutes; fails if memory grows

A request is a block of sampled neighbours in tensors of its own, so no backend has seen its edges. Backends take turns under
torch.inference_mode. Their results are compared with torch_geometric's in float64 before anything is timed. Packages of AOTInductor
are compiled once per commit and kept in the folder of --out.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from . import graphs, records, rows, serving_models, serving_soak
from .cells import faster, markdown, number
from .optional import import_pyg, set_threads
from .serving_models import BACKENDS, DTYPES, LAYERS, OURS_AOTI, PYG, PYG_AOTI, Backend, Request

KEPT = "serving.csv"
MOST_WRONG = {"fp32": 1e-3, "bf16": 0.1}  # of the largest value, against float64 of torch_geometric
REQUESTS = 8  # different ones per size
WARM_UP = 2  # calls that are not counted


@dataclass(frozen=True)
class ServingRow:
    """Of a latency row callers is 1 and times are milliseconds per call. Of a row of throughput, callers threads call at once."""

    what: str  # latency or throughput
    backend: str
    model: str
    dtype: str
    graph: str
    num_nodes: int  # of a request, on average
    num_edges: int
    callers: int
    threads: int  # of PyTorch, in each call
    ms: float | None  # median
    ms_p20: float | None
    ms_p80: float | None
    ms_p99: float | None
    per_second: float | None  # calls
    calls: int
    error: float | None
    note: str = ""
    date: str = ""
    commit: str = ""
    cpu: str = ""
    torch: str = ""
    torch_geometric: str = ""
    command: str = ""

    @property
    def case(self) -> tuple:
        return self.what, self.model, self.dtype, self.graph, self.num_edges, self.callers, self.threads, self.cpu


def fresh(request: Request) -> Request:
    """The request in tensors of its own, as a server receives it: nothing is stored with them."""
    return tuple(part.clone() for part in request)


# ---- results ---------------------------------------------------------------------------------------------------------------------


def error_of(backend: Backend, request: Request, expected: Tensor) -> float:
    with torch.inference_mode(), backend.context():
        found = backend.call(*fresh(request))
    return float((found.double() - expected).abs().max() / expected.abs().max())


def check(backend: Backend, dtype: str, requests: Sequence[Request], expected: Sequence[Tensor]) -> float:
    """The largest error. Raises ValueError if a result is wrong."""
    error = max(error_of(backend, request, rows) for request, rows in zip(requests, expected))
    if not error <= MOST_WRONG[dtype]:
        raise ValueError(f"{backend.name} in {dtype} is off by {error:.2g} of the largest value")
    return error


def expected_of(name: str, dtype: str, requests: Sequence[Request]) -> list[Tensor]:
    """By torch_geometric in float64, from the parameters and rows of `dtype`."""
    module = serving_models.model(name, import_pyg().nn, DTYPES[dtype]).double()
    with torch.no_grad():
        return [module(*(part.double() if part.is_floating_point() else part for part in rows)) for rows in requests]


# ---- times -----------------------------------------------------------------------------------------------------------------------


def latencies(found: Sequence[Backend], requests: Sequence[Request], calls: int) -> list[list[float]]:
    """Milliseconds of each call of each backend, which take turns, request by request."""
    times: list[list[float]] = [[] for _ in found]
    with torch.inference_mode():
        for turn in range(WARM_UP + calls):
            for backend, taken in zip(found, times):
                before, request = (fresh(requests[number % len(requests)]) for number in (turn - 1, turn))
                with backend.context():
                    backend.call(*before)  # untimed: others have just used the caches, and a context may change classes
                    start = time.perf_counter()
                    backend.call(*request)
                    passed = time.perf_counter() - start
                if turn >= WARM_UP:
                    taken.append(1e3 * passed)
    return times


def called_at_once(
    call: Callable[..., Any], requests: Sequence[Request], callers: int, until: Callable[[int], bool]
) -> tuple[list[list[Tensor]], list[list[float]], float]:
    """Threads that call at once, each from a request of its own on: results and milliseconds by thread, and seconds in all.

    until: of the number of calls that a thread has made, whether it stops.
    """
    results: list[list[Tensor]] = [[] for _ in range(callers)]
    times: list[list[float]] = [[] for _ in range(callers)]
    failed: list[BaseException] = []
    barrier = threading.Barrier(callers + 1)

    def serve(caller: int) -> None:
        try:
            with torch.inference_mode():  # modes are a thread's own
                barrier.wait()
                while not until(len(times[caller])):
                    request = fresh(requests[(caller + len(times[caller])) % len(requests)])
                    start = time.perf_counter()
                    result = call(*request)
                    times[caller].append(1e3 * (time.perf_counter() - start))
                    results[caller] = [*results[caller], result][-len(requests) :]
        except BaseException as error:
            failed.append(error)
            barrier.abort()

    threads = [threading.Thread(target=serve, args=(caller,)) for caller in range(callers)]
    for thread in threads:
        thread.start()
    with contextlib.suppress(threading.BrokenBarrierError):
        barrier.wait()
    start = time.perf_counter()
    for thread in threads:
        thread.join()
    if failed:
        raise failed[0]
    return results, times, time.perf_counter() - start


def check_callers(backend: Backend, requests: Sequence[Request], callers: int) -> None:
    """Raises ValueError unless threads that call at once get the results of one caller, bit by bit."""
    with torch.inference_mode(), backend.context():
        alone = [backend.call(*fresh(request)) for request in requests]
    with backend.context():
        results, _, _ = called_at_once(backend.call, requests, callers, lambda count: count >= len(requests))
    for caller, found in enumerate(results):
        for number_of_call, result in enumerate(found):
            if not torch.equal(result, alone[(caller + number_of_call) % len(requests)]):
                raise ValueError(f"{backend.name}: {callers} callers at once get other results than one")


# ---- rows ------------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Case:
    """A model in a dtype, on requests of one size."""

    model: str
    dtype: str
    requests: list[Request]
    found: list[Backend]
    errors: list[float]
    absent: list[tuple[str, str]]
    row: Callable[..., ServingRow]


def _cases(options: argparse.Namespace, folder: Path, source: dict[str, str]) -> Iterator[_Case]:
    drawn = {edges: serving_models.requests(options.graph, edges, options.requests) for edges in options.edges}
    for name in options.models:
        for dtype in options.dtypes:
            by_size = {
                edges: [serving_models.for_model(request, name, DTYPES[dtype]) for request in found]
                for edges, found in drawn.items()
            }
            example = next(iter(by_size.values()))[0]
            made = list(
                serving_models.backends(tuple(options.backends), name, dtype, folder, example, max(options.callers))
            )
            found = [backend for backend in made if isinstance(backend, Backend)]
            for requests in by_size.values():
                expected = expected_of(name, dtype, requests)
                errors = [check(backend, dtype, requests, expected) for backend in found]
                sizes = (round(statistics.mean(of)) for of in zip(*((len(r[0]), r[1].shape[1]) for r in requests)))
                nodes, edges = sizes
                row = lambda what, backend, nodes=nodes, edges=edges, name=name, dtype=dtype, **values: ServingRow(  # noqa: E731
                    what, backend, name, dtype, options.graph, nodes, edges, **values, **source
                )
                yield _Case(name, dtype, requests, found, errors, [m for m in made if not isinstance(m, Backend)], row)


def _times(taken: Sequence[float]) -> dict[str, float]:
    percentiles = statistics.quantiles(taken, n=100, method="inclusive") if len(taken) > 1 else [taken[0]] * 99
    return {
        "ms": statistics.median(taken),
        "ms_p20": percentiles[19],
        "ms_p80": percentiles[79],
        "ms_p99": percentiles[98],
    }


_NO_TIMES: dict[str, Any] = {"ms": None, "ms_p20": None, "ms_p80": None, "ms_p99": None}


def _latency_rows(case: _Case, options: argparse.Namespace) -> Iterator[ServingRow]:
    for threads in options.threads:
        set_threads(threads)
        times = latencies(case.found, case.requests, options.calls)
        for backend, taken, error in zip(case.found, times, case.errors):
            yield case.row(
                "latency", backend.name, callers=1, threads=threads, **_times(taken), per_second=None, calls=len(taken),
                error=error,
            )  # fmt: skip
        for name, note in case.absent:
            yield case.row(
                "latency",
                name,
                callers=1,
                threads=threads,
                **_NO_TIMES,
                per_second=None,
                calls=0,
                error=None,
                note=note,
            )


def _throughput_rows(case: _Case, options: argparse.Namespace) -> Iterator[ServingRow]:
    set_threads(1)
    for callers in options.callers:
        for backend, error in zip(case.found, case.errors):
            check_callers(backend, case.requests, callers)
            with backend.context():
                deadline = time.perf_counter() + options.seconds
                until = lambda count, deadline=deadline: count > 0 and time.perf_counter() >= deadline  # noqa: E731
                _, times, passed = called_at_once(backend.call, case.requests, callers, until)
            taken = [ms for by_caller in times for ms in by_caller]
            yield case.row(
                "throughput", backend.name, callers=callers, threads=1, **_times(taken), per_second=len(taken) / passed,
                calls=len(taken), error=error,
            )  # fmt: skip


# ---- tables ----------------------------------------------------------------------------------------------------------------------


def latest(found: Sequence[ServingRow]) -> list[ServingRow]:
    """The rows of the last run of each case."""
    last = {row.case: row.date for row in sorted(found, key=lambda row: row.date)}
    return [row for row in found if row.date == last[row.case]]


def render(found: Sequence[ServingRow]) -> str:
    """The markdown tables of the last runs on each processor: latencies, then calls per second."""
    rows = latest(found)
    parts = []
    for cpu in dict.fromkeys(row.cpu for row in rows):
        tables = _tables([row for row in rows if row.cpu == cpu])
        parts += [f"**{cpu}**", *tables] if cpu and tables else tables
    return "\n\n".join(parts) + "\n" if parts else ""


def _tables(found: Sequence[ServingRow]) -> list[str]:
    cases: dict[tuple, dict[str, ServingRow]] = {}
    for row in found:
        cases.setdefault(row.case, {})[row.backend] = row
    parts = []
    for what, title, value in (
        ("latency", "Milliseconds per call, one caller, median:", lambda row: row.ms),
        ("throughput", "Calls per second of callers at once, one thread per call:", lambda row: row.per_second),
    ):
        lines = [_line(what, by_name, value) for case, by_name in cases.items() if case[0] == what]
        if lines:
            header = ["model", "dtype", "nodes", "edges", "threads" if what == "latency" else "callers", *BACKENDS,
                      f"{OURS_AOTI}: faster than {PYG}", "than its AOTInductor"]  # fmt: skip
            parts.append(f"{title}\n\n{markdown(header, lines, 2)}")
    return parts


def _line(what: str, by_name: dict[str, ServingRow], value: Callable[[ServingRow], float | None]) -> list[str]:
    row = next(iter(by_name.values()))
    values = {name: value(by_name[name]) if name in by_name else None for name in BACKENDS}
    ours, theirs, compiled = values[OURS_AOTI], values[PYG], values[PYG_AOTI]
    gains = [faster(*(pair if what == "latency" else pair[::-1])) for pair in ((ours, theirs), (ours, compiled))]
    count = row.threads if what == "latency" else row.callers
    shown = [number(values[name]) for name in BACKENDS]
    return [row.model, row.dtype, f"{row.num_nodes:,}", f"{row.num_edges:,}", str(count), *shown, *gains]


# ---- the command -----------------------------------------------------------------------------------------------------------------


def add_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--graph", choices=graphs.NAMES, default="arxiv-size-sym", metavar="NAME", help=", ".join(graphs.NAMES))
    add("--edges", type=int, nargs="+", default=[1_000, 10_000, 100_000], help="of a request, about")
    add("--models", nargs="+", choices=tuple(LAYERS), default=list(LAYERS))
    add("--dtypes", nargs="+", choices=tuple(DTYPES), default=list(DTYPES))
    add(
        "--backends",
        nargs="+",
        choices=BACKENDS,
        default=list(BACKENDS),
        metavar="NAME",
        help=", ".join(BACKENDS),
    )
    add("--requests", type=int, default=REQUESTS, help="different ones of each size")
    add("--calls", type=int, default=40, help="that are timed, of a row of latency")
    add("--threads", type=int, nargs="+", default=[1, 2], help="of PyTorch, for latencies")
    add("--callers", type=int, nargs="+", default=[1, 2, 8], help="threads that call at once, for throughput")
    add("--seconds", type=float, default=2.0, help="of a row of throughput")
    add("--soak", type=float, metavar="SECONDS", help="call packages so long, and fail if memory grows")
    add(
        "--out",
        type=Path,
        metavar="FOLDER",
        help=f"append the rows to FOLDER/{KEPT}, and keep packages in FOLDER/packages",
    )


def run(options: argparse.Namespace) -> int:
    """Prints the table of each model."""
    argv = [
        f"--{name} {' '.join(map(str, value)) if isinstance(value, list) else value}" for name, value in _given(options)
    ]
    set_threads(1)
    known = rows.provenance(["serving", *" ".join(argv).split()])
    source = {name: known[name] for name in ("date", "commit", "cpu", "torch", "command")}
    source["torch_geometric"] = import_pyg().__version__
    with tempfile.TemporaryDirectory() as temporary:
        folder = (options.out or Path(temporary)) / "packages" / f"{source['torch']}-{source['commit']}"
        if options.soak:
            return serving_soak.run(options, folder)
        for case in _cases(options, folder, source):
            measured = itertools.chain(_latency_rows(case, options), _throughput_rows(case, options))
            found = [records.as_kept(row) for row in measured]
            print(render(found), flush=True)
            if options.out is not None:
                records.append(options.out / KEPT, ServingRow, found)
    return 0


def _given(options: argparse.Namespace) -> Iterator[tuple[str, Any]]:
    """The options that differ from their defaults."""
    parser = argparse.ArgumentParser()
    add_options(parser)
    for name, value in vars(options).items():
        if name not in ("command", "out") and value != parser.get_default(name):
            yield name, value
