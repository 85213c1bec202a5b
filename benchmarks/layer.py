"""A training step of one layer: unmodified dgl.nn modules, as they are and under the drop-in.

All contestants are the same module class with the same parameters on the same DGL graph. Two run inside
``halfgnn.dgl.accelerate()``, one of them with ``fuse=True``, which makes attention one fused operator. Features,
parameters and gradients have the dtype of the row.

PyTorch makes the matrix products of a step for every contestant. In half precision they are slow on a CPU without
instructions for them. So ``GATConv without fc`` is timed too: the same module with the identity in place of its
projection.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

import halfgnn
import halfgnn.dgl
from halfgnn import reference

from . import baselines, verify
from .case import Case, Config, Contestant, Unavailable, normal, with_backward
from .graphs import BenchGraph

SLOPE = 0.2  # GATConv's default
DROP_IN, FUSED = "halfgnn drop-in", "halfgnn fused"


def gat_formula(
    graph: halfgnn.Graph, x: Tensor, attn_l: Tensor, attn_r: Tensor, bias: Tensor, weight: Tensor | None = None
) -> Tensor:
    """GATConv by halfgnn.reference, in the dtype of its inputs."""
    h = (x if weight is None else x @ weight.t()).view(-1, *attn_l.shape[1:])
    left, right = ((h * a).sum(-1, keepdim=True) for a in (attn_l, attn_r))
    logits = reference.gsddmm(graph, "add", left, right)
    alpha = reference.edge_softmax(graph, torch.nn.functional.leaky_relu(logits, SLOPE))
    out = reference.gspmm(graph, "mul", "sum", h, alpha)
    return out + bias.view(attn_l.shape)


def gcn_formula(graph: halfgnn.Graph, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """GraphConv with norm="both" and equal widths by halfgnn.reference."""

    def norm(degrees: Tensor) -> Tensor:
        return degrees.to(x.dtype).clamp(min=1).pow(-0.5).unsqueeze(1)

    h = x * norm(graph.out_degrees())
    h = reference.gspmm(graph, "copy_lhs", "sum", h, None) @ weight
    return h * norm(graph.in_degrees()) + bias


@dataclass(frozen=True)
class Layer:
    """A module of dgl.nn; formula(graph, x, *parameters in the order of their names)."""

    name: str
    build: Callable[[int, int], torch.nn.Module]  # of heads, dim
    formula: Callable[..., Tensor]
    has_heads: bool


def _gat(heads: int, dim: int) -> torch.nn.Module:
    module = baselines.import_dgl().nn.pytorch.GATConv
    return module(heads * dim, dim, heads, allow_zero_in_degree=True)


def _gat_without_fc(heads: int, dim: int) -> torch.nn.Module:
    module = _gat(heads, dim)
    module.fc = torch.nn.Identity()
    return module


def _gcn(heads: int, dim: int) -> torch.nn.Module:
    module = baselines.import_dgl().nn.pytorch.GraphConv
    return module(heads * dim, heads * dim, allow_zero_in_degree=True)


LAYERS = (
    Layer("GATConv", _gat, gat_formula, has_heads=True),
    Layer("GATConv without fc", _gat_without_fc, gat_formula, has_heads=True),
    Layer("GraphConv", _gcn, gcn_formula, has_heads=False),
)


def _parts(layer: Layer, heads: int, dim: int, dtype: torch.dtype, device: str):
    """The module, the names of its parameters, and the parameters."""
    torch.manual_seed(7)
    module = layer.build(heads, dim).to(device, dtype)
    named = dict(module.named_parameters())
    # The bias is zero initially, which would hide a wrong bias.
    with torch.no_grad():
        named["bias"].uniform_(-0.1, 0.1)
    return module, tuple(named), tuple(p.detach() for p in named.values())


def _step(layer: Layer, graph: BenchGraph, heads: int, dim: int, dtype: torch.dtype):
    """(function of x and parameters, x and parameters)."""
    module, names, parameters = _parts(layer, heads, dim, dtype, graph.device)

    def function(x: Tensor, *values: Tensor) -> Tensor:
        return torch.func.functional_call(module, dict(zip(names, values)), (graph.dgl, x))

    x = normal((graph.num_nodes, heads * dim), dtype, 1, graph.device)
    return function, (x, *parameters)


def _contestant(layer: Layer, graph: BenchGraph, heads: int, dim: int, name: str, dtype: torch.dtype) -> Contestant:
    def make():
        if name == "dgl" and dtype == torch.float16 and graph.device == "cpu":
            raise Unavailable("DGL has no fp16 on the CPU")
        return with_backward(*_step(layer, graph, heads, dim, dtype), 5)

    if name == "dgl":
        return Contestant(name, dtype, make)
    return Contestant(name, dtype, make, context=_contexts()[name])


def _contexts():
    """The contexts of the drop-in's contestants."""
    return {
        DROP_IN: halfgnn.dgl.accelerate,
        FUSED: functools.partial(halfgnn.dgl.accelerate, fuse=True),
    }


def _check(config: Config, layer: Layer, heads: int, dim: int, order: str) -> None:
    graph = verify.miniature(order, config.idtype, config.device)

    def formula(inputs: Sequence[Tensor]):
        def function(*tensors: Tensor) -> Tensor:
            return layer.formula(graph.halfgnn, *tensors)

        return with_backward(function, tuple(inputs), 5)()

    for dtype in config.torch_dtypes():
        function, inputs = _step(layer, graph, heads, dim, dtype)

        for name, context in _contexts().items():

            def ours(tensors: Sequence[Tensor], function=function, context=context):
                with context():
                    return with_backward(function, tuple(tensors), 5)()

            verify.check_like_formula(ours, formula, inputs, f"{layer.name} step, {name}, {dtype}")


def cases(config: Config) -> Iterator[Case]:
    if not baselines.dgl_runs_on(config.device):
        raise Unavailable(f"this DGL has no {config.device}")
    everyone = [DROP_IN, FUSED] + (["dgl"] if "dgl" in config.baselines else [])
    for name in config.graphs:
        graph = config.graph(name, config.orders[0])  # modules make their own edge data, in the order of the graph
        for layer in LAYERS:
            if layer.name not in config.layers:
                continue
            heads = max(config.heads) if layer.has_heads else 1
            for feat in config.dims:
                dim = feat // heads

                def before(layer=layer, heads=heads, dim=dim, order=graph.order) -> None:
                    _check(config, layer, heads, dim, order)

                contestants = [
                    _contestant(layer, graph, heads, dim, contender, dtype)
                    for dtype in config.torch_dtypes()
                    for contender in everyone
                    if layer.has_heads or contender != FUSED
                ]
                yield Case("layer", layer.name, "forward+backward", graph, heads, dim, contestants, before)
