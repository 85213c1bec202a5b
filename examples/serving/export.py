"""Exports a model of torch_geometric's layers for a C++ program without Python: see docs/serving.md.

Writes model.pt2, the compiled model; and inputs.pt and expected.pt, with which serve.cpp is tried.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.export import Dim

from halfgnn.pyg import GATConv, SAGEConv
from halfgnn.serving import merge_repeats

WIDTH, CLASSES = 16, 4


class Model(nn.Module):
    """Attention, then a mean over neighbours."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = GATConv(WIDTH, 8, heads=2)
        self.mean = SAGEConv(16, CLASSES)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.mean(self.attention(x, edge_index).relu(), edge_index).log_softmax(-1)


def export(model: nn.Module, folder: Path, num_nodes: int = 1_000, num_edges: int = 5_000) -> Path:
    """Compile the model for graphs of any size. The numbers are of the graph that it is tried with."""
    x, edge_index = torch.randn(num_nodes, WIDTH), torch.randint(num_nodes, (2, num_edges))
    shapes = ({0: Dim("nodes", min=2)}, {1: Dim("edges", min=2)})
    with torch.no_grad():
        program = torch.export.export(model.eval(), (x, edge_index), dynamic_shapes=shapes)
        path = torch._inductor.aoti_compile_and_package(merge_repeats(program), package_path=str(folder / "model.pt2"))
        # Another size than that of the export.
        inputs = [x[: num_nodes // 2].clone(), edge_index[:, : num_edges // 3] % (num_nodes // 2)]
        torch.save(inputs, folder / "inputs.pt")
        torch.save(model(*inputs), folder / "expected.pt")
    return Path(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="where the files go; it must exist")
    print(export(Model(), parser.parse_args().folder))


if __name__ == "__main__":
    main()
