"""Modules with the constructors, state dicts and results of dgl.nn.pytorch, on a :class:`halfgnn.Graph` or a DGLGraph.

GATConv, EdgeGATConv, GATv2Conv, DotGatConv and TransformerConv run the fused attentions of :mod:`halfgnn.ops`. GraphConv, SAGEConv,
GINConv and GINEConv run its sums, GatedGCNConv the gated one, EGATConv its operators of edges, PNAConv several
reductions at once. HeteroGraphConv has a module for each edge type, and runs GATConvs as one. RGAT is a network of such layers.

A checkpoint of DGL's module loads into the module here, and back. Under one seed both start from the same parameters.
TransformerConv has no counterpart in DGL: its arguments and parameters are torch_geometric's. DGL need not be installed.
"""

from .dotgatconv import DotGatConv
from .edge_network import EdgeNetwork
from .edgegatconv import EdgeGATConv
from .egatconv import EGATConv
from .gatconv import GATConv
from .gatedgcnconv import GatedGCNConv
from .gatv2conv import GATv2Conv
from .ginconv import GINConv
from .gineconv import GINEConv
from .graphconv import EdgeWeightNorm, GraphConv
from .heterographconv import HeteroGraphConv
from .pnaconv import PNAConv
from .rgat import RGAT
from .sageconv import SAGEConv
from .transformerconv import TransformerConv

__all__ = [
    "RGAT",
    "DotGatConv",
    "EGATConv",
    "EdgeGATConv",
    "EdgeNetwork",
    "EdgeWeightNorm",
    "GATConv",
    "GATv2Conv",
    "GINConv",
    "GINEConv",
    "GatedGCNConv",
    "GraphConv",
    "HeteroGraphConv",
    "PNAConv",
    "SAGEConv",
    "TransformerConv",
]
