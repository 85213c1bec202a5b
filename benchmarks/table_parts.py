"""Tables that CPU and GPU have in common: training, overhead, limits, memory, marks, and the source of the rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from . import marks
from .cells import SYNTHETIC, MarksBeside, faster, find, first, graph_name, markdown, number, shape
from .marks import Entry, Finding, by_case
from .rows import Row, latest

_TRAINING = ("halfgnn", "halfgnn fused", "halfgnn drop-in", "dgl", "pyg")


def _losses(entries: dict[Entry, Row], contestant: str, dtype: str) -> list[str]:
    row = entries.get((contestant, dtype))
    return row.losses.split() if row else []


def _training_line(entries: dict[Entry, Row], dtype: str, beside: MarksBeside) -> list[str]:
    row, ours = first(entries), find(entries, ("halfgnn",), dtype)
    curves = [_losses(entries, name, d) for name, d in (("halfgnn", dtype), ("dgl", dtype), ("dgl", "fp32"))]
    steps = min((len(curve) for curve in curves if curve), default=0)
    peaks = [entries[name, dtype].peak_mb if (name, dtype) in entries else None for name in ("halfgnn", "dgl")]
    comparable = steps > 1  # the first loss is computed before any update
    return [
        row.op, graph_name(row), shape(row), dtype,
        *(number(find(entries, (name,), dtype)) for name in _TRAINING),
        faster(ours, find(entries, ("dgl",), dtype)), faster(ours, find(entries, ("dgl",), "fp32")), *map(number, peaks),
        str(steps) if comparable else "-", *(curve[steps - 1] if curve and comparable else "-" for curve in curves),
        beside.cell(row.case, ("halfgnn",)),
    ]  # fmt: skip


def train_table(rows: Sequence[Row]) -> Iterator[str]:
    cases = [entries for entries in by_case(rows).values() if first(entries).family == "train"]
    beside = MarksBeside(rows)
    lines = [
        _training_line(entries, dtype, beside)
        for entries in cases
        for dtype in ("fp32", "bf16", "fp16")
        if find(entries, _TRAINING, dtype) is not None
    ]
    if lines:
        header = ["model", "graph", "heads x hidden", "dtype", "halfgnn", "dgl.nn fused", "dgl.nn drop-in", "DGL", "PyG",
                  "faster than DGL", "than DGL fp32", "MiB, halfgnn", "MiB, DGL", "steps", "loss, halfgnn", "loss, DGL",
                  "loss, DGL fp32", "marks"]  # fmt: skip
        yield (
            "A training step of a whole model, from forward to optimizer. Times are milliseconds. MiB: at the peak, "
            'with graph, data and parameters. "steps": the number of steps that all contestants made; the losses '
            "are computed before the last of them.\n\n"
        ) + markdown(header, lines, 4)


def overhead_table(rows: Sequence[Row]) -> Iterator[str]:
    """One table per kind of work and dtype, with a line per contestant and a column per graph."""
    chosen = [row for row in latest(rows) if row.family == "overhead" and row.ms is not None]
    kinds = dict.fromkeys((row.op, row.direction, row.dtype) for row in chosen)
    sizes = dict.fromkeys((row.graph, row.num_edges) for row in chosen)
    tables = []
    for op, direction, dtype in kinds:
        of_kind = [row for row in chosen if (row.op, row.direction, row.dtype) == (op, direction, dtype)]
        micro = {(row.contestant, row.graph): (row.ms or 0.0) * 1e3 for row in of_kind}
        present = [size for size in sizes if any(row.graph == size[0] for row in of_kind)]
        lines = [
            [way, *(number(micro.get((way, graph))) for graph, _ in present)]
            for way in dict.fromkeys(row.contestant for row in of_kind)
        ]
        header = [f"{op}, {direction}, {dtype}", *(f"{edges:,} edges" for _, edges in present)]
        tables.append(markdown(header, lines, 1))
    if tables:
        yield "Microseconds per call or training step, by the size of the graph.\n\n" + "\n\n".join(tables)


def limits_table(rows: Sequence[Row]) -> Iterator[str]:
    chosen = [row for row in latest(rows) if row.family == "limits" and row.ms is not None]
    if not chosen:
        return
    kinds = list(dict.fromkeys((row.graph, row.dim, row.dtype) for row in chosen))
    found = {(r.contestant, r.graph, r.dim, r.dtype): r for r in chosen}
    lines = []
    for way in dict.fromkeys(row.contestant for row in chosen):
        cells = [found.get((way, *kind)) for kind in kinds]
        lines.append([way, *(number(row.gb_per_s) if row else "-" for row in cells)])
    header = ["", *(f"{graph}, {dim} {dtype}".replace(SYNTHETIC, "") for graph, dim, dtype in kinds)]
    yield "copy_u_sum beside other gathers and copies on this machine. GB/s of rows and indices read.\n\n" + (
        markdown(header, lines, 1)
    )


_KEPT_FOR = ("attention", "layer")


def memory_table(rows: Sequence[Row]) -> Iterator[str]:
    cases = [e for key, e in by_case(rows).items() if key[0] in _KEPT_FOR and any(r.kept_mb for r in e.values())]
    lines = []
    for entries in cases:
        row = first(entries)
        for dtype in dict.fromkeys(dtype for _, dtype in entries):
            kept = {name: r.kept_mb for (name, d), r in entries.items() if d == dtype}
            fused, unfused = (
                kept.get(a, kept.get(b))
                for a, b in (("halfgnn fused", "halfgnn"), ("halfgnn drop-in", "halfgnn unfused"))
            )
            lines.append(
                [row.op, graph_name(row), shape(row), dtype, number(fused), number(unfused), number(kept.get("dgl"))]
            )
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
    """The ratio, or "x times faster" if the mark asks for a speed-up."""
    if finding.ratio is None:
        return "-"
    if finding.mark.at_most is not None and finding.mark.at_most < 1:
        return f"{number(1 / finding.ratio)} x faster"
    return f"{number(finding.ratio)} x"


def _where(row: Row) -> str:
    parts = (graph_name(row), row.op, row.direction, f"{row.order} order", shape(row), row.cache)
    return ", ".join(part for part in parts if part)


def marks_in_detail(rows: Sequence[Row]) -> str:
    """One line per mark and case."""
    lines = [[f.mark.text, _where(f.row), _ratio(f), _verdict(f)] for f in marks.judge(rows)]
    lines += [[mark.text, "", "-", "not measured"] for mark in marks.unmeasured(rows)]
    return markdown(["mark", "case", "ratio", ""], lines, 4)


def marks_table(rows: Sequence[Row]) -> str:
    """One line per mark with its best and worst case, then every case in which a mark is lost."""
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


def lost_marks(rows: Sequence[Row]) -> str:
    """One line with the marks that are lost in some case; empty if there are none."""
    texts = dict.fromkeys(finding.mark.text for finding in marks.lost(rows))
    return f"Goals that are missed in at least one case: {'; '.join(texts)}." if texts else ""


def _machine(row: Row) -> str:
    return f"{row.gpu}, driver {row.driver}" if row.gpu else f"{row.cpu}, {row.threads} threads"


def source(rows: Sequence[Row]) -> str:
    """The source of the rows, one line per run."""
    lines = [
        f"* {row.date[:10]}, commit {row.commit}, {_machine(row)}, torch {row.torch}, DGL {row.dgl}: `{row.command}`"
        for row in latest(rows)
    ]
    return "Measured by:\n\n" + "\n".join(dict.fromkeys(lines))
