"""A network on every edge, in memory that does not grow with its layers: tiles of edges run through it one after the other.

Simulators of meshes, weather and molecules run such networks, and keep each layer's rows of all edges for the backward.
docs/edge_networks.md maps their blocks to this operator.
"""

from .operator import edge_network

__all__ = ["edge_network"]
