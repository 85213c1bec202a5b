"""Pictures of rows, as PNG and SVG: ``python -m benchmarks plot --rows benchmarks/results/cpu.csv --into docs/images``.

* operators, attention, modules: one picture each per graph. Bars show how many times faster a contestant is than the
  reference in the same precision. The reference is DGL, or the pure gather if there is no DGL (on a GPU). DGL has no
  fp16 on the CPU, so fp16 is compared with its bf16.
* roofline: operators over their arithmetic intensity. The roofs are rows too (see limits.py): the speed at which this
  machine copied and gathered, in the same unit, which counts the bytes that every edge must move. No row measures a
  limit of arithmetic, so no such roof is drawn.
* training: one picture per graph, with bars for the time of a step.
* overhead: the time of a call over the number of edges.

The same rows and the same matplotlib give the same file. Each file has a digest of the rows that it shows.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import matplotlib
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from . import cells, charts
from .gather import LIMIT
from .marks import FEATURES, Entry, by_case
from .rows import Row, latest

MARKERS = {"copy_u_sum": "o", "copy_u_max": "s", "u_mul_e_sum": "^", "u_dot_v": "D"}
ROOFS = ("copy, cached", "copy, memory", "halfgnn, in sequence", LIMIT)
BARS = {"operators": ("spmm", "sddmm", "softmax"), "attention": ("attention",), "modules": ("layer",)}
Entries = dict[Entry, Row]


@dataclass(frozen=True)
class Picture:
    """rows: the rows that it shows; its digest is computed from them."""

    name: str
    rows: list[Row]
    draw: Callable[[list[Row]], Figure]

    @property
    def digest(self) -> str:
        lines = sorted(repr(dataclasses.astuple(row)) for row in self.rows)
        return hashlib.sha256("\n".join(lines).encode()).hexdigest()

    def save(self, folder: Path) -> Path:
        """Writes PNG and SVG into `folder`. Returns the path of the SVG file."""
        folder.mkdir(parents=True, exist_ok=True)
        about = {"Title": self.name, "Description": f"rows sha256:{self.digest}"}
        with matplotlib.rc_context(charts.STYLE):
            figure = self.draw(self.rows)
            figure.savefig(folder / f"{self.name}.svg", bbox_inches="tight", metadata={**about, "Date": None})
            figure.savefig(folder / f"{self.name}.png", bbox_inches="tight", metadata={**about, "Software": None})
        return folder / f"{self.name}.svg"


def _machine(rows: Sequence[Row]) -> str:
    row = rows[0]
    return row.gpu or f"{row.cpu.split(' (')[0]}, {row.threads} threads"


# ---- operators -----------------------------------------------------------------------------------------------------------


def _reference_name(rows: Sequence[Row]) -> str:
    return "dgl" if any(row.contestant == "dgl" for row in rows) else LIMIT


def _operator_rows(rows: Sequence[Row], families: Sequence[str]) -> list[Row]:
    """The rows of a graph with the first order of edge data, a warm cache, and FEATURES features or one number per
    head. Empty if there is no reference."""
    rows = [row for row in rows if row.family in families and row.cache != "cold"]
    rows = [row for row in rows if row.order == rows[0].order and (row.dim == 1 or row.heads * row.dim == FEATURES)]
    return rows if any(_factors(entries, _reference_name(rows)) for entries in by_case(rows).values()) else []


def _reference(entries: Entries, name: str, dtype: str) -> Row | None:
    return entries.get((name, dtype)) or (entries.get((name, "bf16")) if dtype == "fp16" else None)


def _factors(entries: Entries, reference: str) -> dict[Entry, float]:
    found = {}
    for (name, dtype), row in entries.items():
        against = _reference(entries, reference, dtype)
        if against and name not in (reference, "dgl copy_u_sum"):
            found[(name, dtype)] = (against.ms or 0.0) / (row.ms or 1.0)
    return {kind: found[kind] for kind in sorted(found, key=charts.ours_first)}


def _case_name(row: Row) -> str:
    shape = "" if row.heads == 1 else f", {row.heads} heads"
    backward = {"forward": "", "forward+backward": ", with backward"}.get(row.direction, f", {row.direction}")
    return f"{row.op}{shape}{backward}"


def _draw_operators(rows: list[Row]) -> Figure:
    reference = _reference_name(rows)
    groups = [(_case_name(cells.first(e)), _factors(e, reference)) for e in by_case(rows).values()]
    order = "insertion order" if rows[0].order == "insertion" else "the order of the adjacency"
    title = f"{cells.title(rows[0])[:-1]}\n{FEATURES} features, edge data in {order}; {_machine(rows)}"
    has_fp16 = any((row.contestant, row.dtype) == (reference, "fp16") for row in rows)
    unit = f"times as fast as {'DGL' if reference == 'dgl' else 'the ' + reference}"
    note = "" if has_fp16 else " (fp16: as its bf16)"
    return charts.bar_figure([group for group in groups if group[1]], 1.0, unit, title, note)


# ---- roofline ------------------------------------------------------------------------------------------------------------


def _flops(row: Row) -> float:
    """Multiplications and additions, or comparisons."""
    per_element = 1 if row.op.startswith("copy_u") else 2
    return per_element * row.num_edges * row.heads * row.dim


def _roof_rows(rows: Sequence[Row]) -> list[Row]:
    rows_of_bars = _operator_rows(rows, BARS["operators"])
    operators = [row for row in rows_of_bars if row.op in MARKERS and row.direction == "forward" and row.gb_per_s]
    operators = [row for row in operators if row.contestant not in ("dgl copy_u_sum", LIMIT)]
    roofs = [row for row in rows if row.family == "limits" and row.contestant in ROOFS and row.gb_per_s]
    return operators + roofs if operators and roofs else []


def _draw_roofs(axes, roofs: Sequence[Row], span: tuple[float, float]) -> None:
    best = {name: max((row.gb_per_s or 0.0 for row in roofs if row.contestant == name), default=0.0) for name in ROOFS}
    for (name, speed), style in zip(best.items(), ("-", "--", ":", "-.")):
        if speed:
            axes.plot(
                span, [speed * x for x in span], style, color="#555555", linewidth=1, label=f"{name}: {speed:.3g} GB/s"
            )


def _draw_roofline(rows: list[Row]) -> Figure:
    graphs = list(dict.fromkeys(row.graph for row in rows))
    figure = Figure((1 + 4.6 * len(graphs), 4.6), layout="constrained")
    for axes, graph in zip(figure.subplots(1, len(graphs), squeeze=False)[0], graphs):
        of_graph = [row for row in rows if row.graph == graph]
        roofs = [row for row in of_graph if row.family == "limits"]
        _draw_roofs(axes, roofs, (0.2, 1.2))
        for row in of_graph:
            if row.family == "limits":
                continue
            flops, colour = _flops(row), charts.colour(row.contestant)
            intensity = flops / ((row.gb_per_s or 1.0) * 1e6 * (row.ms or 1.0))
            axes.plot(intensity, flops / (row.ms or 1.0) / 1e6, MARKERS[row.op], color=colour, markersize=6,
                      fillstyle="none" if row.dtype == "fp32" else "full", alpha=0.85)  # fmt: skip
        axes.set(
            xscale="log", yscale="log", title=graph, xlabel="flop per byte that every edge must move", ylabel="Gflop/s"
        )
        axes.set_xticks([0.25, 0.5, 1], ["1/4", "1/2", "1"])
        axes.minorticks_off()
        axes.grid(color="#dddddd", linewidth=0.6)
        axes.set_ylim(top=axes.get_ylim()[1] * 5)
        axes.legend(loc="upper left", title="at the speed of", title_fontsize=8, alignment="left")
    names = list(dict.fromkeys(row.contestant for row in rows if row.family != "limits"))
    handles = [Line2D([], [], marker="o", linestyle="", color=charts.colour(name), label=name) for name in names]
    handles += [Line2D([], [], marker=m, linestyle="", color="#555555", label=op) for op, m in MARKERS.items()]
    handles.append(Line2D([], [], marker="o", linestyle="", color="#555555", fillstyle="none", label="hollow: fp32"))
    figure.legend(handles=handles, loc="outside lower center", ncols=5)
    figure.suptitle(f"Forward operators, copies and gathers on this machine\n{_machine(rows)}")
    return figure


# ---- training and overhead -----------------------------------------------------------------------------------------------


def _draw_training(rows: list[Row]) -> Figure:
    groups = []
    for entries in by_case(rows).values():
        kinds = sorted(entries, key=charts.ours_first)
        groups.append((_model_name(cells.first(entries), rows), {kind: entries[kind].ms or 1.0 for kind in kinds}))
    title = f"A training step, {cells.title(rows[0])[:-1]}\n{_machine(rows)}"
    return charts.bar_figure(
        groups, min(row.ms or 1.0 for row in rows) / 2, "milliseconds per step (logarithmic)", title
    )


def _model_name(row: Row, rows: Sequence[Row]) -> str:
    has_heads = any(other.op == row.op and other.heads != 1 for other in rows)
    return f"{row.op}, {row.heads} head{'s' if row.heads > 1 else ''}" if has_heads else row.op


def _draw_overhead(rows: list[Row]) -> Figure:
    kinds = list(dict.fromkeys((row.op, row.direction, row.dtype) for row in rows))
    figure = Figure((0.6 + 3.4 * len(kinds), 4.4), layout="constrained")
    drawn = {}
    for axes, kind in zip(figure.subplots(1, len(kinds), squeeze=False)[0], kinds):
        chosen = [row for row in rows if (row.op, row.direction, row.dtype) == kind]
        for name in dict.fromkeys(row.contestant for row in chosen):
            line = sorted((row.num_edges, (row.ms or 0.0) * 1e3) for row in chosen if row.contestant == name)
            drawn[name] = axes.plot(*zip(*line), marker="o", markersize=3.5, color=charts.colour(name), label=name)[0]
        axes.set(xscale="log", yscale="log", xlabel="edges", ylabel="microseconds", title=", ".join(kind))
        axes.grid(color="#dddddd", linewidth=0.6)
    figure.legend(handles=list(drawn.values()), loc="outside lower center", ncols=5)
    figure.suptitle(f"Time per call and per training step, by the size of the graph\n{_machine(rows)}")
    return figure


def _overhead_rows(rows: Sequence[Row]) -> list[Row]:
    """The rows that make a line: those of a dtype that was measured on more than one graph."""
    rows = [row for row in rows if row.family == "overhead"]
    sizes = {dtype: {row.num_edges for row in rows if row.dtype == dtype} for dtype in {row.dtype for row in rows}}
    return [row for row in rows if len(sizes[row.dtype]) > 1]


def pictures(rows: Sequence[Row]) -> Iterator[Picture]:
    """All pictures of the rows of one device."""
    rows = [row for row in latest(rows) if row.ms is not None]
    if not rows:
        return
    device, of_graph = rows[0].device, {row.graph: [r for r in rows if r.graph == row.graph] for row in rows}
    found = [
        *(Picture(f"{graph} {name}", _operator_rows(part, families), _draw_operators)
          for graph, part in of_graph.items() for name, families in BARS.items()),
        Picture("roofline", list(itertools.chain.from_iterable(map(_roof_rows, of_graph.values()))), _draw_roofline),
        *(Picture(f"{graph} training", [row for row in part if row.family == "train"], _draw_training)
          for graph, part in of_graph.items()),
        Picture("overhead", _overhead_rows(rows), _draw_overhead),
    ]  # fmt: skip
    for picture in found:
        if picture.rows:
            name = f"{device} {picture.name}".replace(cells.SYNTHETIC, "").replace(" ", "-")
            yield dataclasses.replace(picture, name=name)


def draw(rows: Sequence[Row], folder: Path) -> Iterator[Path]:
    """Draws all pictures of the rows. Yields the SVG files, each with its PNG beside it."""
    for picture in pictures(rows):
        yield picture.save(folder)
