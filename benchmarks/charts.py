"""The look of the pictures: colours of backends, and figures with bars."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import LogLocator, NullLocator

from . import cells
from .rows import Entry

STYLE = {
    "font.size": 9, "axes.titlesize": 10, "axes.spines.top": False, "axes.spines.right": False, "axes.axisbelow": True,
    "figure.dpi": 120, "svg.hashsalt": "halfgnn", "hatch.linewidth": 0.8, "legend.frameon": False, "legend.fontsize": 8,
}  # fmt: skip
# Colours of Okabe and Ito and of Tol's muted set, which colour-blind readers can tell apart. A backend has the
# colour of the first key that its name begins with. Backends of the same cases have different colours.
COLOURS = {
    "halfgnn fused": "#56B4E9", "halfgnn unfused": "#7F7F7F", "halfgnn drop-in": "#332288", "halfgnn update_all": "#332288",
    "halfgnn, CUDA graph": "#882255", "halfgnn, ": "#000000", "halfgnn torch.ops": "#F0C000", "halfgnn.ops, DGLGraph": "#009E73",
    "halfgnn": "#0072B2", "dgl": "#D55E00", "torch.compile": "#000000", "torch.sparse": "#009E73", "torch gather": "#E69F00",
    "embedding_bag": "#882255",
    "index_add": "#E69F00", "pyg conv": "#882255", "pyg": "#CC79A7", "cudnn": "#44AA99", "turbo": "#999933",
}  # fmt: skip
OTHER = "#b0b0b0"
GREY = "#555555"  # of what is no backend
PANELS = (("bf16", "fp16"), ("fp32",))
Bars = dict[Entry, float]  # values by backend and dtype
Group = tuple[str, Bars]


def colour(backend: str) -> str:
    return next((shade for name, shade in COLOURS.items() if backend.startswith(name)), OTHER)


def ours_first(kind: Entry) -> tuple:
    return not kind[0].startswith("halfgnn"), kind


def grid(axes, axis: str = "both") -> None:
    axes.grid(axis=axis, color="#dddddd", linewidth=0.6)


def finish(figure: Figure, handles: Sequence, title: str) -> Figure:
    """The legend below, the title above."""
    figure.legend(handles=handles, loc="outside lower center", ncols=5)
    figure.suptitle(title)
    return figure


def _legend(kinds: Iterable[Entry]) -> list[Patch]:
    """Backends of one colour share an entry."""
    alike: dict[str, list[str]] = {}
    for name in dict.fromkeys(name for name, _ in sorted(kinds, key=ours_first)):
        alike.setdefault(colour(name), []).append(name)
    return [Patch(facecolor=shade, label=", ".join(names)) for shade, names in alike.items()]


def _draw_bars(axes, groups: Sequence[Group], tops: Sequence[float], places: Sequence[int], least: float) -> None:
    """Horizontal bars that start at `least` on a logarithmic axis, each with its value. tops, places: the first place
    of each group, and its number of places."""
    for top, count, (_, values) in zip(tops, places, groups):
        for place, ((name, dtype), value) in enumerate(values.items()):
            y, right = top + place + (count - len(values)) / 2, value >= least
            axes.barh(y, value - least, 0.9, least, color=colour(name), hatch="////" if dtype == "fp16" else None,
                      edgecolor="white", linewidth=0.3)  # fmt: skip
            axes.annotate(cells.number(value), (value, y), (2 if right else -2, 0), textcoords="offset points", fontsize=7,
                          va="center", ha="left" if right else "right")  # fmt: skip
    shown = [least, *(value for _, values in groups for value in values.values())]
    low, high = min(shown), max(shown)
    room = (high / low) ** 0.17  # for the numbers
    axes.set(xscale="log", xlim=(low / room if low < least else low, high * room))
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if high < 100 * low else (1, 3)))
    axes.xaxis.set_major_formatter("{x:,g}")
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_yticks([y + (count - 1) / 2 for y, count in zip(tops, places)], [name for name, _ in groups])
    axes.tick_params(axis="y", length=0)
    grid(axes, "x")


def bar_figure(groups: Sequence[Group], least: float, unit: str, title: str) -> Figure:
    """One panel per precision that was measured."""
    panels = {}
    for dtypes in PANELS:
        panel = [(group, {kind: x for kind, x in values.items() if kind[1] in dtypes}) for group, values in groups]
        found = sorted({dtype for _, values in panel for _, dtype in values})
        if found:
            panels[", ".join(found).replace("fp16", "fp16 hatched")] = panel
    places = [max(map(len, column)) for column in zip(*([v for _, v in panel] for panel in panels.values()))]
    tops = [sum(places[:i]) + i for i in range(len(places))]
    figure = Figure((3 + 3 * len(panels), 1.8 + 0.125 * (sum(places) + len(places))), layout="constrained")
    for axes, (name, panel) in zip(figure.subplots(1, len(panels), sharey=True, squeeze=False)[0], panels.items()):
        _draw_bars(axes, panel, tops, places, least)
        axes.axvline(least, color="black", linewidth=1)
        axes.set(title=name, xlabel=unit, ylim=(tops[-1] + places[-1] - 0.2, -0.8))
    return finish(figure, _legend(kind for _, values in groups for kind in values), title)
