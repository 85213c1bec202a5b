"""Which samples of the benchmarks are taken in which turn, and how many."""

import contextlib

import pytest

from benchmarks import timing

# ---- timing --------------------------------------------------------------------------------------------------------------------


def test_turns_alternate_and_spread():
    assert list(timing.turns([3, 3])) == [0, 1, 0, 1, 0, 1]
    order = list(timing.turns([6, 2, 0]))
    assert order.count(0) == 6 and order.count(1) == 2 and 2 not in order
    assert order == [0, 0, 0, 1, 0, 0, 0, 1]
    assert list(timing.turns([])) == []


class _Clocked(timing.Runner):
    """Every call takes `takes` seconds of simulated time."""

    takes = 0.0
    samples = 0

    def sample(self):
        self.samples += 1
        return self.takes


@pytest.mark.parametrize(
    "takes, repeat, runs, kept",
    [
        (1e-5, 300, 25, 0),  # a sample is 300 calls, and there is time for all samples
        (0.1, 1, 15, 0),
        (0.7, 1, 3, 0),  # fewer do not make a median
        (1.2, 1, 2, 0),  # two are enough
        (9.0, 1, 1, 0),  # so is one
    ],
)
def test_plan(takes, repeat, runs, kept):
    planned = _Clocked(lambda: None)
    planned.takes = takes
    effort = timing.Effort(budget_s=1.5, min_runs=3, max_runs=25, slow_s=1.0, sample_s=0.003, pause_s=0)
    timing.plan(planned, effort, planned.sample())
    assert abs(planned.repeat - repeat) <= 1 and planned.runs == runs and len(planned.seconds) == kept
    before = planned.samples
    timing.measure([planned], effort, lambda: None)
    assert planned.samples - before == runs and len(planned.seconds) == runs + kept


def test_a_budget_buys_samples_of_the_slowest():
    planned = _Clocked(lambda: None)
    timing.plan(planned, timing.Effort(budget_s=60.0), 9.0)
    assert planned.runs == 6 and planned.seconds == []


def test_on_a_gpu_the_first_call_decides_nothing():
    planned = _Clocked(lambda: None)
    planned.takes = 1e-4
    timing.plan(planned, timing.GPU, 3.0)  # a library was loaded
    assert planned.repeat == 20 and planned.runs == timing.GPU.max_runs


def test_quantile():
    assert timing.quantile([3.0, 1.0, 2.0], 0.5) == 2.0
    assert timing.quantile([0.0, 10.0], 0.2) == 2.0
    assert timing.quantile([7.0], 0.8) == 7.0


@pytest.mark.parametrize("settle_s, untimed", [(0.0, 0), (1e-9, 1), (60.0, timing.Runner.MOST_SETTLING)])
def test_a_sample_is_taken_after_untimed_calls_in_the_context(settle_s, untimed):
    events = []

    @contextlib.contextmanager
    def context():
        events.append("in")
        yield
        events.append("out")

    class Clock(timing.HostClock):
        def seconds(self, call, repeat):
            events.append("timed")
            return super().seconds(call, repeat)

    timing.Runner(lambda: events.append("call"), context, Clock(), repeat=2, settle_s=settle_s).sample()
    assert events == ["in", *["call"] * untimed, "timed", "call", "call", "out"]
