"""``python -m benchmarks serving --soak SECONDS``: threads call exported packages, and memory must not grow."""

from __future__ import annotations

import argparse
import os
import random
import statistics
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from . import serving_models
from .serving_models import DTYPES, Contestant, Request

CALLERS = 8
PERIOD_S = 1.0  # between two readings of memory
WARM_UP = 0.2  # of the time, in which allocators reach their size
MOST_GROWTH_MIB = 16.0  # between the first and the last quarter of what follows the warm-up
MIB = 2**20

Job = tuple[Callable[..., Any], Request]


@dataclass(frozen=True)
class Readings:
    """Resident memory after the warm-up: seconds since the start, and MiB."""

    seconds: Sequence[float]
    mebibytes: Sequence[float]

    @property
    def growth(self) -> float:
        """MiB between the medians of the first and of the last quarter."""
        quarter = max(1, len(self.mebibytes) // 4)
        return statistics.median(self.mebibytes[-quarter:]) - statistics.median(self.mebibytes[:quarter])

    @property
    def slope(self) -> float:
        """MiB per minute, by least squares."""
        if len(set(self.seconds)) < 2:
            return 0.0
        return 60 * statistics.linear_regression(self.seconds, self.mebibytes).slope

    def __str__(self) -> str:
        first, last = self.mebibytes[0], self.mebibytes[-1]
        return (
            f"{len(self.seconds)} readings after the warm-up: first {first:.1f} MiB, last {last:.1f} MiB, largest "
            f"{max(self.mebibytes):.1f} MiB, slope {self.slope:+.2f} MiB per minute, growth {self.growth:+.1f} MiB"
        )


def resident() -> float:
    """MiB of this process in memory."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / MIB


def soak(jobs: Sequence[Job], callers: int, seconds: float, period: float = PERIOD_S) -> tuple[int, Readings]:
    """Threads call random jobs until the time has passed: the number of calls, and memory after the warm-up."""
    begin, counts, failed = time.perf_counter(), [0] * callers, []
    stop = threading.Event()

    def serve(caller: int) -> None:
        draw = random.Random(caller)
        try:
            with torch.inference_mode():
                while not stop.is_set():
                    call, request = draw.choice(jobs)
                    call(*(part.clone() for part in request))
                    counts[caller] += 1
        except BaseException as error:
            failed.append(error)
            stop.set()

    threads = [threading.Thread(target=serve, args=(caller,)) for caller in range(callers)]
    for thread in threads:
        thread.start()
    times: list[float] = []
    sizes: list[float] = []
    while not stop.wait(period):
        now = time.perf_counter() - begin
        if now >= WARM_UP * seconds:
            times.append(now)
            sizes.append(resident())
        if now >= seconds:
            stop.set()
    for thread in threads:
        thread.join()
    if failed:
        raise failed[0]
    return sum(counts), Readings(times, sizes)


def run(options: argparse.Namespace, folder: Path) -> int:
    """Soaks halfgnn's contestants of --contestants but the drop-in; exit status 1 if memory grows."""
    drawn = [
        request
        for edges in options.edges
        for request in serving_models.requests(options.graph, edges, options.requests)
    ]
    names = tuple(name for name in options.contestants if name.startswith("halfgnn.pyg"))
    if not names:
        raise SystemExit(f"--contestants {' '.join(options.contestants)}: expected one of halfgnn.pyg for --soak")
    jobs: list[Job] = []
    for name in options.models:
        for dtype in options.dtypes:
            requests = [serving_models.for_model(request, name, DTYPES[dtype]) for request in drawn]
            for made in serving_models.contestants(names, name, dtype, folder, requests[0], CALLERS):
                if not isinstance(made, Contestant):
                    raise SystemExit(f"{made[0]}, {name} in {dtype}: {made[1]}")
                jobs += [(made.call, request) for request in requests]
    calls, readings = soak(jobs, CALLERS, options.soak)
    print(f"{', '.join(names)}: {calls:,} calls of {CALLERS} threads in {options.soak:g} s. {readings}")
    if readings.growth > MOST_GROWTH_MIB:
        print(f"memory grew by more than {MOST_GROWTH_MIB:g} MiB")
        return 1
    return 0
