"""Times a program without and with the drop-in, in turns, and keeps the rows."""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch_geometric

import halfgnn.pyg
from benchmarks import memory, rows
from benchmarks.timing import Effort, HostClock, Runner, measure, plan, quantile

from .data import SIZES, ProgramData, make
from .program import Program
from .records import ProgramRow
from .step import Check, Step

WITH: Callable[[], Any] = halfgnn.pyg.accelerate
FUSED: Callable[[], Any] = functools.partial(halfgnn.pyg.accelerate, fuse=True)

# To enter or leave the drop-in changes classes, for which CPython forgets what it has specialised, and the first steps use memory
# in another order. A program that calls patch() once has neither, so both backends take untimed steps before each sample.
SETTLE_S = 0.1
ROUNDS = 2  # in which backends take turns on a GPU

MOST_CHECKED = 100_000  # edges; in float64, with a gradient


@dataclass(frozen=True)
class Options:
    effort: Effort
    fuse: bool = False
    memory: bool = False
    tile: int | str | None = None


def clock(device: str) -> HostClock:
    """On a GPU steps follow one another as in training: what takes longer counts, the host's part or the GPU's."""
    return HostClock("cuda") if device == "cuda" else HostClock(now=time.process_time)


def _runner(step: Step, effort: Effort, **context: Any) -> Runner:
    device = step.data.x.device.type
    runner = Runner(step, clock=clock(device), settle_s=0.0 if effort.is_quick else SETTLE_S, **context)
    plan(runner, effort, runner.first()[0])
    return runner


def _kept(step: Step, **context: Any) -> int:
    """Bytes that autograd keeps after a forward."""
    with memory.SavedMemory(at_end=True) as kept:
        result = Runner(step.forward, **context).first()
    del result
    return round(kept.mebibytes * 2**20)


def _peak(step: Step, **context: Any) -> int:
    """The most bytes that a step allocates beside what was there before."""
    runner = Runner(step, **context)
    runner.first()
    if step.data.x.device.type != "cuda":
        return memory.peak_of_allocations(runner.first)
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    runner.first()
    return torch.cuda.max_memory_allocated() - before


@functools.cache
def _checked_on_medium(program: Program, device: str) -> Check:
    return Check(program, make(SIZES["medium"]).to(device))


def _check(program: Program, data: ProgramData) -> Check:
    """What is right on a graph of SIZES["medium"] is not checked again on a larger one."""
    if data.size.name == "medium" or data.num_edges > MOST_CHECKED:
        return _checked_on_medium(program, data.x.device.type)
    return Check(program, data)


@dataclass(frozen=True)
class _Measured:
    ms: float
    kept: int | None
    peak: int | None


def _measured(step: Step, runner: Runner, options: Options, **context: Any) -> _Measured:
    kept, peak = (of(step, **context) if options.memory else None for of in (_kept, _peak))
    return _Measured(1e3 * quantile(runner.seconds, 0.5), kept, peak)


def _in_turns(step: Step, contexts: Sequence[dict[str, Any]], options: Options) -> list[_Measured]:
    runners = [_runner(step, options.effort, **context) for context in contexts]
    measure(runners, options.effort, lambda: None)
    return [_measured(step, runner, options, **context) for runner, context in zip(runners, contexts)]


def _in_rounds(step: Step, contexts: Sequence[dict[str, Any]], options: Options) -> list[_Measured]:
    """On a GPU nothing else runs, and its time is short: a context is entered ROUNDS times. Once would not do: a host's speed
    changes by a third within seconds."""
    part = replace(options.effort, budget_s=options.effort.budget_s / ROUNDS)
    runners: list[list[Runner]] = [[] for _ in contexts]
    for _ in range(1 if part.is_quick else ROUNDS):
        for context, of_context in zip(contexts, runners):
            with context.get("context", contextlib.nullcontext)():
                runner = _runner(step, part)
                runner.settle_s = 0.0  # from here on
                measure([runner], part, lambda: None)
                of_context.append(runner)
    for first, *others in runners:
        first.seconds += [seconds for other in others for seconds in other.seconds]
    return [_measured(step, of_context[0], options, **context) for of_context, context in zip(runners, contexts)]


def run(
    program: Program, data: ProgramData, dtypes: Sequence[str], options: Options, source: dict[str, str]
) -> Iterator[ProgramRow]:
    """One row per dtype."""
    check = _check(program, data)
    ways: dict[str, Callable[[], Any]] = {"with": WITH}
    if options.fuse:
        ways["fused"] = FUSED
    if options.tile is not None:
        ways["tiled"] = functools.partial(halfgnn.pyg.accelerate, tile=options.tile)
    contexts = [{"context": way} for way in ways.values()]
    of_all = _in_rounds if data.x.device.type == "cuda" else _in_turns
    for dtype in program.dtypes(dtypes):
        verdicts = [check.verdict(dtype, **context) for context in contexts]
        without, *others = of_all(Step(program, data, dtype), [{}, *contexts], options)
        measured = dict(zip(ways, others))
        with_it, fused, tiled = measured["with"], measured.get("fused"), measured.get("tiled")
        yield ProgramRow(
            program=program.name, size=data.size.name, nodes=data.num_nodes, edges=data.num_edges, dtype=dtype,
            ms_without=without.ms, ms_with=with_it.ms, ms_fused=fused and fused.ms, ratio=with_it.ms / without.ms,
            error=verdicts[0].error, error_without=verdicts[0].error_without,
            right="yes" if all(verdict.is_right for verdict in verdicts) else "no",
            kept_without=without.kept, kept_with=with_it.kept, peak_without=without.peak, peak_with=with_it.peak,
            tile=tiled and str(options.tile), ms_tiled=tiled and tiled.ms, peak_tiled=tiled and tiled.peak, **source,
        )  # fmt: skip


def source_of(argv: list[str], device: str) -> dict[str, str]:
    known = rows.provenance(argv, device)
    names = ("date", "commit", "cpu", "kernels", "gpu", "torch", "command")
    return {**{name: known[name] for name in names}, "torch_geometric": torch_geometric.__version__}
