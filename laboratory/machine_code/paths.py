"""The path of a row: instructions that warps issue per row of 1, 7, 50 and 1,024 edges, for each kernel on a fast path.

    python -m laboratory.machine_code.paths [--update | --only OPERATOR ...] [LIBRARY]      by default halfgnn/_C.so

LIBRARY may be a cubin, or a folder of cubins: passes whose kernels they lack are left out.
Prints the table; --update also rewrites paths.csv and the table of docs/machine_code.md. The simulator supplies launches as for a
graph of arxiv's size; warps of them, evenly chosen, execute the compiled machine code (emulator).

"per edge" is that of rows of 1,024 edges, which are two pieces. "beside" is what a row of 7 edges takes beside 7 times that.
"ALU" is the share of the instructions of rows of 1,024 edges that a multiprocessor executes at half the rate at which it issues.
"""

from __future__ import annotations

import argparse
import csv
import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from . import disassembly, launches, tables

DEGREES = (1, 7, 50, 1024)
NODES = 169_343  # arxiv's
REDUCES = ("mean", "max", "min", "std")  # of copy_u_reduce
EDGE_ROWS = 1 << 21  # edges of a graph, at most, if each has a row of its own
LONG, LONG_ROWS = 512, 8192  # so many rows of that many edges and more; they gather from as many as in the other graphs
BLOCKS = 96  # of a launch that are executed, at most; a quarter of them if rows are long
# The sanitizer's allocator fills new tensors, so that what nothing wrote is the same in every run, and small: 3.1 in fp16 and
# 48.6 in fp32. The latter is above every logit, as a log of a sum of exponentials is.
FILLED = ":malloc_fill_byte=66:max_malloc_fill_size=2147483647"
COMMITTED = Path(__file__).with_name("paths.csv")
COLUMNS = (
    "operator",
    "heads x elements",
    "pass",
    *(f"degree {degree}" for degree in DEGREES),
    "per edge",
    "beside",
    "ALU",
)
# Integer additions, comparisons, logic, shifts, selections and minima, which compute capability 8.0 to 9.0 executes for 64 lanes
# per clock and multiprocessor, of 128 that it issues ("Arithmetic Instructions" of the CUDA programming guide).
HALF_RATE = ("IADD3", "LOP3", "SHF", "LEA", "PRMT", "SEL", "FSEL", "ISETP", "FSETP", "HSETP2", "HSET2", "IMNMX", "VIMNMX",
             "FMNMX", "HMNMX2", "PLOP3", "BMSK", "SGXT", "IABS", "VABSDIFF")  # fmt: skip
BEGIN, END = "<!-- paths: begin, nvcc {} -->", "<!-- paths: end -->"


@dataclass(frozen=True)
class Pass:
    """One pass of an operator. The kernels that are counted are those that are given the neighbours of its rows."""

    operator: str
    shape: tuple[int, int]  # heads, elements of each
    name: str  # of the pass
    rows: str  # "destinations" or "sources"
    is_backward: bool = False
    edges: str = ""  # what edges add to an attention, or to a gated sum beside their gates: EDGES
    kernel: str = ""  # the kernel that is counted, if it is not given neighbours

    @property
    def label(self) -> list[str]:
        operator = f"{self.operator}, {self.edges}" if self.edges else self.operator
        return [operator, f"{self.shape[0]} x {self.shape[1]}", self.name]


def _forward(operator, *widths) -> list[Pass]:
    return [Pass(operator, (1, width), "forward", "destinations") for width in widths]


def _passes(operator, width, edges="") -> list[Pass]:
    """With both of the backward."""
    return [
        Pass(operator, (1, width), "forward", "destinations", edges=edges),
        Pass(operator, (1, width), "to destinations", "destinations", True, edges=edges),
        Pass(operator, (1, width), "to sources", "sources", True, edges=edges),
    ]


# Arguments of an operator by what edges add to it, and the shapes of their rows; weights are parameters.
COLUMNS_OF_EDGES = 16
EDGES = {
    "bias": {"edge_bias": lambda path: (path.shape[0],)},
    "columns": {
        "edge_feat": lambda path: (COLUMNS_OF_EDGES,),
        "edge_key_weight": lambda path: (COLUMNS_OF_EDGES,),
        "edge_value_weight": lambda path: (COLUMNS_OF_EDGES,),
    },
    "values": {"edge_value": lambda path: path.shape[1:]},
    "columns in keys": {
        "edge_feat": lambda path: (COLUMNS_OF_EDGES,),
        "edge_weight": lambda path: (COLUMNS_OF_EDGES,),
    },
}


PATHS = [
    *_forward("copy_u_sum", 16, 128),
    *_forward("u_mul_e_sum", 128, 256),
    Pass("u_mul_e_sum", (1, 128), "backward", "sources", True),
    *_forward("u_relu_add_e_sum", 128),
    Pass("u_relu_add_e_sum", (1, 128), "backward", "sources", True),
    *_passes("gated_sum", 128),
    *_passes("gated_sum", 128, "values"),
    *_forward("copy_u_max", 128),
    *_forward("copy_u_reduce", 128),
    Pass("copy_u_reduce", (1, 128), "backward", "sources", True),
    *_forward("u_dot_v", 128),
    *(
        Pass("edge_softmax", (heads, 1), name, "destinations", name == "backward", kernel="softmax_rows")
        for heads in (1, 8)
        for name in ("forward", "backward")
    ),
    Pass("gat_attention", (1, 128), "forward", "destinations"),
    Pass("gat_attention", (1, 128), "forward, training", "destinations"),
    Pass("gat_attention", (1, 128), "backward", "sources", True),
    *_passes("gatv2_attention", 128),
    *_passes("dot_attention", 128),
    *_passes("gatv2_attention", 128, "bias")[:2],
    *_passes("dot_attention", 128, "bias"),
    *_passes("dot_attention", 128, "columns")[:2],  # to sources as with a bias
    Pass("dot_attention", (1, 128), "of columns", "destinations", True, "columns", "column_gradient_kernel"),
    *_passes("gatv2_attention", 128, "columns in keys")[:2],  # to sources as with a bias
    Pass(
        "gatv2_attention",
        (1, 128),
        "of columns",
        "destinations",
        True,
        "columns in keys",
        "projected_feat_gradient_kernel",
    ),
    Pass(
        "gatv2_attention",
        (1, 128),
        "of the weight",
        "destinations",
        True,
        "columns in keys",
        "projection_weight_gradient_kernel",
    ),
]


# ---- on the simulator ----------------------------------------------------------------------------


def _has_edge_rows(path: Pass) -> bool:
    return path.operator in ("u_relu_add_e_sum", "gated_sum") or path.edges.startswith("columns")


def _graph(path: Pass, degree: int):
    """Rows of this many random neighbours on the side that is measured; what the other side has is not read."""
    import torch

    from halfgnn import Graph

    count = NODES if degree < LONG else LONG_ROWS
    if _has_edge_rows(path):
        count = min(count, EDGE_ROWS // degree)
    edges = count * degree
    generator = torch.Generator().manual_seed(degree)
    # At an odd address: the bytes that pad a launch's parameters may hold part of one, and look like it at an even address.
    neighbours = torch.randint(NODES, (1 + edges,), dtype=torch.int32, generator=generator)[1:]
    measured = torch.arange(0, edges + 1, degree, dtype=torch.int32)
    other = torch.zeros(NODES + 1, dtype=torch.int32)
    if path.rows == "destinations":
        ids = torch.zeros(edges, dtype=torch.int32)
        return Graph(NODES, count, csc=(measured, neighbours, None), csr=(other, ids.clone(), ids))
    ids = torch.randperm(edges, generator=generator).int()
    return Graph(count, NODES, csc=(other, neighbours.clone(), None), csr=(measured, neighbours, ids))


def _calls(path: Pass, g) -> tuple[Callable, Callable]:
    """What calls the operator, and what calls the backward of its result."""
    import torch

    from halfgnn import ops

    torch.manual_seed(1)
    heads, width = path.shape

    def rows(count, *shape):
        return torch.randn(count, *shape).half().requires_grad_(path.name != "forward")

    u, v = (lambda *shape: rows(g.num_src, *shape)), (lambda *shape: rows(g.num_dst, *shape))
    if path.operator == "gat_attention":
        operands = [u(heads, width), u(heads), v(heads)]
    elif path.operator == "gatv2_attention":
        operands = [u(heads, width), v(heads, width), rows(heads, width)]
    elif path.operator == "edge_softmax":
        operands = [rows(g.num_edges, heads)]
    elif path.operator == "dot_attention":
        operands = [v(heads, width), u(heads, width), u(heads, width)]
    else:
        operands = [u(width)]
        operands += [u(width), v(width)] if path.operator == "gated_sum" else []
        operands += [rows(g.num_edges, 1)] if "mul_e" in path.operator else []
        operands += [rows(g.num_edges, width)] if _has_edge_rows(path) else []
        operands += [v(width)] if "dot_v" in path.operator else []

    if path.operator == "copy_u_reduce":
        operands.append(REDUCES)
    named = {
        name: rows(heads * width if name.endswith("weight") else g.num_edges, *shape(path))
        for name, shape in EDGES.get(path.edges, {}).items()
    }

    def forward():
        return getattr(ops, path.operator)(g, *operands, **named)

    def backward(results):
        results = results if isinstance(results, tuple) else (results,)
        torch.autograd.backward(results, [torch.randn(result.shape).half() for result in results])

    return forward, backward


def measure(path: Pass, degree: int, library) -> tuple[float, float]:
    """Instructions of all warps, divided by the rows, and those of them that are executed at half the rate."""
    from .emulator import run

    g = _graph(path, degree)
    side = g.csc() if path.rows == "destinations" else g.csr()
    neighbours = side.indices.data_ptr().to_bytes(8, "little")
    (forward, backward), found = _calls(path, g), []
    blocks = BLOCKS if degree < LONG else BLOCKS // 4

    def take(launch) -> bool:
        if library.is_part and launch.kernel not in library.names():
            return True
        made = launch.call(library)
        if path.kernel in launch.kernel if path.kernel else neighbours in made.parameters:
            count = min(blocks, made.blocks)
            counts = run(made, [(2 * k + 1) * made.blocks // (2 * count) for k in range(count)])
            half = sum(n for opcode, n in counts.by_opcode().items() if opcode.split(".")[0] in HALF_RATE)
            found.append([n / counts.blocks * made.blocks for n in (counts.total, half)])
        return True  # nothing else is executed: a counted kernel reads FILLED in its place

    if path.is_backward:
        with launches.hooked(lambda launch: True):
            result = forward()
        with launches.hooked(take):
            backward(result)
    else:
        with launches.hooked(take):
            forward()
    if not found:
        raise LookupError(f"no kernel of {path.label} walks {path.rows}")
    total, half = (sum(numbers) / (len(side.indptr) - 1) for numbers in zip(*found))
    return total, half


def rows_of(library_path, operators: list[str]) -> list[list[str]]:
    from .emulator import Library

    library, rows = Library(library_path), []
    for path in PATHS:
        if operators and path.operator not in operators:
            continue
        try:
            measured = [measure(path, degree, library) for degree in DEGREES]
        except LookupError:
            if library.is_part:
                continue
            raise
        per_row, share = [total for total, _ in measured], measured[-1][1] / measured[-1][0]
        per_edge = per_row[-1] / DEGREES[-1]
        beside = per_row[DEGREES.index(7)] - 7 * per_edge
        rows.append(
            [*path.label, *(f"{value:.0f}" for value in per_row), f"{per_edge:.1f}", f"{beside:.0f}", f"{share:.0%}"]
        )
        print(*rows[-1], sep=" | ", flush=True)
    return rows


# ---- what is committed ---------------------------------------------------------------------------


def section(rows: list[list[str]]) -> str:
    return "\n\n".join([BEGIN.format(tables.nvcc_version()), tables.markdown(list(COLUMNS), rows), END])


def write(rows: list[list[str]]) -> None:
    with open(COMMITTED, "w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerows([COLUMNS, *rows])
    text = tables.DOCUMENT.read_text()
    pattern = re.escape(BEGIN).replace(re.escape("{}"), r"\S+") + ".*?" + re.escape(END)
    if not re.search(pattern, text, re.DOTALL):
        raise ValueError(f"{tables.DOCUMENT} has no markers")
    tables.DOCUMENT.write_text(re.sub(pattern, lambda _: section(rows), text, flags=re.DOTALL))


def on_simulator(module: str, arguments: list[str]) -> int:
    """Runs a module of this package in a process on the simulator, which is built first; its status."""
    from laboratory.simt import build

    build.build()
    environment = {**build.environment(), "PYTHONPATH": str(disassembly.ROOT)}
    environment["ASAN_OPTIONS"] += FILLED
    environment["HALFGNN_DOT_PHASES"] = "1"  # the kernels of dot attention, and not those of other operators
    command = [sys.executable, "-m", module, *arguments]
    return subprocess.run(command, env=environment, check=False, cwd=os.getcwd()).returncode


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("library", nargs="?", default=disassembly.ROOT / "halfgnn" / "_C.so")
    choice = parser.add_mutually_exclusive_group()
    choice.add_argument("--update", action="store_true", help="rewrite paths.csv and the table of docs/machine_code.md")
    choice.add_argument("--only", nargs="+", default=[], choices=sorted({path.operator for path in PATHS}))
    args = parser.parse_args()
    if reason := launches.why_not(args.library):
        sys.exit(reason)
    if not os.environ.get("HALFGNN_SIMT"):
        sys.exit(on_simulator("laboratory.machine_code.paths", sys.argv[1:]))
    rows = rows_of(args.library, args.only)
    if args.update:
        write(rows)


if __name__ == "__main__":
    main()
