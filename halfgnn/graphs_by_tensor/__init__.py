"""Graphs that are cached with tensors of ids: with an edge_index, an index, offsets, or a sparse matrix."""
