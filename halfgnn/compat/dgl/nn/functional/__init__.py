"""Functions of modules."""

from __future__ import annotations

from halfgnn.compat.dgl.ops import edge_softmax

__all__ = ["edge_softmax"]
