"""The cases of sanitize.py reach the kernels that they are for. Needs no GPU."""

import re
from pathlib import Path

import pytest
import torch

from tests.gpu import sanitize

KERNELS = Path(__file__).resolve().parents[2] / "csrc" / "cuda" / "kernels"
if not KERNELS.is_dir():
    pytest.skip("the sources are not here", allow_module_level=True)


def constant(file, name):
    """The value of a constant of the kernels. It may be defined as a product with another constant."""
    text = (KERNELS / file).read_text()
    value = re.search(rf"constexpr \w+ (?:\w+ = [^;,]+, )*{name} = ([^;,]+)[;,]", text)
    assert value, f"{file} has no {name}"
    factors = (int(f) if f.isdigit() else constant(file, f) for f in re.split(r" \* ", value[1]))
    return torch.tensor(list(factors)).prod().item()


def slots_of_rows(indptr):
    """The number of slots of each row, as in core/rows.cuh. 0 for rows that are not cut."""
    piece, num_edges = 1 << constant("core/rows.cuh", "kLog2Piece"), int(indptr[-1])
    assert num_edges < piece * 1000  # far from kMaxSlots
    begin, end = indptr[:-1].long(), indptr[1:].long()
    slots = (end + piece - 1) // piece - (begin + piece - 1) // piece
    return torch.where(end - begin >= piece, slots, 0)


def test_blocks_combine_the_pieces_of_hubs():
    """Blocks combine hubs in the rows of the forward and of the backward. Warps combine those of the other graphs."""
    few = constant("core/long_rows.cuh", "kFewSlots")
    graphs = {name: graph for name, graph, *_ in sanitize.plan(4)}
    for side in ("csc", "csr"):
        slots = {
            name: slots_of_rows(getattr(graph, side)().indptr).max()
            for name, graph in graphs.items()
            if graph.num_edges
        }
        assert slots["hubs for blocks"] > few
        assert 0 < slots["hubs"] <= few


def test_every_combining_operator_meets_that_hub():
    cases = [case.name for name, _, case, *_ in sanitize.plan(4) if name == "hubs for blocks"]
    for part in ("_sum", "_mean", "_max", "_min", "edge_softmax", "gat_", "gatv2_", "dot_attention", "u_dot_v"):
        assert any(part in name for name in cases)
