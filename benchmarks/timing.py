"""Timing of backends that take turns."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch


@dataclass(frozen=True)
class Effort:
    """How long to measure.

    budget_s: time for one backend of a case, without the first call, unless min_runs need more.
    min_runs, max_runs: samples of a backend. The first call is not a sample, because it converts, allocates and
        loads data.
    warm_s: a first call of this length or more is enough warm-up.
    slow_s: after a first call of this length or more, two samples are enough.
    lone_s: after a first call of this length or more that also exceeds the budget, one sample is enough.
    sample_s: shorter calls are repeated until a sample lasts this long.
    pause_s: idle time before a sample, in which the threads of the previous sample come to rest.
    is_quick: a smoke test, whose figures mean nothing.
    """

    budget_s: float = 0.4
    min_runs: int = 3
    max_runs: int = 25
    warm_s: float = 0.1
    slow_s: float = 1.0
    lone_s: float = 4.0
    sample_s: float = 0.003
    pause_s: float = 0.005
    is_quick: bool = False


# On a GPU nothing else runs, and there are many cases.
# The length of a first call says nothing there, because it loads libraries and compiles code.
GPU = Effort(
    budget_s=0.12, min_runs=5, max_runs=30, warm_s=math.inf, slow_s=math.inf, lone_s=math.inf, sample_s=0.002, pause_s=0.0
)  # fmt: skip
QUICK = Effort(budget_s=0.02, min_runs=2, max_runs=3, sample_s=0.0, pause_s=0.0, is_quick=True)


class HostClock:
    """The host's time. On a GPU it ends when the GPU has finished. now: another clock, in seconds."""

    def __init__(self, device: str = "cpu", now: Callable[[], float] = time.perf_counter):
        self.synchronize = torch.cuda.synchronize if device == "cuda" else lambda: None
        self.now = now

    def seconds(self, call: Callable[[], Any], repeat: int) -> float:
        """Of `repeat` calls."""
        self.synchronize()
        start = self.now()
        for _ in range(repeat):
            call()
        self.synchronize()
        return self.now() - start


class GpuClock:
    """The GPU's time, measured by events.

    The GPU first waits as long as the host took for the last calls. The host takes tens of microseconds to start each
    kernel, and the wait keeps it ahead of the GPU. If a call itself waits for the GPU, that wait is included in its
    time.

    cold: every call is timed alone, after a write to twice as much memory as the L2 cache holds.
    """

    CYCLES_PER_SECOND = 2e9  # at least
    MOST_AHEAD_S = 0.05

    def __init__(self, cold: bool):
        self.ahead_s = 50e-6  # per call
        self.flushed = None
        if cold:
            cache = torch.cuda.get_device_properties(torch.cuda.current_device()).L2_cache_size
            self.flushed = torch.empty(2 * max(cache, 64 << 20), dtype=torch.int8, device="cuda")

    def seconds(self, call: Callable[[], Any], repeat: int) -> float:
        """Of `repeat` calls."""
        if self.flushed is None:
            return self._timed(call, repeat)
        seconds = 0.0
        for _ in range(repeat):
            self.flushed.zero_()
            seconds += self._timed(call, 1)
        return seconds

    def _timed(self, call: Callable[[], Any], repeat: int) -> float:
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda._sleep(int(min(repeat * self.ahead_s, self.MOST_AHEAD_S) * self.CYCLES_PER_SECOND))
        start.record()
        begin = time.perf_counter()
        for _ in range(repeat):
            call()
        self.ahead_s = max(self.ahead_s, 1.5 * (time.perf_counter() - begin) / repeat)
        end.record()
        end.synchronize()
        return start.elapsed_time(end) / 1e3


Clock = HostClock | GpuClock


@dataclass
class Runner:
    """Work to be timed: `call` inside `context()`. Entering the context is not timed.

    settle_s: before each sample there are untimed calls inside the context until so many seconds have passed: at least one and at
        most MOST_SETTLING calls. 0: none.
    """

    MOST_SETTLING: ClassVar[int] = 60

    call: Callable[[], Any]
    context: Callable[[], contextlib.AbstractContextManager] = contextlib.nullcontext
    clock: Clock = field(default_factory=HostClock)
    settle_s: float = 0.0
    repeat: int = 1  # calls per sample
    runs: int = 0  # planned samples
    seconds: list[float] = field(default_factory=list)  # per call, one for each sample

    def sample(self) -> float:
        """Takes a sample and returns seconds per call."""
        with self.context():
            self._settle()
            return self.clock.seconds(self.call, self.repeat) / self.repeat

    def _settle(self) -> None:
        end = time.perf_counter() + self.settle_s
        for _ in range(self.MOST_SETTLING if self.settle_s else 0):
            self.call()
            if time.perf_counter() > end:
                break

    def first(self) -> tuple[float, Any]:
        """Seconds and result of one call."""
        results = []
        with self.context():
            seconds = self.clock.seconds(lambda: results.append(self.call()), 1)
        return seconds, results.pop()


def plan(runner: Runner, effort: Effort, first: float) -> None:
    """Sets the number of calls per sample and the number of samples. first: seconds of the first call."""
    estimate = first
    if first < effort.warm_s:
        estimate = min(runner.sample(), first)
    runner.repeat = max(1, math.ceil(effort.sample_s / max(estimate, 1e-9)))
    if runner.repeat > 1:  # short calls: measure once more, now that everything is warm
        runner.repeat = max(1, math.ceil(effort.sample_s / max(runner.sample(), 1e-9)))
    if first >= max(effort.lone_s, effort.budget_s):
        runner.runs = 1
        return
    affordable = int(effort.budget_s / (estimate * runner.repeat))
    least = 2 if first >= effort.slow_s else effort.min_runs
    runner.runs = max(least, min(affordable, effort.max_runs))


def turns(counts: Sequence[int]) -> Iterator[int]:
    """Indices in the order of their turns. Those with fewer turns are spread evenly over the rounds."""
    rounds = max(counts, default=0)
    for r in range(rounds):
        for i, count in enumerate(counts):
            if (r + 1) * count // rounds > r * count // rounds:
                yield i


def measure(runners: Sequence[Runner], effort: Effort, tick: Callable[[], None]) -> None:
    """Takes the planned samples of all runners in turn, and calls tick() after each."""
    for i in turns([runner.runs for runner in runners]):
        if effort.pause_s:
            time.sleep(effort.pause_s)
        runners[i].seconds.append(runners[i].sample())
        tick()


def quantile(samples: Sequence[float], q: float) -> float:
    """Quantile with linear interpolation."""
    ordered = sorted(samples)
    place = q * (len(ordered) - 1)
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)
