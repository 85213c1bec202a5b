"""The modules that halfgnn.nn has. Nodes without in-edges raise DGLError, as the interface has it."""

from __future__ import annotations

from halfgnn import nn
from halfgnn.compat.dgl.base import DGLError
from halfgnn.nn import EdgeWeightNorm, GatedGCNConv, GINConv, GINEConv, PNAConv, SAGEConv

__all__ = [
    "DotGatConv",
    "EGATConv",
    "EdgeGATConv",
    "EdgeWeightNorm",
    "GATConv",
    "GATv2Conv",
    "GINConv",
    "GINEConv",
    "GatedGCNConv",
    "GraphConv",
    "PNAConv",
    "SAGEConv",
]


class GraphConv(nn.GraphConv):
    """:class:`halfgnn.nn.GraphConv`."""

    zero_in_degree_error = DGLError


class GATConv(nn.GATConv):
    """:class:`halfgnn.nn.GATConv`."""

    zero_in_degree_error = DGLError


class GATv2Conv(nn.GATv2Conv):
    """:class:`halfgnn.nn.GATv2Conv`."""

    zero_in_degree_error = DGLError


class EGATConv(nn.EGATConv):
    """:class:`halfgnn.nn.EGATConv`."""

    zero_in_degree_error = DGLError


class EdgeGATConv(nn.EdgeGATConv):
    """:class:`halfgnn.nn.EdgeGATConv`."""

    zero_in_degree_error = DGLError


class DotGatConv(nn.DotGatConv):
    """:class:`halfgnn.nn.DotGatConv`."""

    zero_in_degree_error = DGLError
