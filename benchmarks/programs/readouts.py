"""Aggregations and norms of nodes by the graph of a batch that they are in."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import Linear, Module
from torch_geometric import nn

from .data import FEATURES as F
from .data import ProgramData
from .program import Program, readout


class _Projected(Module):
    """A readout of projected features, as a model has it."""

    def __init__(self, aggregate: Callable[[Tensor, Tensor], Tensor]):
        super().__init__()
        self.project, self.aggregate = Linear(F, F), aggregate

    def forward(self, x: Tensor, batch: Tensor) -> Tensor:
        return self.aggregate(self.project(x), batch)


def _program(name: str, make: Callable[[], Any], call: Any = readout) -> Program:
    return Program(name, lambda data: _Projected(make()), call)


def _pools(x: Tensor, batch: Tensor) -> Tensor:
    return torch.cat([pool(x, batch) for pool in (nn.global_mean_pool, nn.global_max_pool, nn.global_add_pool)], 1)


def _top(module: Any, d: ProgramData) -> Tensor:
    return module(d.x, d.edge_index, batch=d.batch)[0]


PROGRAMS: tuple[Program, ...] = (
    _program("global pools", lambda: _pools),
    _program("SoftmaxAggregation", lambda: nn.SoftmaxAggregation(learn=True)),
    _program("AttentionalAggregation", lambda: nn.AttentionalAggregation(Linear(F, 1), Linear(F, F))),
    _program("Set2Set", lambda: nn.Set2Set(F, processing_steps=3)),
    _program("MultiAggregation", lambda: nn.MultiAggregation(["mean", "std", "max"])),
    _program("VariancePreservingAggregation", nn.VariancePreservingAggregation),
    _program("GraphNorm", lambda: nn.GraphNorm(F)),
    _program("InstanceNorm", lambda: nn.InstanceNorm(F)),
    _program("LayerNorm of graphs", lambda: nn.LayerNorm(F, mode="graph")),
    _program("PairNorm", nn.PairNorm),
    Program("TopKPooling", lambda data: nn.TopKPooling(F), _top),
    Program("SAGPooling", lambda data: nn.SAGPooling(F), _top),
)
