"""Functions of edges in tiles of destinations: what they make per edge is dropped after each tile, and recomputed for gradients."""

from .tiled import tiled

__all__ = ["tiled"]
