"""Timing of contestants that take turns."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch


@dataclass(frozen=True)
class Effort:
    """How long to measure.

    budget_s: time to spend on one contestant of a case, the first call not counted, unless min_runs need more.
    min_runs, max_runs: samples of a contestant. The first call, which converts, allocates and loads what is missing, is none;
    one of warm_s or more is warm-up enough. After one of slow_s two samples are enough, after one of lone_s beyond the budget one.
    sample_s: shorter calls are repeated until a sample lasts so long.
    pause_s: idle time before a sample, for the threads of the one before to come to rest.
    is_quick: a smoke test, whose figures are for nobody.
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


# On a GPU, where nothing else runs and there is much to measure.
# A first call there says nothing: libraries are loaded and code is compiled in it.
GPU = Effort(
    budget_s=0.12,
    min_runs=5,
    max_runs=30,
    warm_s=math.inf,
    slow_s=math.inf,
    lone_s=math.inf,
    sample_s=0.002,
    pause_s=0.0,
)
QUICK = Effort(budget_s=0.02, min_runs=2, max_runs=3, sample_s=0.0, pause_s=0.0, is_quick=True)


class HostClock:
    """The host's time, until a GPU, if there is one, has done its work."""

    def __init__(self, device: str = "cpu"):
        self.synchronize = torch.cuda.synchronize if device == "cuda" else lambda: None

    def seconds(self, call: Callable[[], Any], repeat: int) -> float:
        """Of `repeat` calls."""
        self.synchronize()
        start = time.perf_counter()
        for _ in range(repeat):
            call()
        self.synchronize()
        return time.perf_counter() - start


class GpuClock:
    """The GPU's time, by events. The GPU waits a moment first, so that the host, which takes tens of microseconds to start
    each kernel of a call, is ahead of it: as long as the host took the last time. A call that waits for the GPU itself is timed
    with its waits.

    cold: every call by itself, after a write to twice as much memory as the L2 cache holds.
    """

    CYCLES_A_SECOND = 2e9  # at least
    MOST_AHEAD_S = 0.05

    def __init__(self, cold: bool):
        self.ahead_s = 50e-6  # a call
        self.flushed = None
        if cold:
            cache = torch.cuda.get_device_properties(torch.cuda.current_device()).L2_cache_size
            self.flushed = torch.empty(2 * max(cache, 64 << 20), dtype=torch.int8, device="cuda")

    def _events(self) -> list[torch.cuda.Event]:
        return [torch.cuda.Event(enable_timing=True) for _ in range(2)]

    def seconds(self, call: Callable[[], Any], repeat: int) -> float:
        """Of `repeat` calls."""
        if self.flushed is not None:
            return sum(self._cold_call(call) for _ in range(repeat))
        return self._timed(call, repeat)

    def _cold_call(self, call: Callable[[], Any]) -> float:
        assert self.flushed is not None
        self.flushed.zero_()
        return self._timed(call, 1)

    def _timed(self, call: Callable[[], Any], repeat: int) -> float:
        start, end = self._events()
        torch.cuda._sleep(int(min(repeat * self.ahead_s, self.MOST_AHEAD_S) * self.CYCLES_A_SECOND))
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
    """One thing to be timed: `call` is the work, inside `context()`, whose entry is not timed."""

    call: Callable[[], Any]
    context: Callable[[], contextlib.AbstractContextManager] = contextlib.nullcontext
    clock: Clock = field(default_factory=HostClock)
    repeat: int = 1  # calls a sample
    runs: int = 0  # samples planned
    seconds: list[float] = field(default_factory=list)  # a call

    def sample(self) -> float:
        """Seconds a call."""
        with self.context():
            return self.clock.seconds(self.call, self.repeat) / self.repeat

    def first(self) -> tuple[float, Any]:
        """Seconds and result of one call."""
        results = []
        with self.context():
            seconds = self.clock.seconds(lambda: results.append(self.call()), 1)
        return seconds, results.pop()


def plan(runner: Runner, effort: Effort, first: float) -> None:
    """Settles how many calls make a sample and how many samples are taken; first: seconds of the first call."""
    estimate = first
    if first < effort.warm_s:
        estimate = min(runner.sample(), first)
    runner.repeat = max(1, math.ceil(effort.sample_s / max(estimate, 1e-9)))
    if runner.repeat > 1:  # short calls: one more look, now that everything is warm
        runner.repeat = max(1, math.ceil(effort.sample_s / max(runner.sample(), 1e-9)))
    if first >= max(effort.lone_s, effort.budget_s):
        runner.runs = 1
        return
    affordable = int(effort.budget_s / (estimate * runner.repeat))
    least = 2 if first >= effort.slow_s else effort.min_runs
    runner.runs = max(least, min(affordable, effort.max_runs))


def turns(counts: Sequence[int]) -> Iterator[int]:
    """Indices in the order of play: rounds, with those who play less spread evenly over them."""
    rounds = max(counts, default=0)
    for r in range(rounds):
        for i, count in enumerate(counts):
            if (r + 1) * count // rounds > r * count // rounds:
                yield i


def measure(runners: Sequence[Runner], effort: Effort, tick: Callable[[], None]) -> None:
    """Takes the planned samples of all runners in turn; tick() after each."""
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
