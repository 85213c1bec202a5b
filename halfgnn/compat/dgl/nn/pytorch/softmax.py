"""Softmax over the in-edges of each node."""

from __future__ import annotations

from ..functional import edge_softmax

__all__ = ["edge_softmax"]
