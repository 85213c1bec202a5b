"""How an index is expanded to the shape of what it groups."""

from __future__ import annotations

import torch
from torch import Tensor


def broadcast(src: Tensor, other: Tensor, dim: int) -> Tensor:
    """src expanded to the shape of `other`: a vector lies along `dim`; other shapes are aligned on the left."""
    if src.dim() == 1 and src.shape[0] == other.shape[dim] and not torch.compiler.is_compiling():
        strides = [0] * other.dim()  # at once: of a few rows, reshape and expand take as long as their sum
        strides[dim] = src.stride(0)
        return src.as_strided(other.shape, strides)
    return aligned(src, other.dim(), dim).expand(other.shape)


def aligned(index: Tensor, num_dims: int, dim: int) -> Tensor:
    """index with so many dimensions: a vector lies along `dim`; other shapes are aligned on the left."""
    if index.dim() == num_dims:
        return index
    before = (dim if dim >= 0 else num_dims + dim) if index.dim() == 1 else 0
    after = num_dims - before - index.dim()
    return index.reshape((1,) * before + index.shape + (1,) * after)
