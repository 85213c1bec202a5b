"""Convolutions of torch_geometric.nn, one layer per program."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.nn import Linear, Module, ReLU, Sequential
from torch_geometric import nn

from .data import EDGE_FEATURES, EDGE_TYPES, FEATURES, HEADS, NODE_TYPES, RELATIONS, ProgramData
from .program import Call, Program, hetero, plain, typed, weighted, with_edges

F, D, E = FEATURES, FEATURES // HEADS, EDGE_FEATURES
METADATA = (list(NODE_TYPES), list(EDGE_TYPES))
NARROW = 8  # channels of NNConv, whose messages have a matrix per edge


def mlp(inputs: int = F, outputs: int = F) -> Sequential:
    return Sequential(Linear(inputs, F), ReLU(), Linear(F, outputs))


def _of(make: Callable[..., Module], *arguments: Any, **options: Any) -> Callable[[ProgramData], Module]:
    return lambda data: make(*arguments, **options)


def _made(make: Callable[[], Module]) -> Callable[[ProgramData], Module]:
    return lambda data: make()


_heads = functools.partial(_of, heads=HEADS)


def _pna(data: ProgramData, **options: Any) -> Module:
    scalers = ["identity", "amplification", "attenuation"]
    return nn.PNAConv(F, F, ["mean", "min", "max", "std"], scalers, data.degrees(), **options)


def _hypergraph(module: Any, d: ProgramData) -> Tensor:
    """Destinations of edges are hyperedges."""
    return module(d.x, d.edge_index)


def _heat(module: Any, d: ProgramData) -> Tensor:
    return module(d.x, d.edge_index, d.batch % 2, d.edge_type, d.edge_attr)


def _initial(module: Any, d: ProgramData) -> Tensor:
    """Convolutions that add features of the first layer."""
    return module(d.x, d.x, d.edge_index)


def _points(module: Any, d: ProgramData) -> Tensor:
    return module(d.x, d.pos, d.edge_index)


def _program(name: str, build: Callable[[ProgramData], Module], call: Call = plain, **options: Any) -> Program:
    return Program(name, build, call, **options)


_CONVOLUTIONS = (
    _program("GCNConv", _of(nn.GCNConv, F, F)),
    _program("GCNConv, weights", _of(nn.GCNConv, F, F), weighted),
    _program("GraphConv", _of(nn.GraphConv, F, F)),
    _program("GraphConv, weights", _of(nn.GraphConv, F, F), weighted),
    _program("GraphConv, max", _of(nn.GraphConv, F, F, aggr="max"), weighted),
    _program("SAGEConv, mean", _of(nn.SAGEConv, F, F)),
    _program("SAGEConv, max", _of(nn.SAGEConv, F, F, aggr="max", project=True)),
    _program("SAGEConv, three aggregations", _of(nn.SAGEConv, F, F, aggr=["mean", "max", "std"])),
    _program("GINConv", _made(lambda: nn.GINConv(mlp(), train_eps=True))),
    _program("GINEConv", _made(lambda: nn.GINEConv(mlp(), edge_dim=E)), with_edges),
    _program("GENConv", _of(nn.GENConv, F, F, aggr="softmax", learn_t=True, edge_dim=E), with_edges),
    _program("GENConv, power", _of(nn.GENConv, F, F, aggr="powermean", learn_p=True)),
    _program("PNAConv", _pna),
    _program("PNAConv, edges", functools.partial(_pna, edge_dim=E, towers=4), with_edges),
    _program("EdgeConv", _made(lambda: nn.EdgeConv(mlp(2 * F)))),
    _program("CGConv", _of(nn.CGConv, F, dim=E), with_edges),
    _program("ResGatedGraphConv", _of(nn.ResGatedGraphConv, F, F)),
    _program("ResGatedGraphConv, edges", _of(nn.ResGatedGraphConv, F, F, edge_dim=E), with_edges),
    _program("TAGConv", _of(nn.TAGConv, F, F), weighted),
    _program("SGConv", _of(nn.SGConv, F, F, K=3)),
    _program("SSGConv", _of(nn.SSGConv, F, F, alpha=0.1, K=5)),
    _program("APPNP", _of(nn.APPNP, K=10, alpha=0.1)),
    _program("MixHopConv", _of(nn.MixHopConv, F, D)),
    _program("ChebConv", _of(nn.ChebConv, F, F, K=3)),
    _program("ARMAConv", _of(nn.ARMAConv, F, F, num_stacks=2, num_layers=2)),
    _program("ClusterGCNConv", _of(nn.ClusterGCNConv, F, F, diag_lambda=1.0)),
    _program("GCN2Conv", _of(nn.GCN2Conv, F, alpha=0.1, theta=0.5, layer=2), _initial),
    _program("LGConv", _of(nn.LGConv)),
    _program("FAConv", _of(nn.FAConv, F), _initial),
    _program("GatedGraphConv", _of(nn.GatedGraphConv, F, num_layers=3), weighted),
    _program("LEConv", _of(nn.LEConv, F, F), weighted),
    _program("EGConv", _of(nn.EGConv, F, F, aggregators=["symnorm", "max", "std"])),
    _program("MFConv", _of(nn.MFConv, F, F, max_degree=4), has_half=False),
    _program("AntiSymmetricConv", _of(nn.AntiSymmetricConv, F, num_iters=2)),
    _program("DirGNNConv of GCNConv", _made(lambda: nn.DirGNNConv(nn.GCNConv(F, F)))),
    _program("SimpleConv", _of(nn.SimpleConv, aggr="mean")),
    _program("PDNConv", _of(nn.PDNConv, F, F, edge_dim=E, hidden_channels=E), with_edges),
    _program("WLConvContinuous", _of(nn.WLConvContinuous), weighted),
    _program("HypergraphConv", _of(nn.HypergraphConv, F, F), _hypergraph),
)

_ATTENTIONS = (
    _program("GATConv", _heads(nn.GATConv, F, D)),
    _program("GATConv, edges", _heads(nn.GATConv, F, D, edge_dim=E), with_edges),
    _program("GATv2Conv", _heads(nn.GATv2Conv, F, D)),
    _program("GATv2Conv, edges", _heads(nn.GATv2Conv, F, D, edge_dim=E), with_edges),
    _program("TransformerConv", _heads(nn.TransformerConv, F, D)),
    _program("TransformerConv, edges", _heads(nn.TransformerConv, F, D, edge_dim=E, beta=True), with_edges),
    _program("SuperGATConv", _heads(nn.SuperGATConv, F, D, attention_type="MX")),
    _program("AGNNConv", _of(nn.AGNNConv)),
    _program("FeaStConv", _heads(nn.FeaStConv, F, F)),
    _program("GeneralConv", _heads(nn.GeneralConv, F, F, in_edge_channels=E, attention=True), with_edges),
    _program("GPSConv", _made(lambda: nn.GPSConv(F, nn.GINEConv(mlp(), edge_dim=E), heads=HEADS)),
             lambda m, d: m(d.x, d.edge_index, d.batch, edge_attr=d.edge_attr)),
    _program("GATConv to fewer nodes", _heads(nn.GATConv, (F, F), D, add_self_loops=False),
             lambda m, d: m((d.x_dict["author"], d.x_dict["paper"]), d.edge_index_dict["author", "writes", "paper"])),
)  # fmt: skip

_RELATIONS = (
    _program("FiLMConv", _of(nn.FiLMConv, F, F, num_relations=RELATIONS), typed),
    _program("RGCNConv", _of(nn.RGCNConv, F, F, RELATIONS), typed),
    _program("RGCNConv, bases", _of(nn.RGCNConv, F, F, RELATIONS, num_bases=2), typed),
    _program("FastRGCNConv", _of(nn.FastRGCNConv, F, F, RELATIONS, num_blocks=4), typed, sizes=("tiny", "new", "new_tiny")),
    _program("RGATConv", _heads(nn.RGATConv, F, D, num_relations=RELATIONS, num_bases=2), typed),
    _program("HEATConv", _heads(nn.HEATConv, F, F, 2, RELATIONS, E, E, E), _heat),
    _program("HeteroConv of SAGEConv", _made(lambda: nn.HeteroConv({k: nn.SAGEConv(F, F) for k in EDGE_TYPES})), hetero),
    _program("HeteroConv of GATConv",
             _made(lambda: nn.HeteroConv({k: nn.GATConv(F, D, HEADS, add_self_loops=False) for k in EDGE_TYPES})), hetero),
    _program("HANConv", _heads(nn.HANConv, F, F, METADATA), hetero),
    _program("HGTConv", _heads(nn.HGTConv, F, F, METADATA), hetero),
)  # fmt: skip

_POSITIONS = (
    _program("GMMConv", _of(nn.GMMConv, F, F, dim=2, kernel_size=4), lambda m, d: m(d.x, d.edge_index, d.pseudo)),
    _program("NNConv", _made(lambda: nn.NNConv(NARROW, NARROW, Linear(E, NARROW * NARROW))),
             lambda m, d: m(d.x[:, :NARROW], d.edge_index, d.edge_attr)),
    _program("PointNetConv", _made(lambda: nn.PointNetConv(mlp(F + 3), mlp())), _points),
    _program("PointTransformerConv", _of(nn.PointTransformerConv, F, F), _points),
    _program("PointGNNConv", _made(lambda: nn.PointGNNConv(mlp(F, 3), mlp(F + 3), mlp())), _points),
    _program("PPFConv", _made(lambda: nn.PPFConv(mlp(F + 4), mlp())),
             lambda m, d: m(d.x, d.pos, d.normal, d.edge_index)),
)  # fmt: skip


def _sparse(module: Any, d: ProgramData) -> Tensor:
    return module(d.x, d.matrix)


_MATRICES = (
    _program("GraphConv on a sparse matrix", _of(nn.GraphConv, F, F), _sparse, has_half=False),
    _program("SAGEConv on a sparse matrix", _of(nn.SAGEConv, F, F), _sparse, has_half=False),
    _program("SAGEConv on an EdgeIndex", _of(nn.SAGEConv, F, F), lambda m, d: m(d.x, d.sorted_index)),
)

PROGRAMS: tuple[Program, ...] = (*_CONVOLUTIONS, *_ATTENTIONS, *_RELATIONS, *_POSITIONS, *_MATRICES)
