"""The modules of dgl.nn.pytorch."""

from __future__ import annotations

from typing import Any

from . import conv, glob, gt, hetero, linear, link
from .conv import *  # noqa: F403
from .factory import KNNGraph, RadiusGraph, SegmentedKNNGraph
from .glob import *  # noqa: F403
from .gt import *  # noqa: F403
from .hetero import *  # noqa: F403
from .linear import *  # noqa: F403
from .link import *  # noqa: F403
from .softmax import edge_softmax
from .utils import JumpingKnowledge, LabelPropagation, Sequential, WeightBasis

__all__ = [
    *conv.__all__,
    *glob.__all__,
    *gt.__all__,
    *hetero.__all__,
    *linear.__all__,
    *link.__all__,
    "JumpingKnowledge",
    "KNNGraph",
    "LabelPropagation",
    "RadiusGraph",
    "SegmentedKNNGraph",
    "Sequential",
    "WeightBasis",
    "edge_softmax",
]

_LACKING = {
    **dict.fromkeys(("CuGraphGATConv", "CuGraphRelGraphConv", "CuGraphSAGEConv"), "take the module without CuGraph"),
    **dict.fromkeys(("TWIRLSConv", "TWIRLSUnfoldingAndAttention"), "APPNPConv propagates step after step"),
    "NodeEmbedding": "torch.nn.Embedding(sparse=True), with torch.optim.SparseAdam",
    **dict.fromkeys(("DeepWalk", "MetaPath2Vec"), "torch_geometric.nn has Node2Vec and MetaPath2Vec"),
    **dict.fromkeys(
        ("GNNExplainer", "HeteroGNNExplainer", "PGExplainer", "HeteroPGExplainer", "SubgraphX", "HeteroSubgraphX"),
        "torch_geometric.explain has explainers",
    ),
}


def __getattr__(name: str) -> Any:
    if name in _LACKING:
        raise AttributeError(f"dgl.nn.{name} is not available in halfgnn.compat.dgl: {_LACKING[name]}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}; it has {', '.join(sorted(__all__))}")
