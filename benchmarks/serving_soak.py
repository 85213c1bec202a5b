"""``python -m benchmarks serving --soak SECONDS``: threads call modules and packages of halfgnn.pyg; memory must not grow."""

from __future__ import annotations

import argparse
import random
import statistics
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from . import memory, serving_models
from .serving_models import DTYPES, Backend, Request

CALLERS = 8
PERIOD_S = 5.0  # between two readings of memory, for which callers rest; less in a short soak
LEAST_READINGS = 4
WARM_UP = 0.2  # of the time, in which allocators reach their size
MOST_ALLOCATED_MIB = 1.0  # growth of what malloc has given out, from the first quarter after the warm-up to the last
MOST_LEFT_MIB = 16.0  # growth of what stays in memory when malloc has given back all that is free
MIB = 2**20

Job = tuple[Callable[..., Any], Request]


@dataclass(frozen=True)
class Reading:
    """Memory of the process while no call runs, in MiB. allocated: what malloc has given out; None: its C library does not say."""

    seconds: float
    resident: float
    allocated: float | None

    @classmethod
    def now(cls, seconds: float) -> Reading:
        allocated = memory.allocated_bytes()
        return cls(seconds, memory.resident_bytes() / MIB, None if allocated is None else allocated / MIB)


@dataclass(frozen=True)
class Soak:
    """Readings after the warm-up; left: MiB in memory at the warm-up's end and at the end, after malloc gave back what was free."""

    calls: int
    readings: Sequence[Reading]
    left: tuple[float, float]

    def growth(self, field: str) -> float | None:
        """MiB between the medians of the first and of the last quarter."""
        values = [getattr(reading, field) for reading in self.readings]
        if not values or None in values:
            return None
        quarter = max(1, len(values) // 4)
        return statistics.median(values[-quarter:]) - statistics.median(values[:quarter])

    def slope(self, field: str) -> float:
        """MiB per minute, by least squares."""
        points = [(reading.seconds, getattr(reading, field)) for reading in self.readings]
        if len({seconds for seconds, _ in points}) < 2:
            return 0.0
        return 60 * statistics.linear_regression(*zip(*points)).slope

    def complaint(self) -> str | None:
        """Why memory is not flat, if it is not. What is free in malloc's arenas, but not at their ends, is nobody's leak."""
        allocated, left = self.growth("allocated"), self.left[1] - self.left[0]
        if allocated is not None and allocated > MOST_ALLOCATED_MIB:
            return f"what is allocated grew by {allocated:.1f} MiB, more than {MOST_ALLOCATED_MIB:g} MiB"
        if left > MOST_LEFT_MIB:
            return f"what stays in memory grew by {left:.1f} MiB, more than {MOST_LEFT_MIB:g} MiB"
        return None

    def __str__(self) -> str:
        parts = [f"{len(self.readings)} readings after the warm-up"]
        for field in ("allocated", "resident"):
            growth = self.growth(field)
            if growth is not None:
                first, last = (getattr(self.readings[place], field) for place in (0, -1))
                parts.append(
                    f"{field} {first:.1f} to {last:.1f} MiB, growth {growth:+.2f} MiB, "
                    f"slope {self.slope(field):+.3f} MiB per minute"
                )
        return "; ".join(
            [*parts, f"left when malloc gave back what was free: {self.left[0]:.1f} and {self.left[1]:.1f} MiB"]
        )


class _Callers:
    """Threads that call random jobs, and rest while memory is read."""

    def __init__(self, jobs: Sequence[Job], count: int) -> None:
        self.jobs, self.counts, self.failed = jobs, [0] * count, []  # type: ignore[var-annotated]
        self.stop, self.is_rest, self.barrier = threading.Event(), threading.Event(), threading.Barrier(count + 1)
        self.threads = [threading.Thread(target=self._serve, args=(caller,)) for caller in range(count)]

    def _serve(self, caller: int) -> None:
        draw = random.Random(caller)
        try:
            with torch.inference_mode():
                while not self.stop.is_set():
                    if self.is_rest.is_set():
                        self.barrier.wait()
                        self.barrier.wait()
                        continue
                    call, request = draw.choice(self.jobs)
                    call(*(part.clone() for part in request))
                    self.counts[caller] += 1
        except threading.BrokenBarrierError:
            pass  # another has failed
        except BaseException as error:
            self.failed.append(error)
            self.stop.set()
            self.barrier.abort()

    def at_rest(self, work: Callable[[], Any]) -> Any:
        """What `work` returns, between calls; None if a call has failed."""
        self.is_rest.set()
        try:
            self.barrier.wait()
            self.is_rest.clear()
            result = work()
            self.barrier.wait()
            return result
        except threading.BrokenBarrierError:
            return None


def soak(jobs: Sequence[Job], count: int, seconds: float) -> Soak:
    """Threads call random jobs until the time has passed, and memory was read often enough to tell."""
    period = min(PERIOD_S, seconds / (5 * LEAST_READINGS))
    callers, begin = _Callers(jobs, count), time.perf_counter()
    for thread in callers.threads:
        thread.start()
    readings: list[Reading] = []
    left: list[float] = []

    def read() -> None:
        now = time.perf_counter() - begin
        is_last = now >= seconds and len(readings) >= LEAST_READINGS - 1
        if now >= WARM_UP * seconds:
            readings.append(Reading.now(now))
            if not left or is_last:
                memory.give_back()
                left.append(memory.resident_bytes() / MIB)
        if is_last:
            callers.stop.set()

    try:
        while not callers.stop.wait(period):
            callers.at_rest(read)
    finally:  # also at Ctrl-C
        callers.stop.set()
        callers.barrier.abort()
        for thread in callers.threads:
            thread.join()
    if callers.failed:
        raise callers.failed[0]
    return Soak(sum(callers.counts), readings, (left[0], left[-1]))


def run(options: argparse.Namespace, folder: Path) -> int:
    """Soaks halfgnn's backends of --backends but the drop-in; exit status 1 if memory grows."""
    drawn = [
        request
        for edges in options.edges
        for request in serving_models.requests(options.graph, edges, options.requests)
    ]
    names = tuple(name for name in options.backends if name.startswith("halfgnn.pyg"))
    if not names:
        raise SystemExit(f"--backends {' '.join(options.backends)}: expected one of halfgnn.pyg for --soak")
    jobs: list[Job] = []
    for name in options.models:
        for dtype in options.dtypes:
            requests = [serving_models.for_model(request, name, DTYPES[dtype]) for request in drawn]
            for made in serving_models.backends(names, name, dtype, folder, requests[0], CALLERS):
                if not isinstance(made, Backend):
                    raise SystemExit(f"{made[0]}, {name} in {dtype}: {made[1]}")
                jobs += [(made.call, request) for request in requests]
    found = soak(jobs, CALLERS, options.soak)
    print(f"{', '.join(names)}: {found.calls:,} calls of {CALLERS} threads in {options.soak:g} s. {found}")
    complaint = found.complaint()
    if complaint:
        print(complaint)
    return 1 if complaint else 0
