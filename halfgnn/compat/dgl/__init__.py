"""DGL's graphs and message passing, on halfgnn's operators.

``from halfgnn.compat import dgl``, or ``halfgnn.compat.install("dgl")`` before a program's own ``import dgl``.
"""

from typing import Any

from . import function, ops
from .base import ALL, EID, ETYPE, NID, NTYPE, DGLError, DGLWarning
from .convert import (
    bipartite_from_scipy,
    block_to_graph,
    create_block,
    from_scipy,
    graph,
    heterograph,
    to_heterogeneous,
    to_homogeneous,
)
from .frame import LazyFeature
from .heterograph import DGLBlock, DGLGraph, DGLHeteroGraph
from .networkx_graphs import bipartite_from_networkx, from_networkx, to_networkx

__all__ = [
    "ALL",
    "EID",
    "ETYPE",
    "NID",
    "NTYPE",
    "DGLBlock",
    "DGLError",
    "DGLGraph",
    "DGLHeteroGraph",
    "DGLWarning",
    "LazyFeature",
    "bipartite_from_networkx",
    "bipartite_from_scipy",
    "block_to_graph",
    "create_block",
    "from_networkx",
    "from_scipy",
    "function",
    "graph",
    "heterograph",
    "ops",
    "to_heterogeneous",
    "to_homogeneous",
    "to_networkx",
]

__version__ = "2.4.0"  # of DGL's interface

_LACKING = {
    "from_cugraph": "dgl.graph(('csr', ...)) takes the tensors of a cugraph.Graph",
    "to_cugraph": "g.adj_tensors('csr') gives the tensors that cugraph.Graph takes",
    "hetero_from_shared_memory": "pickle the graph to a worker: torch.multiprocessing shares its tensors",
    "distributed": "halfgnn has no distributed graph store",
    "DistGraph": "halfgnn has no distributed graph store",
}


def __getattr__(name: str) -> Any:
    if name in _LACKING:
        raise AttributeError(f"dgl.{name} is not available in halfgnn.compat.dgl: {_LACKING[name]}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
