"""Data loaders: mini-batches of graphs."""

from .graph_loader import GraphCollator, GraphDataLoader

__all__ = ["GraphCollator", "GraphDataLoader"]
