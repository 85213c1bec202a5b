"""Message passing as users of torch_geometric write it themselves: attentions, normalised sums, gates, updates of edges."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import BatchNorm1d, LayerNorm, Linear, Module, ModuleList, Parameter, ReLU, Sequential
from torch.nn import functional as nnf
from torch_geometric import utils
from torch_geometric.nn import ChebConv, MessagePassing, global_mean_pool

from .data import EDGE_FEATURES, FEATURES, HEADS, ProgramData
from .program import Program, plain, weighted, with_edges

F, E, H = FEATURES, EDGE_FEATURES, HEADS
D = F // H
DEPTH = 3


def _parameter(*shape: int) -> Parameter:
    return Parameter(torch.randn(shape) / math.sqrt(shape[-1]))


# ---- attentions ------------------------------------------------------------------------------------------------------


class EdgeTransformer(MessagePassing):
    """Keys and values have a term per edge, head and element: softmax(q_i . (k_j + e) / sqrt(D)) weighs v_j + e."""

    def __init__(self) -> None:
        super().__init__(aggr="add", node_dim=0)
        self.query, self.key, self.value = (Linear(F, F) for _ in range(3))
        self.edge, self.root, self.out = Linear(E, F), Linear(F, F), Linear(F, F)

    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor) -> Tensor:
        query, key, value = (project(x).view(-1, H, D) for project in (self.query, self.key, self.value))
        edges = self.edge(edge_attr).view(-1, H, D)
        out = self.propagate(edge_index, query=query, key=key, value=value, edges=edges, size=(x.size(0), x.size(0)))
        return self.out(out.reshape(-1, F) + self.root(x))

    def message(self, query_i, key_j, value_j, edges, index, ptr, size_i):
        logits = (query_i * (key_j + edges)).sum(dim=-1) / math.sqrt(D)
        alpha = nnf.dropout(utils.softmax(logits, index, ptr, size_i), 0.0, self.training)
        return (value_j + edges) * alpha.unsqueeze(-1)


class DotAttention(MessagePassing):
    def __init__(self) -> None:
        super().__init__(aggr="add", node_dim=0)
        self.query, self.key, self.value = (Linear(F, F) for _ in range(3))

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        query, key, value = (project(x).view(-1, H, D) for project in (self.query, self.key, self.value))
        return self.propagate(edge_index, query=query, key=key, value=value).flatten(1)

    def message(self, query_i, key_j, value_j, index, size_i):
        alpha = utils.softmax((query_i * key_j).sum(-1) * D**-0.5, index, num_nodes=size_i)
        return alpha.unsqueeze(-1) * value_j


class HandGat(MessagePassing):
    """One logit per node, head and side."""

    def __init__(self) -> None:
        super().__init__(aggr="add", node_dim=0)
        self.project, self.source, self.target = Linear(F, F, bias=False), _parameter(1, H, D), _parameter(1, H, D)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        edge_index, _ = utils.add_self_loops(edge_index, num_nodes=x.size(0))
        h = self.project(x).view(-1, H, D)
        alpha = ((h * self.source).sum(-1), (h * self.target).sum(-1))
        return self.propagate(edge_index, x=h, alpha=alpha).view(-1, F)

    def message(self, x_j, alpha_j, alpha_i, index, size_i):
        weights = utils.softmax(nnf.leaky_relu(alpha_j + alpha_i, 0.2), index, num_nodes=size_i)
        return x_j * weights.unsqueeze(-1)


class HandGatv2(MessagePassing):
    def __init__(self) -> None:
        super().__init__(aggr="add", node_dim=0)
        self.left, self.right, self.edge, self.attention = Linear(F, F), Linear(F, F), Linear(E, F), _parameter(1, H, D)

    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor) -> Tensor:
        rows = (self.left(x).view(-1, H, D), self.right(x).view(-1, H, D))
        return self.propagate(edge_index, x=rows, edges=self.edge(edge_attr).view(-1, H, D)).flatten(1)

    def message(self, x_i, x_j, edges, index, size_i):
        logits = (nnf.leaky_relu(x_i + x_j + edges, 0.2) * self.attention).sum(dim=-1)
        return x_j * utils.softmax(logits, index, num_nodes=size_i).unsqueeze(-1)


class Views(MessagePassing):
    """Features travel flat, and are seen as heads in the message only. The weights are a function of the edges."""

    def __init__(self) -> None:
        super().__init__(aggr="add")
        self.project, self.weigh = Linear(F, F), Linear(E, H)

    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor) -> Tensor:
        return self.propagate(edge_index, x=self.project(x), alpha=self.weigh(edge_attr).sigmoid())

    def message(self, x_j, alpha):
        return (x_j.view(-1, H, D) * alpha.unsqueeze(-1)).view(-1, F)


# ---- normalised and scaled sums --------------------------------------------------------------------------------------


class HandGcn(MessagePassing):
    def __init__(self) -> None:
        super().__init__(aggr="add")
        self.project = Linear(F, F)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        edge_index, _ = utils.add_self_loops(edge_index, num_nodes=x.size(0))
        row, col = edge_index
        scale = utils.degree(col, x.size(0), dtype=x.dtype).pow(-0.5)
        scale[scale == float("inf")] = 0
        return self.propagate(edge_index, x=self.project(x), norm=scale[row] * scale[col])

    def message(self, x_j, norm):
        return norm.view(-1, 1) * x_j


class Modulated(MessagePassing):
    """Destinations scale and shift what comes in."""

    def __init__(self) -> None:
        super().__init__(aggr="mean")
        self.project, self.modulate = Linear(F, F), Linear(F, 2 * F)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        beta, gamma = self.modulate(x).chunk(2, dim=-1)
        return self.propagate(edge_index, x=self.project(x), beta=beta, gamma=gamma)

    def message(self, x_j, beta_i, gamma_i):
        return gamma_i * x_j + beta_i


class Differences(MessagePassing):
    """Diffusion: differences of neighbours, scaled per edge."""

    def __init__(self) -> None:
        super().__init__(aggr="add")
        self.project = Linear(F, F)

    def forward(self, x: Tensor, edge_index: Tensor, edge_weight: Tensor) -> Tensor:
        h = self.project(x)
        return h + 0.1 * self.propagate(edge_index, x=h, weight=edge_weight)

    def message(self, x_i, x_j, weight):
        return (x_j - x_i) * weight.view(-1, 1)


class Gated(MessagePassing):
    def __init__(self) -> None:
        super().__init__(aggr="add")
        self.value, self.gate = Linear(F, F), Linear(F, 2 * F)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        source, target = self.gate(x).chunk(2, dim=-1)
        return self.propagate(edge_index, x=self.value(x), gate=(source, target)) + x

    def message(self, x_j, gate_i, gate_j):
        return torch.sigmoid(gate_i + gate_j) * x_j


class Functional(Module):
    """Gathers and sums without MessagePassing, as in torch_geometric's tutorials of scatter."""

    def __init__(self) -> None:
        super().__init__()
        self.layers, self.roots = (ModuleList(Linear(F, F) for _ in range(DEPTH)) for _ in range(2))

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        src, dst = edge_index
        for layer, root in zip(self.layers, self.roots):
            neighbours = utils.scatter(layer(x)[src], dst, dim=0, dim_size=x.size(0), reduce="mean")
            x = torch.relu(root(x) + neighbours)
        return x


class Interactions(Module):
    """A network on the features of both ends of an edge, and sums by PyTorch's operators, as in EGNN and SchNetPack."""

    def __init__(self) -> None:
        super().__init__()
        self.edges = ModuleList(Sequential(Linear(2 * F, F), nn.SiLU(), Linear(F, F), nn.SiLU()) for _ in range(DEPTH))
        self.nodes = ModuleList(Linear(2 * F, F) for _ in range(DEPTH))

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        src, dst = edge_index
        for edges, nodes in zip(self.edges, self.nodes):
            messages = edges(torch.cat([x[dst], x[src]], dim=-1))
            total = messages.new_zeros(x.shape).scatter_add_(0, dst.unsqueeze(-1).expand_as(messages), messages)
            x = x + nodes(torch.cat([x, total], dim=-1))
        return x


class Added(Module):
    """Features by index_select and sums by index_add."""

    def __init__(self) -> None:
        super().__init__()
        self.layers, self.roots = (ModuleList(Linear(F, F) for _ in range(DEPTH)) for _ in range(2))

    def forward(self, x: Tensor, edge_index: Tensor, edge_weight: Tensor) -> Tensor:
        src, dst = edge_index
        for layer, root in zip(self.layers, self.roots):
            messages = layer(x).index_select(0, src) * edge_weight.view(-1, 1)
            x = torch.relu(messages.new_zeros(x.shape).index_add_(0, dst, messages) + root(x))
        return x


class Temporal(MessagePassing):
    """Features (batch, nodes, F): a batch of times over one graph."""

    def __init__(self) -> None:
        super().__init__(aggr="add", node_dim=-2)
        self.project, self.root = Linear(D, F), Linear(D, F)

    def forward(self, x: Tensor, edge_index: Tensor, edge_weight: Tensor) -> Tensor:
        return self.propagate(edge_index, x=self.project(x), weight=edge_weight) + self.root(x)

    def message(self, x_j, weight):
        return weight.view(-1, 1) * x_j


def _temporal(module: Any, d: ProgramData) -> Tensor:
    return module(d.x.view(-1, H, D).transpose(0, 1), d.edge_index, d.edge_weight)


# ---- updates of edges ------------------------------------------------------------------------------------------------


class EdgeUpdate(MessagePassing):
    """Edges get MLP(x_i, x_j, e) + e; nodes get the MLP of themselves and of the sum of their new edges."""

    def __init__(self) -> None:
        super().__init__(aggr="add")
        self.edge_mlp = Sequential(Linear(3 * F, F), ReLU(), Linear(F, F), LayerNorm(F))
        self.node_mlp = Sequential(Linear(2 * F, F), ReLU(), Linear(F, F), LayerNorm(F))

    def forward(self, x: Tensor, edge_index: Tensor, edges: Tensor) -> tuple[Tensor, Tensor]:
        out, edges = self.propagate(edge_index, x=x, edges=edges)
        return self.node_mlp(torch.cat([x, out], dim=-1)) + x, edges

    def message(self, x_i, x_j, edges):
        return self.edge_mlp(torch.cat([x_i, x_j, edges], dim=-1)) + edges

    def aggregate(self, edges, index, dim_size=None):
        return utils.scatter(edges, index, dim=0, dim_size=dim_size, reduce="sum"), edges


class MeshNetwork(Module):
    def __init__(self) -> None:
        super().__init__()
        self.encode, self.layers = Linear(E, F), ModuleList(EdgeUpdate() for _ in range(DEPTH))

    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor) -> tuple[Tensor, Tensor]:
        edges = self.encode(edge_attr)
        for layer in self.layers:
            x, edges = layer(x, edge_index, edges)
        return x, edges


# ---- molecules -------------------------------------------------------------------------------------------------------


class MoleculeGcn(MessagePassing):
    def __init__(self) -> None:
        super().__init__(aggr="add")
        self.project, self.root, self.edge = Linear(F, F), _parameter(1, F), Linear(E, F)

    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor) -> Tensor:
        x, edges = self.project(x), self.edge(edge_attr)
        row, col = edge_index
        degree = utils.degree(row, x.size(0), dtype=x.dtype) + 1
        scale = degree.pow(-0.5)
        out = self.propagate(edge_index, x=x, edges=edges, norm=scale[row] * scale[col])
        return out + torch.relu(x + self.root) / degree.view(-1, 1)

    def message(self, x_j, edges, norm):
        return norm.view(-1, 1) * torch.relu(x_j + edges)


class MoleculeGin(MessagePassing):
    def __init__(self) -> None:
        super().__init__(aggr="add")
        self.mlp = Sequential(Linear(F, 2 * F), BatchNorm1d(2 * F), ReLU(), Linear(2 * F, F))
        self.eps, self.edge = Parameter(torch.zeros(1)), Linear(E, F)

    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor) -> Tensor:
        return self.mlp((1 + self.eps) * x + self.propagate(edge_index, x=x, edges=self.edge(edge_attr)))

    def message(self, x_j, edges):
        return torch.relu(x_j + edges)


class MoleculeModel(Module):
    """Layers with norms, the mean of the nodes of each molecule, and a head."""

    def __init__(self, layer: Callable[[], Module], depth: int = 5):
        super().__init__()
        self.layers, self.norms = ModuleList(layer() for _ in range(depth)), ModuleList()
        self.norms.extend(BatchNorm1d(F) for _ in range(depth))
        self.head = Linear(F, 1)

    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor, batch: Tensor) -> Tensor:
        for i, (layer, norm) in enumerate(zip(self.layers, self.norms)):
            x = norm(layer(x, edge_index, edge_attr))
            x = x if i == len(self.layers) - 1 else torch.relu(x)
        return self.head(global_mean_pool(x, batch))


def _molecules(module: Any, d: ProgramData) -> Tensor:
    return module(d.x, d.edge_index, d.edge_attr, d.batch)


# ---- recurrent -------------------------------------------------------------------------------------------------------


class Diffusion(MessagePassing):
    """sum over k of T_out^k x A_k + T_in^k x B_k: random walks of up to `hops` steps along and against the edges."""

    def __init__(self, inputs: int, outputs: int, hops: int = 2):
        super().__init__(aggr="add")
        self.hops, self.project = hops, Linear((2 * hops + 1) * inputs, outputs)

    def forward(self, x: Tensor, edge_index: Tensor, edge_weight: Tensor) -> Tensor:
        row, col = edge_index
        out_degree = utils.scatter(edge_weight, row, dim_size=x.size(0), reduce="sum")
        in_degree = utils.scatter(edge_weight, col, dim_size=x.size(0), reduce="sum")
        walks = [x]
        for index, norm in ((edge_index, 1 / out_degree[row]), (edge_index.flip(0), 1 / in_degree[col])):
            step = x
            for _ in range(self.hops):
                step = self.propagate(index, x=step, norm=norm * edge_weight)
                walks.append(step)
        return self.project(torch.cat(walks, dim=-1))

    def message(self, x_j, norm):
        return norm.view(-1, 1) * x_j


class Gru(Module):
    """A GRU whose products with the input and the state are convolutions."""

    def __init__(self, convolution: Callable[[int, int], Module], inputs: int, state: int):
        super().__init__()
        self.state, self.gates = state, convolution(inputs + state, 2 * state)
        self.candidate = convolution(inputs + state, state)

    def forward(self, inputs: Tensor, *graph: Tensor) -> Tensor:
        """inputs: (nodes, times, features)."""
        state = inputs.new_zeros(inputs.size(0), self.state)
        for x in inputs.unbind(1):
            update, reset = torch.sigmoid(self.gates(torch.cat([x, state], -1), *graph)).chunk(2, dim=-1)
            proposal = torch.tanh(self.candidate(torch.cat([x, reset * state], -1), *graph))
            state = update * state + (1 - update) * proposal
        return state


def _cheb_gru(data: ProgramData) -> Module:
    return Gru(lambda inputs, outputs: ChebConv(inputs, outputs, K=2), D, D)


def _recurrent(module: Any, d: ProgramData) -> Tensor:
    return module(d.x.view(-1, H, D), d.edge_index, d.edge_weight)


PROGRAMS: tuple[Program, ...] = (
    Program("hand: transformer, terms of edges", lambda data: EdgeTransformer(), with_edges),
    Program("hand: dot attention", lambda data: DotAttention(), plain),
    Program("hand: GAT", lambda data: HandGat(), plain),
    Program("hand: GATv2, edges", lambda data: HandGatv2(), with_edges),
    Program("hand: heads as views", lambda data: Views(), with_edges),
    Program("hand: GCN by degrees", lambda data: HandGcn(), plain),
    Program("hand: scaled and shifted", lambda data: Modulated(), plain),
    Program("hand: differences", lambda data: Differences(), weighted),
    Program("hand: gated sum", lambda data: Gated(), plain),
    Program("hand: gather and scatter", lambda data: Functional(), plain),
    Program("hand: gather and index_add", lambda data: Added(), weighted),
    Program("hand: gather and scatter_add", lambda data: Interactions(), plain),
    Program("hand: times and nodes", lambda data: Temporal(), _temporal),
    Program("hand: updates of edges", lambda data: MeshNetwork(), with_edges),
    Program("hand: molecules, GCN", lambda data: MoleculeModel(MoleculeGcn), _molecules),
    Program("hand: molecules, GIN", lambda data: MoleculeModel(MoleculeGin), _molecules),
    Program("hand: diffusion GRU", lambda data: Gru(Diffusion, D, D), _recurrent),
    Program("hand: Chebyshev GRU", _cheb_gru, _recurrent),
)
