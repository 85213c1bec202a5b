"""The targets that the project set itself, and whether rows meet them.

CPU targets are against the fastest competitor, at two threads, on the arxiv-size and the 20,000-node power-law graph. Each
processor is judged by its own rows. GPU targets are milliseconds on an H100 SXM in fp16, F = 128, and the cost of a node
of a million in-edges. An H200 has the same targets.

A target is judged in every case that it covers (graph, order of edge data, ids, heads, width). A case gives the ratio of
two medians that were measured in turns in one run; only "several heads" takes its other side from another case. The target
holds if it holds in every case.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from .rows import FASTEST_COPY, INDEXED_COPY, Entry, Measured, Row, by_case

GRAPHS = ("arxiv (synthetic)", "powerlaw-20k (synthetic)")
SMALLEST = "30 nodes (synthetic)"
THREADS = 2
FEATURES = 128  # of the tables and pictures, and of the GPU's targets
WIDTHS = (64, 128, 256)  # of the CPU's targets
GPUS = ("H100", "H200")


Cases = dict[tuple, Measured]


@dataclass(frozen=True)
class Target:
    """ratio(case, all cases) <= at_most, in every case that it covers.

    ours: the backend and dtype that it is about. ratio: None if a side was not measured.
    """

    text: str
    ours: Entry
    at_most: float
    covers: Callable[[Row], bool]
    ratio: Callable[[Measured, Cases], float | None]


@dataclass(frozen=True)
class Finding:
    """A target in one case."""

    target: Target
    row: Row  # halfgnn's row in the case, or another one if there is none
    ratio: float | None  # None: a side was not measured

    @property
    def holds(self) -> bool | None:
        """None if a side was not measured."""
        return None if self.ratio is None else self.ratio <= self.target.at_most


# ---- on a CPU --------------------------------------------------------------------------------------------------------

_BF16, _FP16, _FP32 = "bf16", "fp16", "fp32"
_DTYPES = (_BF16, _FP16, _FP32)
_DGL = ("dgl", "dgl, other ids")
_COPIES = (*_DGL, "embedding_bag", "torch.sparse", "torch.sparse.mm", "scipy", INDEXED_COPY)
Other = Callable[[Measured, Cases], Row | None]  # what halfgnn is compared with, in or beside a case


def _fastest(names: tuple[str, ...], dtype: str) -> Other:
    return lambda case, cases: case.fastest(dtype, names)


def _one_head(dtype: str) -> Other:
    """halfgnn in the same case with one head of the same width."""

    def row(case: Measured, cases: Cases) -> Row | None:
        one = replace(case.first, heads=1, dim=case.first.heads * case.first.dim)
        return cases.get(one.case, Measured()).row(["halfgnn"], dtype)

    return row


def _target(
    text: str, family: str | tuple[str, ...], op: str | None, direction: str | None, ours: Entry, other: Other,
    at_most: float, heads: int = 1,
) -> Target:  # fmt: skip
    """time(ours) / time(other) <= at_most. op, direction: None covers all. heads: at least so many."""

    def covers(row: Row) -> bool:
        if row.family not in family or row.device != "cpu" or row.threads != THREADS or row.heads < heads:
            return False
        if op not in (None, row.op) or direction not in (None, row.direction):
            return False
        if row.family == "overhead":
            return row.graph == SMALLEST
        has_features = row.family != "softmax" and row.op != "u_add_v"  # these two have one number per head
        return row.graph in GRAPHS and (not has_features or row.heads * row.dim in WIDTHS)

    def ratio(case: Measured, cases: Cases) -> float | None:
        mine, theirs = case.row([ours[0]], ours[1]), other(case, cases)
        return None if mine is None or theirs is None else mine.ms / theirs.ms  # type: ignore[operator]

    family = (family,) if isinstance(family, str) else family
    return Target(text, ours, at_most, covers, ratio)


def _of_operators(dtype: str) -> Iterator[Target]:
    """The targets that all types of features have."""
    ours, copy = ("halfgnn", dtype), _fastest((FASTEST_COPY,), dtype)
    yield _target(f"copy_u_sum, {dtype}: at most 1.0 x the time of the fastest of DGL, embedding_bag, torch.sparse, scipy "
                "and an indexed copy", "spmm", "copy_u_sum", "forward", ours, _fastest(_COPIES, dtype), 1.0)  # fmt: skip
    yield _target(f"u_mul_e_sum, {dtype}: at most 1.3 x the time of the {FASTEST_COPY}", "spmm", "u_mul_e_sum", "forward",
                ours, copy, 1.3)  # fmt: skip
    yield _target(f"u_dot_v, {dtype}: at most 1.5 x the time of the {FASTEST_COPY}", "sddmm", "u_dot_v", "forward",
                ours, copy, 1.5)  # fmt: skip
    for family, op in (("spmm", "u_mul_e_sum"), ("sddmm", "u_dot_v")):
        yield _target(f"{op} of several heads, {dtype}: at most 1.1 x the time of one head", family, op, "forward",
                    ours, _one_head(dtype), 1.1, heads=2)  # fmt: skip
    if dtype != _FP16:  # DGL has none
        yield _target(f"edge_softmax, {dtype}: 5 x faster than DGL's", "softmax", "edge_softmax", "forward",
                    ours, _fastest(_DGL, dtype), 1 / 5)  # fmt: skip
        yield _target(f"u_add_v, {dtype}: at most 1.0 x the time of DGL's", "sddmm", "u_add_v", "forward",
                    ours, _fastest(_DGL, dtype), 1.0)  # fmt: skip


TARGETS = (
    *(target for dtype in _DTYPES for target in _of_operators(dtype)),
    *(_target(f"{text}, bf16: 8 x faster than DGL's", "layer", "GATConv", "forward+backward", (name, _BF16),
            _fastest(_DGL, _BF16), 1 / 8)
      for text, name in (("GATConv step", "halfgnn drop-in"), ("fused GATConv step", "halfgnn fused"))),
    _target("fp16 within 1.2 x of bf16, operators", ("spmm", "sddmm", "softmax"), None, None,
          ("halfgnn", _FP16), _fastest(("halfgnn",), _BF16), 1.2),
    _target("fp16 within 1.2 x of bf16, GATConv step", "layer", "GATConv", None,
          ("halfgnn drop-in", _FP16), _fastest(("halfgnn drop-in",), _BF16), 1.2),
    *(_target(f"update_all on 30 nodes, {dtype}: at most 1.0 x the time of DGL's", "overhead", "u_mul_e_sum", None,
            ("halfgnn update_all", dtype), _fastest(("dgl update_all",), dtype), 1.0)
      for dtype in (_FP32, _BF16)),
)  # fmt: skip


# ---- features of edges, on a CPU -------------------------------------------------------------------------------------

EDGE_FAMILIES = ("messages", "several", "edge_layer", "edge_network")


def _beside(text: str, ours: Entry, op: str, direction: str, at_most: float, changed: dict[str, str]) -> Target:
    """At most `at_most` times the time of the same backend in the case with the fields `changed`."""

    def covers(row: Row) -> bool:
        return row.family in EDGE_FAMILIES and row.device == "cpu" and (row.op, row.direction) == (op, direction)

    def ratio(case: Measured, cases: Cases) -> float | None:
        base = cases.get(replace(case.first, **changed).case, Measured()).get(ours)  # type: ignore[arg-type]
        mine = case.get(ours)
        return None if mine is None or base is None or not mine.ms or not base.ms else mine.ms / base.ms

    return Target(f"{text}, {ours[1]}", ours, at_most, covers, ratio)


def _one_pass(dtype: str) -> Target:
    def covers(row: Row) -> bool:
        return row.family == "several" and row.device == "cpu" and row.direction == "forward"

    def ratio(case: Measured, cases: Cases) -> float | None:
        mine, one = (case.ms([name], dtype) for name in ("halfgnn", "halfgnn, one max"))
        return None if mine is None or one is None else mine / one

    text = f"mean, max, min and std at once: at most 1.6 x the time of one maximum, {dtype}"
    return Target(text, ("halfgnn", dtype), 1.6, covers, ratio)


def _of_networks(text: str, dtype: str, value: str, rivals: tuple[str, ...], most: float) -> Target:
    """`value`, a field of halfgnn's row, is at most `most` of the least that `rivals` have."""

    def covers(row: Row) -> bool:
        return row.family == "edge_network" and row.device == "cpu"

    def ratio(case: Measured, cases: Cases) -> float | None:
        rows = [case.row([name], dtype) for name in ("halfgnn", *rivals)]
        found = [None if row is None else getattr(row, value) for row in rows]
        others = [x for x in found[1:] if x is not None]
        return None if found[0] is None or not others else found[0] / (most * min(others))

    return Target(f"a network on every edge, {dtype}: {text}", ("halfgnn", dtype), 1.0, covers, ratio)


_BOTH = "forward+backward"
_NETWORKS = tuple(
    target for dtype in (_BF16, _FP32) for target in (
        _of_networks("at most the time of the plain one, compiled or not", dtype, "ms", ("plain", "plain compiled"), 1.0),
        _of_networks("1.3 x faster than under checkpoint", dtype, "ms", ("checkpoint",), 1 / 1.3),
        _of_networks("its peak at most a tenth of the plain one's", dtype, "peak_mb", ("plain",), 0.1),
    )
)  # fmt: skip
_OF_LAYERS = tuple(
    _beside(f"{layer} step with 16 numbers per edge: at most 1.5 x the time without", ("halfgnn.pyg", dtype),
            f"{layer} with edges", _BOTH, 1.5, {"op": layer})
    for dtype in (_BF16, _FP32) for layer in ("TransformerConv", "GATv2Conv")
)  # fmt: skip
EDGE_TARGETS = (*_OF_LAYERS, *_NETWORKS, *(target for dtype in _DTYPES for target in (
    *(_beside(f"{op}, with its backward: at most 4 x its forward", ("halfgnn", dtype), op, _BOTH, 4.0, {"direction": "forward"})
      for op in ("u_mul_e_sum_of_rows", "u_add_e_sum")),
    _beside("u_relu_add_e_sum: at most 1.3 x the time of u_add_e_sum", ("halfgnn", dtype), "u_relu_add_e_sum", "forward",
            1.3, {"op": "u_add_e_sum"}),
    _one_pass(dtype),
)))  # fmt: skip


# ---- on a GPU --------------------------------------------------------------------------------------------------------

_OURS_FP16 = ("halfgnn", _FP16)


def _label(graph: str) -> str:
    return f"{graph} (synthetic)"


def _limit(
    text: str, family: str, op: str, direction: str, graph: str, value: str, most: float, heads: int = 1, dim: int = FEATURES
) -> Target:  # fmt: skip
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

    return Target(text, _OURS_FP16, 1.0, covers, ratio)


def _milliseconds(op: str, family: str, graph: str, most: float, direction: str = "forward") -> Target:
    what = op if direction == "forward" else f"{op} {direction}"
    return _limit(f"{what}, fp16, {graph}: at most {most:.3g} ms", family, op, direction, graph, "ms", most)


def _guide(heads: int, text: str, value: str, most: float) -> Target:
    """A target of the three-layer GAT of DGL's guide to mixed precision. Memory includes graph, data and parameters."""
    text = f"training a GAT of 3 x {heads} x 256, fp16, reddit-size: {text}"
    return _limit(text, "train", "GAT", "step", "reddit-size", value, most, heads, 256)


def _hub(families: tuple[str, ...], what: str) -> Target:
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
    return Target(text, _OURS_FP16, 1.1, covers, ratio)


GPU_TARGETS = (
    _milliseconds("u_mul_e_sum", "spmm", "reddit-size", 3.5),
    _milliseconds("u_mul_e_sum", "spmm", "products-size", 8.7),
    _milliseconds("u_dot_v", "sddmm", "reddit-size", 4.0),
    _milliseconds("u_dot_v", "sddmm", "products-size", 10.0),
    # 1.2 and 1.5 times the target of the weighted sum.
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


def of(rows: Sequence[Row]) -> Sequence[Target]:
    """The targets of the rows' device, and of what they are about."""
    if rows and all(row.family in EDGE_FAMILIES for row in rows):
        return EDGE_TARGETS
    return GPU_TARGETS if any(row.device == "cuda" for row in rows) else TARGETS


def judge(rows: Sequence[Row], targets: Sequence[Target] | None = None) -> Iterator[Finding]:
    """One Finding per target and covered case, in the order of the targets. By default the targets of the rows' device."""
    cases = by_case(rows)
    for target in of(rows) if targets is None else targets:
        for case in cases.values():
            row = case.get(target.ours, case.first)
            if target.covers(row):
                yield Finding(target, row, target.ratio(case, cases))


def unmeasured(rows: Sequence[Row]) -> list[Target]:
    """Targets for which no case of the rows was measured."""
    seen = {finding.target for finding in judge(rows) if finding.ratio is not None}
    return [target for target in of(rows) if target not in seen]


def missed(rows: Sequence[Row]) -> list[Finding]:
    return [finding for finding in judge(rows) if finding.holds is False]
