"""What the fused attentions share: checks of operands, the seed of dropout, and softmax and dropout by separate operators."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from ...reference import dropout_mask
from ..edge_softmax import edge_softmax
from ..sddmm import gsddmm
from ..spmm import gspmm

LeakyReLU = Callable[[Tensor], Tensor]  # or what a module has in place of it


def wide_type(*dtypes: torch.dtype) -> torch.dtype:
    """The dtype in which operands are added up."""
    return functools.reduce(torch.promote_types, dtypes, torch.float32)


def check_heads(data: Tensor, name: str, shape: tuple[int, ...], what: str) -> None:
    if data.shape[1:] != shape:
        expected = (data.shape[0], *shape)
        remedy = f": {name}.view{expected}" if data.dim() == 2 and data.numel() == math.prod(expected) else ""
        raise ValueError(
            f"{name} has shape {tuple(data.shape)}; expected ({data.shape[0]}, {what}) = {expected}{remedy}"
        )


def check_feature(data: Tensor, name: str) -> None:
    if data.dim() != 3:
        remedy = f": {name}.view({data.shape[0]}, heads, dim)" if data.dim() == 2 else ""
        raise ValueError(f"{name} has shape {tuple(data.shape)}; expected (rows, heads, dim){remedy}")


def draw_seed(dropout_p: float, device: torch.device) -> Tensor | None:
    """The key of the kernel's random numbers, drawn from PyTorch's generator without a synchronisation.

    So torch.manual_seed, fork_rng, checkpointing and the replay of CUDA graphs act on it as on torch's own dropout.
    """
    if dropout_p == 0:
        return None
    return torch.randint(0, 2**63 - 1, (2,), dtype=torch.int64, device=device)


def masked_softmax(g, logits: Tensor) -> Tensor:
    """edge_softmax, but 0 with a gradient of 0 where all logits of a row are -inf."""
    best = gspmm(g, "copy_rhs", "max", None, logits.detach())
    is_masked = gsddmm(g, "copy_rhs", None, (best == -torch.inf).to(logits.dtype), "u", "v") > 0
    return edge_softmax(g, logits.masked_fill(is_masked, 0)).masked_fill(is_masked, 0)


def with_dropout(weights: Tensor, dropout_p: float, seed: Tensor | None) -> Tensor:
    """Weights (E, H, 1) after dropout by the kernels' numbers, or without a seed by torch's."""
    if seed is None:
        return F.dropout(weights, dropout_p, dropout_p > 0)
    num_edges, heads = weights.shape[:2]
    return weights * dropout_mask(seed, num_edges, heads, dropout_p).to(weights.dtype).unsqueeze(-1)


def needed_only(gradients: Sequence, needs: Sequence[bool], first: int) -> tuple:
    """What the backward of a Function returns: `gradients` of its inputs from `first` on, and None for those not needed."""
    kept = [x if is_needed else None for x, is_needed in zip(gradients, needs[first:])]
    return (*[None] * first, *kept, *[None] * (len(needs) - first - len(kept)))
