"""The modules of torch_geometric that halfgnn.pyg has, and their inputs."""

from __future__ import annotations

import torch
import torch_geometric.nn as theirs
from torch import nn

import halfgnn
import halfgnn.pyg
from tests import support
from tests.support_nn import (
    IN_FEATS,
    NUM_NODES,
    randn,
    random_edges,
    seeded,
)

WIDE_DTYPES = [dtype for dtype in (torch.float32, torch.float64) if support.supports("cpu", dtype)]
EDGE_DIM = 6

# (class, arguments); edge features are given if there is an edge_dim
_OPTIONS = {
    "plain": {},
    "mean-residual": {"concat": False, "residual": True},
    "no-loops": {"add_self_loops": False, "bias": False, "negative_slope": 0.05},
    "edge": {"edge_dim": EDGE_DIM},
    "edge-no-loops": {"edge_dim": EDGE_DIM, "add_self_loops": False},
    "edge-number": {"edge_dim": EDGE_DIM, "fill_value": 2.0},
    "edge-tensor": {"edge_dim": EDGE_DIM, "fill_value": torch.arange(6.0)},
    "edge-max": {"edge_dim": EDGE_DIM, "fill_value": "max"},
    "edge-add": {"edge_dim": EDGE_DIM, "fill_value": "add"},
    "edge-mul": {"edge_dim": EDGE_DIM, "fill_value": "mul"},
}
MODULES = {
    **{f"GATConv-{name}": ("GATConv", options) for name, options in _OPTIONS.items()},
    **{f"GATv2Conv-{name}": ("GATv2Conv", _OPTIONS[name]) for name in ("plain", "mean-residual", "no-loops", "edge")},
    "GATv2Conv-shared": ("GATv2Conv", {"share_weights": True}),
    "TransformerConv": ("TransformerConv", {}),
    "TransformerConv-beta": ("TransformerConv", {"beta": True}),
    "TransformerConv-mean-beta": ("TransformerConv", {"beta": True, "concat": False}),
    "TransformerConv-no-root": ("TransformerConv", {"root_weight": False, "bias": False}),
    "TransformerConv-edge": ("TransformerConv", {"edge_dim": EDGE_DIM}),
}
KINDS = ["GATConv-plain", "GATv2Conv-plain", "TransformerConv"]


def network():
    """What GINConv and GINEConv apply to sums."""
    return nn.Sequential(nn.Linear(IN_FEATS, 8), nn.ReLU(), nn.Linear(8, 5))


def make(lib, name, in_channels=IN_FEATS, **options):
    kind, own = MODULES[name]
    return seeded(lambda: getattr(lib, kind)(in_channels, 5, heads=3, **own, **options))


def pair_of(name, dtype=torch.float32, in_channels=IN_FEATS):
    return [make(lib, name, in_channels).to(dtype) for lib in (theirs, halfgnn.pyg)]


def make_edge_index(num_src=NUM_NODES, num_dst=NUM_NODES, loops=False):
    return torch.stack(random_edges(num_src, num_dst, loops=loops))


def inputs_of(name, edge_index, dtype=torch.float32):
    edge = [randn(edge_index.shape[1], EDGE_DIM, dtype=dtype, seed=9)] if "edge_dim" in MODULES[name][1] else []
    return [randn(NUM_NODES, IN_FEATS, dtype=dtype), *edge]


class Layer(theirs.MessagePassing):
    """A layer with a user's message function of x_j (E, WIDTH) and w (E, 1)."""

    def __init__(self, function, aggr="sum", **options):
        super().__init__(aggr=aggr, **options)
        self.function = function

    def forward(self, x, edge_index, w):
        return self.propagate(edge_index, x=x, w=w)

    def message(self, x_j, w):
        return self.function(x_j, w)
