"""The tables of programs of torch_geometric: means per size and dtype, and a line per program."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from .cells import faster, markdown, wrapped
from .programs.records import ProgramRow, geometric_mean, latest

Group = tuple[str, str]  # size, dtype
_LEGEND = (
    "A training step without an optimizer: torch_geometric's own code, and the same under `halfgnn.pyg.accelerate()`. On a CPU it "
    "is the process's time there, on one thread; on a GPU the time that passes in a loop of steps. Factors are how many times "
    'faster the drop-in is. Losses are bold; *: a result that differs. "kept": the share of torch_geometric\'s bytes that the '
    "forward saves for the backward."
)
_SUMMARY = ["size", "nodes", "edges", "dtype", "programs", "mean", "least", "most", "slower", "kept", "most kept"]


def _groups(found: Sequence[ProgramRow]) -> dict[Group, list[ProgramRow]]:
    groups: dict[Group, list[ProgramRow]] = defaultdict(list)
    for row in found:
        groups[row.size, row.dtype].append(row)
    return groups


def _factor(row: ProgramRow | None) -> str:
    return "-" if row is None else faster(row.ms_with, row.ms_without) + ("" if row.is_right else "*")


def _kept(rows: Sequence[ProgramRow]) -> list[str]:
    """The mean share of torch_geometric's memory that is saved for the backward, and the largest one."""
    shares = [row.kept_with / row.kept_without for row in rows if row.kept_with and row.kept_without]
    return [f"{x:.0%}" for x in (geometric_mean(shares), max(shares))] if shares else ["-", "-"]


def _summary(groups: dict[Group, list[ProgramRow]]) -> str:
    lines = []
    for (size, dtype), rows in groups.items():
        ranked = sorted(rows, key=lambda row: row.ratio)
        mean = geometric_mean(row.ratio for row in rows)
        slower = sum(row.ratio > 1 for row in rows)
        lines.append([size, f"{rows[0].nodes:,}", f"{rows[0].edges:,}", dtype, str(len(rows)), faster(mean, 1.0),
                      _factor(ranked[-1]), _factor(ranked[0]), str(slower), *_kept(rows)])  # fmt: skip
    return markdown(_SUMMARY, lines, 1)


def _programs(groups: dict[Group, list[ProgramRow]]) -> str:
    by_name: dict[str, dict[Group, ProgramRow]] = defaultdict(dict)
    for group, rows in groups.items():
        for row in rows:
            by_name[row.program][group] = row
    header = ["program", *(f"{size}, {dtype}" for size, dtype in groups)]
    lines = [[name, *(_factor(rows.get(group)) for group in groups)] for name, rows in by_name.items()]
    return markdown(header, lines, 1)


# What the README shows: the name of a program, and of the model of which it is a layer.
MODELS = {
    "GATConv": "GAT",
    "TransformerConv, edges": "TransformerConv with edge features",
    "GINEConv": "GINE",
    "SAGEConv, mean": "GraphSAGE",
}


def models_rows(rows: Sequence[ProgramRow]) -> list[ProgramRow]:
    """The layers of MODELS, as large as they were measured in fp32 on the processor that was measured last."""
    found = [
        row for row in latest(rows) if row.program in MODELS and row.dtype == "fp32" and row.kept_with and not row.gpu
    ]
    if not found:
        return []
    newest = max(found, key=lambda row: row.date)
    largest = max((row for row in found if row.machine == newest.machine), key=lambda row: row.edges)
    shown = {row.program: row for row in found if (row.machine, row.edges) == (largest.machine, largest.edges)}
    return [shown[name] for name in MODELS if name in shown]


def about_models(found: Sequence[ProgramRow]) -> str:
    """The conditions under which the layers were measured."""
    row = found[0]
    return f"{row.nodes:,} nodes, {row.edges:,} edges, 64 features, fp32; one thread of an {short_cpu(row.cpu)} ({row.kernels})"


def short_cpu(cpu: str) -> str:
    """Without family and trade marks."""
    return cpu.split(" (family")[0].replace("(R)", "").removesuffix(" Processor")


def models_headline(rows: Sequence[ProgramRow]) -> str:
    """The README's table of layers; empty without rows."""
    found = models_rows(rows)
    if not found:
        return ""
    lines = [[MODELS[row.program], *_times(row), *_mebibytes(row)] for row in found]
    about = f"One training step of one layer: {about_models(found)}."
    header = ["layer", "before, ms", "with halfgnn, ms", "faster", "saved for backward, MiB", "with halfgnn, MiB"]
    return wrapped(about) + "\n\n" + markdown(header, lines, 1)


def _times(row: ProgramRow) -> list[str]:
    return [f"{row.ms_without:.0f}", f"{row.ms_with:.0f}", faster(row.ms_with, row.ms_without)]


def _mebibytes(row: ProgramRow) -> list[str]:
    return [f"{(kept or 0) / 2**20:.0f}" for kept in (row.kept_without, row.kept_with)]


def _sources(found: Sequence[ProgramRow]) -> str:
    texts = (f"{row.date[:10]}, commit {row.commit}, torch {row.torch}, torch_geometric {row.torch_geometric}: `{row.command}`"
             for row in found)  # fmt: skip
    return "\n".join(f"* {text}" for text in dict.fromkeys(texts))


def programs_tables(rows: Sequence[ProgramRow]) -> list[str]:
    """The last row of each program, size and dtype, per processor. Empty without rows."""
    machines: dict[tuple[str, str, str], list[ProgramRow]] = defaultdict(list)
    for row in latest(rows):
        machines[row.machine].append(row)
    parts = [_LEGEND] if rows else []
    for (cpu, kernels, gpu), found in machines.items():
        groups = _groups(found)
        name = f"**{gpu}**" if gpu else f"**{cpu.split(' (')[0]}, kernels {kernels}**"
        parts += [name, _summary(groups), _programs(groups), _sources(found)]
    return parts
