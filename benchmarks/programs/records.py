"""Rows of programs, and the tables of them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from benchmarks.cells import number

KEPT = "programs.csv"


@dataclass(frozen=True)
class ProgramRow:
    """Times are medians in milliseconds per step. ratio: of the times with and without the drop-in."""

    program: str
    size: str
    nodes: int
    edges: int
    dtype: str  # bf16: under autocast
    ms_without: float
    ms_with: float
    ms_fused: float | None
    ratio: float
    error: float  # largest relative error of results and gradients, against float64 of torch_geometric
    error_without: float  # that of torch_geometric in this dtype
    right: str  # yes or no
    kept_without: float | None  # bytes that autograd keeps after the forward
    kept_with: float | None
    date: str
    commit: str
    cpu: str
    kernels: str
    torch: str
    torch_geometric: str
    command: str
    gpu: str = ""
    peak_without: float | None = None  # the most bytes that a step allocates beside what is there between steps
    peak_with: float | None = None
    tile: str | None = None  # of accelerate(tile=...)
    ms_tiled: float | None = None
    peak_tiled: float | None = None

    @property
    def machine(self) -> tuple[str, str, str]:
        return self.cpu, self.kernels, self.gpu

    @property
    def is_right(self) -> bool:
        return self.right == "yes"


@dataclass(frozen=True)
class CompiledRow:
    """A step as it is, under torch.compile, under patch(), and under both.

    Times are medians in milliseconds of the process. first_s: seconds that pass until the first step ends, with its compilation.
    None: torch.compile failed.
    """

    program: str
    size: str
    nodes: int
    edges: int
    dtype: str
    ms_plain: float | None
    ms_compiled: float | None
    ms_patched: float | None
    ms_both: float | None
    graphs_compiled: int | None
    breaks_compiled: int | None
    graphs_both: int | None
    breaks_both: int | None
    first_s_compiled: float | None
    first_s_both: float | None
    right: str  # yes, no, or the error
    date: str
    commit: str
    cpu: str
    kernels: str
    torch: str
    torch_geometric: str
    command: str
    gpu: str = ""


def latest(rows: Iterable[ProgramRow]) -> list[ProgramRow]:
    """The last row of each program, size, dtype and processor, in the order of the first ones."""
    last: dict[tuple, ProgramRow] = {}
    for row in rows:
        last[row.program, row.size, row.dtype, row.machine] = row
    return list(last.values())


def geometric_mean(ratios: Iterable[float]) -> float:
    logs = [math.log(ratio) for ratio in ratios]
    return math.exp(sum(logs) / len(logs))


def line(row: ProgramRow) -> str:
    fused = "" if row.ms_fused is None else f"  fused {number(row.ms_fused):>6}: {row.ms_fused / row.ms_without:5.2f} x"
    kept = ""
    if row.kept_without is not None and row.kept_with is not None:
        kept = f"  kept {row.kept_without / 2**20:.1f} -> {row.kept_with / 2**20:.1f} MiB"
    if row.peak_without is not None and row.peak_with is not None:
        kept += f"  peak {row.peak_without / 2**20:.1f} -> {row.peak_with / 2**20:.1f} MiB"
    if row.ms_tiled is not None:
        kept += f"  tiles of {row.tile} {number(row.ms_tiled)} ms: {row.ms_tiled / row.ms_with:.2f} x of with"
    if row.peak_tiled is not None:
        kept += f", peak {row.peak_tiled / 2**20:.1f} MiB"
    errors = f"  error {row.error:.1e} of {row.error_without:.1e}"
    return (f"{row.program:<36}{'' if row.is_right else '*':1} {row.size:<8} {row.dtype} {number(row.ms_without):>7} ms"
            f" -> {number(row.ms_with):>7} ms: {row.ratio:5.2f} x{fused}{errors}{kept}")  # fmt: skip


def listing(found: Sequence[ProgramRow]) -> str:
    """All rows, the worst ratio first, then means per size and dtype."""
    lines = [line(row) for row in sorted(found, key=lambda row: -row.ratio)]
    for group in dict.fromkeys((row.size, row.dtype) for row in found):
        ratios = [row.ratio for row in found if (row.size, row.dtype) == group]
        lines.append(f"{group[0]}, {group[1]}: geometric mean {geometric_mean(ratios):.3f} x, worst {max(ratios):.2f} x, "
                     f"{sum(ratio > 1 for ratio in ratios)} of {len(ratios)} slower")  # fmt: skip
    return "\n".join(lines)
