"""Convolutions: those of :mod:`halfgnn.nn`, and the others of the interface on halfgnn's operators."""

from __future__ import annotations

from .agnnconv import AGNNConv
from .appnpconv import APPNPConv
from .atomicconv import AtomicConv
from .cfconv import CFConv
from .chebconv import ChebConv
from .dense import DenseChebConv, DenseGraphConv, DenseSAGEConv
from .dgnconv import DGNConv
from .edgeconv import EdgeConv
from .egnnconv import EGNNConv
from .gatedgraphconv import GatedGraphConv
from .gcn2conv import GCN2Conv
from .gmmconv import GMMConv
from .grouprevres import GroupRevRes
from .hgtconv import HGTConv
from .nnconv import NNConv
from .relgraphconv import RelGraphConv
from .sgconv import SGConv
from .shared import (
    DotGatConv,
    EdgeGATConv,
    EdgeWeightNorm,
    EGATConv,
    GATConv,
    GatedGCNConv,
    GATv2Conv,
    GINConv,
    GINEConv,
    GraphConv,
    PNAConv,
    SAGEConv,
)
from .tagconv import TAGConv

__all__ = [
    "AGNNConv",
    "APPNPConv",
    "AtomicConv",
    "CFConv",
    "ChebConv",
    "DGNConv",
    "DenseChebConv",
    "DenseGraphConv",
    "DenseSAGEConv",
    "DotGatConv",
    "EGATConv",
    "EGNNConv",
    "EdgeConv",
    "EdgeGATConv",
    "EdgeWeightNorm",
    "GATConv",
    "GATv2Conv",
    "GCN2Conv",
    "GINConv",
    "GINEConv",
    "GMMConv",
    "GatedGCNConv",
    "GatedGraphConv",
    "GraphConv",
    "GroupRevRes",
    "HGTConv",
    "NNConv",
    "PNAConv",
    "RelGraphConv",
    "SAGEConv",
    "SGConv",
    "TAGConv",
]
