"""Tables that CPU and GPU have in common: training, overhead, limits, memory, targets, and the source of the rows. Each is
empty if no row is about it."""

from __future__ import annotations

from collections.abc import Sequence

from . import targets
from .cells import SYNTHETIC, TargetsBeside, by_machine, faster, graph_name, machine, markdown, number, shape
from .rows import Measured, Row, by_case, latest
from .targets import Finding

# ---- training and memory ---------------------------------------------------------------------------------------------

_TRAINING = ("halfgnn", "halfgnn fused", "halfgnn drop-in", "dgl", "pyg")
_TRAINING_HEADER = [
    "model", "graph", "heads x hidden", "dtype", "halfgnn", "dgl.nn fused", "dgl.nn drop-in", "DGL", "PyG",
    "faster than DGL", "than DGL fp32", "MiB, halfgnn", "MiB, DGL", "steps", "loss, halfgnn", "loss, DGL",
    "loss, DGL fp32", "targets",
]  # fmt: skip


def _training_line(case: Measured, dtype: str, beside: TargetsBeside) -> list[str]:
    row, ours = case.first, case.ms(["halfgnn"], dtype)
    found = [case.get(entry) for entry in (("halfgnn", dtype), ("dgl", dtype), ("dgl", "fp32"))]
    curves = [row.losses.split() if row else [] for row in found]
    peaks = [row.peak_mb if row else None for row in found[:2]]
    steps = min((len(curve) for curve in curves if curve), default=0)
    comparable = steps > 1  # the first loss is computed before any update
    return [
        row.op, graph_name(row), shape(row), dtype, *(number(case.ms([name], dtype)) for name in _TRAINING),
        faster(ours, case.ms(["dgl"], dtype)), faster(ours, case.ms(["dgl"], "fp32")), *map(number, peaks),
        str(steps) if comparable else "-", *(curve[steps - 1] if curve and comparable else "-" for curve in curves),
        beside.cell(row.case, ["halfgnn"]),
    ]  # fmt: skip


def train_table(rows: Sequence[Row]) -> str:
    cases, beside = by_case(rows).values(), TargetsBeside(rows)
    lines = [
        _training_line(case, dtype, beside)
        for case in cases
        for dtype in ("fp32", "bf16", "fp16")
        if case.first.family == "train" and case.row(_TRAINING, dtype)
    ]
    legend = (
        "A training step of a whole model, from forward to optimizer. Times are milliseconds. MiB: at the peak, "
        'with graph, data and parameters. "steps": the number of steps that all backends made; the losses '
        "are computed before the last of them.\n\n"
    )
    return legend + markdown(_TRAINING_HEADER, lines, 4) if lines else ""


def _kept_line(case: Measured, dtype: str) -> list[str]:
    row, kept = case.first, {name: r.kept_mb for (name, d), r in case.items() if d == dtype}
    fused = kept.get("halfgnn fused", kept.get("halfgnn"))
    unfused = kept.get("halfgnn drop-in", kept.get("halfgnn unfused"))
    return [row.op, graph_name(row), shape(row), dtype, *map(number, (fused, unfused, kept.get("dgl")))]


def memory_table(rows: Sequence[Row]) -> str:
    cases = [case for case in by_case(rows).values() if case.first.family in ("attention", "layer")]
    lines = [
        _kept_line(case, dtype)
        for case in cases
        if any(row.kept_mb for row in case.values())
        for dtype in dict.fromkeys(dtype for _, dtype in case)
    ]
    header = ["operator or module", "graph", "heads x dim", "dtype", "halfgnn, fused", "halfgnn, unfused", "DGL"]
    legend = "What a forward saves for its backward, beyond inputs and parameters. MiB.\n\n"
    return legend + markdown(header, lines, 4) if lines else ""


# ---- overhead and limits ---------------------------------------------------------------------------------------------


def _of_family(rows: Sequence[Row], family: str) -> list[Row]:
    return [row for row in latest(rows) if row.family == family and row.ms is not None]


def overhead_table(rows: Sequence[Row]) -> str:
    """One table per kind of work and dtype, with a line per backend and a column per graph."""
    rows = _of_family(rows, "overhead")
    sizes = dict.fromkeys((row.graph, row.num_edges) for row in rows)
    tables = []
    for kind in dict.fromkeys((row.op, row.direction, row.dtype) for row in rows):
        chosen = {(r.backend, r.graph): r for r in rows if (r.op, r.direction, r.dtype) == kind}
        present = [(graph, edges) for graph, edges in sizes if any(graph == found for _, found in chosen)]
        micro = {key: (row.ms or 0.0) * 1e3 for key, row in chosen.items()}
        lines = [
            [way, *(number(micro.get((way, graph))) for graph, _ in present)]
            for way in dict.fromkeys(way for way, _ in chosen)
        ]
        tables.append(markdown([", ".join(kind), *(f"{edges:,} edges" for _, edges in present)], lines, 1))
    legend = "Microseconds per call or training step, by the size of the graph."
    return "\n\n".join([legend, *tables]) if tables else ""


def limits_table(rows: Sequence[Row]) -> str:
    found = {(r.backend, (r.graph, r.dim, r.dtype)): r.gb_per_s for r in _of_family(rows, "limits")}
    kinds = dict.fromkeys(kind for _, kind in found)
    lines = [
        [way, *(number(found.get((way, kind))) for kind in kinds)] for way in dict.fromkeys(way for way, _ in found)
    ]
    header = ["", *(f"{graph}, {dim} {dtype}".replace(SYNTHETIC, "") for graph, dim, dtype in kinds)]
    legend = "copy_u_sum beside other gathers and copies on this machine. GB/s of rows and indices read.\n\n"
    return legend + markdown(header, lines, 1) if lines else ""


# ---- orders of nodes -------------------------------------------------------------------------------------------------

_ORDERS = {"reordered": "halfgnn, reordered", "planted": "halfgnn, planted", "by degree": "halfgnn, by degree",
           "Cuthill-McKee": "halfgnn, Cuthill-McKee"}  # fmt: skip
_ORDERS_LEGEND = (
    "copy_u_sum with other node ids than the graph's own, which are random in synthetic graphs. Each cell shows the "
    "locality (the share of gathers that find their row among the last 4,096 different rows) and the speedup of the sum "
    'over the graph\'s own ids. Losses are bold. The "takes" columns show the time of the reordering as a multiple of the '
    "time of a sum with the graph's own ids; for Cuthill-McKee, this is scipy's time without building the new adjacencies."
)


def _locality(row: Row) -> str:
    return f"{float(row.note.removeprefix('locality ')):.1%}"


def _order_line(case: Measured, dtype: str) -> list[str]:
    own = case["halfgnn", dtype]
    orders = [case.row((name,), dtype) for name in _ORDERS.values()]
    cells = ["-" if row is None else f"{_locality(row)}, {faster(row.ms, own.ms)}" for row in orders]
    costs = [case.ms((name,), dtype) for name in ("reorder", "Cuthill-McKee")]
    takes = ["-" if ms is None or not own.ms else number(ms / own.ms) for ms in costs]
    return [graph_name(own), f"{own.num_nodes:,}", f"{own.num_edges:,}", _locality(own), *cells, *takes]


def orders_table(rows: Sequence[Row]) -> str:
    """A line per graph: what an order of its nodes is worth, and what it costs."""
    cases = [case for case in by_case(rows).values() if case.first.family == "reorder"]
    if not cases:
        return ""
    first = cases[0].first
    header = ["graph", "nodes", "edges", "as it is", *_ORDERS, "halfgnn.reorder takes", "Cuthill-McKee takes"]
    lines = [_order_line(case, case.first.dtype) for case in cases]
    legend = (
        f"{_ORDERS_LEGEND} {first.dtype}, F = {first.dim}, {first.idtype} ids, {first.threads} of the CPU's threads."
    )
    return "\n\n".join([legend, markdown(header, lines, 1), source([row for case in cases for row in case.values()])])


# ---- targets -----------------------------------------------------------------------------------------------------------


def _verdict(finding: Finding) -> str:
    if finding.ratio is None:
        return "not measured"
    return "holds" if finding.holds else "**missed**"


def _ratio(finding: Finding) -> str:
    """The ratio, or "x times faster" if the target asks for a speed-up."""
    if finding.ratio is None:
        return "-"
    if finding.target.at_most < 1:
        return f"{number(1 / finding.ratio)} x faster"
    return f"{number(finding.ratio)} x"


def _where(row: Row) -> str:
    parts = (graph_name(row), row.op, row.direction, f"{row.order} order", shape(row), row.idtype, row.cache)
    return ", ".join(part for part in parts if part)


def targets_table(rows: Sequence[Row]) -> str:
    """One line per target with its best and worst case, then every case in which a target is missed. One table per machine."""
    return "\n\n".join(_marks_of(found) for found in by_machine(rows).values())


def _marks_of(rows: Sequence[Row]) -> str:
    lines = []
    for target in targets.of(rows):
        found = [f for f in targets.judge(rows, [target]) if f.ratio is not None]
        if not found:
            lines.append([target.text, "0", "-", "-", "not measured"])
            continue
        found.sort(key=lambda f: f.ratio or 0.0)
        lines.append([target.text, str(len(found)), _ratio(found[0]), _ratio(found[-1]), _verdict(found[-1])])
    text = f"Targets, {machine(rows[0])}.\n\n" + markdown(["target", "cases", "best", "worst", ""], lines, 1)
    losses = [f"* {f.target.text}: {_ratio(f)} ({_where(f.row)})" for f in targets.missed(rows)]
    return text + ("\n\nLost:\n\n" + "\n".join(losses) if losses else "")


def missed_targets(rows: Sequence[Row]) -> str:
    """The targets that are missed in some case, each with the worst case of every dtype; empty if there are none."""
    worst: dict[str, dict[str, targets.Finding]] = {}
    for finding in targets.missed(rows):
        dtype = finding.target.ours[1]
        of_target = worst.setdefault(finding.target.text.replace(f", {dtype}", ""), {})
        of_target[dtype] = max(finding, of_target.get(dtype, finding), key=lambda f: f.ratio or 0.0)
    lines = [
        f"* {text} ({', '.join(f'{d} {_ratio(f)}' for d, f in sorted(found.items()))})" for text, found in worst.items()
    ]
    return "Missed targets, with the worst case of each type:\n\n" + "\n".join(lines) if lines else ""


# ---- source ----------------------------------------------------------------------------------------------------------


def source(rows: Sequence[Row]) -> str:
    """The source of the rows, one line per run."""
    lines = []
    for row in latest(rows):
        versions = f"torch {row.torch}, DGL {row.dgl}"
        lines.append(f"* {row.date[:10]}, commit {row.commit}, {machine(row)}, {versions}: `{row.command}`")
    return "Measured by:\n\n" + "\n".join(dict.fromkeys(lines))
