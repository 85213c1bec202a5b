"""Gradients of parameters that every process holds."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ..common.operands import check_dense


def sum_gradients(parameters: nn.Module | Tensor | Iterable[Tensor], group: Any = None) -> None:
    """Sums the gradients of all processes, in place. All processes call it after the backward, before the optimizer's step.

    With losses that are sums over a process's own nodes, divided by the number of all, the sum is the gradient of the whole graph's
    mean loss. (DistributedDataParallel has their mean.) Before a GradScaler's step it makes all processes skip the same steps. A
    parameter without a gradient in this process counts as zeros; one that has none in any process gets zeros.

    Args:
        parameters: a module or its parameters, the same in all processes.
        group: a process group of torch.distributed; None is the default one.

    Raises:
        TypeError: parameters are none, or one has a sparse gradient.
    """
    own = _as_list(parameters)
    by_kind: dict[Any, list[Tensor]] = {}
    for x in own:
        if x.requires_grad:
            x.grad = torch.zeros_like(x) if x.grad is None else x.grad
            by_kind.setdefault((x.grad.dtype, x.grad.device), []).append(x.grad)
    for grad in (grad for grads in by_kind.values() for grad in grads):
        check_dense(grad, "a gradient of parameters")
    for grads in by_kind.values():
        flat = torch.cat([grad.reshape(-1) for grad in grads])
        dist.all_reduce(flat, group=group)
        for grad, summed in zip(grads, flat.split([grad.numel() for grad in grads])):
            grad.copy_(summed.view_as(grad))


def _as_list(parameters: Any) -> list[Tensor]:
    if isinstance(parameters, nn.Module):
        return list(parameters.parameters())
    if isinstance(parameters, Tensor):  # not its rows
        return [parameters]
    found = list(parameters) if isinstance(parameters, Iterable) else [parameters]
    for x in found:
        if not isinstance(x, Tensor):
            raise TypeError(f"parameters has a {type(x).__name__}; expected a module or its parameters")
    return found
