"""Pictures of rows, as SVG.

``python -m benchmarks plot`` draws those that pages show (SHOWN and the README's) into docs/images. With ``--rows
benchmarks/results/cpu.csv`` it draws all pictures of a file, into out/images.

* layers, of the README: bars for the time of a step of layers of torch_geometric, without and with halfgnn.
* operators, attention, modules: one picture each per graph. Bars show how many times faster a backend is than the
  reference in the same precision. On a CPU the reference is the fastest rival of the case, and the bars are halfgnn's
  and DGL's. On a GPU it is DGL, or the pure gather if there is no DGL.
* roofline: operators over their arithmetic intensity. The roofs are rows too (see limits.py): the speed at which this
  machine copied and gathered, in the same unit, which counts the bytes that every edge must move. No row measures a
  limit of arithmetic, so no such roof is drawn.
* training: one picture per graph, with bars for the time of a step.
* overhead: the time of a call over the number of edges.

Rows of a second processor make pictures of their own. The same rows and the same matplotlib give the same
file. Each file has a digest of the rows that it shows.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path

import matplotlib
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from . import cells, charts, records
from . import rows as row_files
from .charts import GREY
from .gather import LIMIT
from .programs.records import KEPT, ProgramRow
from .rows import YARDSTICKS, Measured, Row, by_case, latest
from .table_cpu import published
from .table_programs import MODELS, about_models, models_rows
from .targets import FEATURES

MARKERS = {"copy_u_sum": "o", "copy_u_max": "s", "u_mul_e_sum": "^", "u_dot_v": "D"}
ROOFS = ("copy, cached", "copy, memory", "halfgnn, in sequence", LIMIT)
BARS = {"operators": ("spmm", "sddmm", "softmax"), "attention": ("attention",), "modules": ("layer",)}
RIVAL = "fastest rival"
SHOWN = {"cpu": ("cpu-overhead", "cpu-reddit-tenth-training"), "cuda": ("cuda-reddit-size-operators",)}  # by pages
DRAWN = ("halfgnn", "dgl", "embedding_bag", "torch.sparse")  # backends of the roofline


@dataclass(frozen=True)
class Picture:
    """rows: the rows that it shows; its digest is computed from them."""

    name: str
    rows: list
    draw: Callable[[list], Figure]

    @property
    def digest(self) -> str:
        # Rows without `memory`, the last field, count as those from before there was one.
        lines = sorted(repr(astuple(row)[: None if getattr(row, "memory", "-") else -1]) for row in self.rows)
        return hashlib.sha256("\n".join(lines).encode()).hexdigest()

    def save(self, folder: Path) -> Path:
        """Writes an SVG file into `folder` and returns its path."""
        folder.mkdir(parents=True, exist_ok=True)
        about = {"Title": self.name, "Description": f"rows sha256:{self.digest}", "Date": None}
        path = folder / f"{self.name}.svg"
        with matplotlib.rc_context(charts.STYLE):
            self.draw(self.rows).savefig(path, bbox_inches="tight", metadata=about)
        return path


def _machine(rows: Sequence[Row]) -> str:
    row = rows[0]
    return row.gpu or f"{row.cpu.split(' (')[0]} ({row.kernels}), {row.threads} threads"


# ---- operators -----------------------------------------------------------------------------------------------------------


def _file_name(text: str) -> str:
    """Words joined by hyphens, without trade marks."""
    return "-".join(re.findall(r"[\w-]+", text.replace(cells.SYNTHETIC, "").replace("(R)", "")))


def _reference_name(rows: Sequence[Row]) -> str:
    if rows and rows[0].device == "cpu":
        return RIVAL
    return "dgl" if any(row.backend == "dgl" for row in rows) else LIMIT


def _operator_rows(rows: Sequence[Row], families: Sequence[str]) -> list[Row]:
    """The rows of a graph with the first order of edge data, the first ids, a warm cache, and FEATURES features or one
    number per head. Empty if there is no reference."""
    rows = [row for row in rows if row.family in families and row.cache != "cold"]
    rows = [row for row in rows if (row.order, row.idtype) == (rows[0].order, rows[0].idtype)]
    rows = [row for row in rows if (row.dim == 1 or row.heads * row.dim == FEATURES)]
    return rows if any(_factors(case, _reference_name(rows)) for case in by_case(rows).values()) else []


def _factors(case: Measured, reference: str) -> charts.Bars:
    """How many times faster than the reference each of the others is."""
    found = {}
    for name, dtype in sorted(case, key=charts.ours_first):
        against = case.fastest(dtype) if reference == RIVAL else case.row([reference], dtype)
        shown = reference != RIVAL or name.startswith("halfgnn") or name == "dgl"
        if against and shown and name not in (against.backend, *YARDSTICKS):
            found[name, dtype] = (against.ms or 0.0) / (case[name, dtype].ms or 1.0)
    return found


def _case_name(row: Row) -> str:
    shape = "" if row.heads == 1 else f", {row.heads} heads"
    backward = {"forward": "", "forward+backward": ", with backward"}.get(row.direction, f", {row.direction}")
    return f"{row.op}{shape}{backward}"


def _draw_operators(rows: list[Row]) -> Figure:
    reference = _reference_name(rows)
    groups = [(_case_name(case.first), _factors(case, reference)) for case in by_case(rows).values()]
    order = "insertion order" if rows[0].order == "insertion" else "the order of the adjacency"
    title = f"{cells.title(rows[0])[:-1]}\n{FEATURES} features, edge data in {order}; {_machine(rows)}"
    unit = f"times as fast as {'DGL' if reference == 'dgl' else 'the ' + reference} (higher is better)"
    return charts.bar_figure([group for group in groups if group[1]], 1.0, unit, title)


# ---- roofline ------------------------------------------------------------------------------------------------------------


def _is_roof(row: Row) -> bool:
    return row.family == "limits"


def _roof_rows(rows: Sequence[Row]) -> list[Row]:
    """Of a graph. Empty if operators or roofs are missing."""
    operators = [
        row
        for row in _operator_rows(rows, BARS["operators"])
        if row.op in MARKERS and row.direction == "forward" and row.gb_per_s and row.backend in DRAWN
    ]
    roofs = [row for row in rows if _is_roof(row) and row.backend in ROOFS and row.gb_per_s]
    return operators + roofs if operators and roofs else []


def _draw_roofs(axes, roofs: Sequence[Row], span: tuple[float, float]) -> None:
    for name, style in zip(ROOFS, ("-", "--", ":", "-.")):
        speed = max((row.gb_per_s or 0.0 for row in roofs if row.backend == name), default=0.0)
        if speed:
            label = f"{name}: {speed:.3g} GB/s"
            axes.plot(span, [speed * x for x in span], style, color=GREY, linewidth=1, label=label)


def _draw_point(axes, row: Row) -> None:
    """Multiplications and additions, or comparisons, per second and per byte."""
    flops = (1 if row.op.startswith("copy_u") else 2) * row.num_edges * row.heads * row.dim
    ms, gb_per_s = row.ms or 1.0, row.gb_per_s or 1.0
    axes.plot(flops / (gb_per_s * 1e6 * ms), flops / ms / 1e6, MARKERS[row.op], color=charts.colour(row.backend),
              markersize=6, fillstyle="none" if row.dtype == "fp32" else "full", alpha=0.85)  # fmt: skip


def _draw_roofline(rows: list[Row]) -> Figure:
    graphs = list(dict.fromkeys(row.graph for row in rows))
    figure = Figure((1 + 4.6 * len(graphs), 4.6), layout="constrained")
    for axes, graph in zip(figure.subplots(1, len(graphs), squeeze=False)[0], graphs):
        of_graph = [row for row in rows if row.graph == graph]
        _draw_roofs(axes, [row for row in of_graph if _is_roof(row)], (0.2, 1.2))
        for row in of_graph:
            if not _is_roof(row):
                _draw_point(axes, row)
        label = "flop per byte that every edge must move"
        axes.set(xscale="log", yscale="log", title=graph, xlabel=label, ylabel="Gflop/s")
        axes.set_xticks([0.25, 0.5, 1], ["1/4", "1/2", "1"])
        axes.minorticks_off()
        charts.grid(axes)
        axes.set_ylim(top=axes.get_ylim()[1] * 5)
        axes.legend(loc="upper left", title="at the speed of", title_fontsize=8, alignment="left")
    names = dict.fromkeys(row.backend for row in rows if not _is_roof(row))
    looks = [dict(marker="o", color=charts.colour(name), label=name) for name in names]
    looks += [dict(marker=marker, color=GREY, label=op) for op, marker in MARKERS.items()]
    looks += [dict(marker="o", color=GREY, fillstyle="none", label="hollow: fp32")]
    handles = [Line2D([], [], linestyle="", **look) for look in looks]
    return charts.finish(figure, handles, f"Forward operators, copies and gathers on this machine\n{_machine(rows)}")


# ---- training and overhead -----------------------------------------------------------------------------------------------


def _model_name(row: Row, rows: Sequence[Row]) -> str:
    has_heads = any(other.op == row.op and other.heads != 1 for other in rows)
    return f"{row.op}, {row.heads} head{'s' if row.heads > 1 else ''}" if has_heads else row.op


def _draw_training(rows: list[Row]) -> Figure:
    groups = [
        (_model_name(case.first, rows), {kind: case[kind].ms or 1.0 for kind in sorted(case, key=charts.ours_first)})
        for case in by_case(rows).values()
    ]
    title = f"A training step, {cells.title(rows[0])[:-1]}\n{_machine(rows)}"
    least = min(row.ms or 1.0 for row in rows) / 2
    return charts.bar_figure(groups, least, "milliseconds per step, logarithmic (lower is better)", title)


def _draw_overhead(rows: list[Row]) -> Figure:
    kinds = list(dict.fromkeys((row.op, row.direction, row.dtype) for row in rows))
    figure = Figure((0.6 + 3.4 * len(kinds), 4.4), layout="constrained")
    drawn = {}
    for axes, kind in zip(figure.subplots(1, len(kinds), squeeze=False)[0], kinds):
        chosen = [row for row in rows if (row.op, row.direction, row.dtype) == kind]
        for name in dict.fromkeys(row.backend for row in chosen):
            line = sorted((row.num_edges, (row.ms or 0.0) * 1e3) for row in chosen if row.backend == name)
            drawn[name] = axes.plot(*zip(*line), marker="o", markersize=3.5, color=charts.colour(name), label=name)[0]
        axes.set(
            xscale="log", yscale="log", xlabel="edges", ylabel="microseconds (lower is better)", title=", ".join(kind)
        )
        charts.grid(axes)
    title = f"Time per call and per training step, by the size of the graph\n{_machine(rows)}"
    return charts.finish(figure, list(drawn.values()), title)


def _overhead_rows(rows: Sequence[Row]) -> list[Row]:
    """The rows that make a line: those of a dtype that was measured on more than one graph."""
    rows = [row for row in rows if row.family == "overhead"]
    sizes = {dtype: {row.num_edges for row in rows if row.dtype == dtype} for dtype in {row.dtype for row in rows}}
    return [row for row in rows if len(sizes[row.dtype]) > 1]


# ---- the README's layers -------------------------------------------------------------------------------------------------


def _draw_layers(rows: list[ProgramRow]) -> Figure:
    """Two bars per layer: the time of a step without and with halfgnn."""
    figure = Figure((7.2, 2.9), layout="constrained")
    axes = figure.subplots()
    sides = (("torch_geometric", "torch gather", "ms_without", -0.2), ("with halfgnn", "halfgnn", "ms_with", 0.2))
    for name, look, field, shift in sides:
        values = [getattr(row, field) for row in rows]
        bars = axes.barh([i + shift for i in range(len(rows))], values, 0.38, color=charts.colour(look), label=name)
        factors = [f"  {row.ms_without / row.ms_with:.1f} x faster" if field == "ms_with" else "" for row in rows]
        axes.bar_label(bars, [f" {value:.0f} ms{factor}" for value, factor in zip(values, factors)], fontsize=8)
    axes.set_yticks(range(len(rows)), [MODELS[row.program] for row in rows])
    axes.set(xlabel="milliseconds per training step (lower is better)", ylim=(len(rows) - 0.45, -0.55))
    axes.set_xlim(right=1.12 * max(row.ms_without for row in rows))
    axes.tick_params(axis="y", length=0)
    axes.legend(loc="lower right")
    charts.grid(axes, "x")
    axes.set_title(f"One layer of torch_geometric, unmodified\n{about_models(rows)}")
    return figure


# ---- all -----------------------------------------------------------------------------------------------------------------


def pictures(rows: Sequence[Row]) -> Iterator[Picture]:
    """All pictures of the rows of one device."""
    for i, found in enumerate(cells.by_machine(published(rows)).values()):
        yield from _pictures_of(
            found, f"{found[0].cpu.split(' (')[0]} {found[0].kernels} {found[0].memory} " if i else ""
        )


def _pictures_of(rows: Sequence[Row], prefix: str) -> Iterator[Picture]:
    rows = [row for row in latest(rows) if row.ms is not None]
    of_graph = {row.graph: [r for r in rows if r.graph == row.graph] for row in rows}
    found = [
        *((f"{graph} {name}", _operator_rows(part, families), _draw_operators)
          for graph, part in of_graph.items() for name, families in BARS.items()),
        ("roofline", [row for part in of_graph.values() for row in _roof_rows(part)], _draw_roofline),
        *((f"{graph} training", [row for row in part if row.family == "train"], _draw_training)
          for graph, part in of_graph.items()),
        ("overhead", _overhead_rows(rows), _draw_overhead),
    ]  # fmt: skip
    for name, shown, draw_them in found:
        if shown:
            yield Picture(_file_name(f"{rows[0].device} {prefix}{name}"), shown, draw_them)


def shown(results: Path) -> Iterator[Picture]:
    """The pictures that pages show, of the rows in the folder `results`."""
    layers = models_rows(records.read(results / KEPT, ProgramRow))
    if layers:
        yield Picture("layers", layers, _draw_layers)
    for device, names in SHOWN.items():
        yield from (picture for picture in pictures(row_files.read(results / f"{device}.csv")) if picture.name in names)


def draw(found: Iterable[Picture], folder: Path) -> Iterator[Path]:
    """Draws pictures. Yields their paths."""
    for picture in found:
        yield picture.save(folder)
