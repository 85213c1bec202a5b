"""halfgnn: half-precision message passing for graph neural networks.

fp16 and bf16 SpMM, SDDMM, edge softmax and fused attention that compute in fp32 and round once. `halfgnn.ops` has the operators, on
a :class:`halfgnn.Graph`; `halfgnn.nn` and `halfgnn.pyg` have modules with the constructors of dgl.nn and torch_geometric;
`halfgnn.dgl` routes DGL's own models through them; `halfgnn.dataloading` moves mini-batches to the GPU while it computes, and
`halfgnn.padding` gives them few sizes.
:func:`halfgnn.reorder` numbers the nodes of a graph for caches.
"""

from . import ops, reference
from ._library import has_cuda
from .advice import advise
from .common.malloc import keep_memory
from .graph import Graph
from .heterograph import HeteroGraph
from .node_order import Reordering, locality, reorder
from .tiles import tiled

__version__ = "0.2.0"
__all__ = [
    "Graph",
    "HeteroGraph",
    "Reordering",
    "advise",
    "has_cuda",
    "keep_memory",
    "locality",
    "ops",
    "reference",
    "reorder",
    "tiled",
]


def __getattr__(name):
    # Imported when first used: not every program needs them, and the import of a few is slow.
    if name in ("compat", "dataloading", "dgl", "distributed", "nn", "padding", "pyg"):
        import importlib

        return importlib.import_module(f"halfgnn.{name}")
    raise AttributeError(f"module 'halfgnn' has no attribute {name!r}")
