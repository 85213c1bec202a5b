"""The tables of two files of rows: features of edges (operators, several reductions at once, layers), and the layers and
training steps of torch_geometric."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from .cells import by_machine, faster, graph_name, machine, markdown, number, shape, time
from .rows import Measured, Row, by_case
from .table_parts import source, targets_table
from .targets import EDGE_FAMILIES

_DTYPES = ("bf16", "fp16", "fp32")
_SEPARATE = ("halfgnn unfused", "halfgnn, separate")
_OPERATORS = ["operator", "direction", "graph", "F", "dtype", "halfgnn", "separate operators", "faster", "rival", "faster",
              "than fp32"]  # fmt: skip
_LAYERS = {"halfgnn": ("halfgnn.pyg", "halfgnn"), "drop-in": ("halfgnn.pyg drop-in",), "PyG": ("pyg",),
           "PyG compiled": ("pyg compiled",), "DGL": ("dgl",)}  # fmt: skip
_LAYERS_HEADER = [
    "layer or model",
    "graph",
    "heads x dim",
    "dtype",
    *_LAYERS,
    "faster",
    "than fp32",
    "MiB, halfgnn",
    "MiB, rival",
]
_LEGEND = (
    'Int32 ids; times are medians in milliseconds; backends of a row took turns. "rival": the fastest other way to the '
    'same result in the same type; "than fp32": how many times faster than the fastest rival in fp32. Losses are bold.'
)
_OPERATORS_LEGEND = (
    'Operators that read rows of edges, and several reductions at once (mean, max, min, std). "separate operators": the same '
    "result by halfgnn's own operators, one after the other."
)
_LAYERS_LEGEND = (
    'A step of a layer, forward and backward. "with edges": 16 numbers per edge, which the layer projects. "halfgnn": its '
    'module; "drop-in": torch_geometric\'s under halfgnn.pyg.accelerate(fuse=False). MiB: what the forward saves for the backward, '
    "beyond inputs and parameters."
)
_NETWORKS_LEGEND = (
    'A step of a network on every edge, forward and backward, with the edges\' next features. "plain": rows of all edges in each '
    "layer; compiled and under torch.utils.checkpoint beside it. Kept: by the forward for the backward; peak: of a step, beyond "
    "what was there before; both in MiB."
)
_NETWORKS = ("halfgnn", "plain", "plain compiled", "checkpoint")
_NETWORKS_HEADER = ["network", "graph", "features", "dtype", *_NETWORKS, "than plain", "than compiled", "than checkpoint",
                    "kept", "plain keeps", "peak", "plain's peak", "checkpoint's peak"]  # fmt: skip
_STEPS_LEGEND = (
    "A training step of a model of these layers, from forward to optimizer. MiB: at the peak, with graph and data."
)


def _rivals(case: Measured, ours: Row, dtype: str) -> tuple[Row | None, list[str]]:
    """The fastest rival in the type, and how many times faster than it and than the fastest in fp32 we are."""
    same, fp32 = case.fastest(dtype), case.fastest("fp32")
    factors = [faster(ours.ms, same.ms if same else None)]
    return same, [*factors, "" if dtype == "fp32" else faster(ours.ms, fp32.ms if fp32 else None)]


def _operator_lines(cases: Sequence[Measured]) -> Iterator[list[str]]:
    for case in cases:
        for dtype in _DTYPES:
            ours, separate = case.row(["halfgnn"], dtype), case.row(_SEPARATE, dtype)
            if ours is not None:
                rival, factors = _rivals(case, ours, dtype)
                others = [time(separate), faster(ours.ms, separate.ms if separate else None)]
                others += [f"{time(rival)} {rival.backend}" if rival else "-", *factors]
                yield [ours.op, ours.direction, graph_name(ours), shape(ours), dtype, time(ours), *others]


def _layer_lines(cases: Sequence[Measured]) -> Iterator[list[str]]:
    for case in cases:
        for dtype in _DTYPES:
            found = {name: case.row(names, dtype) for name, names in _LAYERS.items()}
            ours = found["halfgnn"]
            if ours is not None:
                rival, factors = _rivals(case, ours, dtype)
                memory = [
                    (row.peak_mb if row.family == "train" else row.kept_mb) if row else None for row in (ours, rival)
                ]
                yield [ours.op, graph_name(ours), shape(ours), dtype, *map(time, found.values()), *factors,
                       *map(number, memory)]  # fmt: skip


def _network_lines(cases: Sequence[Measured]) -> Iterator[list[str]]:
    for case in cases:
        for dtype in _DTYPES:
            ours, *others = (case.row([name], dtype) for name in _NETWORKS)
            if ours is None:
                continue
            plain, _, again = others
            kept, peaks = (
                [row.kept_mb if row else None for row in (ours, plain)],
                [row.peak_mb if row else None for row in (ours, plain, again)],
            )
            factors = [faster(ours.ms, row.ms if row else None) for row in others]
            yield [ours.op, graph_name(ours), str(ours.dim), dtype, *map(time, (ours, *others)), *factors,
                   *map(number, (*kept, *peaks))]  # fmt: skip


def _of_machine(rows: Sequence[Row]) -> Iterator[str]:
    cases: dict[str, list[Measured]] = {}
    for case in by_case(rows).values():
        family = case.first.family
        kinds = {"edge_network": "networks", "train": "steps"}
        kind = "layers" if family.endswith("layer") else kinds.get(family, "operators")
        cases.setdefault(kind, []).append(case)
    yield f"**{machine(rows[0])}**"
    for kind, legend, header, lines in (
        ("operators", _OPERATORS_LEGEND, _OPERATORS, _operator_lines),
        ("layers", _LAYERS_LEGEND, _LAYERS_HEADER, _layer_lines),
        ("networks", _NETWORKS_LEGEND, _NETWORKS_HEADER, _network_lines),
        ("steps", _STEPS_LEGEND, _LAYERS_HEADER, _layer_lines),
    ):
        made = list(lines(cases.get(kind, [])))
        if made:
            yield f"{legend}\n\n{markdown(header, made, 5 if kind == 'operators' else 4)}"


def layers_headline(rows: Sequence[Row]) -> str:
    """A line per layer in bf16, of the processor on which layers were measured last."""
    of_layers = [row for row in rows if row.family == "edge_layer"]
    if not of_layers:
        return ""
    found = list(by_machine(of_layers).values())[-1]
    lines = []
    for case in by_case(found).values():
        ours = case.row(_LAYERS["halfgnn"], "bf16")
        if ours is not None:
            rival, factors = _rivals(case, ours, "bf16")
            cells = [f"{time(rival)} {rival.backend}" if rival else "-", *factors]
            lines.append([ours.op, time(ours), *cells, number(ours.kept_mb), number(rival.kept_mb if rival else None)])
    if not lines:
        return ""
    first = found[0]
    header = ["layer", "halfgnn", "fastest rival", "faster", "fp32 rival", "MiB, halfgnn", "MiB, rival"]
    legend = (
        "Milliseconds per step of one layer in bf16, forward and backward, on a batch of "
        f"{first.num_nodes:,} nodes and {first.num_edges:,} edges. The rival is the fastest of torch_geometric's module, the "
        'same under torch.compile, and dgl.nn\'s module. "with edges": 16 numbers per edge. "fp32 rival": the speedup over the '
        f"fastest of these in fp32. MiB: size of the tensors saved for the backward pass. {machine(first)}."
    )
    return f"{legend}\n\n{markdown(header, lines, 1)}"


def edges_tables(rows: Sequence[Row]) -> Iterator[str]:
    """Per processor: operators, layers, steps; then the targets of features of edges, and the source of the rows."""
    if rows:
        yield _LEGEND
        for found in by_machine(rows).values():
            yield from _of_machine(found)
        if any(row.family in EDGE_FAMILIES for row in rows):
            yield targets_table(rows)
        yield source(rows)
