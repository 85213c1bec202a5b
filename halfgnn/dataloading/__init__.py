"""Mini-batches: features gathered in half precision, and batches moved to the GPU while it computes.

:class:`FeatureStore` gathers rows of a tensor or a memory-mapped file by id, without widening them. :class:`Prefetcher` wraps any
iterable of mini-batches (DGL's DataLoader, PyG's loaders, plain tuples) and moves several of them ahead, on a stream of its own.
"""

from ..heterograph import Block
from .feature_store import FeatureStore, Rows
from .prefetcher import Prefetcher

__all__ = ["Block", "FeatureStore", "Prefetcher", "Rows"]
