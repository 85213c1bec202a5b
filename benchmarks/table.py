"""The tables of committed rows in markdown, and the check that documents agree with them.

A document shows each section between markers that have its name: see SECTIONS. `python -m benchmarks table NAME` prints one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from . import code_sums, compat, facts, features, records, sampling, serving, table_cpu, table_cuda, table_pages
from . import rows as row_files
from .cells import by_machine, machine, wrapped
from .programs import records as programs
from .rows import Row
from .table_edges import edges_tables, layers_headline
from .table_parts import (
    limits_table,
    memory_table,
    missed_targets,
    orders_table,
    overhead_table,
    source,
    targets_table,
    train_table,
)
from .table_programs import models_headline, programs_tables
from .targets import FEATURES

_MARKERS = re.compile(r"<!-- benchmarks: begin (\w+) -->\n(.*?)<!-- benchmarks: end \1 -->", re.DOTALL)


def _joined(parts: Iterable[str]) -> str:
    present = [wrapped(part) for part in parts if part]
    return "\n\n".join(present) + "\n" if present else ""


def render(rows: Sequence[Row]) -> str:
    """All tables of the rows; empty if there are no rows."""
    if not rows:
        return ""
    if any(row.device == "cuda" for row in rows):
        limits = [row for row in rows if row.cache != "cold" and (row.family != "limits" or row.dim == FEATURES)]
        parts = [table_cuda.LEGEND, *table_cuda.graph_tables(rows), train_table(rows), limits_table(limits)]
        return _joined([*parts, overhead_table(rows), targets_table(rows), source(rows)])
    parts = [table_cpu.LEGEND]
    for found in by_machine(table_cpu.published(rows)).values():
        parts += [f"**{machine(found[0])}**", *table_cpu.graph_tables(found), train_table(found), memory_table(found),
                  overhead_table(found), limits_table(found), targets_table(found)]  # fmt: skip
    return _joined([*parts, table_cpu.threads_table(rows), source(rows)])


def summary(rows: Sequence[Row]) -> str:
    """A line per operator, and the targets."""
    rows = table_cpu.published(rows)
    return _joined([table_cpu.summary_table(rows), targets_table(rows)]) if rows else ""


def missed(rows: Sequence[Row]) -> str:
    """The targets that are missed, in a list."""
    return _joined([missed_targets(table_cpu.published(rows))])


def _of_rows(made: Callable[[Sequence[Row]], str]) -> Callable[[Path], str]:
    return lambda path: made(row_files.read(path))


def _of_programs(made: Callable[[Sequence[programs.ProgramRow]], str]) -> Callable[[Path], str]:
    return lambda path: _joined([made(records.read(path, programs.ProgramRow))])


# Name: file of rows, and the function that renders them.
SECTIONS: dict[str, tuple[str, Callable[[Path], str]]] = {
    "missed": ("cpu.csv", _of_rows(missed)),
    "summary": ("cpu.csv", _of_rows(summary)),
    "cpu": ("cpu.csv", _of_rows(render)),
    "cuda": ("cuda.csv", _of_rows(render)),
    "reorder": ("reorder.csv", _of_rows(lambda rows: _joined([orders_table(rows)]))),
    "edges": ("edges.csv", _of_rows(lambda rows: _joined(edges_tables(rows)))),
    "layers": ("edges.csv", _of_rows(lambda rows: _joined([layers_headline(rows)]))),
    "pyg": ("pyg.csv", _of_rows(lambda rows: _joined(edges_tables(rows)))),
    "programs": (programs.KEPT, lambda path: _joined(programs_tables(records.read(path, programs.ProgramRow)))),
    "models": (programs.KEPT, _of_programs(models_headline)),
    "expect": (programs.KEPT, _of_programs(table_pages.expectations)),
    "memory": (programs.KEPT, _of_programs(table_pages.saved_memory)),
    "devices": (programs.KEPT, _of_programs(table_pages.devices)),
    "all_programs": (programs.KEPT, _of_programs(table_pages.all_programs)),
    "operators": ("cpu.csv", _of_rows(lambda rows: _joined([table_pages.operators(rows)]))),
    "gpu_operators": ("cuda.csv", _of_rows(lambda rows: _joined([table_pages.gpu_operators(rows)]))),
    "sampling": (sampling.KEPT, lambda path: sampling.render(records.read(path, sampling.SamplingRow))),
    "features": (features.KEPT, lambda path: features.render(records.read(path, features.FeatureRow))),
    "code_sums": (code_sums.KEPT, lambda path: code_sums.render(records.read(path, code_sums.CodeSumRow))),
    "compat_rows": (compat.KEPT, lambda path: compat.render_rows(records.read(path, compat.CompatRow))),
    "compat_graphs": (compat.KEPT, lambda path: compat.render_graphs(records.read(path, compat.CompatRow))),
    "serving": (serving.KEPT, lambda path: serving.render(records.read(path, serving.ServingRow))),
    "graphs": (facts.KEPT, lambda path: facts.render(facts.read(path))),
}


def section(name: str, results: Path) -> str:
    """The tables of a section, of the rows in the folder `results`; empty without them."""
    file, made = SECTIONS[name]
    return made(results / file) if (results / file).exists() else ""


def replaced(text: str, results: Path) -> str:
    """The document with every section rendered from the rows in the folder `results`.

    Raises:
        ValueError: the document has no markers, or markers of an unknown section.
    """

    def between(found: re.Match) -> str:
        name = found.group(1)
        if name not in SECTIONS:
            raise ValueError(f"the document has a section {name!r}; expected one of {', '.join(SECTIONS)}")
        content = section(name, results)
        return f"<!-- benchmarks: begin {name} -->\n{content}<!-- benchmarks: end {name} -->"

    changed, count = _MARKERS.subn(between, text)
    if not count:
        raise ValueError("the document lacks lines <!-- benchmarks: begin NAME --> and <!-- benchmarks: end NAME -->")
    return changed


def agrees(text: str, results: Path) -> bool:
    """Whether the text between a document's markers is exactly the tables of the rows."""
    return bool(_MARKERS.search(text)) and replaced(text, results) == text
