"""Models of torch_geometric.nn.models, and stacks of its layers as its examples have them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import Linear, Module, ModuleList, ReLU
from torch_geometric import nn

from .data import EDGE_FEATURES, EDGE_TYPES, FEATURES, HEADS, NODE_TYPES, ProgramData
from .layers import METADATA
from .program import Program, hetero, plain, with_edges

F, E = FEATURES, EDGE_FEATURES
DEPTH, CLASSES = 3, 16


def _basic(name: str, **options: Any) -> Callable[[ProgramData], Module]:
    return lambda data: getattr(nn, name)(F, F, DEPTH, CLASSES, **options)


def _pna(data: ProgramData) -> Module:
    names, scalers = ["mean", "max", "std"], ["identity", "amplification"]
    return nn.PNA(F, F, DEPTH, CLASSES, aggregators=names, scalers=scalers, deg=data.degrees())


class DeeperGCN(Module):
    """Layers of softmax GENConv with residuals before their norms."""

    def __init__(self, depth: int = 4):
        super().__init__()
        self.encode = Linear(E, F)
        self.layers = ModuleList(self._layer() for _ in range(depth))
        self.head = Linear(F, CLASSES)

    @staticmethod
    def _layer() -> Module:
        conv = nn.GENConv(F, F, aggr="softmax", t=1.0, learn_t=True, num_layers=2, norm="layer")
        return nn.DeepGCNLayer(conv, nn.LayerNorm(F, mode="node"), ReLU(), block="res+")

    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor) -> Tensor:
        edges = self.encode(edge_attr)
        x = self.layers[0].conv(x, edge_index, edges)
        for layer in self.layers[1:]:
            x = layer(x, edge_index, edges)
        return self.head(self.layers[0].act(self.layers[0].norm(x)))


class Hetero(Module):
    """Layers for several types of nodes, and a head for the first type."""

    def __init__(self, layer: Callable[[], Module], depth: int = 2):
        super().__init__()
        self.layers, self.head = ModuleList(layer() for _ in range(depth)), Linear(F, CLASSES)

    def forward(self, x_dict: dict[str, Tensor], edge_index_dict: dict[tuple, Tensor]) -> Tensor:
        for layer in self.layers:
            x_dict = {name: x.relu() for name, x in layer(x_dict, edge_index_dict).items()}
        return self.head(x_dict[NODE_TYPES[0]])


class _Distances(Module):
    """The interaction graph of SchNet: the data's edges, with the distances of their ends."""

    edge_index: Tensor

    def forward(self, pos: Tensor, batch: Tensor) -> tuple[Tensor, Tensor]:
        src, dst = self.edge_index
        return self.edge_index, (pos[src] - pos[dst]).norm(dim=-1)


def _schnet(data: ProgramData) -> Module:
    return nn.SchNet(F, F, num_interactions=DEPTH, num_gaussians=32, interaction_graph=_Distances())


def _energy(module: Any, d: ProgramData) -> Tensor:
    module.interaction_graph.edge_index = d.edge_index
    return module(1 + d.batch % 8, d.pos, d.batch)


def _link_scores(module: Any, d: ProgramData) -> Tensor:
    """Of the edges as pairs of users and items."""
    return module(d.edge_index, d.edge_index[:, :: max(1, d.num_edges // 1000)])


def _labels(d: ProgramData) -> tuple[Tensor, Tensor]:
    nodes = torch.arange(d.num_nodes, device=d.x.device)
    return nodes % CLASSES, nodes % 3 == 0


def _propagate_labels(module: Any, d: ProgramData) -> Tensor:
    y, mask = _labels(d)
    return module(y, d.edge_index, mask)


def _correct_and_smooth(module: Any, d: ProgramData) -> Tensor:
    y, mask = _labels(d)
    soft = module.correct(d.x[:, :CLASSES].softmax(-1), y[mask], mask, d.edge_index)
    return module.smooth(soft, y[mask], mask, d.edge_index)


def _hetero_sage() -> Module:
    return nn.HeteroConv({name: nn.SAGEConv(F, F) for name in EDGE_TYPES})


def _graph_attention(module: Any, d: ProgramData) -> Tensor:
    return module(d.x, d.edge_index, d.edge_attr, d.batch)


PROGRAMS: tuple[Program, ...] = (
    Program("GCN", _basic("GCN"), plain),
    Program("GraphSAGE", _basic("GraphSAGE"), plain),
    Program("GIN", _basic("GIN", norm="batch_norm"), plain),
    Program("GAT", _basic("GAT", heads=HEADS), plain),
    Program("GAT, version 2, edges", _basic("GAT", heads=HEADS, v2=True, edge_dim=E),
            lambda m, d: m(d.x, d.edge_index, edge_attr=d.edge_attr)),
    Program("PNA", _pna, plain),
    Program("EdgeCNN", _basic("EdgeCNN"), plain),
    Program("GCN, jumping knowledge", _basic("GCN", jk="cat"), plain),
    Program("GraphSAGE, jumping knowledge", _basic("GraphSAGE", jk="max", norm="graph_norm"), plain),
    Program("DeeperGCN", lambda data: DeeperGCN(), with_edges),
    Program("LightGCN", lambda data: nn.LightGCN(data.num_nodes, F, DEPTH), _link_scores),
    Program("GraphUNet", lambda data: nn.GraphUNet(F, F, CLASSES, depth=2), plain, sizes=("tiny", "new", "new_tiny"),
            has_half=False),
    Program("AttentiveFP", lambda data: nn.AttentiveFP(F, F, CLASSES, E, num_layers=2, num_timesteps=2), _graph_attention),
    Program("SchNet", _schnet, _energy),
    Program("HAN", lambda data: Hetero(lambda: nn.HANConv(F, F, METADATA, heads=HEADS), 1), hetero),
    Program("HGT", lambda data: Hetero(lambda: nn.HGTConv(F, F, METADATA, heads=HEADS)), hetero),
    Program("hetero SAGE", lambda data: Hetero(_hetero_sage), hetero),
    Program("RECT_L", lambda data: nn.RECT_L(F, F), lambda m, d: m(d.x, d.edge_index, d.edge_weight)),
    Program("LabelPropagation", lambda data: nn.LabelPropagation(10, 0.9), _propagate_labels, has_gradient=False),
    Program("CorrectAndSmooth", lambda data: nn.CorrectAndSmooth(10, 0.8, 10, 0.8), _correct_and_smooth, has_gradient=False),
)  # fmt: skip
