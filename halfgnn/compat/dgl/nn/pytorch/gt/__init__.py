"""Layers and encoders of graph transformers, on dense batches."""

from __future__ import annotations

from .encoders import DegreeEncoder, LapPosEncoder, PathEncoder, SpatialEncoder, SpatialEncoder3d
from .layers import BiasedMHA, EGTLayer, GraphormerLayer

__all__ = [
    "BiasedMHA",
    "DegreeEncoder",
    "EGTLayer",
    "GraphormerLayer",
    "LapPosEncoder",
    "PathEncoder",
    "SpatialEncoder",
    "SpatialEncoder3d",
]
