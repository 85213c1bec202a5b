"""One graph over several processes, on torch.distributed: each owns a part of the nodes and their in-edges.

:func:`partition` cuts a graph into a folder, :class:`DistGraph` is a process's part of it, and its `halo` brings the rows of
sources that other processes own. The rest is a bipartite :class:`halfgnn.Graph`, which operators and modules take as any other.
"""

from .dist_graph import DistGraph
from .dist_heterograph import DistHeteroGraph
from .features import cut_features
from .gradients import sum_gradients
from .partition import partition
from .sampling import DistNeighborSampler
from .streamed import Streamed

__all__ = [
    "DistGraph",
    "DistHeteroGraph",
    "DistNeighborSampler",
    "Streamed",
    "cut_features",
    "partition",
    "sum_gradients",
]
