"""Which calls are large enough for halfgnn: small ones are faster in torch_geometric's own functions."""

from __future__ import annotations

from torch import Tensor

SMALLEST = {
    "sum": 16_384,
    "mean": 16_384,
    "max": 16_384,
    "min": 16_384,
    "softmax": 2_048,
}  # values of a call, by reduction
NEW_VALUES = 16_384
SORTED_WIDTH = 16


def is_small(src: Tensor, reduction: str | None) -> bool:
    """Whether a reduction of src is PyG's, whatever the index."""
    return reduction in SMALLEST and src.numel() < SMALLEST[reduction]


def is_worth(num_values: int, is_known: bool) -> bool:
    """Whether to route a call that reads so many values. is_known: whether its graph was asked for before."""
    return is_known or num_values >= NEW_VALUES


def is_worth_sorting(width: int) -> bool:
    """Whether to sort an unsorted index at its first use, for rows of so many values."""
    return width >= SORTED_WIDTH
