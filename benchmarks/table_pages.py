"""The short tables that the pages show: what to expect of a layer, twenty operators per instruction set, all programs, a GPU's
operators. `python -m benchmarks table` prints the long ones."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from . import targets
from .cells import by_machine, faster, markdown, number, processor, shape, time
from .programs.records import ProgramRow, geometric_mean, latest
from .rows import Measured, Row, by_case
from .table_cpu import FAMILIES, OURS, published, short_cases
from .table_cuda import FAMILIES as GPU_FAMILIES
from .table_cuda import OTHERS
from .table_programs import short_cpu

# ---- programs of torch_geometric -----------------------------------------------------------------------------------------

Column = tuple[str, str, str]  # GPU or "", size, dtype
SMALLEST = "tiny"
# What a reader looks up first: the name of a program, and of the layer that it has.
LAYERS = {
    "GCNConv": "GCNConv", "SAGEConv, mean": "SAGEConv, mean", "SAGEConv, max": "SAGEConv, max", "GINConv": "GINConv",
    "GINEConv": "GINEConv", "GATConv": "GATConv", "GATConv, edges": "GATConv with edge features", "GATv2Conv": "GATv2Conv",
    "TransformerConv": "TransformerConv", "TransformerConv, edges": "TransformerConv with edge features",
    "PNAConv": "PNAConv", "EdgeConv": "EdgeConv", "ChebConv": "ChebConv", "APPNP": "APPNP",
    "RGCNConv": "RGCNConv", "HGTConv": "HGTConv", "CGConv": "CGConv", "NNConv": "NNConv",
}  # fmt: skip


def _by_column(rows: Sequence[ProgramRow]) -> dict[Column, dict[str, ProgramRow]]:
    """The rows of the CPU with most of them, then those of GPUs, from the smallest graph on."""
    last = latest(rows)
    machines = [row.machine for row in last if not row.gpu]
    cpu = max(dict.fromkeys(machines), key=machines.count, default=None)
    found: dict[Column, dict[str, ProgramRow]] = {}
    for row in sorted(last, key=lambda row: (row.gpu, row.edges, row.dtype != "fp32")):
        if row.machine == cpu or row.gpu:
            found.setdefault((row.gpu, row.size, row.dtype), {})[row.program] = row
    return found


def _device(row: ProgramRow) -> str:
    return row.gpu or f"{short_cpu(row.cpu)}, {row.kernels}, one thread"


def _heading(column: Column, row: ProgramRow) -> str:
    gpu, _, dtype = column
    return f"{gpu.removeprefix('NVIDIA ') or 'CPU'}, {row.edges:,} edges, {dtype}"


def _cell(row: ProgramRow | None) -> str:
    return "-" if row is None else faster(row.ms_with, row.ms_without) + ("" if row.is_right else "*")


def _shown(found: dict[Column, dict[str, ProgramRow]], with_smallest: bool) -> dict[Column, dict[str, ProgramRow]]:
    """The columns of a page: the CPU's sizes that are used for training, and the GPU's largest."""
    largest = max((row.edges for column, of in found.items() if column[0] for row in of.values()), default=0)

    def is_shown(column: Column) -> bool:
        gpu, size, _ = column
        if gpu:
            return next(iter(found[column].values())).edges == largest
        return size in ("medium", "large") or (with_smallest and size == SMALLEST)

    return {column: of for column, of in found.items() if is_shown(column)}


def _lines(found: dict[Column, dict[str, ProgramRow]], names: dict[str, str]) -> Iterator[list[str]]:
    for program, name in names.items():
        cells = [_cell(of.get(program)) for of in found.values()]
        if set(cells) - {"-"}:
            yield [name, *cells]


def _of_all(found: dict[Column, dict[str, ProgramRow]]) -> Iterator[list[str]]:
    every = [list(of.values()) for of in found.values()]
    yield ["**programs measured**", *(str(len(rows)) for rows in every)]
    yield ["**their geometric mean**", *(faster(geometric_mean(row.ratio for row in rows), 1.0) for rows in every)]
    yield ["**the worst of them**", *(_cell(max(rows, key=lambda row: row.ratio)) for rows in every)]


def expectations(rows: Sequence[ProgramRow]) -> str:
    """How many times faster a step of a layer is: a line per layer, a column per device, size and dtype."""
    found = _shown(_by_column(rows), with_smallest=True)
    if not found:
        return ""
    header = ["layer", *(_heading(column, next(iter(of.values()))) for column, of in found.items())]
    return markdown(header, [*_lines(found, LAYERS), *_of_all(found)], 1) + "\n\n" + _measured_on(found)


def _measured_on(found: dict[Column, dict[str, ProgramRow]]) -> str:
    sources: dict[str, list[ProgramRow]] = {}
    for of in found.values():
        for row in of.values():
            sources.setdefault(_device(row), []).append(row)
    lines = []
    for device, rows in sources.items():
        dates, commits, torches, libraries = (
            ", ".join(dict.fromkeys(texts))
            for texts in zip(*((row.date[:10], row.commit, row.torch, row.torch_geometric) for row in rows))
        )
        lines.append(f"* {device}: {dates}, commits {commits}, torch {torches}, torch_geometric {libraries}.")
    return "Measured on:\n\n" + "\n".join(lines)


def all_programs(rows: Sequence[ProgramRow]) -> str:
    """Every program, at the sizes of the expectations but the smallest."""
    found = _shown(_by_column(rows), with_smallest=False)
    if not found:
        return ""
    header = ["program", *(_heading(column, next(iter(of.values()))) for column, of in found.items())]
    names = {name: name for of in found.values() for name in of}
    return markdown(header, _lines(found, names), 1)


def devices(rows: Sequence[ProgramRow]) -> str:
    """A line per device, size and dtype: how many programs, their mean, the worst and the best."""
    lines = []
    for (_, _, dtype), of in _shown(_by_column(rows), with_smallest=True).items():
        ranked = sorted(of.values(), key=lambda row: row.ratio)
        first = ranked[0]
        mean = faster(geometric_mean(row.ratio for row in ranked), 1.0)
        lines.append(
            [_device(first), f"{first.edges:,}", dtype, str(len(ranked)), mean, _cell(ranked[-1]), _cell(first)]
        )
    header = ["device", "edges", "dtype", "programs", "geometric mean", "worst", "best"]
    return markdown(header, lines, 1) if lines else ""


def saved_memory(rows: Sequence[ProgramRow]) -> str:
    """A line per device, size and dtype: what the forward saves for the backward, as a share of torch_geometric's bytes."""
    lines = []
    for (_, _, dtype), of in _by_column(rows).items():
        measured = [row for row in of.values() if row.kept_with and row.kept_without]
        shares = [(row.kept_with or 0.0) / (row.kept_without or 1.0) for row in measured]
        if shares:
            first, less = measured[0], sum(share < 0.995 for share in shares)
            lines.append([_device(first), f"{first.edges:,}", dtype, str(len(shares)), str(less),
                          f"{geometric_mean(shares):.0%}", f"{min(shares):.0%}", f"{max(shares):.0%}"])  # fmt: skip
    header = ["device", "edges", "dtype", "programs", "with less", "geometric mean", "least", "most"]
    return markdown(header, lines, 1) if lines else ""


# ---- operators on a CPU --------------------------------------------------------------------------------------------------

_LINES = (("", OURS), (", fused", ("halfgnn fused",)))
_DENSER = targets.GRAPHS[1].split()[0]
_OPERATORS = ["operator", "direction", "heads x dim", "halfgnn, ms", "best rival, ms", "ratio", "ratio, fp32",
              f"{_DENSER}: ratio", f"{_DENSER}: ratio, fp32"]  # fmt: skip


def _ratio(case: Measured | None, ours: Sequence[str], dtype: str) -> str:
    mine, rival = (case.row(ours, dtype), case.fastest(dtype)) if case else (None, None)
    return faster(mine.ms if mine else None, rival.ms if rival else None)


def _operator_lines(cases: Sequence[Measured], beside: dict[tuple, Measured]) -> Iterator[list[str]]:
    """beside: the same cases on the second graph."""
    for case in cases:
        for suffix, ours in _LINES:
            mine, rival = case.row(ours, "bf16"), case.fastest("bf16")
            if mine is None or rival is None:
                continue
            row, other = case.first, beside.get(_key(case.first))
            yield [row.op + suffix, row.direction, shape(row), time(mine), f"{number(rival.ms)} {rival.backend}",
                   *(_ratio(of, ours, dtype) for of in (case, other) for dtype in ("bf16", "fp32"))]  # fmt: skip


def _key(row: Row) -> tuple:
    return row.family, row.op, row.direction, row.heads, row.dim


def _newest(rows: Sequence[Row]) -> list[list[Row]]:
    """The rows of the processor that was measured last, per instruction set, without halfgnn.keep_memory()."""
    sets: dict[str, list[Row]] = {}
    for of_machine in by_machine(row for row in rows if not row.memory).values():
        kernels = of_machine[0].kernels
        if max(row.date for row in of_machine) > max((row.date for row in sets.get(kernels, [])), default=""):
            sets[kernels] = of_machine
    return [sets[kernels] for kernels in sorted(sets)]


def operators(rows: Sequence[Row]) -> str:
    """A table per instruction set: operators at FEATURES features on the two graphs of the targets."""
    parts = []
    for found in _newest(published(rows)):
        graphs = [
            [
                case
                for case in by_case([row for row in found if row.graph == graph]).values()
                if case.first.family in FAMILIES
            ]
            for graph in targets.GRAPHS
        ]
        first, second = (list(short_cases(cases)) for cases in graphs)
        lines = list(_operator_lines(first, {_key(case.first): case for case in second}))
        if lines:
            row = first[0].first
            name = row.kernels.upper().replace("AVX5", "AVX-5")
            versions = f"torch {row.torch}, DGL {row.dgl}, {max(of.date for of in found)[:10]}"
            title = f"**{name}**: {processor(row)}, {row.threads} threads, {versions}."
            parts.append(f"{title}\n\n{markdown(_OPERATORS, lines, 3)}")
    return "\n\n".join(parts)


# ---- operators on a GPU --------------------------------------------------------------------------------------------------

GPU_GRAPHS = ("reddit-size (synthetic)", "products-size (synthetic)")


def _of_graph(rows: Iterable[Row], graph: str) -> dict[tuple, Measured]:
    cases = by_case([row for row in rows if row.graph == graph and row.cache == "warm" and row.family in GPU_FAMILIES])
    return {_key(case.first): case for case in cases.values()}


def _gpu_cells(case: Measured | None) -> list[str]:
    """halfgnn's time, and the share of it that a pure gather takes."""
    ours = case.row(["halfgnn"], "fp16") if case else None
    return [time(ours), f"{ours.limit_share:.0%}" if ours and ours.limit_share else "-"]


def _gpu_rival(case: Measured) -> list[str]:
    ours = case.row(["halfgnn"], "fp16")
    rivals = [(name, row) for name, names in OTHERS if (row := case.row(names, "fp16")) and not row.is_wrong]
    if ours is None or not rivals:
        return ["-", "-"]
    name, row = min(rivals, key=lambda rival: rival[1].ms or 0.0)
    return [f"{number(row.ms)} {name.replace('unfused', 'halfgnn, unfused')}", faster(ours.ms, row.ms)]


def gpu_operators(rows: Sequence[Row]) -> str:
    """A line per operator in fp16: its time on two large graphs beside a pure gather, and its best rival on the first."""
    first, second = (_of_graph(rows, graph) for graph in GPU_GRAPHS)
    lines = [
        [case.first.op, case.first.direction, shape(case.first), *_gpu_cells(case), *_gpu_rival(case),
         *_gpu_cells(second.get(key))]
        for key, case in first.items()
    ]  # fmt: skip
    short, long = (graph.split()[0] for graph in GPU_GRAPHS)
    header = ["operator", "direction", "heads x dim", f"{short}, ms", "gather"]
    header += ["best rival, ms", "ratio", f"{long}, ms", "gather"]
    return markdown(header, lines, 3) if lines else ""
