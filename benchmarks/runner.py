"""Checks and times a case."""

from __future__ import annotations

import contextlib
import dataclasses
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tqdm import tqdm

from . import inputs, memory
from .case import Backend, Case, Config, name_of
from .gather import LIMIT, RESIDENT
from .optional import Unavailable, first_line
from .rows import Row
from .timing import Clock, GpuClock, HostClock, Runner, measure, plan, quantile

SMALL_EDGES = 10_000_000
_KEPT_INPUTS = 1 << 30  # bytes of inputs that the next case may share


@dataclass
class _Entrant:
    """A backend after preparation, check and warm-up."""

    backend: Backend
    runner: Runner
    error: float | None  # against float64
    peak_mb: float | None
    kept_mb: float | None


def _reason(error: BaseException) -> str:
    """Why a backend did not take part, in one line."""
    if isinstance(error, Unavailable):
        return str(error)
    text = next((x for x in str(error).splitlines() if "Check failed" in x), first_line(error))
    return f"refused: {type(error).__name__}: {text[-160:].strip()}"


def _kept_mb(runner: Runner) -> float:
    """Measured in a separate call, because counting takes time and holds the counted tensors."""
    with memory.SavedMemory() as kept:
        runner.first()
    return kept.mebibytes


@dataclass(frozen=True)
class _Measurement:
    case: Case
    config: Config
    source: dict[str, str]

    @property
    def has_peak(self) -> bool:
        """Resident memory says little about operators on a CPU, because the C library keeps freed memory."""
        return self.config.on_gpu or self.case.family in ("train", "edge_network")

    @property
    def modes(self) -> tuple[str, ...]:
        """The states of a GPU's cache to measure. Large graphs are measured warm only: their data does not fit the
        cache."""
        if not self.config.on_gpu:
            return ("",)
        is_small = self.case.graph.num_edges < SMALL_EDGES and self.case.family not in ("overhead", "train")
        return ("warm", "cold") if is_small else ("warm",)

    def clock(self, cold: bool = False) -> Clock:
        if self.config.on_gpu and self.case.family != "overhead":  # overhead measures the host
            return GpuClock(cold)
        return HostClock(self.config.device, time.process_time if self.config.cpu_time else time.perf_counter)

    def enter(self, backend: Backend) -> _Entrant:
        runner = Runner(backend.make(), backend.context, self.clock())
        if self.case.family == "train":  # the optimizer creates its state at the end of the first step
            runner.first()
        peak = memory.Peak(self.config.device)
        with peak if self.has_peak else contextlib.nullcontext():
            seconds, result = runner.first()
        peak_mb = None if peak.bytes is None else (peak.bytes + backend.input_bytes) / 2**20
        error = None if backend.check is None else backend.check(result)
        del result
        plan(runner, self.config.effort, seconds)
        kept_mb = _kept_mb(runner) if self.case.direction == "forward+backward" else None
        return _Entrant(backend, runner, error, peak_mb, kept_mb)

    def again_cold(self, entrants: Sequence[_Entrant]) -> list[_Entrant]:
        """The entrants again, to be timed with a flushed cache before each call."""
        clock, again = self.clock(cold=True), []
        for entrant in entrants:
            runner = Runner(entrant.runner.call, entrant.runner.context, clock)
            plan(runner, self.config.effort, runner.sample())
            again.append(dataclasses.replace(entrant, runner=runner))
        return again

    def row(self, backend: Backend, cache: str, note: str, **result: Any) -> Row:
        case, config, graph = self.case, self.config, self.case.graph
        return Row(
            family=case.family, op=case.op, direction=case.direction, backend=backend.name,
            dtype=name_of(backend.dtype), graph=graph.label, num_nodes=graph.num_nodes,
            num_edges=graph.num_edges, order=graph.order, heads=case.heads, dim=case.dim,
            idtype=str(graph.src.dtype).removeprefix("torch."), device=config.device,
            threads=config.threads, cache=cache, note=note, **{**result, **self.source},
        )  # fmt: skip

    def timed(self, entrant: _Entrant, cache: str) -> Row:
        backend, seconds = entrant.backend, entrant.runner.seconds
        median, p20, p80 = (quantile(seconds, q) for q in (0.5, 0.2, 0.8))
        return self.row(
            backend, cache, backend.note, ms=1e3 * median, ms_p20=1e3 * p20, ms_p80=1e3 * p80, runs=len(seconds),
            gb_per_s=backend.bytes_moved / median / 1e9 if backend.bytes_moved else None,
            error=entrant.error, peak_mb=entrant.peak_mb, kept_mb=entrant.kept_mb,
            losses=" ".join(f"{float(loss):.4f}" for loss in backend.losses),
        )  # fmt: skip


def _with_shares(rows: Sequence[Row]) -> list[Row]:
    """The rows with limit_share, from the time of the pure gather in their dtype."""
    limits = {row.dtype: row.ms for row in rows if row.backend == LIMIT}
    found = []
    for row in rows:
        limit = limits.get(row.dtype)
        share = limit / row.ms if limit and row.ms and row.backend not in (LIMIT, RESIDENT) else None
        found.append(dataclasses.replace(row, limit_share=share))
    return found


def run_case(case: Case, config: Config, source: dict[str, str]) -> list[Row]:
    """Checks a case, then times it. Backends that cannot take part give a row without a time.

    Raises:
        WrongResult: a result of halfgnn is off by more than rounding.
    """
    measurement = _Measurement(case, config, source)
    inputs.forget(_KEPT_INPUTS)
    if case.before is not None:
        case.before()
    entered: list[_Entrant] = []
    absent: list[Row] = []
    # halfgnn first: others may fill the memory.
    backends = sorted(case.backends, key=lambda backend: backend.name != "halfgnn")
    for backend in tqdm(backends, "check, warm up", leave=False, disable=None):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # for example, sparse tensors warn that they are in beta
                entered.append(measurement.enter(backend))
        except Exception as error:
            if backend.trusted and not memory.is_lacking(error) and not isinstance(error, Unavailable):
                raise
            absent += [measurement.row(backend, mode, _reason(error)) for mode in measurement.modes]
            error.__traceback__ = None  # whose frames hold tensors
            memory.release()
    timed = []
    for mode in measurement.modes:
        entrants = measurement.again_cold(entered) if mode == "cold" else entered
        runners = [entrant.runner for entrant in entrants]
        try:
            with tqdm(total=sum(r.runs for r in runners), desc="time", leave=False, disable=None) as bar:
                measure(runners, config.effort, bar.update)
        except Exception as error:
            if not memory.is_lacking(error):
                raise
            absent += [measurement.row(entrant.backend, mode, _reason(error)) for entrant in entrants]
            continue
        timed += _with_shares([measurement.timed(entrant, mode) for entrant in entrants])
    return timed + absent


def summary(rows: Sequence[Row]) -> str:
    """The rows of a case as lines, the fastest first."""
    lines = []
    for row in sorted(rows, key=lambda r: (r.ms is None, r.cache != "warm", r.ms or 0.0)):
        if row.ms is None or row.ms_p20 is None or row.ms_p80 is None:
            lines.append(f"    {row.backend:<24} {row.dtype}  {row.note}")
            continue
        scale, unit = (1e3, "us") if row.family == "overhead" else (1.0, "ms")
        time = f"{row.ms * scale:10.2f} {unit}  ({row.ms_p20 * scale:.2f}..{row.ms_p80 * scale:.2f}"
        extra = f"  {row.gb_per_s:6.1f} GB/s" if row.gb_per_s else ""
        extra += f"  {row.limit_share:.0%} of the gather" if row.limit_share else ""
        extra += f"  {row.peak_mb:.0f} MiB" if row.peak_mb else ""
        extra += f"  {row.kept_mb:.1f} MiB kept" if row.kept_mb is not None else ""
        extra += f"  loss {row.losses.split()[0]} to {row.losses.split()[-1]}" if row.losses else ""
        error = f"  error {row.error:.1e}" if row.error is not None else ""
        note = f"  {row.note}" if row.is_wrong else ""
        lines.append(f"    {row.backend:<24} {row.dtype} {row.cache}  {time}, {row.runs} runs){extra}{error}{note}")
    return "\n".join(lines)
