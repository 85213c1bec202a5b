"""Modules with the constructors, state dicts and results of torch_geometric.nn, on halfgnn's operators.

::

    from halfgnn.pyg import GATConv  # instead of torch_geometric.nn

    conv = GATConv(64, 32, heads=4)
    out = conv(x, edge_index)

edge_index is PyG's (2, E) tensor. Its graph is kept with it while the tensor lives and is not written to (see :func:`graph_of`), so
edges are sorted once. Writes that PyTorch does not count, for example through NumPy, are not noticed. A :class:`halfgnn.Graph` may
take the place of edge_index, and compiled code needs one. torch_geometric need not be installed.

Unmodified models of torch_geometric run on halfgnn after :func:`patch`::

    import halfgnn.pyg

    halfgnn.pyg.patch()             # from here on; or inside `with halfgnn.pyg.accelerate():` only
    loss = model(x, edge_index)     # any PyG model, half precision and autocast included
    print(halfgnn.pyg.stats())      # what was routed, what was left to PyG, and why

A message is found by what it does: ``x_j``, and ``x_j`` combined with one row per edge (``+ - * /``), are reduced without being
formed. Every other message is formed, and reduced by halfgnn. docs/pyg.md says what differs from PyG.
"""

from ._accounts import reset_stats, stats
from ._graph import graph_of
from ._patch import accelerate, patch, unpatch
from .gat_conv import GATConv
from .gatv2_conv import GATv2Conv
from .gine_conv import GINEConv
from .pna_conv import PNAConv
from .res_gated_graph_conv import ResGatedGraphConv
from .transformer_conv import TransformerConv

__all__ = [
    "GATConv",
    "GATv2Conv",
    "GINEConv",
    "PNAConv",
    "ResGatedGraphConv",
    "TransformerConv",
    "accelerate",
    "graph_of",
    "patch",
    "reset_stats",
    "stats",
    "unpatch",
]
