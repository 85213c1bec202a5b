"""Tables of rows that were measured on a CPU: a full table per graph, and a short table of all graphs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from . import marks
from .cells import (
    SYNTHETIC,
    WRONG_LEGEND,
    MarksBeside,
    factor,
    faster,
    find,
    first,
    geometric_mean,
    markdown,
    shape,
    time,
    title,
)  # fmt: skip
from .marks import Entry, by_case
from .rows import Row

FAMILIES = ("spmm", "sddmm", "softmax", "attention", "layer")
OURS, DGL = ("halfgnn", "halfgnn drop-in"), ("dgl",)
_COLUMNS = (
    # heading, contestant names (the first that took part), dtype
    ("halfgnn bf16", OURS, "bf16"),
    ("DGL bf16", DGL, "bf16"),
    ("halfgnn fp16", OURS, "fp16"),
    ("halfgnn fp32", OURS, "fp32"),
    ("DGL fp32", DGL, "fp32"),
    ("torch.sparse fp32", ("torch.sparse",), "fp32"),
    ("PyTorch ops bf16", ("index_add", "torch gather"), "bf16"),
    ("torch.compile bf16", ("torch.compile",), "bf16"),
)
# Other contestants for the same work, which have their own lines: (suffix of the operator's name, contestant names).
_VARIANTS = ((", fused", ("halfgnn fused",)), (", unfused", ("halfgnn unfused",)))
Entries = dict[Entry, Row]

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
    ("u_mul_e_sum", "forward+backward"),
    ("u_dot_v", "forward+backward"),
    ("u_add_v", "forward"),
    ("edge_softmax", "forward+backward"),
    ("GATConv", "forward+backward"),
    ("GATConv, fused", "forward+backward"),
}


def _describe(row: Row) -> list[str]:
    has_edge_data = row.op not in ("copy_u_sum", "copy_u_max", "GraphConv")
    return [row.op, row.direction, row.order if has_edge_data else "", shape(row)]


def _times(entries: Entries, ours: Sequence[str] | None = None) -> list[str]:
    """ours: the contestants of halfgnn's columns, if not its main ones."""
    found = [(ours if ours and heading.startswith("halfgnn") else names, dtype) for heading, names, dtype in _COLUMNS]
    bf16, dgl_bf16, fp16, fp32, dgl_fp32, *others = (time(entries, *column) for column in found)
    factors = [faster(find(entries, ours or OURS, dtype), find(entries, DGL, dtype)) for dtype in ("bf16", "fp32")]
    return [bf16, dgl_bf16, factors[0], fp16, fp32, dgl_fp32, factors[1], *others]


def _lines(entries: Entries, beside: MarksBeside) -> Iterator[list[str]]:
    """The lines of a case: one of halfgnn's main contestant, and one per variant of halfgnn."""
    row = first(entries)
    name, *rest = _describe(row)
    yield [name, *rest, *_times(entries), beside.cell(row.case, OURS)]
    for suffix, ours in _VARIANTS:
        if any(contestant in ours for contestant, _ in entries):
            yield [name + suffix, *rest, *_times(entries, ours), beside.cell(row.case, ours)]


def mean_speedup(cases: Sequence[Entries], dtype: str) -> str:
    """Geometric mean of the factors over DGL, of the cases in which both took part."""
    return geometric_mean(factor(entries, OURS, DGL, dtype) for entries in cases)


def _by_graph(rows: Sequence[Row]) -> dict[str, list[Entries]]:
    graphs: dict[str, list[Entries]] = {}
    for entries in by_case(rows).values():
        if first(entries).family in FAMILIES:
            graphs.setdefault(first(entries).graph, []).append(entries)
    return graphs


def graph_tables(rows: Sequence[Row]) -> Iterator[str]:
    """One table per graph."""
    beside = MarksBeside(rows)
    header = ["operator", "direction", "edge data", "heads x dim", "halfgnn bf16", "DGL bf16", "faster", "halfgnn fp16",
              "halfgnn fp32", "DGL fp32", "faster", *(heading for heading, *_ in _COLUMNS[5:]), "marks"]  # fmt: skip
    for chosen in _by_graph(rows).values():
        lines = [line for entries in chosen for line in _lines(entries, beside)]
        mean = ["geometric mean", *[""] * (len(header) - 1)]
        mean[6], mean[10] = mean_speedup(chosen, "bf16"), mean_speedup(chosen, "fp32")
        used = [i for i in range(len(header)) if i < 11 or any(line[i] not in ("-", "") for line in lines)]
        table = [[line[i] for i in used] for line in (header, *lines, mean)]
        yield f"{title(first(chosen[0]))} Milliseconds.\n\n" + markdown(table[0], table[1:], 4)


def _cell(entries: Entries | None, ours: Sequence[str]) -> str:
    if entries is None:
        return ""
    bf16, fp32 = (faster(find(entries, ours, dtype), find(entries, DGL, dtype)) for dtype in ("bf16", "fp32"))
    text = f"{time(entries, ours, 'bf16')} / {time(entries, DGL, 'bf16')}: {bf16}"
    return text if fp32 == "-" else f"{text}, fp32 {fp32}"


def _graphs_with_marks(rows: Sequence[Row]) -> dict[str, list[Entries]]:
    return {graph: cases for graph, cases in _by_graph(rows).items() if graph in marks.GRAPHS}


def _short_lines(graphs: dict[str, list[Entries]]) -> Iterator[list[str]]:
    """A line per operator, direction and shape, a column per graph. Shapes of one head are left out if there are
    others."""
    found: dict[tuple, dict[str, Entries]] = {}
    for graph, cases in graphs.items():
        for entries in cases:
            row = first(entries)
            if row.order == "insertion":
                found.setdefault((row.family, row.op, row.direction, row.heads, row.dim), {})[graph] = entries
    several = {key[:3] for key in found if key[3] > 1}
    found = {key: of_graph for key, of_graph in found.items() if key[3] > 1 or key[:3] not in several}
    for (_, op, direction, *_), of_graph in sorted(found.items(), key=lambda item: FAMILIES.index(item[0][0])):
        for suffix, ours in (("", OURS), *_VARIANTS):
            if any(contestant in ours for entries in of_graph.values() for contestant, _ in entries):
                cells = [_cell(of_graph.get(graph), ours) for graph in graphs]
                yield [op + suffix, direction, shape(first(next(iter(of_graph.values())))), *cells]


def _short_table(graphs: dict[str, list[Entries]], lines: list[list[str]]) -> str:
    sizes = [f"{graph.replace(SYNTHETIC, '')}, {first(cases[0]).num_edges:,} edges" for graph, cases in graphs.items()]
    return markdown(["operator", "direction", "heads x dim", *sizes], lines, 3)


def summary_table(rows: Sequence[Row]) -> Iterator[str]:
    """All short lines of the graphs that have marks, and their means."""
    graphs = _graphs_with_marks(rows)
    lines = list(_short_lines(graphs))
    if lines:
        means = [f"{mean_speedup(cases, 'bf16')}, fp32 {mean_speedup(cases, 'fp32')}" for cases in graphs.values()]
        lines.append(["geometric mean of all cases", "", "", *means])
        yield SHORT_LEGEND + _MEANS + "\n\n" + _short_table(graphs, lines)


def headline_table(rows: Sequence[Row]) -> Iterator[str]:
    """The short lines of HEADLINE."""
    graphs = _graphs_with_marks(rows)
    lines = [line for line in _short_lines(graphs) if tuple(line[:2]) in HEADLINE]
    if lines:
        yield SHORT_LEGEND + "\n\n" + _short_table(graphs, lines)
