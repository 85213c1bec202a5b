"""The tables of predicted times in docs/tuning.md, from the model behind the planners."""

from __future__ import annotations

import re
from pathlib import Path

from .measured import CELLS, Cell, measured
from .measured import GRAPHS as MEASURED_GRAPHS
from .planners import Device, Layout, Planners, Slices, Times

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "tuning.md"
BEGIN, END = "<!-- predicted: {}, begin -->", "<!-- predicted: {}, end -->"
# Nodes and edges of the graphs that benchmarks/graphs.py makes, and the skew of their sources.
GRAPHS = {
    "reddit-size": (232_965, 114_615_892),
    "products-size": (2_449_029, 123_718_280),
    "proteins-size": (132_534, 79_122_504),
    "arxiv-size": (169_343, 1_166_243),
}
SKEWS = {"reddit-size": 0.34, "products-size": 0.44, "proteins-size": 0.24, "arxiv-size": 0.39}
H100, H200 = "NVIDIA H100 80GB HBM3", "NVIDIA H200"
WIDTHS = (64, 128, 256)
HALF, ID = 2, 4  # bytes
BOUNDS = {"cache": "L2", "memory": "HBM", "issue": "issue"}
Cells = list[str]


def markdown(header: Cells, rows: list[Cells]) -> str:
    return "\n".join(f"| {' | '.join(line)} |" for line in [header, ["---"] * len(header), *rows])


# ---- what the model says -------------------------------------------------------------------------


class Model:
    """Times of operators on a device: fp16, int32 ids, one fp16 weight per edge in the order of the in-adjacency."""

    def __init__(self, planners: Planners, device: Device):
        self.planners, self.device = planners, device

    def _times(self, graph, row_bytes, slices: Slices, once=0.0) -> Times:
        nodes, edges = GRAPHS[graph]
        return self.planners.times(self.device, nodes, row_bytes, edges, slices, once, skew=SKEWS[graph])

    def _of_features(self, graph, row_bytes) -> int:
        return GRAPHS[graph][0] * row_bytes

    def gather(self, graph, width) -> Times:
        """The best of tiles of 128 bytes, 256 bytes and whole rows."""
        row_bytes = HALF * width
        tiles = {min(tile, row_bytes) for tile in (128, 256, row_bytes)}
        streamed = ID * GRAPHS[graph][1]
        slices = [Slices(-(-row_bytes // tile), tile, True, 0.0, streamed, 0.0) for tile in tiles]
        return min((self._times(graph, row_bytes, s) for s in slices), key=Times.bound)

    def sums(self, graph, width, weights=True) -> tuple[Times, int]:
        """Of u_mul_e_sum, or of copy_u_sum, and the number of slices."""
        nodes, edges = GRAPHS[graph]
        row_bytes, stream = HALF * width, ID + HALF if weights else ID
        kernel = "weighted_sum" if weights else "sum"
        plan, slices = self.planners.lanes_and_slices(
            self.device, nodes, edges, row_bytes, stream=stream, kernel=kernel
        )
        return self._times(graph, row_bytes, slices, self._of_features(graph, row_bytes)), plan.slices

    def dots(self, graph, width) -> Times:
        nodes, edges = GRAPHS[graph]
        row_bytes = HALF * width
        _, slices = self.planners.whole_heads_and_slices(
            self.device, nodes, edges, 1, row_bytes // 16, max_log2_groups=2, kernel="dot"
        )
        slices.streamed = edges * (ID + HALF)
        return self._times(graph, row_bytes, slices, self._of_features(graph, row_bytes))

    def backward(self, graph, width) -> list[Times]:
        """Of u_mul_e_sum, both gradients: of one kernel, or of two."""
        two, (one, *both) = self.planners.weighted_backward(self.device, *GRAPHS[graph], HALF * width, HALF, ID)
        return both if two else [one]

    def gat(self, graph, heads, dim) -> tuple[Times, Times]:
        """Forward, of which a backward follows, and backward."""
        nodes, edges = GRAPHS[graph]
        row_bytes = HALF * heads * dim
        found = []
        # Bytes per (edge, head) read from L2, and rows written or read once.
        for kernel, record_bytes, rows in (("gat_training", 4, 3), ("gat_backward", 16, 2)):
            plan, slices = self.planners.parts_of_heads_and_slices(
                self.device, nodes, edges, heads, HALF * dim // 16, kernel=kernel
            )
            slices.node_bytes = record_bytes << plan.log2_heads
            slices.cached_per_edge = sectors(record_bytes << plan.log2_heads)
            found.append(self._times(graph, row_bytes, slices, rows * self._of_features(graph, row_bytes)))
        return found[0], found[1]

    def _pair(self, graph, heads, dim, kernel, rows_per_edge) -> tuple[Layout, Slices]:
        """Of a pass of GATv2 or dot attention."""
        return self.planners.whole_heads_and_slices(
            self.device, *GRAPHS[graph], heads, HALF * dim // 16,
            max_log2_groups=3, kernel=kernel, rows_per_edge=rows_per_edge,
        )  # fmt: skip

    def gatv2(self, graph, heads, dim, with_records=True) -> tuple[Times, list[Times]]:
        """Forward, and the two passes of the backward, which keeps records of edges where they fit and take less time."""
        (nodes, edges), row_bytes = GRAPHS[graph], HALF * heads * dim
        ask = dict(nodes=nodes, device=self.device)
        has_records = with_records and self.planners.takes_edge_records(heads, dim, edges // nodes, **ask)
        record = self.edge_record_bytes(graph, heads, dim) if has_records else 0
        found = []
        # Rows that an edge reads, and rows that a node reads or writes: before passes to destinations, for the keys' logits.
        rows = (("forward", 1, 4), ("destinations", 1, 7), ("sources", 1 if record else 2, 3))
        for which, per_edge, once in rows:
            recorded = "recorded_" if record and which != "forward" else ""
            plan, slices = self._pair(graph, heads, dim, f"{recorded}gatv2_{which}", per_edge)
            slices.streamed = edges * (2 * ID + record if recorded else ID)
            of_head = 8 if which == "sources" else 4
            slices.node_bytes = 0 if which == "sources" and record else of_head << plan.log2_heads
            slices.cached_per_edge = (record if which == "sources" else 0) or sectors(of_head << plan.log2_heads)
            found.append(self._times(graph, per_edge * row_bytes, slices, once * self._of_features(graph, row_bytes)))
        return found[0], found[1:]

    def edge_record_bytes(self, graph, heads, dim) -> int:
        return self.planners.edge_record_bytes(self.device.memory_bytes, GRAPHS[graph][1], heads, HALF * dim // 16)

    def dot(self, graph, heads, dim) -> tuple[Times, list[Times]]:
        """Forward, and the two passes of the backward."""
        (_, edges), row_bytes = GRAPHS[graph], 2 * HALF * heads * dim
        found = []
        for which, once in (("forward", 3), ("destinations", 6), ("sources", 4)):
            plan, slices = self._pair(graph, heads, dim, f"dot_attention_{which}", 2)
            slices.streamed = edges * ID
            if which == "sources":
                slices.node_bytes = 8 << plan.log2_heads
                slices.cached_per_edge = sectors(8 << plan.log2_heads)
            found.append(self._times(graph, row_bytes, slices, once * self._of_features(graph, row_bytes // 2)))
        return found[0], found[1:]

    def kernels_of(self, graph, cell: Cell) -> list[Times]:
        """Of a measured cell."""
        if cell.op == "u_dot_v":
            return [self.dots(graph, cell.dim)]
        if cell.op in ("copy_u_sum", "u_mul_e_sum"):
            is_forward, has_weights = cell.direction == "forward", cell.op == "u_mul_e_sum"
            return [self.sums(graph, cell.dim, has_weights)[0]] if is_forward else self.backward(graph, cell.dim)
        forward, backward = getattr(self, cell.op.removesuffix("_attention"))(graph, cell.heads, cell.dim)
        backward = [backward] if isinstance(backward, Times) else backward
        return [forward] if cell.direction == "forward" else backward


def sectors(size: int) -> int:
    """Bytes that an access of this size moves."""
    return -(-size // 32) * 32


# ---- cells ---------------------------------------------------------------------------------------


def milliseconds(seconds: float) -> str:
    value = 1e3 * seconds
    if value >= 99.5:
        return f"{value:.0f}"
    return f"{value:#.3g}" if value >= 1 else f"{value:.2f}" if value >= 0.1 else f"{value:.3f}"


def bound_of(times: list[Times]) -> str:
    """The name of what bounds the longest of several kernels."""
    longest = max(times, key=Times.bound)
    return next(BOUNDS[name] for name in BOUNDS if getattr(longest, name) == longest.bound())


def cell(times: Times | list[Times], gather: Times | None = None) -> str:
    kernels = [times] if isinstance(times, Times) else times
    total = sum(kernel.bound() for kernel in kernels)
    share = f", {100 * gather.bound() / total:.0f} %" if gather else ""
    return f"{milliseconds(total)}{share} ({bound_of(kernels)})"


# ---- tables --------------------------------------------------------------------------------------


def operators(planners: Planners) -> str:
    model, rows = Model(planners, planners.gpus()[H100]), []
    for graph, (nodes, edges) in GRAPHS.items():
        labels = [graph, f"{nodes:,} nodes", f"{edges:,} edges"]
        for label, width in zip(labels, WIDTHS):
            gather, (sums, slices) = model.gather(graph, width), model.sums(graph, width)
            gathered = edges * HALF * width / 1e9
            row = [label, str(width), f"{gathered:.2f} GB" if gathered < 1 else f"{gathered:.1f} GB"]
            row += [milliseconds(gather.bound()), cell(sums, gather), str(slices)]
            row.append(" / ".join(milliseconds(getattr(sums, name)) for name in BOUNDS))
            backward = model.backward(graph, width)
            row += [
                cell(model.dots(graph, width), gather),
                cell(backward, gather) + ", two kernels" * (len(backward) > 1),
            ]
            rows.append(row)
    header = ["H100, graph", "F", "gathered", "pure gather", "u_mul_e_sum", "slices", "its L2 / HBM / issue"]
    return markdown([*header, "u_dot_v", "u_mul_e_sum, backward"], rows)


def other_width(planners: Planners) -> str:
    model, rows = Model(planners, planners.gpus()[H200]), []
    for graph in GRAPHS:
        gather = model.gather(graph, 128)
        backward = model.backward(graph, 128)
        row = [graph, milliseconds(gather.bound()), cell(model.sums(graph, 128)[0], gather)]
        two = ", two kernels" * (len(backward) > 1)
        rows.append([*row, cell(model.dots(graph, 128), gather), cell(backward, gather) + two])
    return markdown(["H200, F = 128", "pure gather", "u_mul_e_sum", "u_dot_v", "u_mul_e_sum, backward"], rows)


def gpus(planners: Planners) -> str:
    """u_mul_e_sum with F = 128: every GPU of the table, its rates, and a column for each graph."""
    rows = []
    for name, device in planners.gpus().items():
        model = Model(planners, device)
        row = [name.removeprefix("NVIDIA ").removeprefix("GeForce "), f"{device.l2_bytes >> 20} MiB"]
        row += [f"{device.cache / 1e12:.1f}", f"{device.memory / 1e12:.2f}", f"{device.issue / 1e12:.2f}"]
        for graph in GRAPHS:
            times, slices = model.sums(graph, 128)
            row.append(f"{cell(times)}, {slices}")
        rows.append(row)
    header = ["u_mul_e_sum, F = 128", "L2", "TB/s", "memory TB/s", "T instructions/s"]
    return markdown([*header, *(f"{graph}, slices" for graph in GRAPHS)], rows)


def attention(planners: Planners) -> str:
    """On reddit-size: the passes, and both of the backward."""
    model, graph, rows = Model(planners, planners.gpus()[H100]), "reddit-size", []
    for shape in ((1, 128), (8, 32)):
        gat_forward, gat_backward = model.gat(graph, *shape)
        gather = milliseconds(model.gather(graph, shape[0] * shape[1]).bound())
        label = f"{shape[0]} x {shape[1]}, {gather}"
        operators = {"gat": (gat_forward, [gat_backward]), "gatv2": model.gatv2(graph, *shape)}
        if model.edge_record_bytes(graph, *shape):
            operators["gatv2, without records"] = model.gatv2(graph, *shape, with_records=False)
        operators["dot"] = model.dot(graph, *shape)
        for name, (forward, backward) in operators.items():
            passes = [cell(times) for times in backward] if len(backward) == 2 else ["-", cell(backward)]
            rows.append([label, name, cell(forward), *passes, milliseconds(sum(t.bound() for t in backward))])
    return markdown(["H x D, pure gather", "operator", "forward", "to destinations", "to sources", "backward"], rows)


def work(planners: Planners) -> str:
    """Instructions, and those of a row of 7 edges and 128 columns."""
    rows = []
    for kernel, label, rows_at_once in (
        ("sum", "`spmm_sum_kernel`, no weights", 2),
        ("weighted_sum", "`spmm_sum_kernel`, one weight per edge", 2),
        ("edge_sum", "`edge_sum_kernel`", 2),
        ("edge_sum_backward", "`edge_sum_backward_kernel`", 2),
        ("gated_sum_forward", "`gated_sum_kernel`", 1),
        ("gated_sum_destinations", "`gated_sum_backward_kernel`, to destinations", 1),
        ("gated_sum_sources", "the same, to sources", 1),
        ("gated_values_forward", "`gated_sum_kernel`, with values of edges", 1),
        ("gated_values_destinations", "`gated_sum_backward_kernel`, with values of edges, to destinations", 1),
        ("gated_values_sources", "the same, to sources", 1),
        ("extremum", "`spmm_extremum_kernel`", 2),
        ("copy_reduce", "`copy_reduce_kernel`", 2),
        ("mul_backward", "`mul_backward_kernel`", 2),
        ("dot", "`sddmm_dot_kernel`", 1),
        ("gat", "`gat_attention_kernel`, without a backward", 2),
        ("gat_training", "`gat_attention_kernel`, with one", 2),
        ("gat_backward", "`gat_attention_backward_kernel`", 2),
        ("dot_attention_forward", "`pair_attention_kernel`, dot, forward", 1),
        ("dot_attention_destinations", "the same, to destinations", 1),
        ("dot_attention_sources", "the same, to sources", 1),
        ("gatv2_forward", "`pair_attention_kernel`, GATv2, forward", 1),
        ("gatv2_destinations", "the same, to destinations", 1),
        ("gatv2_sources", "the same, to sources", 1),
        ("recorded_gatv2_destinations", "`pair_attention_kernel`, GATv2, with records of edges, to destinations", 1),
        ("recorded_gatv2_sources", "the same, to sources", 1),
        ("dot_bias_forward", "`pair_attention_kernel`, dot with a bias of edges, forward", 1),
        ("dot_bias_destinations", "the same, to destinations", 1),
        ("dot_bias_sources", "the same, to sources", 1),
        ("dot_columns_forward", "`pair_attention_kernel`, dot with 16 columns of edges, forward", 1),
        ("dot_columns_destinations", "the same, to destinations", 1),
        ("dot_bias_tensor_forward", "`pair_tensor_kernel`, dot, D = 128, with a bias of edges, forward", 1),
        ("dot_bias_tensor_destinations", "the same, to destinations", 1),
        ("dot_columns_tensor_forward", "`pair_tensor_kernel`, dot, D = 128, with 16 columns of edges, forward", 1),
        ("dot_columns_tensor_destinations", "the same, to destinations", 1),
        ("gatv2_bias_forward", "`pair_attention_kernel`, GATv2 with a bias of edges, forward", 1),
        ("gatv2_bias_destinations", "the same, to destinations", 1),
    ):
        found = planners.work(kernel)
        # On tensor cores, of 16 edges with two rows: 8 KiB.
        batch = found.batch / (4 if "tensor" in kernel else 1)
        rows.append([label, str(rows_at_once), f"{found.row / rows_at_once:.0f}", f"{batch:.0f}"])
    return markdown(["kernel", "rows of 7 edges at once", "per row, beside batches", "per batch of 2 KiB"], rows)


def beside_measured(planners: Planners) -> str:
    """For each measured cell of an H200: the bound, the expected time, the measured one, and how many times the expected it is."""
    model, taken, rows = Model(planners, planners.gpus()[H200]), measured(), []
    for which in CELLS:
        row = [which.label]
        for graph in MEASURED_GRAPHS:
            kernels, time = model.kernels_of(graph, which), taken[graph, which]
            expected = sum(kernel.expected() for kernel in kernels)
            bound = sum(kernel.bound() for kernel in kernels)
            row.append(", ".join([*map(milliseconds, (bound, expected, time)), f"{time / expected:.2f}"]))
        rows.append(row)
    columns = [f"{graph}: bound, expected, measured, ratio" for graph in MEASURED_GRAPHS]
    return markdown(["H200, ms", *columns], rows)


TABLES = {
    "operators": operators,
    "H200": other_width,
    "GPUs": gpus,
    "instructions": work,
    "attention": attention,
    "measured": beside_measured,
}


# ---- the document --------------------------------------------------------------------------------


def _pattern(name: str) -> re.Pattern:
    return re.compile(re.escape(BEGIN.format(name)) + "(.*?)" + re.escape(END.format(name)), re.DOTALL)


def with_tables(text: str, planners: Planners) -> str:
    """The document with the tables of the present model between its markers."""
    for name, table in TABLES.items():
        found = _pattern(name).search(text)
        if found is None:
            raise ValueError(f"there are no markers of the table {name!r}")
        text = f"{text[: found.start(1)]}\n\n{table(planners)}\n\n{text[found.end(1) :]}"
    return text
