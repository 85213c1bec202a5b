"""Takes a case through its checks and the clock."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

from tqdm import tqdm

from .baselines import reason
from .case import Case, Config, Contestant, name_of
from .rows import Row
from .timing import Runner, measure, plan, quantile


def _enter(contestant: Contestant, config: Config) -> tuple[Runner, float | None]:
    """A contestant that is prepared, checked and warmed up; with its error against float64."""
    runner = Runner(contestant.make(), contestant.context)
    seconds, result = runner.first()
    error = None if contestant.check is None else contestant.check(result)
    del result
    plan(runner, config.effort, seconds)
    return runner, error


def _row(case: Case, contestant: Contestant, config: Config, source: dict[str, str], **result: Any) -> Row:
    graph = case.graph
    return Row(
        family=case.family, op=case.op, direction=case.direction, contestant=contestant.name,
        dtype=name_of(contestant.dtype), graph=graph.label, num_nodes=graph.num_nodes,
        num_edges=graph.num_edges, order=graph.order, heads=case.heads, dim=case.dim,
        idtype=str(graph.src.dtype).removeprefix("torch."), device=config.device,
        threads=config.threads, **{**result, **source},
    )  # fmt: skip


def _timed(case, contestant, config, source, runner: Runner, error: float | None) -> Row:
    median = quantile(runner.seconds, 0.5)
    return _row(
        case, contestant, config, source,
        ms=1e3 * median,
        ms_p20=1e3 * quantile(runner.seconds, 0.2),
        ms_p80=1e3 * quantile(runner.seconds, 0.8),
        runs=len(runner.seconds),
        gb_per_s=contestant.bytes_moved / median / 1e9 if contestant.bytes_moved else None,
        error=error,
        note=contestant.note,
    )  # fmt: skip


def run_case(case: Case, config: Config, source: dict[str, str]) -> list[Row]:
    """Checks, then times a case. Contestants that cannot take part give a row without a time.

    Raises:
        WrongResult: a result of halfgnn is off by more than rounding.
    """
    if case.before is not None:
        case.before()
    entered: list[tuple[Contestant, Runner, float | None]] = []
    rows: list[Row] = []
    for contestant in tqdm(case.contestants, "check, warm up", leave=False, disable=None):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of beta states of sparse tensors and the like
                entered.append((contestant, *_enter(contestant, config)))
        except Exception as error:
            if contestant.trusted:
                raise
            rows.append(_row(case, contestant, config, source, note=reason(error)))
    runners = [runner for _, runner, _ in entered]
    total = sum(runner.runs for runner in runners)
    with tqdm(total=total, desc="time", leave=False, disable=None) as bar:
        measure(runners, config.effort, bar.update)
    timed = [_timed(case, c, config, source, runner, error) for c, runner, error in entered]
    return timed + rows


def summary(rows: Sequence[Row]) -> str:
    """The rows of a case as lines, the fastest first."""
    lines = []
    for row in sorted(rows, key=lambda r: (r.ms is None, r.ms or 0.0)):
        if row.ms is None or row.ms_p20 is None or row.ms_p80 is None:
            lines.append(f"    {row.contestant:<24} {row.dtype}  {row.note}")
            continue
        scale, unit = (1e3, "us") if row.family == "overhead" else (1.0, "ms")
        time = f"{row.ms * scale:10.2f} {unit}  ({row.ms_p20 * scale:.2f}..{row.ms_p80 * scale:.2f}"
        extra = f"  {row.gb_per_s:6.1f} GB/s" if row.gb_per_s else ""
        error = f"  error {row.error:.1e}" if row.error is not None else ""
        lines.append(f"    {row.contestant:<24} {row.dtype}  {time}, {row.runs} runs){extra}{error}")
    return "\n".join(lines)
