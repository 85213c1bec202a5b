"""From how many values on what is reduced, or normalized by a softmax, is lowered. Fewer are left to Inductor: it starts sooner."""

from __future__ import annotations

import torch
from torch import Tensor

MESSAGE = 16_384
SOFTMAX = 2_048
COUNT = 4_096  # of a sum of ones, by which degrees are counted
MASK = 4_096  # see masks.py


def is_worth(x: Tensor, smallest: int | None = None) -> bool:
    """Whether there are enough values, as far as the sizes are known."""
    size, smallest = x.numel(), MESSAGE if smallest is None else smallest
    if isinstance(size, torch.SymInt):
        hint = size.node.hint if size.node.has_hint() else None
        return hint is None or hint >= smallest
    return size >= smallest
