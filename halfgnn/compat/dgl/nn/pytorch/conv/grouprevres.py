"""Grouped reversible residual connections."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from halfgnn.common.arguments import checked_size


class GroupRevRes(nn.Module):
    """Grouped reversible residual connections (Li et al., 2021): modules on groups of columns, each reading the one before.

    The backward runs the modules again, so that nothing but the input is kept. The input is not recovered from the output, as the
    paper does: that would free a tensor that the caller may still read.

    Args:
        gnn_module: module(graph, x, *args) with as many columns out as in. It is copied for every other group.
        groups: number of groups.
    """

    def __init__(self, gnn_module, groups=2):
        super().__init__()
        self.groups = checked_size(groups, "groups", least=2)
        self.gnn_modules = nn.ModuleList([gnn_module, *(copy.deepcopy(gnn_module) for _ in range(groups - 1))])

    def forward(self, g: Any, x: Tensor, *args: Tensor) -> Tensor:
        """x (N, F) and further arguments of the modules, all cut into groups of columns: (N, F)."""
        if torch.is_grad_enabled():
            return checkpoint(self._forward, g, x, *args, use_reentrant=False)
        return self._forward(g, x, *args)

    def _forward(self, g: Any, x: Tensor, *args: Tensor) -> Tensor:
        parts = x.chunk(self.groups, -1)
        arguments = list(zip(*(arg.chunk(self.groups, -1) for arg in args))) or [()] * self.groups
        last = torch.stack(parts[1:]).sum(0)
        outputs = []
        for module, part, own in zip(self.gnn_modules, parts, arguments):
            last = part + module(g, last, *own)
            outputs.append(last)
        return torch.cat(outputs, -1)
