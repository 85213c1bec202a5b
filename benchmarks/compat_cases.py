"""What `python -m benchmarks compat` calls: functions of torch_scatter and torch_sparse, calls of dgl, and models written with it.

Each is written once, for any package that has the library's interface.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from . import graphs
from .optional import Unavailable, import_dgl, import_package
from .programs.step import AUTOCAST

HALFGNN, PYTORCH = "halfgnn", "pytorch"
DTYPES = {"fp64": torch.float64, "fp32": torch.float32, "bf16": torch.bfloat16}
WIDTH, RELATIONS = 64, 8
Call = Callable[[], Any]
Sizes = dict[str, tuple[int, int]]

SIZES: Sizes = {
    "rows": (400_000, 20_000), "few rows": (90, 30), "nodes": (3_000, 45_000), "few nodes": (30, 90), "graphs": (32, 100),
    "cut": (20_000, 400_000),
}  # fmt: skip
QUICK: Sizes = {**SIZES, "rows": (90, 30), "nodes": (40, 200), "graphs": (2, 20), "cut": (40, 200)}


@dataclass(frozen=True)
class Case:
    """make: the call of a backend in a dtype; raises Unavailable without its package. truth: the backend that is right in fp64.

    compared: what of a result is compared with the truth's.
    """

    interface: str
    what: str
    size: str
    direction: str
    dtypes: tuple[str, ...]
    backends: tuple[str, ...]
    make: Callable[[str, str], Call]
    compared: Callable[[Any], Any] = lambda result: result

    @property
    def truth(self) -> str:
        return self.backends[-1]


def _package(backend: str, name: str) -> Any:
    if backend == HALFGNN:
        return import_package(f"halfgnn.compat.{name}")
    package = import_dgl() if name == "dgl" else import_package(name)
    if package.__name__ != name:
        raise Unavailable(f"{name} is {package.__name__}, by halfgnn.compat.install()")
    return package


def _random(*shape: int) -> Tensor:
    """Numbers that every dtype has, so that all of them compute the same."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(1)).bfloat16().double()


def _ids(high: int, count: int, seed: int = 2) -> Tensor:
    return torch.randint(high, (count,), generator=torch.Generator().manual_seed(seed))


def _one_way(function: Callable[[Tensor], Tensor], x: Tensor, direction: str) -> Call:
    """The forward, which saves what its backward reads, or the backward alone."""
    x = x.detach().requires_grad_()
    if direction == "forward":
        return lambda: function(x)
    result = function(x)
    gradient = _random(*result.shape).to(result.dtype)
    return lambda: torch.autograd.grad(result, x, gradient, retain_graph=True)[0]


# ---- torch_scatter, torch_sparse -------------------------------------------------------------------------------------------------

Function = Callable[[Tensor, Tensor, int], Tensor]  # of rows, an index or offsets, and the number of groups


def _library(package: Any) -> dict[str, Function]:
    return {
        "scatter_sum": lambda src, index, groups: package.scatter_sum(src, index, 0, dim_size=groups),
        "scatter_mean": lambda src, index, groups: package.scatter_mean(src, index, 0, dim_size=groups),
        "scatter_max": lambda src, index, groups: package.scatter_max(src, index, 0, dim_size=groups)[0],
        "scatter_softmax": lambda src, index, groups: package.scatter_softmax(src, index, 0),
        "segment_csr": lambda src, offsets, groups: package.segment_csr(src, offsets),
    }


def _sum(src: Tensor, index: Tensor, groups: int) -> Tensor:
    return src.new_zeros(groups, src.size(1)).index_add(0, index, src)


def _mean(src: Tensor, index: Tensor, groups: int) -> Tensor:
    return _sum(src, index, groups) / torch.bincount(index, minlength=groups).clamp(min=1).unsqueeze(1)


def _max(src: Tensor, index: Tensor, groups: int) -> Tensor:
    wide = index.unsqueeze(1).expand_as(src)
    return src.new_zeros(groups, src.size(1)).scatter_reduce(0, wide, src, "amax", include_self=False)


def _softmax(src: Tensor, index: Tensor, groups: int) -> Tensor:
    exponentials = (src - _max(src.detach(), index, groups)[index]).exp()
    return exponentials / _sum(exponentials, index, groups)[index]


def _segments(src: Tensor, offsets: Tensor, groups: int) -> Tensor:
    return torch.segment_reduce(src, "sum", offsets=offsets, axis=0, initial=0)


PYTORCH_FUNCTIONS: dict[str, Function] = {
    "scatter_sum": _sum, "scatter_mean": _mean, "scatter_max": _max, "scatter_softmax": _softmax, "segment_csr": _segments,
}  # fmt: skip


def _reduction(name: str, size: tuple[int, int], direction: str, is_new: bool) -> Case:
    (rows, groups), ids = size, _ids(size[1], size[0])
    offsets = nn.functional.pad(torch.bincount(ids, minlength=groups).cumsum(0), (1, 0))
    index = offsets if name == "segment_csr" else ids

    def make(backend: str, dtype: str) -> Call:
        functions = PYTORCH_FUNCTIONS if backend == PYTORCH else _library(_package(backend, "torch_scatter"))
        src = _random(rows, WIDTH).to(DTYPES[dtype])
        return _one_way(lambda x: functions[name](x, index.clone() if is_new else index, groups), src, direction)

    def by_group(gradient: Tensor) -> Tensor:
        """Of entries that are equally large, which one gets the gradient is for each library to say."""
        return _sum(gradient.double(), ids, groups)

    of_winners = {"compared": by_group} if (name, direction) == ("scatter_max", "backward") else {}
    text = f"{rows:,} rows, {groups:,} groups" + (", new index" if is_new else "")
    backends = (HALFGNN, "torch_scatter", PYTORCH)
    return Case("torch_scatter", name, text, direction, ("fp32", "bf16"), backends, make, **of_winners)


def _product(size: tuple[int, int], direction: str) -> Case:
    entries, nodes = size
    row, col, value = _ids(nodes, entries).sort().values, _ids(nodes, entries, seed=3), _random(entries).abs()

    def make(backend: str, dtype: str) -> Call:
        x, kept = _random(nodes, WIDTH).to(DTYPES[dtype]), value.to(DTYPES[dtype])
        if backend == PYTORCH:
            matrix = torch.sparse_coo_tensor(torch.stack([row, col]), kept, (nodes, nodes)).to_sparse_csr()
            return _one_way(lambda x: matrix @ x, x, direction)
        package = _package(backend, "torch_sparse")
        held = package.SparseTensor(row=row, col=col, value=kept, sparse_sizes=(nodes, nodes))
        return _one_way(lambda x: package.matmul(held, x), x, direction)

    text = f"{nodes:,} nodes, {entries:,} edges"
    backends = (HALFGNN, "torch_sparse", PYTORCH)
    return Case("torch_sparse", "matmul", text, direction, ("fp32", "bf16"), backends, make)


def of_rows(sizes: Sizes) -> Iterator[Case]:
    for size in ("rows", "few rows"):
        for name in PYTORCH_FUNCTIONS:
            for direction in ("forward", "backward"):
                yield _reduction(name, sizes[size], direction, is_new=False)
    for name in ("scatter_sum", "scatter_max"):
        yield _reduction(name, sizes["rows"], "forward", is_new=True)
    for direction in ("forward", "backward"):
        yield _product(sizes["rows"], direction)


# ---- dgl -------------------------------------------------------------------------------------------------------------------------


class _GatedGCN(nn.Module):
    """The layer of benchmarking-gnns, which reads and returns rows of edges, without norms."""

    def __init__(self, package: Any):
        super().__init__()
        self.fn = package.function
        self.a, self.b, self.c, self.d, self.e = (nn.Linear(WIDTH, WIDTH) for _ in range(5))

    def forward(self, g: Any, h: Tensor, e: Tensor) -> tuple[Tensor, Tensor]:
        fn = self.fn
        with g.local_scope():
            g.ndata["a"], g.ndata["b"], g.ndata["d"], g.ndata["e"] = self.a(h), self.b(h), self.d(h), self.e(h)
            g.edata["c"] = self.c(e)
            g.apply_edges(fn.u_add_v("d", "e", "de"))
            edges = g.edata["de"] + g.edata["c"]
            g.edata["sigma"] = torch.sigmoid(edges)
            g.update_all(fn.u_mul_e("b", "sigma", "m"), fn.sum("m", "weighted"))
            g.update_all(fn.copy_e("sigma", "m"), fn.sum("m", "total"))
            nodes = g.ndata["a"] + g.ndata["weighted"] / (g.ndata["total"] + 1e-6)
            return h + torch.relu(nodes), e + torch.relu(edges)


class _UserDefined(nn.Module):
    """A sum of weighted messages by functions of the user's own."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, g: Any, h: Tensor, gate: Tensor) -> Tensor:
        with g.local_scope():
            g.ndata["h"], g.edata["w"] = self.linear(h), gate
            g.update_all(
                lambda edges: {"m": edges.src["h"] * edges.data["w"]}, lambda nodes: {"h": nodes.mailbox["m"].sum(1)}
            )
            return g.ndata["h"]


def _mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH))


# A layer, made with a package.
LAYERS: dict[str, Callable[[Any], nn.Module]] = {
    "GraphConv": lambda p: p.nn.GraphConv(WIDTH, WIDTH),
    "SAGEConv, mean": lambda p: p.nn.SAGEConv(WIDTH, WIDTH, "mean"),
    "SAGEConv, pool": lambda p: p.nn.SAGEConv(WIDTH, WIDTH, "pool"),
    "GATConv": lambda p: p.nn.GATConv(WIDTH, WIDTH // 4, 4),
    "GATv2Conv": lambda p: p.nn.GATv2Conv(WIDTH, WIDTH // 4, 4),
    "GINConv": lambda p: p.nn.GINConv(_mlp(), "sum"),
    "RelGraphConv": lambda p: p.nn.RelGraphConv(WIDTH, WIDTH, RELATIONS, "basis", 4),
    "GatedGCN": _GatedGCN,
    "user-defined functions": lambda p: _UserDefined(),
}
EDGE_INPUTS = {"RelGraphConv": "types", "GatedGCN": "rows", "user-defined functions": "gates"}


class _Model(nn.Module):
    """Two layers and a ReLU, with parameters that depend only on their shapes."""

    def __init__(self, package: Any, name: str):
        super().__init__()
        self.layers, self.edge_input = nn.ModuleList(LAYERS[name](package) for _ in range(2)), EDGE_INPUTS.get(name)
        for parameter in self.parameters():
            parameter.data = _random(*parameter.shape).float() / WIDTH**0.5

    def forward(self, g: Any, x: Tensor, edges: dict[str, Tensor]) -> Tensor:
        e = edges[self.edge_input] if self.edge_input else None
        for layer in self.layers:
            result = layer(g, x) if e is None else layer(g, x, e)
            x, e = result if isinstance(result, tuple) else (result, e)
            x = torch.relu(x.flatten(1))
        return x


@functools.cache
def _edges(nodes: int, edges: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Power laws of both degrees, and a self-loop per node: DGL refuses nodes without in-edges."""
    made = graphs.make(graphs.Recipe(nodes, edges - nodes, 0.3, 0.6), "compat", "insertion", torch.int64, seed)
    return tuple(torch.cat([ids, torch.arange(nodes)]) for ids in (made.src, made.dst))  # type: ignore[return-value]


def _graph(package: Any, nodes: int, edges: int, seed: int = 0) -> Any:
    return package.graph(_edges(nodes, edges, seed), num_nodes=nodes)


def _small_graphs(package: Any, count: int, nodes: int) -> list[Any]:
    return [_graph(package, nodes, 10 * nodes, seed) for seed in range(count)]


def _batch_text(count: int, nodes: int) -> str:
    return f"{count} graphs of {nodes} nodes, {10 * nodes:,} edges"


def _model(name: str, sizes: Sizes, is_batch: bool) -> Case:
    (count, of_each), (nodes, edges) = sizes["graphs"], sizes["nodes"]
    nodes, edges = (count * of_each, 10 * count * of_each) if is_batch else (nodes, edges)

    def make(backend: str, dtype: str) -> Call:
        package, kept = _package(backend, "dgl"), DTYPES["fp64" if dtype == "fp64" else "fp32"]
        model, x = _Model(package, name).to(kept), _random(nodes, WIDTH).to(kept)
        inputs = {"types": _ids(RELATIONS, edges), "rows": _random(edges, WIDTH).to(kept)}
        inputs["gates"] = inputs["rows"][:, :1].sigmoid()
        parts = _small_graphs(package, count, of_each) if is_batch else []
        whole = None if is_batch else _graph(package, nodes, edges)
        adam, half = torch.optim.Adam(model.parameters()), AUTOCAST[dtype]

        def step() -> list[Tensor]:
            adam.zero_grad()
            g = package.batch(parts) if is_batch else whole
            with contextlib.nullcontext() if half is None else torch.autocast("cpu", half):
                result = model(g, x, inputs)
            loss = result.to(kept).square().mean()
            loss.backward()
            adam.step()
            return [loss.detach(), *(parameter.grad for parameter in model.parameters() if parameter.grad is not None)]

        return step

    text = _batch_text(count, of_each) if is_batch else f"{nodes:,} nodes, {edges:,} edges"
    return Case("dgl", name, text, "step", ("fp32", "bf16"), (HALFGNN, "dgl"), make)


def _messages(package: Any, size: tuple[int, int], dtype: str) -> tuple[Any, Tensor, Tensor]:
    kept = DTYPES[dtype]
    return _graph(package, *size), _random(size[0], WIDTH).to(kept), _random(size[1], 1).to(kept)


def _weighted_sum(package: Any, size: tuple[int, int], dtype: str, has_gradient: bool = False) -> Call:
    (g, x, w), fn = _messages(package, size, dtype), package.function
    gradient = torch.ones_like(x)

    def call() -> Any:
        g.ndata["x"], g.edata["w"] = x, w
        g.update_all(fn.u_mul_e("x", "w", "m"), fn.sum("m", "out"))
        return torch.autograd.grad(g.ndata["out"], [x, w], gradient) if has_gradient else g.ndata["out"]

    for tensor in (x, w):
        tensor.requires_grad_(has_gradient)
    return call


def _dots(package: Any, size: tuple[int, int], dtype: str) -> Call:
    (g, x, _), fn = _messages(package, size, dtype), package.function

    def call() -> Tensor:
        g.ndata["x"] = x
        g.apply_edges(fn.u_dot_v("x", "x", "out"))
        return g.edata["out"]

    return call


def _user_defined(package: Any, size: tuple[int, int], dtype: str) -> Call:
    g, x, w = _messages(package, size, dtype)
    layer = _UserDefined().to(x.dtype)
    layer.linear = nn.Identity()  # type: ignore[assignment]
    return lambda: layer(g, x, w)


def _new_graph(package: Any, size: tuple[int, int], dtype: str) -> Call:
    src, dst = _edges(*size)
    return lambda: package.graph((src, dst), num_nodes=size[0])


def _batch(package: Any, size: tuple[int, int], dtype: str) -> Call:
    parts = _small_graphs(package, *size)
    return lambda: package.batch(parts)


def _unbatch(package: Any, size: tuple[int, int], dtype: str) -> Call:
    whole = _batch(package, size, dtype)()
    return lambda: package.unbatch(whole)


def _subgraph(package: Any, size: tuple[int, int], dtype: str) -> Call:
    g, nodes = _graph(package, *size), torch.arange(0, size[0], 4)
    return lambda: package.node_subgraph(g, nodes)


CALLS: dict[str, tuple[str, Callable[[Any, tuple[int, int], str], Call]]] = {
    "update_all(u_mul_e, sum)": ("few nodes", _weighted_sum),
    "the same with its backward": ("few nodes", functools.partial(_weighted_sum, has_gradient=True)),
    "apply_edges(u_dot_v)": ("few nodes", _dots),
    "update_all, user-defined functions": ("few nodes", _user_defined),
    "dgl.graph": ("few nodes", _new_graph),
    "dgl.batch": ("graphs", _batch),
    "dgl.unbatch": ("graphs", _unbatch),
    "dgl.node_subgraph of a quarter": ("cut", _subgraph),
}


def _call(name: str, sizes: Sizes) -> Case:
    size, made = CALLS[name]
    first, second = sizes[size]
    text = _batch_text(first, second) if size == "graphs" else f"{first:,} nodes, {second:,} edges"

    def make(backend: str, dtype: str) -> Call:
        return made(_package(backend, "dgl"), sizes[size], dtype)

    return Case("dgl", name, text, "call", ("fp32",), (HALFGNN, "dgl"), make)


def of_graphs(sizes: Sizes) -> Iterator[Case]:
    for is_batch in (False, True):
        for name in LAYERS:
            yield _model(name, sizes, is_batch)
    for name in CALLS:
        yield _call(name, sizes)
