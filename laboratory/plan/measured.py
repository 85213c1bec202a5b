"""What operators took on an H200: rows of benchmarks/results/cuda.csv, as cells of tables."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import NamedTuple

RESULTS = Path(__file__).resolve().parents[2] / "benchmarks" / "results" / "cuda.csv"
GPU = "NVIDIA H200"
GRAPHS = ("reddit-size", "products-size")  # arxiv-size is bound by what the model lacks: launches, and rows that wait


class Cell(NamedTuple):
    op: str
    direction: str
    heads: int
    dim: int

    @property
    def label(self) -> str:
        return f"{self.op}, {self.heads} x {self.dim}, {self.direction}"


ATTENTIONS = ("gat_attention", "gatv2_attention", "dot_attention")
CELLS = [
    Cell("copy_u_sum", "forward", 1, 128),
    *(Cell("u_mul_e_sum", direction, 1, 128) for direction in ("forward", "backward")),
    Cell("u_dot_v", "forward", 1, 128),
    *(
        Cell(op, direction, heads, 128 // heads)
        for op in ATTENTIONS
        for heads in (1, 8)
        for direction in ("forward", "backward")
    ),
]


def measured() -> dict[tuple[str, Cell], float]:
    """Seconds by graph and cell, of fp16."""
    found = {}
    with open(RESULTS, newline="") as file:
        for row in csv.DictReader(file):
            wanted = (row["gpu"], row["backend"], row["dtype"], row["order"]) == (GPU, "halfgnn", "fp16", "sorted")
            if wanted and row["cache"] == "warm" and row["ms"]:
                cell = Cell(row["op"], row["direction"], int(row["heads"]), int(row["dim"]))
                found[row["graph"].split(" ")[0], cell] = float(row["ms"]) / 1e3
    return {(graph, cell): found[graph, cell] for graph in GRAPHS for cell in CELLS}
