"""A program of torch_geometric: how its module is built, and how it is called with the data of a size."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from .data import ProgramData

Call = Callable[[Any, ProgramData], Any]


@dataclass(frozen=True)
class Program:
    """build: the module, for data of one size. call: the forward; returns tensors, in any nesting of tuples, lists and dicts.

    sizes: those that suit it; empty: all. has_gradient: False for a program that is a forward only. has_half: False for one that
    torch_geometric does not run under autocast.
    """

    name: str
    build: Callable[[ProgramData], nn.Module]
    call: Call
    sizes: tuple[str, ...] = ()
    has_gradient: bool = True
    has_half: bool = True

    def suits(self, size: str) -> bool:
        return not self.sizes or size in self.sizes

    def dtypes(self, asked: Sequence[str]) -> list[str]:
        return [dtype for dtype in asked if dtype == "fp32" or self.has_half]


def tensors_in(result: Any) -> list[Tensor]:
    """The floating-point tensors of a nested result, in order."""
    if isinstance(result, Tensor):
        return [result] if result.is_floating_point() else []
    parts = result.values() if isinstance(result, dict) else result if isinstance(result, (tuple, list)) else ()
    return [tensor for part in parts for tensor in tensors_in(part)]


# ---- the usual calls -------------------------------------------------------------------------------------------------


def plain(module: Any, d: ProgramData) -> Any:
    return module(d.x, d.edge_index)


def weighted(module: Any, d: ProgramData) -> Any:
    return module(d.x, d.edge_index, d.edge_weight)


def with_edges(module: Any, d: ProgramData) -> Any:
    return module(d.x, d.edge_index, d.edge_attr)


def typed(module: Any, d: ProgramData) -> Any:
    return module(d.x, d.edge_index, d.edge_type)


def hetero(module: Any, d: ProgramData) -> Any:
    return module(d.x_dict, d.edge_index_dict)


def readout(module: Any, d: ProgramData) -> Any:
    return module(d.x, d.batch)
