"""Markdown tables of committed rows, and the README's agreement with them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from . import marks
from .marks import Entry, Finding, by_case
from .rows import Row, latest

BEGIN, END = "<!-- benchmarks: begin -->", "<!-- benchmarks: end -->"

_COLUMNS = (
    # heading, contestant names (the first that took part), dtype
    ("halfgnn bf16", ("halfgnn", "halfgnn drop-in"), "bf16"),
    ("DGL bf16", ("dgl",), "bf16"),
    ("halfgnn fp16", ("halfgnn", "halfgnn drop-in"), "fp16"),
    ("halfgnn fp32", ("halfgnn", "halfgnn drop-in"), "fp32"),
    ("DGL fp32", ("dgl",), "fp32"),
    ("torch.sparse fp32", ("torch.sparse",), "fp32"),
    ("PyTorch gather, index_add bf16", ("index_add", "torch gather"), "bf16"),
)
# Other contestants of the same work, which have lines of their own: (what to call them, contestant names).
_VARIANTS = ((", fused", ("halfgnn fused",)), (", unfused", ("halfgnn unfused",)))
_FAMILIES = ("spmm", "sddmm", "softmax", "attention", "layer")


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


def find(entries: dict[Entry, Row], names: Sequence[str], dtype: str) -> float | None:
    rows = (entries.get((name, dtype)) for name in names)
    return next((row.ms for row in rows if row is not None and row.ms is not None), None)


def faster(ours: float | None, theirs: float | None) -> str:
    """How many times faster we are; a loss in bold."""
    if ours is None or theirs is None:
        return "-"
    factor = theirs / ours
    return f"{number(factor)} x" if factor >= 1 else f"**{number(factor)} x**"


def _describe(row: Row) -> list[str]:
    shape = f"{row.heads} x {row.dim}" if row.heads > 1 else str(row.dim)
    has_edge_data = row.op not in ("copy_u_sum", "copy_u_max", "GraphConv")
    return [row.op, row.direction, row.order if has_edge_data else "", shape]


def _times(entries: dict[Entry, Row], ours: Sequence[str] | None = None) -> list[str]:
    """ours: who stands in halfgnn's columns, if not its main contestants."""
    found = [(ours if ours and heading.startswith("halfgnn") else names, dtype) for heading, names, dtype in _COLUMNS]
    ms = [find(entries, names, dtype) for names, dtype in found]
    bf16, dgl_bf16, fp16, fp32, dgl_fp32, *others = ms
    return [
        number(bf16), number(dgl_bf16), faster(bf16, dgl_bf16), number(fp16),
        number(fp32), number(dgl_fp32), faster(fp32, dgl_fp32), *map(number, others),
    ]  # fmt: skip


def _lines(entries: dict[Entry, Row]) -> Iterator[list[str]]:
    """The lines of a case: of halfgnn's main contestant, and of others of its own."""
    name, *rest = _describe(next(iter(entries.values())))
    yield [name, *rest, *_times(entries)]
    for suffix, ours in _VARIANTS:
        if any(contestant in ours for contestant, _ in entries):
            yield [name + suffix, *rest, *_times(entries, ours)]


def _mean_speedup(cases: Sequence[dict[Entry, Row]], dtype: str) -> str:
    """Geometric mean of the factors over DGL, of the cases where both took part."""
    factors = []
    for entries in cases:
        ours = find(entries, ("halfgnn", "halfgnn drop-in"), dtype)
        theirs = find(entries, ("dgl",), dtype)
        if ours is not None and theirs is not None:
            factors.append(theirs / ours)
    if not factors:
        return "-"
    return f"{number(math.exp(sum(map(math.log, factors)) / len(factors)))} x"


def _graph_tables(rows: Sequence[Row]) -> Iterator[str]:
    cases = [entries for key, entries in by_case(rows).items() if key[0] in _FAMILIES]
    names = list(dict.fromkeys(next(iter(entries.values())).graph for entries in cases))
    header = ["operator", "direction", "edge data", "heads x dim", "halfgnn bf16", "DGL bf16",
              "faster", "halfgnn fp16", "halfgnn fp32", "DGL fp32", "faster",
              "torch.sparse fp32", "PyTorch ops bf16"]  # fmt: skip
    for name in names:
        chosen = [entries for entries in cases if next(iter(entries.values())).graph == name]
        first = next(iter(chosen[0].values()))
        lines = [line for entries in chosen for line in _lines(entries)]
        mean = ["geometric mean", "", "", "", "", "", _mean_speedup(chosen, "bf16"), "", "", "",
                _mean_speedup(chosen, "fp32"), "", ""]  # fmt: skip
        title = f"{name}: {first.num_nodes:,} nodes, {first.num_edges:,} edges. Milliseconds."
        yield title + "\n\n" + markdown(header, [*lines, mean], 4)


def overhead_table(rows: Sequence[Row]) -> Iterator[str]:
    chosen = [row for row in latest(rows) if row.family == "overhead" and row.ms is not None]
    if not chosen:
        return
    shapes = list(dict.fromkeys((row.direction, row.dtype) for row in chosen))
    micro = {(r.contestant, r.direction, r.dtype): r.ms * 1e3 for r in chosen if r.ms is not None}
    ways = list(dict.fromkeys(row.contestant for row in chosen))
    lines = [[way, *(number(micro.get((way, *shape))) for shape in shapes)] for way in ways]
    header = ["one weighted sum", *(" ".join(shape) for shape in shapes)]
    yield "A call on a graph of 30 nodes and 100 edges. Microseconds.\n\n" + markdown(header, lines, 1)


def limits_table(rows: Sequence[Row]) -> Iterator[str]:
    chosen = [row for row in latest(rows) if row.family == "limits" and row.ms is not None]
    if not chosen:
        return
    shapes = list(dict.fromkeys((row.graph, row.dtype) for row in chosen))
    found = {(r.contestant, r.graph, r.dtype): r for r in chosen}
    lines = []
    for way in dict.fromkeys(row.contestant for row in chosen):
        cells = [found.get((way, *shape)) for shape in shapes]
        lines.append([way, *(number(row.gb_per_s) if row else "-" for row in cells)])
    header = ["", *(" ".join(shape).replace(" (synthetic)", "") for shape in shapes)]
    yield "copy_u_sum and what the machine does otherwise. GB/s of rows and indices read.\n\n" + (
        markdown(header, lines, 1)
    )


_KEPT_FOR = ("attention", "layer")


def memory_table(rows: Sequence[Row]) -> Iterator[str]:
    cases = [e for key, e in by_case(rows).items() if key[0] in _KEPT_FOR and any(r.kept_mb for r in e.values())]
    lines = []
    for entries in cases:
        row = next(iter(entries.values()))
        for dtype in dict.fromkeys(dtype for _, dtype in entries):
            kept = {name: r.kept_mb for (name, d), r in entries.items() if d == dtype}
            fused, unfused = (
                kept.get(a, kept.get(b))
                for a, b in (("halfgnn fused", "halfgnn"), ("halfgnn drop-in", "halfgnn unfused"))
            )
            name, _, _, shape = _describe(row)
            graph = row.graph.replace(" (synthetic)", "")
            lines.append([name, graph, shape, dtype, number(fused), number(unfused), number(kept.get("dgl"))])
    if lines:
        header = ["operator or module", "graph", "heads x dim", "dtype", "halfgnn, fused", "halfgnn, unfused", "DGL"]
        yield "What a forward keeps for its backward, beyond inputs and parameters. MiB.\n\n" + markdown(
            header, lines, 4
        )


def _verdict(finding: Finding) -> str:
    if finding.ratio is None:
        return "not measured"
    if finding.mark.at_most is None:
        return ""
    return "holds" if finding.holds else "**lost**"


def _ratio(finding: Finding) -> str:
    """As the mark puts it: x times faster for those that ask for a speed-up."""
    if finding.ratio is None:
        return "-"
    if finding.mark.at_most is not None and finding.mark.at_most < 1:
        return f"{number(1 / finding.ratio)} x faster"
    return f"{number(finding.ratio)} x"


def _where(row: Row) -> str:
    _, direction, order, shape = _describe(row)
    graph = row.graph.replace(" (synthetic)", "")
    parts = (graph, row.op, direction, order and f"{order} order", shape, row.cache)
    return ", ".join(part for part in parts if part)


def marks_in_detail(rows: Sequence[Row]) -> str:
    """One line a mark and case."""
    lines = [[f.mark.text, _where(f.row), _ratio(f), _verdict(f)] for f in marks.judge(rows)]
    lines += [[mark.text, "", "-", "not measured"] for mark in marks.unmeasured(rows)]
    return markdown(["mark", "case", "ratio", ""], lines, 4)


def marks_table(rows: Sequence[Row]) -> str:
    """One line a mark with its best and worst case, then every case in which one is lost."""
    lines = []
    for mark in marks.of(rows):
        found = [f for f in marks.judge(rows, [mark]) if f.ratio is not None]
        if not found:
            lines.append([mark.text, "0", "-", "-", "not measured"])
            continue
        found.sort(key=lambda f: f.ratio or 0.0)
        verdict = _verdict(next((f for f in found if f.holds is False), found[-1]))
        lines.append([mark.text, str(len(found)), _ratio(found[0]), _ratio(found[-1]), verdict])
    text = markdown(["mark", "cases", "best", "worst", ""], lines, 1)
    losses = [f"* {f.mark.text}: {_ratio(f)} ({_where(f.row)})" for f in marks.lost(rows)]
    return text + ("\n\nLost:\n\n" + "\n".join(losses) if losses else "")


def _source(rows: Sequence[Row]) -> str:
    """Where the rows come from, one line a run."""
    runs = dict.fromkeys((r.date[:10], r.commit, r.cpu, r.threads, r.torch, r.dgl, r.command) for r in latest(rows))
    lines = [
        f"* {date}, commit {commit}, {cpu}, {threads} threads, torch {torch}, DGL {dgl}: `{command}`"
        for date, commit, cpu, threads, torch, dgl, command in runs
    ]
    return "Measured by:\n\n" + "\n".join(lines)


_LEGEND = (
    "Medians; contestants of a row took turns. \"faster\": DGL's time over halfgnn's, losses in "
    "bold. Graphs are synthetic. DGL has no fp16 on the CPU; torch.sparse no half. Edge data: in "
    "insertion order (scattered over the adjacency) or sorted by destination."
)


def render(rows: Sequence[Row]) -> str:
    """All tables of the rows; nothing where there are none."""
    if not rows:
        return ""
    if any(row.device == "cuda" for row in rows):
        from . import table_cuda

        return table_cuda.render(rows)
    parts = [_LEGEND, *_graph_tables(rows), *memory_table(rows), *overhead_table(rows), *limits_table(rows)]
    return "\n\n".join([*parts, "Marks.\n\n" + marks_table(rows), _source(rows)]) + "\n"


def embedded(text: str) -> str | None:
    """What stands between the markers of a document; None where they are missing."""
    if BEGIN not in text or END not in text:
        return None
    return text.split(BEGIN, 1)[1].split(END, 1)[0].strip("\n")


def agrees(text: str, rows: Sequence[Row]) -> bool:
    """Whether a document has exactly the tables of the rows between its markers."""
    return embedded(text) == render(rows).strip("\n")


def replaced(text: str, rows: Sequence[Row]) -> str:
    """The document with the tables of the rows between its markers. ValueError: no markers."""
    if embedded(text) is None:
        raise ValueError(f"the document lacks the lines {BEGIN} and {END}")
    before, rest = text.split(BEGIN, 1)
    return f"{before}{BEGIN}\n{render(rows)}{END}{rest.split(END, 1)[1]}"
