"""A training step of one layer: unmodified modules of dgl.nn and torch_geometric.nn, as they are and under the drop-ins.

The backends of DGL are the same module class with the same parameters on the same DGL graph. Two run inside
``halfgnn.dgl.accelerate()``, one of them with ``fuse=True``, which makes attention one fused operator. Those of
torch_geometric, beside them with the baseline ``pyg``, are named in models.py. Features, parameters and gradients have the
dtype of the row.

PyTorch makes the matrix products of a step for every backend. In half precision they are slow on a CPU without
instructions for them. So ``GATConv without fc`` is timed too: the same module with the identity in place of its
projection.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from . import models, verify
from .baselines import check_messages
from .baselines.dgl import check_dgl
from .case import Backend, Case, Config
from .graphs import BenchGraph
from .inputs import normal, with_backward
from .models import DROP_IN, FUSED, LAYERS, Layer
from .optional import Unavailable, dgl_runs_on


def _module(
    layer: Layer, graph: BenchGraph, heads: int, dim: int, dtype: torch.dtype, name: str = DROP_IN
) -> torch.nn.Module:
    torch.manual_seed(7)
    library = models.library_of(name, graph.device)
    return layer.build(library, heads * dim, dim, heads).to(graph.device, dtype)


def function_of(
    module: torch.nn.Module, graph: BenchGraph, name: str = DROP_IN, data: int = 1
) -> Callable[..., Tensor]:
    """The module as a function of `data` tensors, its features and perhaps those of edges, and of its parameters."""
    names = [name for name, _ in module.named_parameters()]
    topology = models.topology_of(graph, name)

    def function(*inputs: Tensor) -> Tensor:
        return torch.func.functional_call(module, dict(zip(names, inputs[data:])), (topology, *inputs[:data]))

    return models.compiled(function) if name == models.PYG_COMPILED else function


def _backend(layer: Layer, graph: BenchGraph, heads: int, dim: int, name: str, dtype: torch.dtype) -> Backend:
    def make() -> Callable[[], Any]:
        if name == "dgl":
            check_dgl(graph, dtype)
        if name in (models.PYG, models.PYG_COMPILED):  # messages, weighted messages and their gradients
            check_messages(3 * graph.num_edges * heads * dim * dtype.itemsize, graph.device)
        module = _module(layer, graph, heads, dim, dtype, name)
        x = normal((graph.num_nodes, heads * dim), dtype, 1, graph.device)
        return with_backward(function_of(module, graph, name), (x, *(p.detach() for p in module.parameters())))

    return Backend(name, dtype, make, context=functools.partial(models.context_of, name))


def _check(config: Config, layer: Layer, heads: int, dim: int, order: str) -> None:
    graph = verify.miniature(order, config.idtype, config.device)
    formula = functools.partial(layer.formula, graph.halfgnn)
    for dtype in config.torch_dtypes():
        module = _module(layer, graph, heads, dim, dtype)
        x = normal((graph.num_nodes, heads * dim), dtype, 1, graph.device)
        inputs = (x, *models.disturbed(module))
        units = 16 if dtype == torch.float32 else 1  # parameters' gradients are fp32 sums of terms that cancel
        for name in (DROP_IN, FUSED):
            what = f"{layer.name} step, {name}, {dtype}"
            models.check(name, function_of(module, graph), formula, inputs, what, units)


def cases(config: Config) -> Iterator[Case]:
    if not dgl_runs_on(config.device):
        raise Unavailable(f"this DGL has no {config.device}")
    for graph in (config.graph(name, config.orders[0]) for name in config.graphs):  # modules make their own edge data
        for layer in (LAYERS[name] for name in config.layers):
            heads = max(config.heads) if layer.has_heads else 1
            names = [DROP_IN, *([FUSED] if layer.has_heads else []), *(["dgl"] if "dgl" in config.baselines else [])]
            if layer.in_pyg:
                names += models.pyg_names(layer.has_heads, config.baselines, config.eager)
            for dim in [feat // heads for feat in config.dims]:
                backends = [
                    _backend(layer, graph, heads, dim, name, dtype) for dtype in config.torch_dtypes() for name in names
                ]
                before = functools.partial(_check, config, layer, heads, dim, graph.order)
                yield Case("layer", layer.name, "forward+backward", graph, heads, dim, backends, before)
