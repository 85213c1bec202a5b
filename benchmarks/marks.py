"""The marks that the project set itself, and whether rows meet them.

CPU marks are against DGL 1.1.3, F = 128, two threads, on the arxiv-size and the 20,000-node power-law graph. GPU marks
are milliseconds on an H100 SXM in fp16, F = 128, and the cost of a node of a million in-edges. An H200 has the same
marks.

A mark is judged in every case that it covers (graph, order of edge data, heads). A case gives the ratio of two medians
that were measured in turns in one run. The mark holds if it holds in every case.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from .rows import Entry, Measured, Row, by_case

GRAPHS = ("arxiv (synthetic)", "powerlaw-20k (synthetic)")
SMALLEST = "30 nodes (synthetic)"
THREADS = 2
FEATURES = 128
GPUS = ("H100", "H200")


Cases = dict[tuple, Measured]


@dataclass(frozen=True)
class Mark:
    """ratio(case, all cases) <= at_most, in every case that it covers. at_most None: for information only.

    ours: the contestant and dtype that it is about. ratio: None if a side was not measured.
    """

    text: str
    ours: Entry
    at_most: float | None
    covers: Callable[[Row], bool]
    ratio: Callable[[Measured, Cases], float | None]


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


# ---- on a CPU --------------------------------------------------------------------------------------------------------

_BF16, _FP16, _FP32 = "bf16", "fp16", "fp32"
_OURS, _OURS_FP32 = ("halfgnn", _BF16), ("halfgnn", _FP32)
_YARDSTICK = ("dgl copy_u_sum", _BF16)


def _mark(
    text: str, family: str | tuple[str, ...], op: str | None, direction: str | None, ours: Entry, against: Entry,
    at_most: float | None,
) -> Mark:  # fmt: skip
    """time(ours) / time(against) <= at_most. op, direction: None covers all."""

    def covers(row: Row) -> bool:
        if row.family not in family or row.device != "cpu" or row.threads != THREADS:
            return False
        if op not in (None, row.op) or direction not in (None, row.direction):
            return False
        if row.family == "overhead":
            return row.graph == SMALLEST
        has_features = row.family != "softmax" and row.op != "u_add_v"  # these two have one number per head
        return row.graph in GRAPHS and (not has_features or row.heads * row.dim == FEATURES)

    def ratio(case: Measured, cases: Cases) -> float | None:
        mine, theirs = (case.ms([name], dtype) for name, dtype in (ours, against))
        return None if mine is None or theirs is None else mine / theirs

    family = (family,) if isinstance(family, str) else family
    return Mark(text, ours, at_most, covers, ratio)


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


# ---- on a GPU --------------------------------------------------------------------------------------------------------

_OURS_FP16 = ("halfgnn", _FP16)


def _label(graph: str) -> str:
    return f"{graph} (synthetic)"


def _limit(
    text: str, family: str, op: str, direction: str, graph: str, value: str, most: float, heads: int = 1, dim: int = FEATURES
) -> Mark:  # fmt: skip
    """`value`, a field of halfgnn's row in fp16, is at most `most`."""

    def covers(row: Row) -> bool:
        known = row.device == "cuda" and any(name in row.gpu for name in GPUS)
        measured = row.cache == "warm" and (row.order == "sorted" or row.family == "train")
        case = (row.family, row.op, row.direction, row.graph, row.heads, row.dim)
        return known and measured and case == (family, op, direction, _label(graph), heads, dim)

    def ratio(case: Measured, cases: Cases) -> float | None:
        ours = case.row(["halfgnn"], _FP16)
        found = None if ours is None else getattr(ours, value)
        return None if found is None else found / most

    return Mark(text, _OURS_FP16, 1.0, covers, ratio)


def _milliseconds(op: str, family: str, graph: str, most: float, direction: str = "forward") -> Mark:
    what = op if direction == "forward" else f"{op} {direction}"
    return _limit(f"{what}, fp16, {graph}: at most {most:.3g} ms", family, op, direction, graph, "ms", most)


def _guide(heads: int, text: str, value: str, most: float) -> Mark:
    """A mark of the three-layer GAT of DGL's guide to mixed precision. Memory includes graph, data and parameters."""
    text = f"training a GAT of 3 x {heads} x 256, fp16, reddit-size: {text}"
    return _limit(text, "train", "GAT", "step", "reddit-size", value, most, heads, 256)


def _hub(families: tuple[str, ...], what: str) -> Mark:
    """The edges of a hub take at most 1.1 times as long as the same number of edges of the graph without the hub."""
    hub, plain = _label("arxiv-size-hub"), _label("arxiv-size")

    def ratio(case: Measured, cases: Cases) -> float | None:
        ours = case.row(["halfgnn"], _FP16)
        without = tuple(plain if part == hub else part for part in case.first.case)
        base = cases.get(without, Measured()).row(["halfgnn"], _FP16)
        if ours is None or base is None:
            return None
        of_hub = ours.num_edges - base.num_edges
        return (ours.ms - base.ms) / (base.ms * of_hub / base.num_edges)  # type: ignore[operator]

    def covers(row: Row) -> bool:
        return row.family in families and row.device == "cuda" and row.graph == hub

    text = f"{what}, fp16, a node of a million in-edges: at most 1.1 x what its edges would take elsewhere"
    return Mark(text, _OURS_FP16, 1.1, covers, ratio)


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
    _guide(1, "at most 60 ms per step", "ms", 60.0),
    _guide(1, "at most 3.5 GB", "peak_mb", 3.5e9 / 2**20),
    _guide(8, "at most 16 GB", "peak_mb", 16e9 / 2**20),
    _hub(("spmm",), "SpMM"),
    _hub(("sddmm",), "SDDMM"),
    _hub(("softmax", "edges"), "edge_softmax and its parts"),
)


# ---- verdicts --------------------------------------------------------------------------------------------------------


def of(rows: Sequence[Row]) -> Sequence[Mark]:
    """The marks of the rows' device."""
    return GPU_MARKS if any(row.device == "cuda" for row in rows) else MARKS


def judge(rows: Sequence[Row], marks: Sequence[Mark] | None = None) -> Iterator[Finding]:
    """One Finding per mark and covered case, in the order of the marks. By default the marks of the rows' device."""
    cases = by_case(rows)
    for mark in of(rows) if marks is None else marks:
        for case in cases.values():
            row = case.get(mark.ours, case.first)
            if mark.covers(row):
                yield Finding(mark, row, mark.ratio(case, cases))


def unmeasured(rows: Sequence[Row]) -> list[Mark]:
    """Marks for which no case of the rows was measured."""
    seen = {finding.mark for finding in judge(rows) if finding.ratio is not None}
    return [mark for mark in of(rows) if mark not in seen]


def lost(rows: Sequence[Row]) -> list[Finding]:
    return [finding for finding in judge(rows) if finding.holds is False]
