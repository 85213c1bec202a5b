"""Models of two layers, requests of sampled neighbours, and who serves them: for ``python -m benchmarks serving``."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim

import halfgnn.pyg
from halfgnn.dataloading import NeighborSampler
from halfgnn.serving import merge_repeats

from . import graphs
from .optional import Unavailable, first_line, import_pyg

WIDTH, HIDDEN, HEADS, EDGE_WIDTH, CLASSES = 128, 64, 4, 16, 40
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
FANOUTS = (15, 10)  # input layer first
PYG, PYG_AOTI = "torch_geometric", "torch_geometric AOTInductor"
DROP_IN, OURS, OURS_AOTI = "halfgnn drop-in", "halfgnn.pyg", "halfgnn.pyg AOTInductor"
BACKENDS = (PYG, PYG_AOTI, DROP_IN, OURS, OURS_AOTI)
COMPILED = (PYG_AOTI, OURS_AOTI)

Request = tuple[
    Tensor, ...
]  # x (N, WIDTH), edge_index (2, E), and edge features (E, EDGE_WIDTH) if the model takes them
Serve = Callable[..., Tensor]


# ---- models ----------------------------------------------------------------------------------------------------------------------


def _gcn(k: Any) -> list[nn.Module]:
    return [k.GCNConv(WIDTH, HIDDEN), k.GCNConv(HIDDEN, CLASSES)]


def _sage(k: Any) -> list[nn.Module]:
    return [k.SAGEConv(WIDTH, HIDDEN), k.SAGEConv(HIDDEN, CLASSES)]


def _gat(k: Any) -> list[nn.Module]:
    return [
        k.GATConv(WIDTH, HIDDEN // HEADS, heads=HEADS),
        k.GATConv(HIDDEN, CLASSES, heads=HEADS, concat=False),
    ]


def _transformer(k: Any) -> list[nn.Module]:
    return [
        k.TransformerConv(WIDTH, HIDDEN // HEADS, heads=HEADS, edge_dim=EDGE_WIDTH),
        k.TransformerConv(HIDDEN, CLASSES, heads=HEADS, concat=False, edge_dim=EDGE_WIDTH),
    ]


LAYERS: dict[str, Callable[[Any], list[nn.Module]]] = {
    "GCN": _gcn,
    "SAGE": _sage,
    "GAT": _gat,
    "TransformerConv": _transformer,
}
WITH_EDGES = ("TransformerConv",)


class Model(nn.Module):
    """Two layers with a ReLU between them. k: torch_geometric.nn or halfgnn.pyg. All start from the same parameters."""

    def __init__(self, name: str, k: Any):
        super().__init__()
        torch.manual_seed(1)
        self.first, self.second = LAYERS[name](k)

    def forward(self, x: Tensor, edge_index: Tensor, *edge_attr: Tensor) -> Tensor:
        return self.second(self.first(x, edge_index, *edge_attr).relu(), edge_index, *edge_attr)


def model(name: str, k: Any, dtype: torch.dtype) -> nn.Module:
    return Model(name, k).eval().to(dtype)


# ---- requests --------------------------------------------------------------------------------------------------------------------


def requests(graph: str, num_edges: int, count: int) -> list[Request]:
    """Blocks of the input layer around seeds, as many as to have about so many edges. Each has fp32 features of its own.

    The destinations are the first nodes of a block, so both layers of a model run on it.
    """
    made = graphs.named(graph, "insertion", torch.int64)
    whole = halfgnn.Graph.from_edges(made.src, made.dst, num_src=made.num_nodes, num_dst=made.num_nodes)
    sampler, draw = NeighborSampler(whole, FANOUTS), torch.Generator().manual_seed(num_edges)
    seeds = torch.randperm(made.num_nodes, generator=draw)
    found, begin = [], 0
    for number in range(count):
        block, begin = _block(sampler, seeds, begin, num_edges, number)
        src, dst = block.edges()
        edge_index = torch.stack([src, dst]).long()
        x = torch.randn(block.num_src, WIDTH, generator=draw)
        found.append((x, edge_index, torch.rand(block.num_edges, EDGE_WIDTH, generator=draw)))
    return found


def _block(sampler: NeighborSampler, seeds: Tensor, begin: int, num_edges: int, number: int) -> tuple[Any, int]:
    """The block of the fewest seeds from `begin` on with at least so many edges, and where the next seeds begin."""
    low, high = 0, 1
    sample = lambda count: sampler.sample(seeds[begin : begin + count], seed=number).blocks[0].graph  # noqa: E731
    while sample(high).num_edges < num_edges:
        if begin + high >= len(seeds):
            if begin == 0:
                raise ValueError(f"the graph has no block of {num_edges:,} edges with fanouts {FANOUTS}")
            begin, high = 0, 1
            continue
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if sample(middle).num_edges >= num_edges else (middle, high)
    return sample(high), begin + high


def for_model(request: Request, name: str, dtype: torch.dtype) -> Request:
    x, edge_index, edge_attr = request
    return (x.to(dtype), edge_index, edge_attr.to(dtype)) if name in WITH_EDGES else (x.to(dtype), edge_index)


# ---- backends -----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Backend:
    """call(*request): the rows of a request. context: entered around calls, for all threads."""

    name: str
    call: Serve
    context: Callable[[], contextlib.AbstractContextManager] = contextlib.nullcontext


def backends(
    names: tuple[str, ...], model_name: str, dtype: str, folder: Path, example: Request, callers: int
) -> Iterator[Backend | tuple[str, str]]:
    """Backends, or the name of one that cannot take part, and why. callers: how many threads call a package at once."""
    theirs = import_pyg().nn
    for name in names:
        k = halfgnn.pyg if name in (OURS, OURS_AOTI) else theirs
        try:
            module = model(model_name, k, DTYPES[dtype])
            if name in COMPILED:
                yield Backend(name, _load(_package(name, module, model_name, dtype, folder, example), callers))
            else:
                drop_in = lambda: halfgnn.pyg.accelerate(fuse=True)  # noqa: E731
                yield Backend(name, module, drop_in if name == DROP_IN else contextlib.nullcontext)
        except Unavailable as error:
            yield name, str(error)


def _package(name: str, module: nn.Module, model_name: str, dtype: str, folder: Path, example: Request) -> Path:
    """The package of a model in the folder, which is compiled unless it is there. Raises Unavailable if it does not compile."""
    path = folder / f"{name} {model_name} {dtype}.pt2".replace(" ", "-")
    if path.exists():
        return path
    folder.mkdir(parents=True, exist_ok=True)
    shapes: list[Any] = [{0: Dim("nodes", min=2)}, {1: Dim("edges", min=2)}]
    more = ({0: shapes[1][1]},) * (len(example) - 2)
    try:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            program = torch.export.export(module, example, dynamic_shapes=(*shapes, more) if more else tuple(shapes))
            program = merge_repeats(program) if name == OURS_AOTI else program
            torch._inductor.aoti_compile_and_package(program, package_path=str(path))
    except Exception as error:  # of torch.export, AOTInductor or the compiler
        raise Unavailable(f"does not compile: {first_line(error)}") from error
    return path


def _load(path: Path, callers: int) -> Serve:
    from torch._inductor.package import load_package

    return load_package(str(path), num_runners=callers)
