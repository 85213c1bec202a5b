"""The parts of a benchmark: the configuration, and cases with their backends."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from .baselines import BY_DEFAULT
from .graphs import ORDERS, BenchGraph, named
from .operators import Problem
from .timing import GPU, Effort

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
DIRECTIONS = ("forward", "forward+backward", "backward")
LAYERS = ("GATConv", "GATConv without fc", "GraphConv", "SAGEConv")
MODELS = ("GAT", "GCN", "SAGE")


def name_of(dtype: torch.dtype) -> str:
    """bf16, fp16 or fp32."""
    return next(name for name, value in DTYPES.items() if value == dtype)


@dataclass
class Config:
    """What is measured. The values here are those of a CPU if the command line says nothing else."""

    device: str = "cpu"
    dtypes: tuple[str, ...] = tuple(DTYPES)
    graphs: tuple[str, ...] = ("arxiv", "powerlaw-20k")
    orders: tuple[str, ...] = ORDERS
    heads: tuple[int, ...] = (1, 4)
    dims: tuple[int, ...] = (128, 64, 256)  # all heads together
    directions: tuple[str, ...] = DIRECTIONS[:2]
    baselines: tuple[str, ...] = BY_DEFAULT["cpu"]
    layers: tuple[str, ...] = LAYERS[:3]
    models: tuple[str, ...] = MODELS
    hidden: int = 256  # units of a model's hidden layers, per head
    eager: bool = False  # leaves out backends made by torch.compile
    cpu_time: bool = False  # of the process, instead of the time that passes
    idtype: torch.dtype = torch.int32
    threads: int = 2
    effort: Effort = field(default_factory=Effort)

    def graph(self, name: str, order: str) -> BenchGraph:
        return _graph(name, order, self.idtype, self.device)

    def ordered_graphs(self) -> Iterator[BenchGraph]:
        for name in self.graphs:
            for order in self.orders:
                yield self.graph(name, order)

    def main_order(self, graph: BenchGraph) -> bool:
        """Whether this graph has the first order of edge data. Some cases are measured for that order only."""
        return graph.order == self.orders[0]

    @property
    def on_gpu(self) -> bool:
        return self.device == "cuda"

    @property
    def main_dim(self) -> int:
        """Features of the cases that are measured in every direction and order, and beside every baseline."""
        return 128 if 128 in self.dims else self.dims[0]

    def torch_dtypes(self, feat: int | None = None) -> list[torch.dtype]:
        """The dtypes of a case of `feat` features. On a GPU, which has many cases, only main_dim has all dtypes."""
        names = self.dtypes if feat in (None, self.main_dim) or not self.on_gpu else self.dtypes[:1]
        return [DTYPES[name] for name in names]


DEFAULTS = {
    "cpu": Config(),
    "cuda": Config(
        "cuda", ("fp16", "bf16", "fp32"), ("reddit-size", "products-size", "arxiv-size"), ("sorted",), (1, 4, 8),
        directions=("forward", "backward"), baselines=BY_DEFAULT["cuda"], threads=os.cpu_count() or 1, effort=GPU,
    ),
}  # fmt: skip
# Of families that are not about one operator at one size.
FAMILY_DEFAULTS: dict[tuple[str, str], dict[str, Any]] = {
    ("reorder", "cpu"): dict(
        graphs=("cora-size", "arxiv-size", "arxiv-size-sym", "arxiv-random", "arxiv-rmat", "communities-400k"),
        dims=(128,),
    ),
    ("messages", "cpu"): dict(graphs=("batch-size",), orders=("insertion",), heads=(1,), dims=(128,)),
    ("edge_layer", "cpu"): dict(
        graphs=("batch-size",), dims=(128,), heads=(4,), dtypes=("bf16", "fp32"),
        baselines=("dgl", "pyg", "torch.compile"),
    ),
    ("edge_network", "cpu"): dict(graphs=("batch-size",), dims=(128,), heads=(1,), dtypes=("bf16", "fp32")),
    ("several", "cpu"): dict(graphs=("arxiv-size",), dims=(128,)),
    ("attention", "cpu"): dict(heads=(4, 8), dims=(128,)),
    ("layer", "cpu"): dict(dims=(128,), baselines=("dgl",)),
    ("limits", "cpu"): dict(dims=(128,)),
    ("train", "cpu"): dict(
        graphs=("reddit-tenth", "arxiv-size"), heads=(1, 2, 8), baselines=("dgl",), effort=Effort(budget_s=20.0)
    ),
    ("train", "cuda"): dict(
        graphs=("reddit-size", "arxiv-size"), heads=(1, 2, 8), effort=replace(GPU, budget_s=1.0)
    ),
}  # fmt: skip


@functools.lru_cache(maxsize=2)
def _graph(name: str, order: str, idtype: torch.dtype, device: str) -> BenchGraph:
    return named(name, order, idtype, device)


@dataclass
class Backend:
    """One implementation in one dtype.

    make: does the preparation, which is not timed, and returns the work; may raise Unavailable.
    check: returns the relative error of the work's result against float64; None: not checked here.
    trusted: halfgnn. If its error is larger than rounding, or if it raises an exception, the benchmark stops. Another
        backend that raises an exception is left out, and the reason is noted.
    """

    name: str
    dtype: torch.dtype
    make: Callable[[], Callable[[], Any]]
    check: Callable[[Any], float] | None = None
    context: Callable[[], contextlib.AbstractContextManager] = contextlib.nullcontext
    bytes_moved: int = 0  # the least number of bytes that the work moves, for GB/s; 0: unknown
    note: str = ""
    input_bytes: int = 0  # of training: graph, data and parameters, which are added to the peak
    losses: list[Tensor] = field(default_factory=list)  # of training steps, one per call
    problem: Problem | None = None  # of an operator
    messages: int = 0  # rows of features per edge that exist at the same time

    @property
    def trusted(self) -> bool:
        return self.name.startswith("halfgnn")


@dataclass
class Case:
    """Backends that are compared with one another."""

    family: str
    op: str
    direction: str
    graph: BenchGraph
    heads: int
    dim: int
    backends: list[Backend]
    before: Callable[[], None] | None = None  # runs first: checks that need no result of a backend

    @property
    def title(self) -> str:
        return f"{self.op} {self.direction} on {self.graph.label}, {self.graph.order} order, {self.heads}x{self.dim}"
