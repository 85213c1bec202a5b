"""The wrapper of what torch_geometric's HeteroConv makes of the results of several edge types for the same nodes.

Sums and means add one result to the other. torch_geometric copies all of them into one tensor first.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ....drop_in.gate import mode_reason
from ....drop_in.wrappers import Route as Original

_EXACT = (torch.float32, torch.float64)  # half-precision sums of more than two would be rounded at each step


def group(original: Original, xs: Any, aggr: Any) -> Any:
    """``torch_geometric.nn.conv.hetero_conv.group``."""
    if len(xs) < 2 or aggr not in ("sum", "mean") or not _are_alike(xs) or mode_reason() is not None:
        return original(xs, aggr)
    total = xs[0] + xs[1]
    for x in xs[2:]:
        total += x
    return total / len(xs) if aggr == "mean" else total


def _are_alike(xs: Any) -> bool:
    """Contiguous too, as torch_geometric's result is of any."""
    first = xs[0]
    if type(first) is not Tensor or first.dtype not in _EXACT:
        return False
    return all(type(x) is Tensor and x.shape == first.shape and x.dtype is first.dtype for x in xs) and all(
        x.device == first.device and x.layout is torch.strided and x.is_contiguous() for x in xs
    )
