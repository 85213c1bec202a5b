"""Types of edges and nodes, given as integers."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from halfgnn.common.operands import check_operand
from halfgnn.graph import Graph


def check_edge_types(g: Graph, etypes: Any, name: str) -> None:
    """Raises unless etypes is (E,) of integers."""
    check_operand(etypes, name, g, "e")
    check_types(etypes, name, g.num_edges)


def check_types(types: Tensor, name: str, count: int) -> None:
    """Raises unless types is (count,) of integers."""
    if types.shape != (count,):
        raise ValueError(f"{name} has shape {tuple(types.shape)}; expected ({count},)")
    if types.is_floating_point() or types.is_complex() or types.dtype == torch.bool:
        raise TypeError(f"{name} has dtype {types.dtype}; expected integers")


def counts_of(ends: list[int], device: torch.device) -> Tensor:
    """The number of rows of each type, from the number of rows of it and of those before it."""
    return torch.tensor([end - begin for begin, end in zip([0, *ends], ends)], device=device)
