"""Training steps of whole models: forward, loss, backward and optimizer, as people write them.

* ``GAT``: three layers, ``--hidden`` units per head, elu, heads averaged at the end. On a Reddit-size graph this is the
  model of DGL's guide to mixed precision (docs/source/guide/mixed_precision.rst), whose heads are [1, 1, 1] and [2, 2,
  2].
* ``GCN``, ``SAGE`` (mean): two layers, relu.

Steps run in fp32, in fp16 under autocast with a GradScaler, and in bf16 under autocast. Parameters, features and the
optimizer (Adam) are fp32. On a CPU DGL's modules raise an error under autocast. So ``dgl`` in bf16 has parameters and
features in bf16 there, which is the closest that it supports.

Contestants:

* ``halfgnn``: halfgnn.nn on a Graph.
* ``halfgnn drop-in``: dgl.nn's modules inside ``halfgnn.dgl.accelerate()``. ``halfgnn fused``: the same with
  ``fuse=True``.
* ``dgl``: dgl.nn's modules as they are. ``pyg``: torch_geometric's.

All start from the same parameters, except PyG's, which are drawn by its own rules. Every sample is one more step of the
same training, so the losses of a row are a curve.

Data: features are noise around one point per class. Classes are the communities of the graph, if it has communities. A
falling loss shows that gradients have the right direction. It says nothing about accuracy on real data (see
examples/planetoid_accuracy.py).
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

import halfgnn.dgl
import halfgnn.nn
from halfgnn import Graph, reference

from . import baselines, verify
from .case import Case, Config, Contestant, Unavailable, name_of, with_backward
from .graphs import BenchGraph
from .layer import DROP_IN, FUSED, gat_formula, gcn_formula

OURS = "halfgnn"
LEARNING_RATE = 1e-3
SPREAD = 0.2  # standard deviation of the points of classes; that of the noise is 1
TRAINED_ON = 0.66  # share of the nodes, as in Reddit
# Features and classes of the data sets that the graphs are named after.
WIDTHS = {
    "cora": (1433, 7),
    "citeseer": (3703, 6),
    "pubmed": (500, 3),
    "arxiv": (128, 40),
    "proteins": (8, 112),
    "reddit": (602, 41),
    "products": (100, 47),
    "tiny": (12, 4),
}


def _sage_formula(graph: Graph, x: Tensor, fc_neigh: Tensor, fc_self: Tensor, bias: Tensor) -> Tensor:
    """SAGEConv with the mean by halfgnn.reference, in the dtype of its inputs."""
    return x @ fc_self.t() + bias + reference.gspmm(graph, "copy_lhs", "mean", x, None) @ fc_neigh.t()


@dataclass(frozen=True)
class Model:
    """conv(library, inputs, outputs, heads): a layer of dgl.nn, halfgnn.nn or torch_geometric.nn, under the same name.
    formula(graph, x, *parameters in the order of their names): the same layer by halfgnn.reference."""

    name: str
    layers: int
    conv: Callable[[Any, int, int, int], nn.Module]
    formula: Callable[..., Tensor]
    activation: Callable[[Tensor], Tensor]
    has_heads: bool = False


def _gat(library: Any, inputs: int, outputs: int, heads: int) -> nn.Module:
    return library.GATConv(inputs, outputs, heads, **library.any_graph)


def _gcn(library: Any, inputs: int, outputs: int, heads: int) -> nn.Module:
    return library.GraphConv(inputs, outputs, **library.any_graph)


def _sage(library: Any, inputs: int, outputs: int, heads: int) -> nn.Module:
    return library.SAGEConv(inputs, outputs, "mean")


MODELS = {
    model.name: model
    for model in (
        Model("GAT", 3, _gat, gat_formula, functional.elu, has_heads=True),
        Model("GCN", 2, _gcn, gcn_formula, torch.relu),
        Model("SAGE", 2, _sage, _sage_formula, torch.relu),
    )
}


class Network(nn.Module):
    """The layers of a model in sequence. Heads are concatenated between layers and averaged at the end."""

    def __init__(self, model: Model, library: Any, inputs: int, hidden: int, classes: int, heads: int):
        super().__init__()
        self.activation = model.activation
        widths = [inputs, *[hidden * heads] * (model.layers - 1)]
        outputs = [*[hidden] * (model.layers - 1), classes]
        self.convs = nn.ModuleList(model.conv(library, a, b, heads) for a, b in zip(widths, outputs))

    def forward(self, graph: Any, x: Tensor) -> Tensor:
        for conv in self.convs[:-1]:
            x = self.activation(conv(graph, x).flatten(1))
        x = self.convs[-1](graph, x)
        return x.mean(1) if x.dim() == 3 else x


class _PygLayer(nn.Module):
    """A layer of torch_geometric with the results and the order of arguments of dgl.nn."""

    def __init__(self, conv: nn.Module, heads: int = 0):
        super().__init__()
        self.conv, self.heads = conv, heads

    def forward(self, graph: Tensor, x: Tensor) -> Tensor:
        out = self.conv(x, graph)
        return out.view(x.shape[0], self.heads, -1) if self.heads else out


def _pyg_library() -> Any:
    pyg = baselines.import_pyg().nn
    return SimpleNamespace(
        any_graph={},
        GATConv=lambda a, b, heads: _PygLayer(pyg.GATConv(a, b, heads, add_self_loops=False), heads),
        GraphConv=lambda a, b: _PygLayer(pyg.GCNConv(a, b, add_self_loops=False, cached=True)),
        SAGEConv=lambda a, b, aggregator: _PygLayer(pyg.SAGEConv(a, b, aggr=aggregator)),
    )


def _library(modules: Any) -> Any:
    names = ("GATConv", "GraphConv", "SAGEConv")
    return SimpleNamespace(any_graph={"allow_zero_in_degree": True}, **{name: getattr(modules, name) for name in names})


def _library_of(name: str, device: str) -> Any:
    if name == OURS:
        return _library(halfgnn.nn)
    if name == "pyg":
        return _pyg_library()
    if not baselines.dgl_runs_on(device):
        raise Unavailable(f"this DGL has no {device}")
    return _library(baselines.import_dgl().nn.pytorch)


def _widths(graph: BenchGraph) -> tuple[int, int]:
    """Features and classes."""
    return next((widths for name, widths in WIDTHS.items() if name in graph.label), (128, 40))


@dataclass(frozen=True)
class Data:
    features: Tensor  # (N, features) fp32
    labels: Tensor  # (N,) int64
    trained: Tensor  # ids of the training nodes; indexing by a mask would wait for the GPU

    @property
    def bytes(self) -> int:
        return sum(x.nbytes for x in (self.features, self.labels, self.trained))


@functools.lru_cache(maxsize=1)
def data_of(graph: BenchGraph) -> Data:
    width, classes = _widths(graph)
    generator = torch.Generator(graph.device).manual_seed(17)
    draw = functools.partial(torch.rand, generator=generator, device=graph.device)
    labels = graph.communities
    labels = (draw(graph.num_nodes) * classes).long() if labels is None else labels % classes
    features = torch.randn(graph.num_nodes, width, generator=generator, device=graph.device)
    features += torch.randn(classes, width, generator=generator, device=graph.device)[labels].mul_(SPREAD)
    return Data(features, labels, (draw(graph.num_nodes) < TRAINED_ON).nonzero().squeeze(1))


def _distinct_bytes(tensors: Any) -> int:
    return sum({x.untyped_storage().data_ptr(): x.nbytes for x in tensors if x is not None}.values())


def topology_of(graph: BenchGraph, name: str) -> tuple[Any, int]:
    """The graph in the contestant's format, and the bytes of its adjacency in both directions."""
    if name == OURS:
        return graph.halfgnn, _distinct_bytes((*graph.halfgnn.csc(), *graph.halfgnn.csr()))
    if name == "pyg":
        return graph.edge_index, graph.edge_index.nbytes
    both = (graph.dgl.adj_tensors(sparse) for sparse in ("csc", "csr"))
    return graph.dgl, sum(x.nbytes for sparse in both for x in sparse)


def context_of(name: str) -> contextlib.AbstractContextManager:
    if name == DROP_IN:
        return halfgnn.dgl.accelerate()
    return halfgnn.dgl.accelerate(fuse=True) if name == FUSED else contextlib.nullcontext()


def _autocast(device: str, dtype: torch.dtype) -> contextlib.AbstractContextManager:
    return contextlib.nullcontext() if dtype == torch.float32 else torch.autocast(device, dtype)


def network_of(model: Model, graph: BenchGraph, hidden: int, heads: int, name: str) -> Network:
    inputs, classes = _widths(graph)
    library = _library_of(name, graph.device)
    torch.manual_seed(11)
    return Network(model, library, inputs, hidden, classes, heads).to(graph.device)


def training(
    network: nn.Module, topology: Any, data: Data, dtype: torch.dtype, losses: list[Tensor], capturable: bool = False
) -> Callable[[], None]:
    """Work: one step, which appends its loss. capturable: for a CUDA graph, which cannot capture a GradScaler."""
    device = data.features.device.type
    optimizer = torch.optim.Adam(network.parameters(), lr=LEARNING_RATE, capturable=capturable)
    scaler = torch.amp.GradScaler(device, enabled=dtype == torch.float16)
    is_fp32 = next(network.parameters()).dtype == torch.float32
    labels = data.labels[data.trained]

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        with _autocast(device, dtype if is_fp32 else torch.float32):
            logits = network(topology, data.features)
        loss = functional.cross_entropy(logits[data.trained].float(), labels)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.detach())

    return step


def _contestant(model: Model, graph: BenchGraph, hidden: int, heads: int, name: str, dtype: torch.dtype) -> Contestant:
    made = Contestant(name, dtype, lambda: None, context=lambda: context_of(name))

    def make():
        data = data_of(graph)
        if name == "dgl" and graph.device == "cpu" and dtype != torch.float32:
            if dtype == torch.float16:
                raise Unavailable("DGL has no fp16 on the CPU")
            made.note = "parameters and features in bf16: dgl.nn raises under autocast on the CPU"
        if name == "pyg":  # messages, weighted messages and their gradients, of the widest layer
            widest = heads * hidden if model.has_heads else max(_widths(graph)[0], hidden)
            baselines.check_messages(3 * graph.num_edges * widest * 4, graph.device)
        network = network_of(model, graph, hidden, heads, name)
        if made.note:
            network, data = network.to(dtype), Data(data.features.to(dtype), data.labels, data.trained)
        topology, topology_bytes = topology_of(graph, name)
        # Parameters, their gradients and Adam's two moments, which all exist before the second step.
        made.input_bytes = data.bytes + topology_bytes + 4 * sum(p.nbytes for p in network.parameters())
        made.losses = []
        return training(network, topology, data, dtype, made.losses)

    made.make = make
    return made


def check(config: Config, model: Model, heads: int, name: str) -> None:
    """Compares results and gradients of halfgnn's contestant on a small graph with the formulas in float64."""
    graph, hidden = verify.miniature("sorted", config.idtype, config.device), 8
    network = network_of(model, graph, hidden, heads, name)
    names = [name for name, _ in network.named_parameters()]
    with torch.no_grad():
        for parameter in network.parameters():  # biases are zero initially, which would hide wrong ones
            parameter += 0.05 * torch.randn(parameter.shape).to(parameter.device)
    topology = graph.halfgnn if name == OURS else graph.dgl

    def formula(x: Tensor, *values: Tensor) -> Tensor:
        count = len(values) // model.layers
        for i in range(model.layers):
            x = model.formula(graph.halfgnn, x, *values[i * count : (i + 1) * count])
            x = x if i == model.layers - 1 else model.activation(x.flatten(1))
        return x.mean(1) if x.dim() == 3 else x

    def ours(x: Tensor, *values: Tensor) -> Tensor:
        with _autocast(config.device, x.dtype), context_of(name):
            masters = {key: value.float() for key, value in zip(names, values)}
            return torch.func.functional_call(network, masters, (topology, x.float())).to(x.dtype)

    x = torch.randn(graph.num_nodes, _widths(graph)[0], generator=torch.Generator().manual_seed(5))
    tensors = (x.to(config.device), *(p.detach() for p in network.parameters()))
    for dtype in config.torch_dtypes():
        verify.check_like_formula(
            lambda inputs: with_backward(ours, inputs, 5)(),
            lambda inputs: with_backward(formula, inputs, 5)(),
            tuple(t.to(dtype) for t in tensors),
            f"{model.name}, {name}, {name_of(dtype)}",
            units=16,  # several layers, whose results autocast rounds
        )


def names_of(config: Config, model: Model) -> list[str]:
    ours = [OURS]
    with contextlib.suppress(Unavailable):
        _library_of("dgl", config.device)
        ours += [DROP_IN, FUSED] if model.has_heads else [DROP_IN]
    return ours + [name for name in ("dgl", "pyg") if name in config.baselines]


def cases(config: Config) -> Iterator[Case]:
    for name in config.graphs:
        graph = config.graph(name, config.orders[0])
        for model in (MODELS[name] for name in config.models):
            for heads in config.heads if model.has_heads else (1,):
                names = names_of(config, model)

                def before(model=model, heads=heads, names=names) -> None:
                    for name in names:
                        if name.startswith("halfgnn"):
                            check(config, model, heads, name)

                contestants = [
                    _contestant(model, graph, config.hidden, heads, name, dtype)
                    for dtype in config.torch_dtypes()
                    for name in names
                ]
                yield Case("train", model.name, "step", graph, heads, config.hidden, contestants, before)
