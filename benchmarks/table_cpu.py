"""Tables of rows that were measured on a CPU: a full table per graph, and a short table of all graphs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from . import marks
from .cells import SYNTHETIC, WRONG_LEGEND, MarksBeside, faster, markdown, mean_speedup, shape, time, title
from .rows import Measured, Row, by_case

FAMILIES = ("spmm", "sddmm", "softmax", "attention", "layer")
OURS, DGL = ("halfgnn", "halfgnn drop-in"), ("dgl",)  # the first that took part
# The lines of a case: suffix of the operator's name, and the contestants that are halfgnn's.
LINES = (("", OURS), (", fused", ("halfgnn fused",)), (", unfused", ("halfgnn unfused",)))
OTHERS = (
    ("torch.sparse fp32", ("torch.sparse",), "fp32"),
    ("PyTorch ops bf16", ("index_add", "torch gather"), "bf16"),
    ("torch.compile bf16", ("torch.compile",), "bf16"),
)

_MEANS = " The geometric mean counts each case once: modules under the drop-in, attentions fused."
LEGEND = (
    "Times are medians in milliseconds; contestants of a row took turns. \"faster\": DGL's time divided by halfgnn's, "
    'losses in bold. "marks": the time relative to that of the mark, and the largest ratio that the mark allows '
    "(the list of marks is below), lost marks in bold. Graphs are synthetic if their names say so. DGL has no fp16 on "
    "the CPU, and torch.sparse has no half. Edge data is in insertion order (scattered over the adjacency) or sorted "
    "by destination. " + WRONG_LEGEND + _MEANS
)
SHORT_LEGEND = (
    "Each cell has the milliseconds of halfgnn / DGL in bf16, and how many times faster halfgnn is. "
    '"fp32" is the same factor in fp32. Losses are bold. Edge data is in insertion order, and graphs '
    "are synthetic. Modules are dgl.nn's under the drop-in. " + WRONG_LEGEND
)
# The most used operator of each kind, and the operator with the worst loss.
HEADLINE = {
    ("u_mul_e_sum", "forward+backward"), ("u_dot_v", "forward+backward"), ("u_add_v", "forward"),
    ("edge_softmax", "forward+backward"), ("GATConv", "forward+backward"), ("GATConv, fused", "forward+backward"),
}  # fmt: skip


def _faster(case: Measured, ours: Sequence[str], dtype: str) -> str:
    return faster(case.ms(ours, dtype), case.ms(DGL, dtype))


def mean_over_dgl(cases: Sequence[Measured], dtype: str) -> str:
    return mean_speedup(cases, OURS, DGL, dtype)


def _by_graph(rows: Sequence[Row]) -> dict[str, list[Measured]]:
    graphs: dict[str, list[Measured]] = {}
    for case in by_case(rows).values():
        if case.first.family in FAMILIES:
            graphs.setdefault(case.first.graph, []).append(case)
    return graphs


# ---- a table per graph -----------------------------------------------------------------------------------------------

_HEADER = ["operator", "direction", "edge data", "heads x dim", "halfgnn bf16", "DGL bf16", "faster", "halfgnn fp16",
           "halfgnn fp32", "DGL fp32", "faster", *(heading for heading, *_ in OTHERS), "marks"]  # fmt: skip


def _line(case: Measured, suffix: str, ours: Sequence[str], beside: MarksBeside) -> list[str]:
    row = case.first
    has_edge_data = row.op not in ("copy_u_sum", "copy_u_max", "GraphConv")
    bf16, dgl_bf16, fp16, fp32, dgl_fp32, *others = (
        time(case.row(names, dtype))
        for names, dtype in (
            (ours, "bf16"), (DGL, "bf16"), (ours, "fp16"), (ours, "fp32"), (DGL, "fp32"), *(other[1:] for other in OTHERS)
        )
    )  # fmt: skip
    return [
        row.op + suffix, row.direction, row.order if has_edge_data else "", shape(row),
        bf16, dgl_bf16, _faster(case, ours, "bf16"), fp16, fp32, dgl_fp32, _faster(case, ours, "fp32"), *others,
        beside.cell(row.case, ours),
    ]  # fmt: skip


def graph_tables(rows: Sequence[Row]) -> Iterator[str]:
    """One table per graph. Columns of others who took part nowhere are left out."""
    beside = MarksBeside(rows)
    for cases in _by_graph(rows).values():
        lines = [_line(case, suffix, ours, beside) for case in cases for suffix, ours in LINES
                 if not suffix or case.has(ours)]  # fmt: skip
        mean = ["geometric mean", *[""] * (len(_HEADER) - 1)]
        mean[6], mean[10] = mean_over_dgl(cases, "bf16"), mean_over_dgl(cases, "fp32")
        used = [i for i in range(len(_HEADER)) if i < 11 or any(line[i] not in ("-", "") for line in lines)]
        header, *lines = ([line[i] for i in used] for line in (_HEADER, *lines, mean))
        yield f"{title(cases[0].first)} Milliseconds.\n\n" + markdown(header, lines, 4)


# ---- a column per graph ----------------------------------------------------------------------------------------------


def _graphs_with_marks(rows: Sequence[Row]) -> dict[str, list[Measured]]:
    return {graph: cases for graph, cases in _by_graph(rows).items() if graph in marks.GRAPHS}


def _cell(case: Measured | None, ours: Sequence[str]) -> str:
    if case is None:
        return ""
    text = f"{time(case.row(ours, 'bf16'))} / {time(case.row(DGL, 'bf16'))}: {_faster(case, ours, 'bf16')}"
    fp32 = _faster(case, ours, "fp32")
    return text if fp32 == "-" else f"{text}, fp32 {fp32}"


def _short_lines(graphs: dict[str, list[Measured]]) -> Iterator[list[str]]:
    """A line per operator, direction and shape, a column per graph. Shapes of one head are left out if there are
    others."""
    found: dict[tuple, dict[str, Measured]] = {}
    for graph, cases in graphs.items():
        for case in cases:
            row = case.first
            if row.order == "insertion":
                found.setdefault((row.family, row.op, row.direction, row.heads, row.dim), {})[graph] = case
    several = {key[:3] for key in found if key[3] > 1}
    kept = [(key, of_graph) for key, of_graph in found.items() if key[3] > 1 or key[:3] not in several]
    for (_, op, direction, *_), of_graph in sorted(kept, key=lambda item: FAMILIES.index(item[0][0])):
        for suffix, ours in LINES:
            if any(case.has(ours) for case in of_graph.values()):
                cells = [_cell(of_graph.get(graph), ours) for graph in graphs]
                yield [op + suffix, direction, shape(next(iter(of_graph.values())).first), *cells]


def _short_table(graphs: dict[str, list[Measured]], lines: list[list[str]]) -> str:
    sizes = [f"{graph.replace(SYNTHETIC, '')}, {cases[0].first.num_edges:,} edges" for graph, cases in graphs.items()]
    return markdown(["operator", "direction", "heads x dim", *sizes], lines, 3)


def summary_table(rows: Sequence[Row]) -> str:
    """All short lines of the graphs that have marks, and their means."""
    graphs = _graphs_with_marks(rows)
    lines = list(_short_lines(graphs))
    if not lines:
        return ""
    means = [f"{mean_over_dgl(cases, 'bf16')}, fp32 {mean_over_dgl(cases, 'fp32')}" for cases in graphs.values()]
    lines.append(["geometric mean of all cases", "", "", *means])
    return SHORT_LEGEND + _MEANS + "\n\n" + _short_table(graphs, lines)


def headline_table(rows: Sequence[Row]) -> str:
    """The short lines of HEADLINE."""
    graphs = _graphs_with_marks(rows)
    lines = [line for line in _short_lines(graphs) if tuple(line[:2]) in HEADLINE]
    return SHORT_LEGEND + "\n\n" + _short_table(graphs, lines) if lines else ""
