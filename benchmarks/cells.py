"""Cells and lines of the tables: numbers, factors, the targets beside them."""

from __future__ import annotations

import math
import textwrap
from collections import defaultdict
from collections.abc import Iterable, Sequence

from . import targets
from .rows import Row
from .targets import Finding

SYNTHETIC = " (synthetic)"
WRONG_LEGEND = (
    "*: a result that is off by more than a tenth of the largest value, which the means leave out. In rows older than "
    "commit 84d82ae only forward results were checked for that."
)


def number(value: float | None) -> str:
    """Three significant digits."""
    if value is None:
        return "-"
    if value == 0:
        return "0"
    digits = max(0, 2 - math.floor(math.log10(abs(value))))
    return f"{value:.{digits}f}"


def time(row: Row | None) -> str:
    """Milliseconds, with an asterisk if the result is wrong."""
    return "-" if row is None else number(row.ms) + ("*" if row.is_wrong else "")


def faster(ours: float | None, theirs: float | None) -> str:
    """How many times faster we are; a loss in bold."""
    if ours is None or theirs is None:
        return "-"
    times = theirs / ours
    return f"{number(times)} x" if times >= 1 else f"**{number(times)} x**"


def mean_speedup(pairs: Iterable[tuple[Row | None, Row | None]]) -> str:
    """The geometric mean of how many times faster we are, of the pairs (ours, theirs) that were timed and are right."""
    right = [(a, b) for a, b in pairs if a is not None and b is not None and not (a.is_wrong or b.is_wrong)]
    logarithms = [math.log((theirs.ms or 0.0) / (ours.ms or 1.0)) for ours, theirs in right]
    return f"{number(math.exp(sum(logarithms) / len(logarithms)))} x" if logarithms else "-"


def shape(row: Row) -> str:
    return f"{row.heads} x {row.dim}" if row.heads > 1 else str(row.dim)


def graph_name(row: Row) -> str:
    return row.graph.replace(SYNTHETIC, "")


def processor(row: Row) -> str:
    """Without its threads."""
    details = [row.cpu.split(" (")[0], row.cpu_flags, f"kernels {row.kernels}" if row.kernels else ""]
    return ", ".join(filter(None, details))


def machine(row: Row) -> str:
    if row.gpu:
        return f"{row.gpu}, driver {row.driver}"
    return f"{processor(row)}, {row.threads} thread{'s' if row.threads > 1 else ''}{memory(row)}"


def memory(row: Row) -> str:
    """To be put after a machine's name."""
    return ", kept memory" if row.memory == "kept" else ""


def by_machine(rows: Iterable[Row]) -> dict[tuple, list[Row]]:
    """By GPU, or by processor, kernels, threads and memory."""
    found: dict[tuple, list[Row]] = defaultdict(list)
    for row in rows:
        found[(row.gpu,) if row.gpu else (row.cpu, row.kernels, row.threads, row.memory)].append(row)
    return found


def title(row: Row) -> str:
    return f"{row.graph}: {row.num_nodes:,} nodes, {row.num_edges:,} edges."


def markdown(header: Sequence[str], lines: Iterable[Sequence[str]], words: int) -> str:
    """A markdown table whose first `words` columns are text, the others numbers."""
    rule = ["---"] * words + ["---:"] * (len(header) - words)
    return "\n".join("| " + " | ".join(line) + " |" for line in (header, rule, *lines))


def wrapped(text: str, width: int = 130) -> str:
    """Its prose in lines of that length. Lines of tables stay whole."""
    lines = []
    for line in text.split("\n"):
        indent = "  " if line.startswith("* ") else ""
        is_prose = bool(line) and not line.startswith("|")
        whole = dict(break_long_words=False, break_on_hyphens=False)
        lines += textwrap.wrap(line, width, subsequent_indent=indent, **whole) if is_prose else [line]
    return "\n".join(lines)


class TargetsBeside:
    """The targets that were judged on rows, to be put beside the figures they judge."""

    def __init__(self, rows: Sequence[Row]):
        self._by_case: dict[tuple, list[Finding]] = defaultdict(list)
        for finding in targets.judge(rows):
            if finding.holds is not None:
                self._by_case[finding.row.case].append(finding)

    def cell(self, case: tuple, backends: Sequence[str]) -> str:
        """The targets of a case on these backends, for example "bf16 0.15 of 1"; missed targets in bold."""
        texts = []
        for finding in self._by_case.get(case, ()):
            backend, dtype = finding.target.ours
            if backend in backends:
                text = f"{number(finding.ratio)} of {float(f'{finding.target.at_most:.3g}'):g}"
                texts.append(f"{dtype} {text if finding.holds else f'**{text}**'}")
        return ", ".join(dict.fromkeys(texts))
