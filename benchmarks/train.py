"""Training steps of whole models: forward, loss, backward and optimizer, as people write them.

* ``GAT``: three layers, ``--hidden`` units per head, elu, heads averaged at the end. On a Reddit-size graph this is the
  model of DGL's guide to mixed precision (docs/source/guide/mixed_precision.rst), whose heads are [1, 1, 1] and [2, 2,
  2].
* ``GCN``, ``SAGE`` (mean): two layers, relu.

Steps run in fp32, in fp16 under autocast with a GradScaler, and in bf16 under autocast. Parameters, features and the
optimizer (Adam) are fp32. On a CPU DGL's modules raise an error under autocast. So ``dgl`` in bf16 has parameters and
features in bf16 there, which is the closest that it supports.

The backends are those of models.py. All start from the same parameters, except PyG's, which are drawn by its own
rules. Every sample is one more step of the same training, so the losses of a row are a curve.

Data: features are noise around one point per class. Classes are the communities of the graph, if it has communities. A
falling loss shows that gradients have the right direction. It says nothing about accuracy on real data (see
examples/planetoid_accuracy.py).
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from . import models, verify
from .baselines import check_messages
from .baselines.dgl import check_dgl
from .case import Backend, Case, Config, name_of
from .graphs import BenchGraph
from .models import DROP_IN, FUSED, MODELS, OURS, Model, Network, context_of
from .optional import Unavailable

LEARNING_RATE = 1e-3
SPREAD = 0.2  # standard deviation of the points of classes; that of the noise is 1
TRAINED_ON = 0.66  # share of the nodes, as in Reddit
# Features and classes of the data sets that the graphs are named after.
WIDTHS = {
    "cora": (1433, 7), "citeseer": (3703, 6), "pubmed": (500, 3), "arxiv": (128, 40), "proteins": (8, 112),
    "reddit": (602, 41), "products": (100, 47), "tiny": (12, 4),
}  # fmt: skip


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
    """The graph in the backend's format, and the bytes of its adjacency in both directions."""
    topology = models.topology_of(graph, name)
    if name == OURS:
        return topology, _distinct_bytes((*topology.csc(), *topology.csr()))
    if name in models.ON_EDGE_INDEX:
        return topology, topology.nbytes
    both = (topology.adj_tensors(sparse) for sparse in ("csc", "csr"))
    return topology, sum(x.nbytes for sparse in both for x in sparse)


def _autocast(device: str, dtype: torch.dtype) -> contextlib.AbstractContextManager:
    return contextlib.nullcontext() if dtype == torch.float32 else torch.autocast(device, dtype)


def network_of(model: Model, graph: BenchGraph, hidden: int, heads: int, name: str) -> Network:
    inputs, classes = _widths(graph)
    library = models.library_of(name, graph.device)
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


def _backend(model: Model, graph: BenchGraph, hidden: int, heads: int, name: str, dtype: torch.dtype) -> Backend:
    made = Backend(name, dtype, lambda: None, context=functools.partial(context_of, name))

    def make() -> Callable[[], None]:
        data = data_of(graph)
        if name == "dgl":
            check_dgl(graph, dtype)
        if name in (
            models.PYG,
            models.PYG_COMPILED,
        ):  # messages, weighted messages and their gradients, of the widest layer
            widest = heads * hidden if model.layer.has_heads else max(_widths(graph)[0], hidden)
            check_messages(3 * graph.num_edges * widest * 4, graph.device)
        network = network_of(model, graph, hidden, heads, name)
        if name == "dgl" and graph.device == "cpu" and dtype == torch.bfloat16:
            made.note = "parameters and features in bf16: dgl.nn raises under autocast on the CPU"
            network, data = network.to(dtype), Data(data.features.to(dtype), data.labels, data.trained)
        topology, topology_bytes = topology_of(graph, name)
        # Parameters, their gradients and Adam's two moments, which all exist before the second step.
        made.input_bytes = data.bytes + topology_bytes + 4 * sum(p.nbytes for p in network.parameters())
        made.losses = []
        network = models.compiled(network) if name == models.PYG_COMPILED else network
        return training(network, topology, data, dtype, made.losses)

    made.make = make
    return made


def check(config: Config, model: Model, heads: int, name: str) -> None:
    """Compares results and gradients of halfgnn's backend on a small graph with the formulas in float64."""
    graph = verify.miniature("sorted", config.idtype, config.device)
    network = network_of(model, graph, 8, heads, name)
    names = [name for name, _ in network.named_parameters()]
    topology, _ = topology_of(graph, name)
    is_pyg = name in models.ON_EDGE_INDEX
    if is_pyg and model.layer.pyg_order is None:
        return
    formula = functools.partial(model.formula, graph.halfgnn, order=model.layer.pyg_order if is_pyg else None)

    def ours(x: Tensor, *values: Tensor) -> Tensor:
        with _autocast(config.device, x.dtype):
            masters = {key: value.float() for key, value in zip(names, values)}
            return torch.func.functional_call(network, masters, (topology, x.float())).to(x.dtype)

    x = torch.randn(graph.num_nodes, _widths(graph)[0], generator=torch.Generator().manual_seed(5))
    tensors = (x.to(config.device), *models.disturbed(network))
    for dtype in config.torch_dtypes():
        models.check(
            name, ours, formula, [t.to(dtype) for t in tensors],
            f"{model.name}, {name}, {name_of(dtype)}", units=16,  # several layers, whose results autocast rounds
        )  # fmt: skip


def check_all(config: Config, model: Model, heads: int, names: list[str]) -> None:
    for name in names:
        if name.startswith("halfgnn"):
            check(config, model, heads, name)


def names_of(config: Config, model: Model) -> list[str]:
    ours = [OURS]
    with contextlib.suppress(Unavailable):
        models.library_of("dgl", config.device)
        ours += [DROP_IN, FUSED] if model.layer.has_heads else [DROP_IN]
    dgl = ["dgl"] if "dgl" in config.baselines else []
    return ours + dgl + models.pyg_names(model.layer.has_heads, config.baselines, config.eager)


def cases(config: Config) -> Iterator[Case]:
    for graph in (config.graph(name, config.orders[0]) for name in config.graphs):
        for model in (MODELS[name] for name in config.models):
            names = names_of(config, model)
            for heads in config.heads if model.layer.has_heads else (1,):
                backends = [
                    _backend(model, graph, config.hidden, heads, name, dtype)
                    for dtype in config.torch_dtypes()
                    for name in names
                ]
                before = functools.partial(check_all, config, model, heads, names)
                yield Case("train", model.name, "step", graph, heads, config.hidden, backends, before)
