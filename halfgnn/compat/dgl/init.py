"""Initializers of the features of new nodes and edges, for ``g.set_n_initializer`` and ``g.set_e_initializer``."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .frame import zero_initializer

__all__ = ["base_initializer", "zero_initializer"]


def base_initializer(shape: Any, dtype: torch.dtype, ctx: Any, id_range: slice | None = None) -> Tensor:
    """Rows that are not set: of any values."""
    return torch.empty(shape, dtype=dtype, device=ctx)
