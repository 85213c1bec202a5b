"""Data loaders: mini-batches of graphs, and of nodes and edges with samples of their neighbours."""

from typing import Any

from . import negative_sampler
from .edge_sampler import EdgePredictionSampler, as_edge_prediction_sampler, find_exclude_eids
from .graph_loader import GraphCollator, GraphDataLoader
from .loader import DataLoader
from .samplers import (
    BlockSampler,
    MultiLayerFullNeighborSampler,
    MultiLayerNeighborSampler,
    NeighborSampler,
    Sampler,
    ShaDowKHopSampler,
    set_dst_lazy_features,
    set_edge_lazy_features,
    set_node_lazy_features,
    set_src_lazy_features,
)

__all__ = [
    "BlockSampler",
    "DataLoader",
    "EdgePredictionSampler",
    "GraphCollator",
    "GraphDataLoader",
    "MultiLayerFullNeighborSampler",
    "MultiLayerNeighborSampler",
    "NeighborSampler",
    "Sampler",
    "ShaDowKHopSampler",
    "as_edge_prediction_sampler",
    "find_exclude_eids",
    "negative_sampler",
    "set_dst_lazy_features",
    "set_edge_lazy_features",
    "set_node_lazy_features",
    "set_src_lazy_features",
]

_LACKING = ("CapturedBlock", "ClusterGCNSampler", "LaborSampler", "SAINTSampler", "SpotTarget")


def __getattr__(name: str) -> Any:
    if name in _LACKING:
        raise AttributeError(
            f"dgl.dataloading.{name} is not available in halfgnn.compat.dgl, which has NeighborSampler,"
            " MultiLayerFullNeighborSampler and ShaDowKHopSampler"
        )
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
