"""The parts of a benchmark: the configuration, cases, and the contestants of a case."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from .baselines import BY_DEFAULT
from .baselines import Unavailable as Unavailable
from .graphs import ORDERS, BenchGraph, named
from .timing import Effort

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
DIRECTIONS = ("forward", "forward+backward", "backward")
LAYERS = ("GATConv", "GATConv without fc", "GraphConv")
MODELS = ("GAT", "GCN", "SAGE")


def name_of(dtype: torch.dtype) -> str:
    """bf16, fp16 or fp32."""
    return next(name for name, value in DTYPES.items() if value == dtype)


@dataclass
class Config:
    """The command line, parsed."""

    device: str = "cpu"
    dtypes: tuple[str, ...] = ("bf16", "fp16", "fp32")
    graphs: tuple[str, ...] = ("arxiv", "powerlaw-20k")
    orders: tuple[str, ...] = ORDERS
    heads: tuple[int, ...] = (1, 4)
    dims: tuple[int, ...] = (128,)  # all heads together
    directions: tuple[str, ...] = DIRECTIONS[:2]
    baselines: tuple[str, ...] = BY_DEFAULT["cpu"]
    layers: tuple[str, ...] = LAYERS[:2]
    models: tuple[str, ...] = MODELS
    hidden: int = 256  # units of a model's hidden layers, per head
    eager: bool = False  # leaves out contestants made by torch.compile
    idtype: torch.dtype = torch.int64
    threads: int = 2
    seed: int = 0
    effort: Effort = field(default_factory=Effort)

    def graph(self, name: str, order: str) -> BenchGraph:
        return _graph(name, order, self.idtype, self.seed, self.device)

    def ordered_graphs(self) -> Iterator[BenchGraph]:
        for name in self.graphs:
            for order in self.orders:
                yield self.graph(name, order)

    def main_order(self, graph: BenchGraph) -> bool:
        """Whether this graph has the first order of edge data. Some cases are measured for that order only."""
        return graph.order == self.orders[0]

    def heads_on(self, graph: BenchGraph) -> tuple[int, ...]:
        """All numbers of heads for the main order of edge data, the first of them for the others."""
        return self.heads if self.main_order(graph) else self.heads[:1]

    @property
    def on_gpu(self) -> bool:
        return self.device == "cuda"

    @property
    def main_dim(self) -> int:
        """Features of the cases that are measured in every dtype and beside every baseline."""
        return 128 if 128 in self.dims else self.dims[0]

    def torch_dtypes(self, feat: int | None = None) -> list[torch.dtype]:
        """The dtypes of a case of `feat` features. On a GPU, which has many cases, only main_dim has all dtypes."""
        names = self.dtypes if feat in (None, self.main_dim) or not self.on_gpu else self.dtypes[:1]
        return [DTYPES[name] for name in names]


@functools.lru_cache(maxsize=2)
def _graph(name: str, order: str, idtype: torch.dtype, seed: int, device: str) -> BenchGraph:
    return named(name, order, idtype, seed, device)


@dataclass
class Contestant:
    """One implementation in one dtype.

    make: does the preparation, which is not timed, and returns the work; may raise Unavailable.
    check: returns the relative error of the work's result against float64; None: not checked here.
    trusted: halfgnn. If its error is larger than rounding, or if it raises an exception, the benchmark stops. Another
        contestant that raises an exception is left out, and the reason is noted.
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

    @property
    def trusted(self) -> bool:
        return self.name.startswith("halfgnn")


@dataclass
class Case:
    """Contestants that are compared with one another."""

    family: str
    op: str
    direction: str
    graph: BenchGraph
    heads: int
    dim: int
    contestants: list[Contestant]
    before: Callable[[], None] | None = None  # runs first: checks that need no result of a contestant

    @property
    def title(self) -> str:
        return f"{self.op} {self.direction} on {self.graph.label}, {self.graph.order} order, {self.heads}x{self.dim}"


@functools.lru_cache(maxsize=8)
def normal(shape: tuple[int, ...], dtype: torch.dtype, seed: int, device: str = "cpu") -> Tensor:
    """Standard normal numbers, the same for every dtype except for rounding. Shared: do not write to them."""
    generator = torch.Generator(device).manual_seed(seed)
    return torch.randn(shape, generator=generator, device=device).to(dtype)


@functools.lru_cache(maxsize=4)
def uniform(shape: tuple[int, ...], dtype: torch.dtype, seed: int, device: str = "cpu") -> Tensor:
    """Numbers from [0, 1), the same for every dtype except for rounding. Shared: do not write to them."""
    generator = torch.Generator(device).manual_seed(seed)
    return torch.rand(shape, generator=generator, device=device).to(dtype)


def with_backward(
    function: Callable[..., Tensor], inputs: tuple[Tensor, ...], seed: int
) -> Callable[[], tuple[Tensor, ...]]:
    """Work: function(*inputs) and the gradients of all inputs, from a fixed gradient of the result."""
    leaves = tuple(x.clone().requires_grad_() for x in inputs)
    upstream: list[Tensor] = []

    def work() -> tuple[Tensor, ...]:
        out = function(*leaves)
        if not upstream:
            upstream.append(normal(tuple(out.shape), out.dtype, seed, out.device.type))
        return (out.detach(), *torch.autograd.grad(out, leaves, upstream[0]))

    return work


def backward_of(function: Callable[..., Tensor], inputs: tuple[Tensor, ...], seed: int) -> Callable[[], Any]:
    """Work: only the gradients. The forward pass is done once, before."""
    leaves = tuple(x.clone().requires_grad_() for x in inputs)
    out = function(*leaves)
    upstream = normal(tuple(out.shape), out.dtype, seed, out.device.type)
    return lambda: torch.autograd.grad(out, leaves, upstream, retain_graph=True)


def directed(
    direction: str, function: Callable[..., Tensor], inputs: tuple[Tensor, ...], seed: int
) -> Callable[[], Any]:
    """The work of one direction."""
    if direction == "forward":
        return lambda: function(*inputs)
    return (backward_of if direction == "backward" else with_backward)(function, inputs, seed)
