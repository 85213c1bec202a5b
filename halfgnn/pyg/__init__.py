"""Modules of torch_geometric.nn on halfgnn's operators: subclasses, of which only the forward is halfgnn's.

::

    from halfgnn.pyg import GATConv  # instead of torch_geometric.nn

    conv = GATConv(64, 32, heads=4)
    out = conv(x, edge_index)

edge_index is PyG's (2, E) tensor. Its graph is cached with it while the tensor lives and is not modified in place (see
:func:`graph_of`), so edges are sorted once. Writes that PyTorch does not count, for example through NumPy, are not noticed. A
:class:`halfgnn.Graph` may take the place of edge_index; :class:`ToGraph` makes those of mini-batches. Calls whose messages must
exist, because they are explained, hooked or changed by a subclass, run torch_geometric's own forward; :func:`stats` counts them.

Unmodified models of torch_geometric run on halfgnn after :func:`patch`::

    import halfgnn.pyg

    halfgnn.pyg.patch()             # from here on; or inside `with halfgnn.pyg.accelerate():` only
    loss = model(x, edge_index)     # any PyG model, half precision and autocast included
    print(halfgnn.pyg.stats())      # what was routed, what fell back to PyG, and why

A message is found by what it does: ``x_j``, and ``x_j`` combined with one row per edge (``+ - * /``), are reduced without being
materialized. Attention without dropout is one fused operator. Messages of other forms are materialized, and reduced by halfgnn.
docs/routed.md lists the forms, and says what differs from PyG.
"""

try:
    import torch_geometric.nn  # noqa: F401
except ImportError as error:
    raise ImportError(f"halfgnn.pyg needs torch_geometric, which cannot be imported: {error}") from error

from ..graphs_by_tensor.edge_index import graph_of
from .drop_in.accounts import reset_stats, stats
from .drop_in.table import accelerate, patch, unpatch
from .modules.cf_conv import CFConv
from .modules.edge_conv import EdgeConv
from .modules.gat_conv import GATConv
from .modules.gatv2_conv import GATv2Conv
from .modules.gcn_conv import GCNConv
from .modules.gin_conv import GINConv, GINEConv
from .modules.graph_conv import GraphConv
from .modules.hetero_conv import HeteroConv
from .modules.hetero_linear import HeteroLinear
from .modules.lg_conv import LGConv
from .modules.pna_conv import PNAConv
from .modules.res_gated_graph_conv import ResGatedGraphConv
from .modules.rgcn_conv import RGCNConv
from .modules.sage_conv import SAGEConv
from .modules.transformer_conv import TransformerConv
from .pad_to_buckets import PadToBuckets
from .to_graph import ToGraph

__all__ = [
    "CFConv",
    "EdgeConv",
    "GATConv",
    "GATv2Conv",
    "GCNConv",
    "GINConv",
    "GINEConv",
    "GraphConv",
    "HeteroConv",
    "HeteroLinear",
    "LGConv",
    "PNAConv",
    "PadToBuckets",
    "RGCNConv",
    "ResGatedGraphConv",
    "SAGEConv",
    "ToGraph",
    "TransformerConv",
    "accelerate",
    "graph_of",
    "patch",
    "reset_stats",
    "stats",
    "unpatch",
]
