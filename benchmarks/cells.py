"""Cells and lines of the tables: numbers, factors, the marks beside them."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence

from . import marks
from .marks import Entry, Finding
from .rows import Row

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


def markdown(header: Sequence[str], lines: Sequence[Sequence[str]], words: int) -> str:
    """A markdown table whose first `words` columns are text, the others numbers."""
    rule = ["---"] * words + ["---:"] * (len(header) - words)
    return "\n".join("| " + " | ".join(line) + " |" for line in (header, rule, *lines))


def find_row(entries: dict[Entry, Row], names: Sequence[str], dtype: str) -> Row | None:
    """The row of the first of these contestants that was timed."""
    rows = (entries.get((name, dtype)) for name in names)
    return next((row for row in rows if row is not None and row.ms is not None), None)


def find(entries: dict[Entry, Row], names: Sequence[str], dtype: str) -> float | None:
    row = find_row(entries, names, dtype)
    return None if row is None else row.ms


def time(entries: dict[Entry, Row], names: Sequence[str], dtype: str) -> str:
    """Milliseconds, with an asterisk if the result is wrong."""
    row = find_row(entries, names, dtype)
    return number(None if row is None else row.ms) + ("*" if row is not None and row.is_wrong else "")


def factor(entries: dict[Entry, Row], ours: Sequence[str], theirs: Sequence[str], dtype: str) -> float | None:
    """How many times faster ours is, if both were timed and are right."""
    rows = [find_row(entries, names, dtype) for names in (ours, theirs)]
    if any(row is None or row.is_wrong for row in rows):
        return None
    mine, other = rows
    return other.ms / mine.ms  # type: ignore[union-attr, operator]


def faster(ours: float | None, theirs: float | None) -> str:
    """How many times faster we are; a loss in bold."""
    if ours is None or theirs is None:
        return "-"
    times = theirs / ours
    return f"{number(times)} x" if times >= 1 else f"**{number(times)} x**"


def geometric_mean(factors: Iterable[float | None]) -> str:
    """The mean of the factors that are not None."""
    logarithms = [math.log(x) for x in factors if x is not None]
    return f"{number(math.exp(sum(logarithms) / len(logarithms)))} x" if logarithms else "-"


def first(entries: dict[Entry, Row]) -> Row:
    return next(iter(entries.values()))


def shape(row: Row) -> str:
    return f"{row.heads} x {row.dim}" if row.heads > 1 else str(row.dim)


def graph_name(row: Row) -> str:
    return row.graph.replace(SYNTHETIC, "")


def title(row: Row) -> str:
    return f"{row.graph}: {row.num_nodes:,} nodes, {row.num_edges:,} edges."


class MarksBeside:
    """The marks that were judged on rows, to be put beside the figures they judge."""

    def __init__(self, rows: Sequence[Row]):
        self._by_case: dict[tuple, list[Finding]] = defaultdict(list)
        for finding in marks.judge(rows):
            if finding.holds is not None:
                self._by_case[finding.row.case].append(finding)

    def cell(self, case: tuple, contestants: Sequence[str]) -> str:
        """The marks of a case on these contestants, for example "bf16 0.15 of 1"; lost marks in bold."""
        texts = []
        for finding in self._by_case.get(case, ()):
            contestant, dtype = finding.mark.ours
            if contestant not in contestants or finding.ratio is None or finding.mark.at_most is None:
                continue
            text = f"{number(finding.ratio)} of {float(f'{finding.mark.at_most:.3g}'):g}"
            text = text if finding.holds else f"**{text}**"
            texts.append(f"{dtype} {text}")
        return ", ".join(dict.fromkeys(texts))
