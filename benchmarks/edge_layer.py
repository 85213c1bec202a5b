"""A step of one layer that reads features of edges: modules of torch_geometric.nn and dgl.nn, and halfgnn's.

``pyg``, ``pyg compiled`` and ``dgl`` are the modules as they are; ``halfgnn.pyg`` and ``halfgnn`` are halfgnn's with the same
parameters, ``halfgnn.pyg drop-in`` and ``halfgnn.pyg fused`` those of torch_geometric under the drop-in. "with edges" names a layer
with COLUMNS numbers per edge, beside the same layer without them. Edges of GINEConv have as many features as nodes.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from . import models, verify
from .baselines import check_messages
from .case import Backend, Case, Config, name_of
from .graphs import BenchGraph
from .inputs import normal, with_backward
from .layer import function_of
from .models import OURS, PYG, PYG_COMPILED, PygLayer
from .optional import Unavailable, dgl_runs_on

COLUMNS = 16  # numbers per edge, as in chemistry and on roads
_MESSAGES = 6  # rows of features per edge that a rival's step has at once, at least


@dataclass(frozen=True)
class EdgeLayer:
    """of_pyg, of_dgl(modules, graph, heads, dim): the layer by a package of modules; None: it has no such layer.

    width: features of an edge; 0: none, None: as many as of a node.
    """

    name: str
    of_pyg: Callable[[Any, BenchGraph, int, int], nn.Module] | None = None
    of_dgl: Callable[[Any, BenchGraph, int, int], nn.Module] | None = None
    width: int | None = COLUMNS
    is_attention: bool = False

    def build(self, name: str, graph: BenchGraph, heads: int, dim: int, dtype: torch.dtype) -> nn.Module:
        make = self.of_pyg if name in models.ON_EDGE_INDEX else self.of_dgl
        assert make is not None
        torch.manual_seed(7)
        return make(models.modules_of(name), graph, heads, dim).to(graph.device, dtype)

    def data(self, graph: BenchGraph, features: int, dtype: torch.dtype) -> tuple[Tensor, ...]:
        x = normal((graph.num_nodes, features), dtype, 1, graph.device)
        width = features if self.width is None else self.width
        return (x, normal((graph.num_edges, width), dtype, 4, graph.device)) if width else (x,)

    def backends(self, config: Config) -> list[str]:
        names = models.pyg_names(self.is_attention, config.baselines, config.eager) if self.of_pyg else []
        if self.of_dgl and "dgl" in config.baselines and dgl_runs_on(config.device):
            names += [OURS, "dgl"]
        return names


def _pyg(name: str, with_heads: bool = False, **options: Any) -> Callable[[Any, BenchGraph, int, int], nn.Module]:
    def build(modules: Any, graph: BenchGraph, heads: int, dim: int) -> nn.Module:
        outputs, more = (dim, {"heads": heads}) if with_heads else (heads * dim, {})
        return PygLayer(getattr(modules, name)(heads * dim, outputs, **more, **options))

    return build


def _pyg_gine(modules: Any, graph: BenchGraph, heads: int, dim: int) -> nn.Module:
    return PygLayer(modules.GINEConv(nn.Linear(heads * dim, heads * dim)))


def _dgl_gine(modules: Any, graph: BenchGraph, heads: int, dim: int) -> nn.Module:
    return modules.GINEConv(nn.Linear(heads * dim, heads * dim))


def _dgl_edge_gat(modules: Any, graph: BenchGraph, heads: int, dim: int) -> nn.Module:
    return modules.EdgeGATConv(heads * dim, COLUMNS, dim, heads, allow_zero_in_degree=True)


def _pyg_pna(modules: Any, graph: BenchGraph, heads: int, dim: int) -> nn.Module:
    degrees = torch.bincount(graph.dst.long(), minlength=graph.num_nodes).bincount()
    names = ["mean", "max", "min", "std"]
    return PygLayer(modules.PNAConv(heads * dim, heads * dim, names, ["identity", "amplification"], degrees))


_attention = functools.partial(_pyg, with_heads=True)
_gatv2 = functools.partial(_attention, "GATv2Conv", add_self_loops=False)
EDGE_LAYERS = (
    EdgeLayer("TransformerConv", _attention("TransformerConv"), width=0, is_attention=True),
    EdgeLayer("TransformerConv with edges", _attention("TransformerConv", edge_dim=COLUMNS), is_attention=True),
    EdgeLayer("GATv2Conv", _gatv2(), width=0, is_attention=True),
    EdgeLayer("GATv2Conv with edges", _gatv2(edge_dim=COLUMNS), is_attention=True),
    EdgeLayer("EdgeGATConv", of_dgl=_dgl_edge_gat),
    EdgeLayer("GINEConv", _pyg_gine, _dgl_gine, width=None),
    EdgeLayer("ResGatedGraphConv", _pyg("ResGatedGraphConv", edge_dim=COLUMNS)),
    EdgeLayer("PNAConv", _pyg_pna, width=0),
)


def _function(layer: EdgeLayer, name: str, graph: BenchGraph, heads: int, dim: int, dtype: torch.dtype) -> Any:
    """The layer as a function of data and parameters, and these."""
    module, data = layer.build(name, graph, heads, dim, dtype), layer.data(graph, heads * dim, dtype)
    return function_of(module, graph, name, len(data)), (*data, *models.disturbed(module))


def _backend(layer: EdgeLayer, name: str, graph: BenchGraph, heads: int, dim: int, dtype: torch.dtype) -> Backend:
    def make() -> Callable[[], Any]:
        if name in (PYG, PYG_COMPILED, "dgl"):
            check_messages(_MESSAGES * graph.num_edges * heads * dim * dtype.itemsize // 2, graph.device)
        return with_backward(*_function(layer, name, graph, heads, dim, dtype))

    return Backend(name, dtype, make, context=functools.partial(models.context_of, name))


def _check(config: Config, layer: EdgeLayer, heads: int, dim: int, order: str) -> None:
    """Compares halfgnn's backends with their host's module, in float64, on a small graph."""
    graph = verify.miniature(order, config.idtype, config.device)
    for name in (name for name in layer.backends(config) if name.startswith("halfgnn")):
        host = PYG if name in models.ON_EDGE_INDEX else "dgl"
        for dtype in config.torch_dtypes():
            function, inputs = _function(layer, name, graph, heads, dim, dtype)

            def formula(*tensors: Tensor, host: str = host) -> Tensor:
                return _function(layer, host, graph, heads, dim, tensors[0].dtype)[0](*tensors)

            models.check(name, function, formula, inputs, f"{layer.name} step, {name}, {name_of(dtype)}", units=16)


def cases(config: Config) -> Iterator[Case]:
    heads = max(config.heads)
    if not any(layer.backends(config) for layer in EDGE_LAYERS):
        raise Unavailable("the baselines are neither dgl nor pyg")
    for graph in (config.graph(name, config.orders[0]) for name in config.graphs):
        for layer in EDGE_LAYERS:
            names = layer.backends(config)
            for dim in [feat // heads for feat in config.dims] if names else []:
                found = [_backend(layer, n, graph, heads, dim, dtype) for dtype in config.torch_dtypes() for n in names]
                before = functools.partial(_check, config, layer, heads, dim, graph.order)
                yield Case("edge_layer", layer.name, "forward+backward", graph, heads, dim, found, before)
