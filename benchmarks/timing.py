"""Timing of contestants that take turns."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Union

import torch


@dataclass(frozen=True)
class Effort:
    """How long to measure.

    budget_s: time to spend on one contestant of a case, warm-up included, unless min_runs need more.
    min_runs, max_runs: samples of a contestant. A first call of warm_s or more is warm-up enough; one of
    slow_s is a sample itself, and one of lone_s beyond the budget the only one.
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
GPU = Effort(budget_s=0.12, min_runs=5, max_runs=30, warm_s=0.02, slow_s=0.2, lone_s=1.0, sample_s=0.002, pause_s=0.0)
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
    a call, is ahead of it.

    cold: every call by itself, after a write to twice as much memory as the L2 cache holds.
    """

    AHEAD_CYCLES = 100_000  # a call: some 50 microseconds

    def __init__(self, cold: bool):
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
        start, end = self._events()
        torch.cuda._sleep(min(repeat, 100) * self.AHEAD_CYCLES)
        start.record()
        for _ in range(repeat):
            call()
        end.record()
        end.synchronize()
        return start.elapsed_time(end) / 1e3

    def _cold_call(self, call: Callable[[], Any]) -> float:
        assert self.flushed is not None
        start, end = self._events()
        self.flushed.zero_()
        torch.cuda._sleep(self.AHEAD_CYCLES)
        start.record()
        call()
        end.record()
        end.synchronize()
        return start.elapsed_time(end) / 1e3


Clock = Union[HostClock, GpuClock]


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
    if first >= effort.slow_s:
        runner.seconds.append(first)
    elif first < effort.warm_s:
        estimate = min(runner.sample(), first)
    runner.repeat = max(1, math.ceil(effort.sample_s / max(estimate, 1e-9)))
    if runner.repeat > 1:  # short calls: one more look, now that everything is warm
        runner.repeat = max(1, math.ceil(effort.sample_s / max(runner.sample(), 1e-9)))
    if first >= max(effort.lone_s, effort.budget_s):
        return
    affordable = int((effort.budget_s - sum(runner.seconds)) / (estimate * runner.repeat))
    least = (2 if first >= effort.slow_s else effort.min_runs) - len(runner.seconds)
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
