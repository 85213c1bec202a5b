"""Tables of rows that were measured on a GPU: for the document, and a short one for the terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from . import marks
from .cells import (
    WRONG_LEGEND,
    MarksBeside,
    factor,
    faster,
    find,
    find_row,
    first,
    geometric_mean,
    graph_name,
    markdown,
    number,
    shape,
    title,
)
from .gather import LIMIT
from .marks import Entry, by_case
from .rows import Row
from .table_parts import limits_table, marks_table, overhead_table, source, train_table

FAMILIES = ("spmm", "sddmm", "softmax", "attention", "edges")
# Heading, names of the contestants; one of them takes part in a case.
OTHERS = (
    ("DGL", ("dgl",)),
    ("DGL's algorithm", ("dgl algorithm",)),
    ("torch.sparse", ("torch.sparse",)),
    ("index_add", ("index_add", "torch gather")),
    ("PyG scatter", ("pyg scatter", "pyg softmax", "pyg")),
    ("PyG conv", ("pyg conv",)),
    ("torch.compile", ("torch.compile",)),
    ("cudnn.gnn", ("cudnn.gnn",)),
    ("turbo_gnn", ("turbo_gnn",)),
    ("unfused", ("halfgnn unfused",)),
)
Entries = dict[Entry, Row]

LEGEND = (
    "Times are medians of the GPU's time, measured by events. Contestants of a row took turns, after "
    "their results were compared with float64. GB/s: feature rows, indices and weights of every edge, "
    "divided by the time. Gather: the time of a kernel that reads the same feature rows and does "
    "nothing else, relative to halfgnn's; softmax and edges have no gather. Cold: the L2 cache was "
    "flushed before every call; large graphs have no such time, because they do not fit the cache. "
    "MiB: at the peak of a call, including its result. Others: their fp16 time divided by halfgnn's, "
    'losses in bold, "-" if they cannot take part; DGL\'s algorithm is a plain re-implementation of '
    "it, one thread per feature. Graphs are synthetic if their names say so. Edge data is sorted by "
    "destination unless a line says otherwise. Marks: as in the CPU's tables. " + WRONG_LEGEND
)


def _cases(rows: Sequence[Row], cache: str) -> list[Entries]:
    return [e for e in by_case(rows).values() if first(e).family in FAMILIES and first(e).cache == cache]


def _cold(entries: Entries, cases: dict[tuple, Entries]) -> float | None:
    """halfgnn's time in the same case with a flushed cache."""
    key = (*first(entries).case[:-1], "cold")
    return find(cases.get(key, {}), ("halfgnn",), "fp16")


def _factors(entries: Entries) -> list[str]:
    ours = find(entries, ("halfgnn",), "fp16")
    rows = [find_row(entries, names, "fp16") for _, names in OTHERS]
    return [faster(ours, row.ms) + ("*" if row.is_wrong else "") if row else "-" for row in rows]


def _name(row: Row) -> str:
    return row.op if row.order == "sorted" else f"{row.op}, {row.order} order"


def _line(entries: Entries, cases: dict[tuple, Entries], beside: MarksBeside) -> list[str]:
    row, ours = first(entries), entries.get(("halfgnn", "fp16"))
    share = f"{ours.limit_share:.0%}" if ours and ours.limit_share else "-"
    return [
        _name(row), row.direction, shape(row), number(ours.ms if ours else None), number(_cold(entries, cases)),
        number(ours.gb_per_s if ours else None), share, number(ours.peak_mb if ours else None),
        number(find(entries, ("halfgnn",), "bf16")), number(find(entries, ("halfgnn",), "fp32")), *_factors(entries),
        beside.cell(row.case, ("halfgnn",)),
    ]  # fmt: skip


def _means(cases: Sequence[Entries]) -> list[str]:
    """The mean factor over each of the others, of the cases in which both took part."""
    return [geometric_mean(factor(e, ("halfgnn",), names, "fp16") for e in cases) for _, names in OTHERS]


def graph_tables(rows: Sequence[Row]) -> Iterator[str]:
    """One table per graph."""
    by_key, warm = by_case(rows), _cases(rows, "warm")
    header = ["operator", "direction", "heads x dim", "fp16 ms", "cold", "GB/s", "gather", "MiB", "bf16 ms", "fp32 ms"]
    header += [*(heading for heading, _ in OTHERS), "marks"]
    beside = MarksBeside(rows)
    for name in dict.fromkeys(first(e).graph for e in warm):
        chosen = [e for e in warm if first(e).graph == name]
        lines = [_line(e, by_key, beside) for e in chosen]
        lines.append(["geometric mean", *[""] * 9, *_means(chosen), ""])
        yield title(first(chosen[0])) + "\n\n" + markdown(header, lines, 3)


def _at_main_dim(rows: Sequence[Row]) -> list[Row]:
    return [row for row in rows if row.cache != "cold" and (row.family != "limits" or row.dim == marks.FEATURES)]


def render(rows: Sequence[Row]) -> str:
    """All tables, in markdown."""
    parts = [LEGEND, *graph_tables(rows), *train_table(rows), *limits_table(_at_main_dim(rows))]
    parts += [*overhead_table(rows)]
    return "\n\n".join([*parts, "Marks.\n\n" + marks_table(rows), source(rows)]) + "\n"


def short(rows: Sequence[Row], dim: int | None = None) -> str:
    """A table that fits on a screen: fp16, warm; of operators on rows of features only those of `dim` features."""
    lines = []
    for entries in _cases(rows, "warm"):
        row, ours = first(entries), entries.get(("halfgnn", "fp16"))
        wide = row.family in ("spmm", "sddmm", "attention") and row.op != "u_add_v"
        if ours is None or ours.ms is None or (dim is not None and wide and row.heads * row.dim != dim):
            continue
        limit = find(entries, (LIMIT,), "fp16")
        share = f"{ours.limit_share:4.0%} of {limit:.3g} ms" if ours.limit_share and limit else ""
        others = " ".join(f"{factor.replace(' x', ''):>7}" for factor in _factors(entries))
        lines.append(
            f"{graph_name(row):<15} {_name(row):<12} {row.direction:<8} {shape(row):>7} "
            f"{ours.ms:9.3f} {ours.gb_per_s or 0:7.0f} {share:<17} {others}"
        )
    head = f"{'graph':<15} {'operator':<12} {'':<8} {'H x D':>7} {'fp16 ms':>9} {'GB/s':>7} {'pure gather':<17} "
    return "\n".join([head + " ".join(f"{name[-7:]:>7}" for name, _ in OTHERS), *lines])
