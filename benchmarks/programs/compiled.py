"""``python -m benchmarks compiled``: steps of programs as they are, under torch.compile, under patch(), and under both."""

from __future__ import annotations

import argparse
import contextlib
import math
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch._dynamo.utils import counters
from torch._inductor.utils import fresh_inductor_cache
from tqdm import tqdm

import halfgnn.pyg
from benchmarks import records as files
from benchmarks.optional import set_threads
from benchmarks.timing import Effort, Runner, measure, plan, quantile

from .command import chosen
from .data import SIZES, ProgramData, make
from .measure import SETTLE_S, clock, source_of
from .program import Program
from .records import CompiledRow
from .step import ERRORS, FACTOR, SEEDS, Step

EFFORT = Effort(budget_s=0.4, min_runs=5, max_runs=11, sample_s=0.01)
KEPT = "compiled.csv"
LEAST = 0.95  # the target


@dataclass(frozen=True)
class _Way:
    """How a program runs. name: of its column."""

    name: str
    is_compiled: bool
    context: Callable[[], Any]


_WAYS = (
    _Way("plain", False, contextlib.nullcontext),
    _Way("compiled", True, contextlib.nullcontext),
    _Way("patched", False, halfgnn.pyg.accelerate),
    _Way("both", True, halfgnn.pyg.accelerate),
)


@dataclass(frozen=True)
class _Measured:
    """ms: of a step, the process's time. first_s: of the first step, with the compilation."""

    ms: float | None = None
    first_s: float | None = None
    graphs: int | None = None
    breaks: int | None = None
    errors: tuple[float, ...] = ()
    failure: str = ""


def _measured(program: Program, data: ProgramData, dtype: str, way: _Way, truth: Any, seed: int) -> _Measured:
    """Each way compiles from scratch, and enters the drop-in once."""
    torch.compiler.reset()
    counters.clear()
    step = Step(program, data, dtype, seed)
    with fresh_inductor_cache(), way.context():
        if way.is_compiled:
            step.module = torch.compile(step.module, dynamic=True)
        start = time.perf_counter()
        try:
            values = step.values()
        except Exception as error:  # which torch.compile may have where eager code has none
            return _Measured(failure=f"{type(error).__name__}: {str(error).partition(chr(10))[0][:150]}")
        first_s = time.perf_counter() - start
        runner = Runner(step, clock=clock("cpu"), settle_s=SETTLE_S)
        plan(runner, EFFORT, runner.first()[0])
        measure([runner], EFFORT, lambda: None)
    found = counters["stats"]["unique_graphs"], sum(counters["graph_break"].values())
    return _Measured(1e3 * quantile(runner.seconds, 0.5), first_s, *found, tuple(values.errors(truth)))


def _row(program: Program, data: ProgramData, dtype: str, source: dict[str, str]) -> CompiledRow:
    """Of the first parameters with which the result is right, see SEEDS; of the last ones if it is wrong with all."""
    for seed in SEEDS:
        row = _row_of(program, data, dtype, source, seed)
        if row.right == "yes":
            break
    return row


def _row_of(program: Program, data: ProgramData, dtype: str, source: dict[str, str], seed: int) -> CompiledRow:
    truth = Step(program, data, "fp64", seed).values()
    found = {way.name: _measured(program, data, dtype, way, truth, seed) for way in _WAYS}
    plain, compiled, patched, both = found.values()
    # As Check of step.py; torch.compile's own roundings may be larger than those of eager code.
    upstream = [max(pair) for pair in zip(plain.errors, compiled.errors or plain.errors)]
    limits = [min(FACTOR * error + max(upstream) / 2, FACTOR * max(upstream)) + ERRORS[dtype] for error in upstream]
    is_right = not both.failure and all(error <= limit for error, limit in zip(both.errors, limits))
    return CompiledRow(
        program=program.name, size=data.size.name, nodes=data.num_nodes, edges=data.num_edges, dtype=dtype,
        ms_plain=plain.ms, ms_compiled=compiled.ms, ms_patched=patched.ms, ms_both=both.ms,
        graphs_compiled=compiled.graphs, breaks_compiled=compiled.breaks, graphs_both=both.graphs, breaks_both=both.breaks,
        first_s_compiled=compiled.first_s, first_s_both=both.first_s,
        right="yes" if is_right else both.failure or "no", **source,
    )  # fmt: skip


def _line(row: CompiledRow) -> str:
    times = " ".join(
        f"{'-' if ms is None else format(ms, '9.2f'):>9}"
        for ms in (row.ms_plain, row.ms_compiled, row.ms_patched, row.ms_both)
    )
    counts = f"{row.graphs_compiled}/{row.breaks_compiled} -> {row.graphs_both}/{row.breaks_both}"
    return f"{row.program:36} {row.size:7} {row.dtype} {times}  graphs/breaks {counts:16} {'' if row.right == 'yes' else row.right}"


def _mean(ratios: list[float]) -> float:
    return math.exp(sum(map(math.log, ratios)) / len(ratios))


def _summary(rows: list[CompiledRow]) -> list[str]:
    """How many times as fast both are as each other way, and as the fastest of them."""
    lines = []
    whole = [row for row in rows if row.ms_both is not None]
    for name in ("ms_plain", "ms_compiled", "ms_patched"):
        ratios = [ms / row.ms_both for row in whole if (ms := getattr(row, name)) is not None]
        if ratios:
            lines.append(f"both, beside {name[3:]}: geometric mean {_mean(ratios):.2f} x, least {min(ratios):.2f} x")
    compiled = [row.ms_plain / row.ms_compiled for row in whole if row.ms_plain and row.ms_compiled]
    if compiled:
        lines.append(f"compiled, beside plain: geometric mean {_mean(compiled):.2f} x, least {min(compiled):.2f} x")
    best = [min(x for x in (r.ms_plain, r.ms_compiled, r.ms_patched) if x is not None) / r.ms_both for r in whole]
    if best:
        lines.append(
            f"beside the fastest of them: {sum(x < LEAST for x in best)} of {len(best)} below {LEAST} x, least {min(best):.2f} x"
        )
        lines.append(f"without a graph break: {sum(row.breaks_both == 0 for row in whole)} of {len(whole)}")
    return lines


def run(options: argparse.Namespace) -> int:
    """The exit status: 1 if compiled code under patch() has another result, or fails."""
    source = source_of(["compiled", *sys.argv[2:]], "cpu")
    before = torch.get_num_threads()
    set_threads(1)
    found: list[CompiledRow] = []
    try:
        for size in options.sizes:
            data = make(SIZES[size])
            for program in tqdm(
                [p for p in chosen(options.only, options.leave_out, options.modules) if p.suits(size)],
                size,
                disable=None,
            ):
                for dtype in program.dtypes(options.dtypes):
                    with warnings.catch_warnings():
                        warnings.simplefilter("ignore")
                        row = _row(program, data, dtype, source)
                    found.append(row)
                    print(_line(row), flush=True)
                    if options.out is not None:
                        files.append(options.out / KEPT, CompiledRow, [row])
    finally:
        set_threads(before)
    print("\n".join(_summary(found)))
    return 0 if all(row.right == "yes" for row in found) else 1
