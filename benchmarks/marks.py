"""The marks that the project set itself, and whether rows meet them.

CPU marks are against DGL 1.1.3, F = 128, two threads, on the arxiv-size and the 20,000-node power-law graph. GPU marks
are milliseconds on an H100 SXM in fp16, F = 128, and the cost of a node of a million in-edges. An H200 has the same
marks.

A mark is judged in every case that it covers (graph, order of edge data, heads). A case gives the ratio of two medians
that were measured in turns in one run. The mark holds if it holds in every case.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from .rows import Row, latest

GRAPHS = ("arxiv (synthetic)", "powerlaw-20k (synthetic)")
SMALLEST = "30 nodes (synthetic)"
THREADS = 2
FEATURES = 128
GPUS = ("H100", "H200")

Entry = tuple[str, str]  # contestant, dtype


@dataclass(frozen=True)
class Mark:
    """time(ours) / time(against) <= at_most, in every covered case. at_most None: for information only.

    op, direction: None covers all. families: the families of rows that it covers.
    """

    text: str
    families: tuple[str, ...]
    op: str | None
    direction: str | None
    ours: Entry
    against: Entry
    at_most: float | None

    def covers(self, row: Row) -> bool:
        if row.family not in self.families or row.device != "cpu" or row.threads != THREADS:
            return False
        if self.op not in (None, row.op) or self.direction not in (None, row.direction):
            return False
        if row.family == "overhead":
            return row.graph == SMALLEST
        has_features = row.family != "softmax" and row.op != "u_add_v"  # these two have one number per head
        return row.graph in GRAPHS and (not has_features or row.heads * row.dim == FEATURES)

    def ratio(self, entries: dict[Entry, Row], cases: dict[tuple, dict[Entry, Row]]) -> float | None:
        """The ratio of one case among all `cases`; None if a side was not measured."""
        return ratio(entries, self.ours, self.against)


@dataclass(frozen=True)
class GpuMark(Mark):
    """time(ours) on `graph` is at most `milliseconds`, or its peak memory is at most `mebibytes`.

    If both are None, the mark is about a hub: the edges of the hub take at most `at_most` times as long as the same
    number of edges of the graph without the hub.

    heads, dim: the case of the mark, if it is not about a hub.
    """

    graph: str = ""
    milliseconds: float | None = None
    mebibytes: float | None = None
    heads: int = 1
    dim: int = FEATURES

    def covers(self, row: Row) -> bool:
        if row.family not in self.families or row.device != "cuda" or row.graph != f"{self.graph} (synthetic)":
            return False
        if self.op not in (None, row.op) or self.direction not in (None, row.direction):
            return False
        if self.milliseconds is None and self.mebibytes is None:
            return True
        known = any(name in row.gpu for name in GPUS)
        measured = row.cache == "warm" and (row.order == "sorted" or row.family == "train")
        return known and measured and (row.heads, row.dim) == (self.heads, self.dim)

    def ratio(self, entries: dict[Entry, Row], cases: dict[tuple, dict[Entry, Row]]) -> float | None:
        ours = entries.get(self.ours)
        if ours is None or ours.ms is None:
            return None
        if self.milliseconds is not None:
            return ours.ms / self.milliseconds
        if self.mebibytes is not None:
            return None if ours.peak_mb is None else ours.peak_mb / self.mebibytes
        without = tuple(self._without_hub(part) for part in ours.case)
        plain = cases.get(without, {}).get(self.ours)
        if plain is None or plain.ms is None:
            return None
        of_hub = ours.num_edges - plain.num_edges
        return (ours.ms - plain.ms) / (plain.ms * of_hub / plain.num_edges)

    def _without_hub(self, part):
        return part.replace("-hub", "") if part == f"{self.graph} (synthetic)" else part


@dataclass(frozen=True)
class Finding:
    """A mark in one case."""

    mark: Mark
    row: Row  # halfgnn's row in the case, or another one if there is none
    ratio: float | None  # None: a side was not measured

    @property
    def holds(self) -> bool | None:
        """None if the mark is for information, or if a side was not measured."""
        if self.ratio is None or self.mark.at_most is None:
            return None
        return self.ratio <= self.mark.at_most


_BF16, _FP16, _FP32 = "bf16", "fp16", "fp32"
_OURS, _OURS_FP32 = ("halfgnn", _BF16), ("halfgnn", _FP32)
_YARDSTICK = ("dgl copy_u_sum", _BF16)


def _mark(text, family, op, direction, ours, against, at_most) -> Mark:
    families = (family,) if isinstance(family, str) else family
    return Mark(text, families, op, direction, ours, against, at_most)


MARKS = (
    _mark("copy_u_sum, bf16: at most 1.0 x the time of DGL's", "spmm", "copy_u_sum", "forward",
          _OURS, ("dgl", _BF16), 1.0),
    _mark("u_mul_e_sum, bf16: at most 1.3 x the time of DGL's copy_u_sum", "spmm", "u_mul_e_sum",
          "forward", _OURS, _YARDSTICK, 1.3),
    _mark("u_dot_v, bf16: at most 1.5 x the time of DGL's copy_u_sum", "sddmm", "u_dot_v",
          "forward", _OURS, _YARDSTICK, 1.5),
    _mark("edge_softmax, bf16: 5 x faster than DGL's", "softmax", "edge_softmax", "forward",
          _OURS, ("dgl", _BF16), 1 / 5),
    _mark("GATConv step, bf16: 8 x faster than DGL's", "layer", "GATConv", "forward+backward",
          ("halfgnn drop-in", _BF16), ("dgl", _BF16), 1 / 8),
    _mark("fused GATConv step, bf16: 8 x faster than DGL's", "layer", "GATConv", "forward+backward",
          ("halfgnn fused", _BF16), ("dgl", _BF16), 1 / 8),
    _mark("fp16 within 1.2 x of bf16, operators", ("spmm", "sddmm", "softmax"), None, None,
          ("halfgnn", _FP16), _OURS, 1.2),
    _mark("fp16 within 1.2 x of bf16, GATConv step", "layer", "GATConv", None,
          ("halfgnn drop-in", _FP16), ("halfgnn drop-in", _BF16), 1.2),
    _mark("update_all on 30 nodes, fp32: at most 1.0 x the time of DGL's", "overhead", "u_mul_e_sum", None,
          ("halfgnn update_all", _FP32), ("dgl update_all", _FP32), 1.0),
    _mark("update_all on 30 nodes, bf16: at most 1.0 x the time of DGL's", "overhead", "u_mul_e_sum", None,
          ("halfgnn update_all", _BF16), ("dgl update_all", _BF16), 1.0),
    # The part of the step that is message passing. The rest is PyTorch's matrix products, the same for both.
    _mark("for information: GATConv step without its fc, bf16, against DGL's", "layer", "GATConv without fc", None,
          ("halfgnn drop-in", _BF16), ("dgl", _BF16), None),
    _mark("for information: fused GATConv step without its fc, bf16, against DGL's", "layer", "GATConv without fc", None,
          ("halfgnn fused", _BF16), ("dgl", _BF16), None),
    # DGL's fp32 copy_u_sum (libxsmm) is faster than its bf16, so these comparisons are harder.
    _mark("for information: copy_u_sum, bf16, against DGL's fp32", "spmm", "copy_u_sum", "forward",
          _OURS, ("dgl", _FP32), None),
    _mark("for information: u_mul_e_sum, bf16, against DGL's fp32 copy_u_sum", "spmm",
          "u_mul_e_sum", "forward", _OURS, ("dgl copy_u_sum", _FP32), None),
    _mark("for information: u_dot_v, bf16, against DGL's fp32 copy_u_sum", "sddmm", "u_dot_v",
          "forward", _OURS, ("dgl copy_u_sum", _FP32), None),
    _mark("for information: copy_u_sum, fp32, against DGL's fp32", "spmm", "copy_u_sum", "forward",
          _OURS_FP32, ("dgl", _FP32), None),
    _mark("for information: GATConv step, bf16, against DGL's fp32", "layer", "GATConv", None,
          ("halfgnn drop-in", _BF16), ("dgl", _FP32), None),
)  # fmt: skip


def _milliseconds(op: str, family: str, graph: str, milliseconds: float, direction: str = "forward") -> GpuMark:
    what = op if direction == "forward" else f"{op} {direction}"
    text = f"{what}, fp16, {graph}: at most {milliseconds:.3g} ms"
    return GpuMark(text, (family,), op, direction, ("halfgnn", _FP16), ("", ""), 1.0, graph, milliseconds)


def _guide(heads: int, text: str, **limit: float) -> GpuMark:
    """A mark of the three-layer GAT of DGL's guide to mixed precision. Memory includes graph, data and parameters."""
    text = f"training a GAT of 3 x {heads} x 256, fp16, reddit-size: {text}"
    return GpuMark(
        text, ("train",), "GAT", "step", ("halfgnn", _FP16), ("", ""), 1.0, "reddit-size", heads=heads, dim=256, **limit
    )


def _hub(families: tuple[str, ...], text: str, graph: str = "arxiv-size-hub") -> GpuMark:
    text = f"{text}, fp16, a node of a million in-edges: at most 1.1 x what its edges would take elsewhere"
    return GpuMark(text, families, None, None, ("halfgnn", _FP16), ("", ""), 1.1, graph)


GPU_MARKS = (
    _milliseconds("u_mul_e_sum", "spmm", "reddit-size", 3.5),
    _milliseconds("u_mul_e_sum", "spmm", "products-size", 8.7),
    _milliseconds("u_dot_v", "sddmm", "reddit-size", 4.0),
    _milliseconds("u_dot_v", "sddmm", "products-size", 10.0),
    # 1.2 and 1.5 times the mark of the weighted sum.
    *(
        _milliseconds("gat_attention", "attention", graph, factor * base, direction)
        for graph, base in (("reddit-size", 3.5), ("products-size", 8.7))
        for direction, factor in (("forward", 1.2), ("backward", 1.5))
    ),
    _guide(1, "at most 60 ms per step", milliseconds=60.0),
    _guide(1, "at most 3.5 GB", mebibytes=3.5e9 / 2**20),
    _guide(8, "at most 16 GB", mebibytes=16e9 / 2**20),
    _hub(("spmm",), "SpMM"),
    _hub(("sddmm",), "SDDMM"),
    _hub(("softmax", "edges"), "edge_softmax and its parts"),
)


def of(rows: Sequence[Row]) -> Sequence[Mark]:
    """The marks of the rows' device."""
    return GPU_MARKS if any(row.device == "cuda" for row in rows) else MARKS


def by_case(rows: Sequence[Row]) -> dict[tuple, dict[Entry, Row]]:
    """The last run of every case: contestant and dtype -> row."""
    cases: dict[tuple, dict[Entry, Row]] = {}
    for row in latest(rows):
        cases.setdefault(row.case, {})[(row.contestant, row.dtype)] = row
    return cases


def ratio(entries: dict[Entry, Row], ours: Entry, against: Entry) -> float | None:
    """time(ours) / time(against); None if either was not measured."""
    mine, theirs = entries.get(ours), entries.get(against)
    if mine is None or theirs is None or mine.ms is None or theirs.ms is None:
        return None
    return mine.ms / theirs.ms


def judge(rows: Sequence[Row], marks: Sequence[Mark] | None = None) -> Iterator[Finding]:
    """One Finding per mark and covered case, in the order of the marks. By default the marks of the rows' device."""
    cases = by_case(rows)
    for mark in of(rows) if marks is None else marks:
        for entries in cases.values():
            row = entries.get(mark.ours, next(iter(entries.values())))
            if mark.covers(row):
                yield Finding(mark, row, mark.ratio(entries, cases))


def unmeasured(rows: Sequence[Row], marks: Sequence[Mark] | None = None) -> list[Mark]:
    """Marks for which no case of the rows was measured."""
    marks = of(rows) if marks is None else marks
    seen = {finding.mark for finding in judge(rows, marks) if finding.ratio is not None}
    return [mark for mark in marks if mark not in seen]


def lost(rows: Sequence[Row], marks: Sequence[Mark] | None = None) -> list[Finding]:
    return [finding for finding in judge(rows, marks) if finding.holds is False]
