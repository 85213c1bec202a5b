"""Rows of nodes, one for each edge."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from .. import ops
from ..common.precision import HALF, without_autocast
from ..graph import Graph

_COPIED = (*HALF, torch.float32)


def is_copied(x: Tensor) -> bool:
    """Whether a Graph copies rows of x faster than PyTorch: on CUDA, where index_select reads whole rows at a tenth of the GPU's
    rate (docs/tuning.md)."""
    return x.is_cuda and x.dim() > 1 and x.dtype in _COPIED and 0 not in x.shape


def rows_at(x: Tensor, index: Tensor, graph: Callable[[], Graph]) -> Tensor:
    """x[index] (E, *).

    graph: gives a Graph whose edges end in the nodes that the entries of the index name, in their order.
    """
    if not is_copied(x):
        return x.index_select(0, index)
    with without_autocast(x.device):
        return ops.gsddmm(graph(), "copy_lhs", x, None, "v", "v")
