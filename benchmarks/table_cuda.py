"""Tables of rows that were measured on a GPU, one per graph."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from .cells import WRONG_LEGEND, TargetsBeside, faster, markdown, mean_speedup, number, shape, title
from .rows import Measured, Row, by_case

FAMILIES = ("spmm", "sddmm", "softmax", "attention", "edges")
OURS = ("halfgnn",)
# Heading, names of the backends; one of them takes part in a case.
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
LEGEND = (
    "Times are medians of the GPU's time, measured by events. Backends of a row took turns, after "
    "their results were compared with float64. GB/s: feature rows, indices and weights of every edge, "
    "divided by the time. Gather: the time of a kernel that reads the same feature rows and does "
    "nothing else, relative to halfgnn's; softmax and edges have no gather. Cold: the L2 cache was "
    "flushed before every call; large graphs have no such time, because they do not fit the cache. "
    "MiB: at the peak of a call, including its result. Others: their fp16 time divided by halfgnn's, "
    'losses in bold, "-" if they cannot take part; DGL\'s algorithm is a plain re-implementation of '
    "it, one thread per feature. Graphs are synthetic if their names say so. Edge data is sorted by "
    "destination unless a line says otherwise. Targets: as in the CPU's tables. " + WRONG_LEGEND
)


def _cases(rows: Sequence[Row], cache: str) -> list[Measured]:
    return [c for c in by_case(rows).values() if c.first.family in FAMILIES and c.first.cache == cache]


def _factors(case: Measured) -> list[str]:
    ours = case.ms(OURS, "fp16")
    rows = [case.row(names, "fp16") for _, names in OTHERS]
    return [faster(ours, row.ms) + ("*" if row.is_wrong else "") if row else "-" for row in rows]


def _name(row: Row) -> str:
    return row.op if row.order == "sorted" else f"{row.op}, {row.order} order"


def _line(case: Measured, cold: Measured, beside: TargetsBeside) -> list[str]:
    """cold: the same case with a flushed cache."""
    row, ours = case.first, case.get(("halfgnn", "fp16"))
    share = f"{ours.limit_share:.0%}" if ours and ours.limit_share else "-"
    return [
        _name(row), row.direction, shape(row), number(ours.ms if ours else None), number(cold.ms(OURS, "fp16")),
        number(ours.gb_per_s if ours else None), share, number(ours.peak_mb if ours else None),
        number(case.ms(OURS, "bf16")), number(case.ms(OURS, "fp32")), *_factors(case), beside.cell(row.case, OURS),
    ]  # fmt: skip


def graph_tables(rows: Sequence[Row]) -> Iterator[str]:
    """One table per graph."""
    header = ["operator", "direction", "heads x dim", "fp16 ms", "cold", "GB/s", "gather", "MiB", "bf16 ms", "fp32 ms"]
    header += [*(heading for heading, _ in OTHERS), "targets"]
    beside, cold = TargetsBeside(rows), {case.first.case[:-1]: case for case in _cases(rows, "cold")}
    by_graph: dict[str, list[Measured]] = {}
    for case in _cases(rows, "warm"):
        by_graph.setdefault(case.first.graph, []).append(case)
    for cases in by_graph.values():
        lines = [_line(case, cold.get(case.first.case[:-1], Measured()), beside) for case in cases]
        means = [
            mean_speedup((case.row(OURS, "fp16"), case.row(names, "fp16")) for case in cases) for _, names in OTHERS
        ]
        lines.append(["geometric mean", *[""] * 9, *means, ""])
        yield title(cases[0].first) + "\n\n" + markdown(header, lines, 3)
