"""Mini-batches: neighbours sampled, features gathered in half precision, and batches moved to the GPU while it computes.

:class:`NeighborSampler` samples blocks around seeds, and :class:`NeighborDataLoader` makes epochs of them.
:class:`FeatureStore` gathers rows of a tensor or a memory-mapped file by id, without widening them. :class:`Prefetcher` wraps any
iterable of mini-batches (DGL's DataLoader, PyG's loaders, plain tuples) and moves several of them ahead, on a stream of its own.
:func:`quantize` writes features as codes of 8 bits, whose values a FeatureStore gathers. :class:`Codes` are rows of them, which
sums over neighbours read.
:func:`infer_by_layers` computes a trained model's rows for all nodes of a graph.
"""

from ..heterograph import Block
from ..ops.codes import Codes
from .edge_batch import EdgeBatch
from .feature_store import FeatureStore, Rows
from .inference import infer_by_layers
from .neighbor_loader import NeighborDataLoader
from .neighbor_sampler import NeighborSampler, SampledBatch
from .prefetcher import Prefetcher
from .quantize import quantize
from .quantized_files import QuantizationError

__all__ = [
    "Block",
    "Codes",
    "EdgeBatch",
    "FeatureStore",
    "NeighborDataLoader",
    "NeighborSampler",
    "Prefetcher",
    "QuantizationError",
    "Rows",
    "SampledBatch",
    "infer_by_layers",
    "quantize",
]
