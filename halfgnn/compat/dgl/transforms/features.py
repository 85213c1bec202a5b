"""Features of another dtype, converted when they are read."""

from __future__ import annotations

import copy

import torch

from ..heterograph import DGLGraph

__all__ = ["to_bfloat16", "to_double", "to_float", "to_half"]


def to_bfloat16(g: DGLGraph) -> DGLGraph:
    """The graph with floating-point features in bf16."""
    return _with_features_of(g, torch.bfloat16)


def to_half(g: DGLGraph) -> DGLGraph:
    """The graph with floating-point features in fp16."""
    return _with_features_of(g, torch.float16)


def to_float(g: DGLGraph) -> DGLGraph:
    """The graph with floating-point features in fp32."""
    return _with_features_of(g, torch.float32)


def to_double(g: DGLGraph) -> DGLGraph:
    """The graph with floating-point features in fp64."""
    return _with_features_of(g, torch.float64)


def _with_features_of(g: DGLGraph, dtype: torch.dtype) -> DGLGraph:
    made = copy.copy(g)
    made._node_frames = [frame.astype(lambda found: found.is_floating_point, dtype) for frame in g._node_frames]
    made._edge_frames = [frame.astype(lambda found: found.is_floating_point, dtype) for frame in g._edge_frames]
    return made
