"""The layout in which GiGL packs quantized features: its data preprocessor's rows of bytes, and their metadata.

A row has the codes of its features one after the other, the first in the highest bits of the first byte, and is filled up to a
whole byte. With 2, 4 or 8 bits a code stands for clip_min + code / (2**bits - 1) * (clip_max - clip_min), with 1 bit for neg_mean
or pos_mean (gigl/common/utils/feature_quantization and preprocessed_metadata.proto of github.com/Snapchat/GiGL, at fee4ba50).
"""

from __future__ import annotations

import operator
import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..common.arguments import check_number

_BITS = (1, 2, 4, 8)


def read_gigl(packed: Any, metadata: Any) -> tuple[Any, float, float]:
    """Codes (N, features) of a byte each, scale and zero_point. See FeatureStore.from_gigl."""
    if not isinstance(packed, (Tensor, np.ndarray)):
        raise TypeError(f"packed is a {type(packed).__name__}; expected a torch.Tensor or a numpy array")
    if packed.dtype not in (torch.uint8, np.uint8):
        raise TypeError(f"packed has dtype {packed.dtype}; expected torch.uint8")
    order = _order(metadata)
    bits, low, high = _values(metadata)
    expected = -(-len(order) * bits // 8)
    if packed.ndim != 2 or packed.shape[1] != expected:
        raise ValueError(
            f"packed has shape {tuple(packed.shape)}; expected (N, {expected}), for {len(order)} features of {bits} bits"
        )
    # Codes that all stand for one value have no step: they become 0.
    levels = 2**bits - 1
    scale = (high - low) / levels if high > low else abs(low)
    zero_point = -low / scale if scale else 0.0
    is_in_order = order == list(range(len(order)))
    if bits == 8 and is_in_order and high > low:
        return packed, scale, zero_point
    data = packed if isinstance(packed, Tensor) else torch.from_numpy(np.ascontiguousarray(packed))
    codes = _unpacked(data, bits)[:, : len(order)]
    if not high > low:
        codes = torch.zeros_like(codes)
    original = torch.empty_like(codes, memory_format=torch.contiguous_format)
    original[:, order] = codes
    return original, scale, zero_point


def _unpacked(packed: Tensor, bits: int) -> Tensor:
    shifts = torch.arange(8 - bits, -1, -bits, dtype=torch.uint8, device=packed.device)
    return ((packed.unsqueeze(-1) >> shifts) & (2**bits - 1)).flatten(1)


def _field(of: Any, name: str) -> Any:
    """Of a mapping or an object, by its name in proto or in proto's JSON; None if it is missing."""
    written = re.sub(r"_(\w)", lambda letter: letter[1].upper(), name)
    if isinstance(of, Mapping):
        return of.get(name, of.get(written))
    return getattr(of, name, None)


def _part(of: Any, name: str) -> Any:
    """A message inside another one. protobuf makes those that are not set as they are read, and tells them by HasField."""
    if hasattr(of, "HasField") and not of.HasField(name):
        return None
    return _field(of, name)


def _order(metadata: Any) -> list[int]:
    """The original position of each packed feature."""
    given = _field(metadata, "quantized_feature_indices")
    try:
        order = [operator.index(i) for i in (() if given is None else given)]
    except TypeError:
        raise TypeError(f"metadata has quantized_feature_indices {given!r}; expected a list of integers") from None
    if not order:
        raise ValueError("metadata has no quantized_feature_indices; expected the positions of the packed features")
    if sorted(order) != list(range(len(order))):
        raise ValueError(
            f"metadata has quantized_feature_indices {order}; expected all of 0 to {len(order) - 1}: features that are not"
            " quantized need a store of their own, and quantized ones positions among themselves"
        )
    return order


def _values(metadata: Any) -> tuple[int, float, float]:
    """bits, and the values of the first and the last code."""
    several, single = _part(metadata, "multi_bit_state"), _part(metadata, "single_bit_state")
    if (several is None) == (single is None):
        raise ValueError("metadata has multi_bit_state and single_bit_state both or neither; expected one of them")
    state, names = (single, ("neg_mean", "pos_mean")) if several is None else (several, ("clip_min", "clip_max"))
    low, high = (check_number(_field(state, name) or 0.0, f"metadata's {name}") for name in names)
    bits = 1 if several is None else _field(several, "bits")
    if bits not in _BITS:
        raise ValueError(f"metadata has bits {bits!r}; expected 1, 2, 4 or 8")
    bits = int(bits)  # numpy's integers would overflow
    if high < low:
        raise ValueError(f"metadata has {names[1]} {high} below {names[0]} {low}; expected it to be at least as large")
    return bits, low, high
