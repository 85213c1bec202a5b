"""Tables of rows that were measured on CPUs: a full and a short table per processor and graph, and one of numbers of threads."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from . import targets
from .cells import (
    SYNTHETIC,
    WRONG_LEGEND,
    TargetsBeside,
    by_machine,
    faster,
    machine,
    markdown,
    mean_speedup,
    memory,
    number,
    processor,
    shape,
    time,
    title,
)
from .rows import Measured, Row, by_case

FAMILIES = ("spmm", "sddmm", "softmax", "attention", "layer")
DTYPES = ("bf16", "fp16", "fp32")
OURS, DGL = ("halfgnn", "halfgnn drop-in"), ("dgl",)  # the first that took part
# The lines of a case: suffix of the operator's name, and the backends that are halfgnn's.
LINES = (("", OURS), (", fused", ("halfgnn fused",)), (", unfused", ("halfgnn unfused",)))

_RIVAL = (
    "The rival is the fastest other way to the same result in the same type: DGL with int32 or int64 ids, torch.sparse, "
    "embedding_bag, PyTorch's gather and scatter, PyG, scipy. Losses are bold. "
)
_MEANS = " The geometric mean counts each case once: modules under the drop-in, attentions fused."
LEGEND = (
    "Times are medians in milliseconds; backends of a row took turns. " + _RIVAL + '"than fp32": the time of the '
    'fastest rival in fp32 divided by that of halfgnn in half precision. "targets": the time relative to that of the target, '
    "and the largest ratio that the target allows (the list of targets is below), missed targets in bold. Graphs are synthetic if "
    "their names say so. DGL has no fp16 on the CPU. Edge data is in insertion order (scattered over the adjacency) or "
    "sorted by destination. " + WRONG_LEGEND + _MEANS
)
SHORT_LEGEND = (
    "Times in bf16, and how many times faster halfgnn is. " + _RIVAL + '"than fp32": how many times faster halfgnn in bf16 is '
    "than the fastest rival in fp32, which a user would otherwise run. Edge data is in insertion order, and graphs are "
    "synthetic. Modules are dgl.nn's under the drop-in."
)  # fmt: skip
Pair = tuple[Row | None, Row | None]  # ours, theirs


def published(rows: Sequence[Row]) -> list[Row]:
    """The rows of each processor with the targets' number of threads, or with the most if it has none of these."""
    kept: list[Row] = []
    threads: dict[tuple, set[int]] = {}
    for row in rows:
        threads.setdefault((row.cpu, row.kernels), set()).add(row.threads)
    for row in rows:
        found = threads[row.cpu, row.kernels]
        if row.threads == (targets.THREADS if targets.THREADS in found else max(found)):
            kept.append(row)
    return kept


def _pair(case: Measured, ours: Sequence[str], dtype: str, than: str = "") -> Pair:
    """halfgnn in a dtype, and the fastest rival in the same or another one."""
    return case.row(ours, dtype), case.fastest(than or dtype)


def _faster(pair: Pair) -> str:
    ours, theirs = pair
    return faster(ours.ms if ours else None, theirs.ms if theirs else None)


def _rival(row: Row | None) -> str:
    return "-" if row is None else f"{number(row.ms)} {row.backend}"


def mean(cases: Iterable[Measured], dtype: str, than: str = "") -> str:
    return mean_speedup(_pair(case, OURS, dtype, than) for case in cases)


def _by_graph(rows: Sequence[Row]) -> dict[tuple, list[Measured]]:
    """The cases of each machine and graph."""
    graphs: dict[tuple, list[Measured]] = {}
    for key, found in by_machine(rows).items():
        for case in by_case(found).values():
            if case.first.family in FAMILIES:
                graphs.setdefault((*key, case.first.graph), []).append(case)
    return graphs


# ---- a table per processor and graph ---------------------------------------------------------------------------------


def _columns() -> Iterator[tuple[str, str, str, bool]]:
    """Heading, dtype, the rival's dtype, and whether it is a factor. Without a rival's dtype: halfgnn's time."""
    for dtype in DTYPES:
        yield f"halfgnn {dtype}", dtype, "", False
        yield f"rival {dtype}", dtype, dtype, False
        yield "faster", dtype, dtype, True
        if dtype != "fp32":
            yield "than fp32", dtype, "fp32", True


_HEADER = ["operator", "direction", "edge data", "ids", "heads x dim", *(heading for heading, *_ in _columns()),
           "DGL bf16", "DGL fp32", "targets"]  # fmt: skip


def _cells(case: Measured, ours: Sequence[str]) -> Iterator[str]:
    for _, dtype, than, is_factor in _columns():
        pair = _pair(case, ours, dtype, than)
        yield time(pair[0]) if not than else _faster(pair) if is_factor else _rival(pair[1])


def _line(case: Measured, suffix: str, ours: Sequence[str], beside: TargetsBeside) -> list[str]:
    row = case.first
    has_edge_data = row.op not in ("copy_u_sum", "copy_u_max", "GraphConv")
    return [
        row.op + suffix, row.direction, row.order if has_edge_data else "", row.idtype, shape(row), *_cells(case, ours),
        time(case.row(DGL, "bf16")), time(case.row(DGL, "fp32")), beside.cell(row.case, ours),
    ]  # fmt: skip


def graph_tables(rows: Sequence[Row]) -> Iterator[str]:
    """One table per processor and graph."""
    beside = TargetsBeside(rows)
    for cases in _by_graph(rows).values():
        lines = [_line(case, suffix, ours, beside) for case in cases for suffix, ours in LINES
                 if not suffix or case.has(ours)]  # fmt: skip
        means = [mean(cases, dtype, than) if is_factor else "" for _, dtype, than, is_factor in _columns()]
        lines.append(["geometric mean", *[""] * 4, *means, *[""] * 3])
        first = cases[0].first
        yield f"{title(first)} {machine(first)}. Milliseconds.\n\n" + markdown(_HEADER, lines, 5)


# ---- a short table per processor and graph --------------------------------------------------------------------------------


def _graphs_with_targets(rows: Sequence[Row]) -> dict[tuple, list[Measured]]:
    return {key: cases for key, cases in _by_graph(rows).items() if key[-1] in targets.GRAPHS}


def short_cases(cases: list[Measured]) -> Iterator[Measured]:
    """A case per operator, direction and shape of FEATURES features. Shapes of one head are left out if there are
    others, and int64 ids if there are int32."""
    found: dict[tuple, Measured] = {}
    for case in sorted(cases, key=lambda case: case.first.idtype, reverse=True):  # int32 replaces int64
        row = case.first
        if row.order == "insertion" and (row.dim == 1 or row.heads * row.dim == targets.FEATURES):
            found[row.family, row.op, row.direction, row.heads, row.dim] = case
    several = {key[:3] for key in found if key[3] > 1}
    kept = [(key, case) for key, case in found.items() if key[3] > 1 or key[:3] not in several]
    for _, case in sorted(kept, key=lambda item: FAMILIES.index(item[0][0])):
        yield case


def _short_line(case: Measured, suffix: str, ours: Sequence[str]) -> list[str]:
    row, (mine, rival) = case.first, _pair(case, ours, "bf16")
    return [
        row.op + suffix, row.direction, shape(row), rival.backend if rival else "-", time(mine), time(rival),
        _faster((mine, rival)), _faster(_pair(case, ours, "bf16", "fp32")),
    ]  # fmt: skip


_SHORT_HEADER = ["operator", "direction", "heads x dim", "rival", "halfgnn, ms", "rival, ms", "faster", "than fp32"]


def _short_table(cases: list[Measured]) -> str:
    lines = [
        _short_line(case, suffix, ours)
        for case in short_cases(cases)
        for suffix, ours in LINES
        if case.row(ours, "bf16")
    ]
    if not lines:
        return ""
    lines.append(["geometric mean of all cases", *[""] * 5, mean(cases, "bf16"), mean(cases, "bf16", "fp32")])
    first = cases[0].first
    return f"{title(first)} {machine(first)}.\n\n" + markdown(_SHORT_HEADER, lines, 4)


def summary_table(rows: Sequence[Row]) -> str:
    """A table per graph that has targets and processor: a line per operator, and their means."""
    graphs = _graphs_with_targets(rows)
    order = sorted(graphs, key=lambda key: (*map(str, key[:-1]), str(key[-1])))
    tables = list(filter(None, (_short_table(graphs[key]) for key in order)))
    if not tables:
        return ""
    wrong = WRONG_LEGEND if any("*" in table.replace("**", "") for table in tables) else ""
    return "\n\n".join([" ".join(filter(None, [SHORT_LEGEND + _MEANS, wrong])), *tables])


# ---- a line per number of threads ------------------------------------------------------------------------------------


def threads_table(rows: Sequence[Row]) -> str:
    """Forward cases that were measured with several numbers of threads."""
    found: dict[tuple, dict[int, Measured]] = {}
    for case in by_case(rows).values():
        row = case.first
        if row.direction == "forward" and row.family in FAMILIES:
            key = (processor(row) + memory(row), row.graph, row.op, row.order, row.idtype, shape(row))
            found.setdefault(key, {})[row.threads] = case
    lines = [
        [cpu, graph.replace(SYNTHETIC, ""), op, order, ids, size, dtype, str(threads), time(case.row(OURS, dtype)),
         _faster((case.row(OURS, dtype), case.row(DGL, dtype))), _faster(_pair(case, OURS, dtype))]
        for (cpu, graph, op, order, ids, size), cases in found.items() if len(cases) > 1
        for dtype in DTYPES
        for threads, case in sorted(cases.items())
        if case.row(OURS, dtype)
    ]  # fmt: skip
    header = ["processor", "graph", "operator", "edge data", "ids", "heads x dim", "dtype", "threads", "halfgnn, ms"]
    return "By threads.\n\n" + markdown([*header, "than DGL", "than the fastest rival"], lines, 7) if lines else ""
