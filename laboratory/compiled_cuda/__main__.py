"""Kernels that a compiled step of layers of torch_geometric launches on CUDA: python -m laboratory.compiled_cuda

Forward and backward of one layer of 64 under halfgnn.pyg.patch(), counted in Inductor's code for CUDA, which needs no GPU.
"""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from torch import nn

import halfgnn.pyg

from .fake_gpu import cuda_code, graphs_of

_CALL = re.compile(
    r"^\s+(?:\w+ = )?(triton_\w+)\.run\(|^\s+(?:\w+ = )?(extern_kernels\.\w+)\(|= torch\.ops\.(halfgnn\w*\.\w+)\.", re.M
)
_OPERATORS = {
    "gspmm": ("u_mul_e_sum", 0), "gspmm_backward": ("u_mul_e_sum", 1), "gat_attention": ("gat_attention", 0),
    "gat_attention_backward": ("gat_attention", 1), "gatv2_attention": ("gatv2_attention", 0),
    "gatv2_attention_backward": ("gatv2_attention", 1), "dot_attention": ("dot_attention", 0),
    "dot_attention_backward": ("dot_attention", 1), "gsddmm": ("u_dot_v", 0), "gsddmm_backward": ("u_dot_v", 1),
}  # fmt: skip


def launches_of_operators(has_long_rows: bool = True) -> dict[str, int]:
    """Kernels of each operator, of a graph that may have long rows or has none, as docs/operators.md has them from the simulator.

    Lookups of what is cached (halfgnn_pyg) launch none.
    """
    text = (Path(__file__).parents[2] / "docs/operators.md").read_text().partition("<!-- launches: begin -->")[2]
    found = {}
    for name, (row, place) in _OPERATORS.items():
        cells = next(line for line in text.splitlines() if line.startswith(f"| {row} |")).split("|")[2:4]
        found[f"halfgnn.{name}"] = int(re.findall(r"\d+", cells[place])[-1 if has_long_rows else 0])
    return found


def calls(layer: nn.Module) -> list[Counter[str]]:
    """The kernels and operators that the code of each graph of a step calls, forward first."""
    x, edge_index = torch.randn(3000, 64, requires_grad=True), torch.randint(3000, (2, 45_000))
    with halfgnn.pyg.accelerate():
        graphs = graphs_of(layer, x, edge_index)
    bodies = [cuda_code(*graph).partition("def call(")[2].partition("runner = ")[0] for graph in graphs]
    return [Counter(next(filter(None, call)) for call in _CALL.findall(body)) for body in bodies]


def launches(counts: list[Counter[str]]) -> list[int]:
    """Kernels of each graph."""
    known = launches_of_operators()
    return [
        sum(n * (0 if x.startswith("halfgnn_pyg.") else known.get(x, 1)) for x, n in part.items()) for part in counts
    ]


def layers() -> dict[str, Any]:
    from torch_geometric.nn import GATConv, GCNConv

    return {"GCNConv": GCNConv(64, 64), "GATConv": GATConv(64, 8, 8)}


def main() -> None:
    for name, layer in layers().items():
        counts = calls(layer)
        found = launches(counts)
        print(f"{name}: {sum(found)} launches ({' + '.join(map(str, found))})")
        for title, part in zip(("forward", "backward"), counts):
            print(f"  {title}: {', '.join(f'{n} x {x}' if n > 1 else x for x, n in part.items())}")


if __name__ == "__main__":
    main()
