"""Sampling: neighbours, random walks, and pairs of nodes without an edge."""

from typing import Any

from .negatives import global_uniform_negative_sampling
from .neighbors import sample_neighbors, select_topk
from .walks import pack_traces, random_walk

__all__ = ["global_uniform_negative_sampling", "pack_traces", "random_walk", "sample_neighbors", "select_topk"]

_AVAILABLE = ", ".join(__all__)


def __getattr__(name: str) -> Any:
    raise AttributeError(f"dgl.sampling.{name} is not available in halfgnn.compat.dgl, which has {_AVAILABLE}")
