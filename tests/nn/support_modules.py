"""The modules that the tests of this folder go through, and graphs for them."""

from __future__ import annotations

import pytest
import torch

import halfgnn
import halfgnn.nn
from tests import support
from tests.support_nn import (
    IN_FEATS,
    NUM_NODES,
    randn,
    random_edges,
    seeded,
    with_gradients,
)

try:
    import dgl
    import dgl.nn as dglnn
except ImportError:
    dgl = dglnn = None

needs_dgl = pytest.mark.skipif(dgl is None, reason="dgl is not installed")
WIDE_DTYPES = [dtype for dtype in (torch.float32, torch.float64) if support.supports("cpu", dtype)]

ATTENTIONS = {
    "GATConv": lambda lib, f: lib.GATConv(f, 5, 3),
    "GATConv-residual": lambda lib, f: lib.GATConv(f, 5, 3, residual=True, activation=torch.relu),
    "GATConv-identity": lambda lib, f: lib.GATConv(f, 6, 2, residual=True, bias=False, negative_slope=0.1),
    "GATv2Conv": lambda lib, f: lib.GATv2Conv(f, 5, 3),
    "GATv2Conv-residual": lambda lib, f: lib.GATv2Conv(f, 5, 3, residual=True, bias=False),
    "DotGatConv": lambda lib, f: lib.DotGatConv(f, 5, 3),
}
OTHERS = {
    **{
        f"GraphConv-{norm}-{width}": lambda lib, f, n=norm, w=width: lib.GraphConv(f, w, norm=n)
        for norm in ("both", "right", "left", "none")
        for width in (5, 20)
    },
    **{
        f"SAGEConv-{kind}-{width}": lambda lib, f, k=kind, w=width: lib.SAGEConv(f, w, k)
        for kind, width in (("mean", 5), ("mean", 20), ("gcn", 5), ("gcn", 20), ("pool", 5), ("lstm", 5))
    },
    **{
        f"GINConv-{kind}": lambda lib, f, k=kind: lib.GINConv(torch.nn.Linear(f, 5), k, init_eps=0.3, learn_eps=True)
        for kind in ("sum", "max", "mean")
    },
}
MODULES = {
    **ATTENTIONS,
    "GATv2Conv-shared": lambda lib, f: lib.GATv2Conv(f, 5, 2, share_weights=True),
    **OTHERS,
}


def make_dgl_graph(idtype=torch.int64):
    src, dst = random_edges()
    return dgl.graph((src.to(idtype), dst.to(idtype)), num_nodes=NUM_NODES)


def make_block():
    seeds = torch.arange(0, NUM_NODES, 3)
    return dgl.to_block(dgl.in_subgraph(make_dgl_graph(), seeds), seeds)


def make_graph(loops=True):
    return halfgnn.Graph.from_edges(*random_edges(loops=loops), num_src=NUM_NODES, num_dst=NUM_NODES)


def pair_of(name, dtype=torch.float32, in_feats=IN_FEATS):
    """DGL's module and halfgnn's, with the same seed."""
    return [seeded(lambda lib=lib: MODULES[name](lib, in_feats)).to(dtype) for lib in (dglnn, halfgnn.nn)]


WIDTH_41 = {
    "GATConv-41": lambda: halfgnn.nn.GATConv(IN_FEATS, 41, 2, bias=False),
    "GATv2Conv-41": lambda: halfgnn.nn.GATv2Conv(IN_FEATS, 41, 2, residual=True),
    "DotGatConv-41": lambda: halfgnn.nn.DotGatConv(IN_FEATS, 41, 2),
    "TransformerConv-41": lambda: halfgnn.nn.TransformerConv(IN_FEATS, 41, 2, concat=False),
    "GraphConv-41": lambda: halfgnn.nn.GraphConv(64, 41, bias=False),
    "SAGEConv-mean-41": lambda: halfgnn.nn.SAGEConv(64, 41, "mean"),
    "SAGEConv-gcn-41": lambda: halfgnn.nn.SAGEConv(64, 41, "gcn"),
}
SEEDS = {"GATConv-41": 15}
HALF_MODULES = [*MODULES, "TransformerConv", *WIDTH_41]


def make_module(name):
    if name == "TransformerConv":
        return seeded(lambda: halfgnn.nn.TransformerConv(IN_FEATS, 5, heads=3, beta=True))
    return seeded(WIDTH_41[name] if name in WIDTH_41 else lambda: MODULES[name](halfgnn.nn, IN_FEATS))


def features_for(name):
    """No logit of GATConv-41 is near LeakyReLU's kink: whether fp16 moves one across it depends on how the projection rounds."""
    width = 64 if name in ("GraphConv-41", "SAGEConv-mean-41", "SAGEConv-gcn-41") else IN_FEATS
    return randn(NUM_NODES, width, seed=SEEDS.get(name, 3))


def results_of(name, dtype, device="cpu"):
    """Output and gradients of the module in this type."""
    module, g, x = make_module(name).to(device, dtype), make_graph().to(device), features_for(name).to(device, dtype)
    return with_gradients(module, lambda x: module(g, x), [x])


def mixed_results_of(name, dtype, device="cpu", features=torch.float32):
    """Output and gradients under autocast."""
    module, g, x = make_module(name).to(device), make_graph().to(device), features_for(name).to(device, features)
    with torch.autocast(device, dtype):
        return with_gradients(module, lambda x: module(g, x), [x])
