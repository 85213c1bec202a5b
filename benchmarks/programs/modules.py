"""Modules of halfgnn.pyg and halfgnn.nn, for ``python -m benchmarks compiled --modules``: torch.compile beside eager code."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.nn import Module

import halfgnn
from halfgnn import nn, pyg

from .data import ProgramData
from .layers import D, E, F, mlp
from .program import Call, Program, plain, typed, weighted, with_edges

_HEADS = F // D
_ANY: dict[str, Any] = {"allow_zero_in_degree": True}
_AGGREGATORS = ["mean", "min", "max", "std"], ["identity", "amplification", "attenuation"]


def _pyg(name: str, make: Callable[..., Module], *arguments: Any, call: Call = plain, **options: Any) -> Program:
    return Program(f"halfgnn.pyg: {name}", lambda data: make(*arguments, **options), call)


def _nn(name: str, make: Callable[[], Module]) -> Program:
    return Program(f"halfgnn.nn: {name}", lambda data: make(), _on_graph)


def _graph(d: ProgramData) -> halfgnn.Graph:
    return pyg.graph_of(d.edge_index, d.num_nodes, d.num_nodes)


def _on_graph(module: Any, d: ProgramData) -> Any:
    return module(_graph(d), d.x)


PROGRAMS = (
    _pyg("GCNConv", pyg.GCNConv, F, F),
    _pyg("GCNConv, weights", pyg.GCNConv, F, F, call=weighted),
    _pyg("LGConv", pyg.LGConv),
    _pyg("GraphConv, weights", pyg.GraphConv, F, F, call=weighted),
    _pyg("SAGEConv, mean", pyg.SAGEConv, F, F),
    _pyg("SAGEConv, max", pyg.SAGEConv, F, F, aggr="max"),
    Program("halfgnn.pyg: GINConv", lambda data: pyg.GINConv(mlp()), plain),
    Program("halfgnn.pyg: GINEConv", lambda data: pyg.GINEConv(mlp(), edge_dim=E), with_edges),
    Program("halfgnn.pyg: PNAConv", lambda data: pyg.PNAConv(F, F, *_AGGREGATORS, data.degrees()), plain),
    Program("halfgnn.pyg: EdgeConv", lambda data: pyg.EdgeConv(mlp(2 * F)), plain),
    _pyg("ResGatedGraphConv, edges", pyg.ResGatedGraphConv, F, F, edge_dim=E, call=with_edges),
    _pyg("GATConv", pyg.GATConv, F, D, _HEADS),
    _pyg("GATConv, edges", pyg.GATConv, F, D, _HEADS, edge_dim=E, call=with_edges),
    _pyg("GATv2Conv", pyg.GATv2Conv, F, D, _HEADS),
    _pyg("GATv2Conv, edges", pyg.GATv2Conv, F, D, _HEADS, edge_dim=E, call=with_edges),
    _pyg("TransformerConv", pyg.TransformerConv, F, D, _HEADS),
    _pyg("TransformerConv, edges", pyg.TransformerConv, F, D, _HEADS, edge_dim=E, call=with_edges),
    _pyg("RGCNConv", pyg.RGCNConv, F, F, 4, call=typed),
    _nn("GraphConv", lambda: nn.GraphConv(F, F, **_ANY)),
    _nn("SAGEConv", lambda: nn.SAGEConv(F, F, "mean")),
    _nn("GINConv", lambda: nn.GINConv(mlp())),
    _nn("GATConv", lambda: nn.GATConv(F, D, _HEADS, **_ANY)),
    _nn("GATv2Conv", lambda: nn.GATv2Conv(F, D, _HEADS, **_ANY)),
    _nn("DotGatConv", lambda: nn.DotGatConv(F, D, _HEADS, **_ANY)),
)
