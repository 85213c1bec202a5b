"""Times a program without and with the drop-in, in turns, and keeps the rows."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

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
# in another order. A program that calls patch() once has neither, so both contestants take untimed steps before each sample.
SETTLE_S = 0.1

MOST_CHECKED = 100_000  # edges; in float64, with a gradient


@dataclass(frozen=True)
class Options:
    effort: Effort
    fuse: bool = False
    memory: bool = False


def _runner(step: Step, effort: Effort, **context: Any) -> Runner:
    runner = Runner(
        step, clock=HostClock(now=time.process_time), settle_s=0.0 if effort.is_quick else SETTLE_S, **context
    )
    plan(runner, effort, runner.first()[0])
    return runner


def _kept(step: Step, **context: Any) -> int:
    """Bytes that autograd keeps after a forward."""
    with memory.Kept(at_end=True) as kept:
        result = Runner(step.forward, **context).first()
    del result
    return round(kept.mebibytes * 2**20)


def run(
    program: Program, data: ProgramData, dtypes: Sequence[str], options: Options, source: dict[str, str]
) -> Iterator[ProgramRow]:
    """One row per dtype. What is right on a graph of SIZES["medium"] is not checked again on a larger one."""
    check = Check(program, data if data.num_edges <= MOST_CHECKED else make(SIZES["medium"]))
    contexts = [{"context": WITH}, *([{"context": FUSED}] if options.fuse else [])]
    for dtype in program.dtypes(dtypes):
        verdicts = [check.verdict(dtype, **context) for context in contexts]
        step = Step(program, data, dtype)
        runners = [_runner(step, options.effort, **context) for context in ({}, *contexts)]
        measure(runners, options.effort, lambda: None)
        times = [1e3 * quantile(runner.seconds, 0.5) for runner in runners]
        kept = [_kept(step, **context) if options.memory else None for context in ({}, contexts[0])]
        yield ProgramRow(
            program=program.name, size=data.size.name, nodes=data.num_nodes, edges=data.num_edges, dtype=dtype,
            ms_without=times[0], ms_with=times[1], ms_fused=times[2] if options.fuse else None, ratio=times[1] / times[0],
            error=verdicts[0].error, error_without=verdicts[0].error_without,
            right="yes" if all(verdict.is_right for verdict in verdicts) else "no",
            kept_without=kept[0], kept_with=kept[1], **source,
        )  # fmt: skip


def source_of(argv: list[str]) -> dict[str, str]:
    known = rows.provenance(argv)
    names = ("date", "commit", "cpu", "kernels", "torch", "command")
    return {**{name: known[name] for name in names}, "torch_geometric": torch_geometric.__version__}
