"""Layers and models: those of dgl.nn, halfgnn.nn and torch_geometric.nn, and the same by halfgnn.reference.

Backends: ``halfgnn`` is halfgnn.nn on a Graph, ``halfgnn drop-in`` is dgl.nn inside ``halfgnn.dgl.accelerate()``,
``halfgnn fused`` the same with ``fuse=True``, ``dgl`` is dgl.nn as it is. ``pyg`` is torch_geometric.nn, ``pyg compiled`` the same
under torch.compile; ``halfgnn.pyg`` is halfgnn.pyg, ``halfgnn.pyg drop-in`` torch_geometric.nn inside
``halfgnn.pyg.accelerate(fuse=False)``, ``halfgnn.pyg fused`` the same with ``fuse=True``.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

import halfgnn.dgl
import halfgnn.nn
from halfgnn import Graph, reference

from . import verify
from .inputs import with_backward
from .optional import Unavailable, dgl_runs_on, import_dgl, import_pyg

OURS, DROP_IN, FUSED = "halfgnn", "halfgnn drop-in", "halfgnn fused"
PYG, PYG_COMPILED = "pyg", "pyg compiled"
PYG_OURS, PYG_DROP_IN, PYG_FUSED = "halfgnn.pyg", "halfgnn.pyg drop-in", "halfgnn.pyg fused"
ON_EDGE_INDEX = (PYG, PYG_COMPILED, PYG_OURS, PYG_DROP_IN, PYG_FUSED)
SLOPE = 0.2  # GATConv's default

# ---- formulas --------------------------------------------------------------------------------------------------------
# Of a graph, features, and parameters in the order of their names; in the dtype of these tensors.


def _gat_formula(
    graph: Graph, x: Tensor, attn_l: Tensor, attn_r: Tensor, bias: Tensor, weight: Tensor | None = None
) -> Tensor:
    h = (x if weight is None else x @ weight.t()).view(-1, *attn_l.shape[1:])
    left, right = ((h * a).sum(-1, keepdim=True) for a in (attn_l, attn_r))
    logits = reference.gsddmm(graph, "add", left, right)
    alpha = reference.edge_softmax(graph, functional.leaky_relu(logits, SLOPE))
    return reference.gspmm(graph, "mul", "sum", h, alpha) + bias.view(attn_l.shape)


def _gcn_formula(graph: Graph, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """With norm="both" and equal widths."""

    def norm(degrees: Tensor) -> Tensor:
        return degrees.to(x.dtype).clamp(min=1).pow(-0.5).unsqueeze(1)

    h = x * norm(graph.out_degrees())
    h = reference.gspmm(graph, "copy_lhs", "sum", h, None) @ weight
    return h * norm(graph.in_degrees()) + bias


def _sage_formula(graph: Graph, x: Tensor, fc_neigh: Tensor, fc_self: Tensor, bias: Tensor) -> Tensor:
    """With the mean."""
    return x @ fc_self.t() + bias + reference.gspmm(graph, "copy_lhs", "mean", x, None) @ fc_neigh.t()


# ---- layers and models -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Layer:
    """build(library, inputs, outputs, heads): see library_of.

    pyg_order: the places of the formula's parameters among those of torch_geometric's layer; None if that computes something else,
    or is not there.
    """

    name: str
    build: Callable[[Any, int, int, int], nn.Module]
    formula: Callable[..., Tensor]
    has_heads: bool = False
    pyg_order: tuple[int, ...] | None = None
    in_pyg: bool = True


def _gat(library: Any, inputs: int, outputs: int, heads: int) -> nn.Module:
    return library.GATConv(inputs, outputs, heads, **library.any_graph)


def _gat_without_fc(library: Any, inputs: int, outputs: int, heads: int) -> nn.Module:
    module = _gat(library, inputs, outputs, heads)
    module.fc = nn.Identity()
    return module


def _gcn(library: Any, inputs: int, outputs: int, heads: int) -> nn.Module:
    return library.GraphConv(inputs, outputs, **library.any_graph)


def _sage(library: Any, inputs: int, outputs: int, heads: int) -> nn.Module:
    return library.SAGEConv(inputs, outputs, "mean")


LAYERS = {layer.name: layer for layer in (
    Layer("GATConv", _gat, _gat_formula, has_heads=True, pyg_order=(0, 1, 2, 3)),
    Layer("GATConv without fc", _gat_without_fc, _gat_formula, has_heads=True, in_pyg=False),
    Layer("GraphConv", _gcn, _gcn_formula),  # GCNConv divides by in-degrees of both ends
    Layer("SAGEConv", _sage, _sage_formula, pyg_order=(0, 2, 1)),
)}  # fmt: skip


@dataclass(frozen=True)
class Model:
    """Layers in sequence. Heads are concatenated between layers and averaged at the end."""

    name: str
    layer: Layer
    depth: int
    activation: Callable[[Tensor], Tensor]

    def join(self, outputs: Tensor, i: int) -> Tensor:
        """What follows layer i."""
        if i < self.depth - 1:
            return self.activation(outputs.flatten(1))
        return outputs.mean(1) if outputs.dim() == 3 else outputs

    def formula(self, graph: Graph, x: Tensor, *parameters: Tensor, order: tuple[int, ...] | None = None) -> Tensor:
        """order: see Layer.pyg_order."""
        count = len(parameters) // self.depth
        for i in range(self.depth):
            own = parameters[i * count : (i + 1) * count]
            x = self.join(self.layer.formula(graph, x, *(own if order is None else [own[place] for place in order])), i)
        return x


MODELS = {model.name: model for model in (
    Model("GAT", LAYERS["GATConv"], 3, functional.elu),
    Model("GCN", LAYERS["GraphConv"], 2, torch.relu),
    Model("SAGE", LAYERS["SAGEConv"], 2, torch.relu),
)}  # fmt: skip


class Network(nn.Module):
    """A model of a library's layers."""

    def __init__(self, model: Model, library: Any, inputs: int, hidden: int, classes: int, heads: int):
        super().__init__()
        self.model = model
        widths = [inputs, *[hidden * heads] * (model.depth - 1)]
        outputs = [*[hidden] * (model.depth - 1), classes]
        self.convs = nn.ModuleList(model.layer.build(library, a, b, heads) for a, b in zip(widths, outputs))

    def forward(self, graph: Any, x: Tensor) -> Tensor:
        for i, conv in enumerate(self.convs):
            x = self.model.join(conv(graph, x), i)
        return x


# ---- libraries -------------------------------------------------------------------------------------------------------


class PygLayer(nn.Module):
    """A layer of torch_geometric with the results and the order of arguments of dgl.nn."""

    def __init__(self, conv: nn.Module, heads: int = 0):
        super().__init__()
        self.conv, self.heads = conv, heads

    def forward(self, graph: Tensor, x: Tensor, *edges: Tensor) -> Tensor:
        out = self.conv(x, graph, *edges)
        return out.view(x.shape[0], self.heads, -1) if self.heads else out


def modules_of(backend: str) -> Any:
    """The package that has the backend's modules."""
    if backend == OURS:
        return halfgnn.nn
    if backend == PYG_OURS:
        return importlib.import_module("halfgnn.pyg")
    return import_pyg().nn if backend in ON_EDGE_INDEX else import_dgl().nn.pytorch


def topology_of(graph: Any, backend: str) -> Any:
    """What the backend's modules take for the graph."""
    if backend == OURS:
        return graph.halfgnn
    return graph.edge_index if backend in ON_EDGE_INDEX else graph.dgl


def _pyg_library(backend: str) -> Any:
    pyg = modules_of(backend)
    return SimpleNamespace(
        any_graph={},
        GATConv=lambda a, b, heads: PygLayer(pyg.GATConv(a, b, heads, add_self_loops=False), heads),
        GraphConv=lambda a, b: PygLayer(pyg.GCNConv(a, b, add_self_loops=False, cached=True)),
        SAGEConv=lambda a, b, aggregator: PygLayer(pyg.SAGEConv(a, b, aggr=aggregator)),
    )


def library_of(backend: str, device: str) -> Any:
    """The layers of a backend, with the names and arguments of dgl.nn. Raises Unavailable if it has none here.

    any_graph: arguments that allow nodes without in-edges.
    """
    if backend in ON_EDGE_INDEX:
        return _pyg_library(backend)
    if backend != OURS and not dgl_runs_on(device):
        raise Unavailable(f"this DGL has no {device}")
    layers = {name: getattr(modules_of(backend), name) for name in ("GATConv", "GraphConv", "SAGEConv")}
    return SimpleNamespace(any_graph={"allow_zero_in_degree": True}, **layers)


def context_of(backend: str) -> contextlib.AbstractContextManager:
    if backend in (DROP_IN, FUSED):
        return halfgnn.dgl.accelerate(fuse=backend == FUSED)
    if backend in (PYG_DROP_IN, PYG_FUSED):
        return importlib.import_module("halfgnn.pyg").accelerate(fuse=backend == PYG_FUSED)
    return contextlib.nullcontext()


def pyg_names(has_heads: bool, baselines: Sequence[str], is_eager: bool) -> list[str]:
    """The backends on edge_index, if torch_geometric is among the baselines."""
    if "pyg" not in baselines:
        return []
    compiled = [PYG_COMPILED] if "torch.compile" in baselines and not is_eager else []
    return [PYG_OURS, PYG_DROP_IN, *([PYG_FUSED] if has_heads else []), PYG, *compiled]


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """By torch.compile, which would stop compiling after a few backends."""
    for name in ("recompile_limit", "cache_size_limit"):  # of newer and older versions of torch
        if hasattr(torch._dynamo.config, name):
            setattr(torch._dynamo.config, name, 256)
    return torch.compile(function, dynamic=False)


def check(
    backend: str, function: Callable[..., Tensor], formula: Callable[..., Tensor], inputs: Sequence[Tensor],
    what: str, units: float = 1,
) -> None:  # fmt: skip
    """Compares results and gradients of `function` with the formula in float64: see verify.check_like_formula."""

    def ours(tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        with context_of(backend):
            return with_backward(function, tensors)()

    verify.check_like_formula(ours, lambda tensors: with_backward(formula, tensors)(), tuple(inputs), what, units)


def disturbed(module: nn.Module) -> tuple[Tensor, ...]:
    """The parameters with some noise. Biases are zero initially, which would hide wrong ones."""
    return tuple(p.detach() + 0.05 * torch.randn(p.shape).to(p) for p in module.parameters())
