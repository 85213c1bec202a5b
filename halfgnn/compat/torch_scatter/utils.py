"""How an index is expanded to the shape of what it groups."""

from __future__ import annotations

from torch import Tensor


def broadcast(src: Tensor, other: Tensor, dim: int) -> Tensor:
    """src expanded to the shape of `other`: a vector lies along `dim`; other shapes are aligned on the left."""
    return aligned(src, other.dim(), dim).expand(other.shape)


def aligned(index: Tensor, num_dims: int, dim: int) -> Tensor:
    """index with so many dimensions: a vector lies along `dim`; other shapes are aligned on the left."""
    if index.dim() == num_dims:
        return index
    before = (dim if dim >= 0 else num_dims + dim) if index.dim() == 1 else 0
    after = num_dims - before - index.dim()
    return index.reshape((1,) * before + index.shape + (1,) * after)
