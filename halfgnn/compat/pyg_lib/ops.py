"""Products by segments, each a plain matrix product. torch_geometric looks here for faster forms of others, and finds none."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def grouped_matmul(
    inputs: Sequence[Tensor], others: Sequence[Tensor], biases: Sequence[Tensor] | None = None
) -> list[Tensor]:
    """``inputs[i] @ others[i] + biases[i]`` for every i: (N_i, K_i) times (K_i, M_i)."""
    if len(inputs) != len(others) or (biases is not None and len(biases) != len(inputs)):
        numbers = f"{len(inputs)}, {len(others)} and {'no' if biases is None else len(biases)}"
        raise ValueError(f"inputs, others and biases have {numbers} entries; expected as many of each")
    outs = [x @ other for x, other in zip(inputs, others)]
    return outs if biases is None else [out + bias for out, bias in zip(outs, biases)]


def segment_matmul(inputs: Tensor, ptr: Tensor, other: Tensor, bias: Tensor | None = None) -> Tensor:
    """``inputs[ptr[i]:ptr[i + 1]] @ other[i] + bias[i]`` for every i, one below the other.

    Args:
        inputs: (N, K). ptr: (B + 1,), from 0 to N. other: (B, K, M). bias: (B, M).

    Returns:
        (N, M). ptr is read on the host, which waits for a GPU.
    """
    bounds: list[int] = ptr.tolist()
    if len(bounds) != len(other) + 1 or bounds[0] != 0 or bounds[-1] != len(inputs):
        raise ValueError(f"ptr is {bounds}; expected {len(other) + 1} numbers from 0 to {len(inputs)}")
    if bias is not None and len(bias) != len(other):
        raise ValueError(f"bias has {len(bias)} rows; expected {len(other)}, one per matrix of other")
    outs: list[Tensor] = []
    for i in range(len(other)):  # as TorchScript takes it
        if bounds[i] > bounds[i + 1]:
            raise ValueError(f"ptr is {bounds}; expected numbers that do not fall")
        out = inputs[bounds[i] : bounds[i + 1]] @ other[i]
        outs.append(out if bias is None else out + bias[i])
    return torch.cat(outs) if len(outs) > 0 else inputs.new_empty(0, other.size(2))
