"""What edges add to GATv2 and dot attention: the tensors by name, their checks, and which of them the kernels of a device take."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ... import _library
from ...common.operands import check_operand, check_rows, check_tensor
from ...common.precision import autocast


class EdgeTerms(NamedTuple):
    """bias (E, H); key and value: rows (E, H, D), of GATv2 a key inside the LeakyReLU; feat (E, C), which key_weight and
    value_weight (H, D, C) project to such rows.

    A tensor that is both key and value is given once, so that its gradient is summed before it is rounded. So is a weight.
    """

    bias: Tensor | None = None
    key: Tensor | None = None
    value: Tensor | None = None  # None although there are values, if key_is_value
    feat: Tensor | None = None
    key_weight: Tensor | None = None
    value_weight: Tensor | None = None  # None although values are projected, if one_weight
    key_is_value: bool = False
    one_weight: bool = False

    def tensors(self) -> tuple[Tensor | None, ...]:
        return self[:6]

    def of_values(self) -> Tensor | None:
        """The weight of values."""
        return self.key_weight if self.one_weight else self.value_weight

    def to(self, dtype: torch.dtype) -> EdgeTerms:
        return EdgeTerms._make([*(x if x is None else x.to(dtype) for x in self[:6]), *self[6:]])


NO_TERMS = EdgeTerms()


# ---- checks ------------------------------------------------------------------------------------------------------------------


class TermNames(NamedTuple):
    """The arguments of an operator that terms are given by, for messages."""

    like: str  # the feature of nodes whose dtype terms have
    bias: str
    key: str
    value: str
    feat: str
    key_weight: str
    value_weight: str


def checked_terms(g, like: Tensor, terms: EdgeTerms, names: TermNames) -> EdgeTerms:
    """The terms as autocast casts them. like: a feature (rows, H, D), as cast."""
    heads, dim = like.shape[1:]
    bias, key, value, feat, key_weight, value_weight = terms.tensors()
    if bias is not None:
        check_operand(bias, names.bias, g, "e")
        _check_shape(bias, names.bias, (g.num_edges, heads), "edges, heads")
        bias = _bias_like(bias, names.bias, like)
    one_weight = key_weight is not None and key_weight is value_weight
    if feat is None:
        for name, weight in ((names.key_weight, key_weight), (names.value_weight, value_weight)):
            if weight is not None:
                raise ValueError(f"{name} is given, but {names.feat} is None; expected both")
    else:
        feat, key_weight, value_weight = _checked_columns(g, like, terms, names)
    for name, rows in ((names.key, key), (names.value, value)):
        if rows is not None:
            check_operand(rows, name, g, "e")
            _check_shape(rows, name, (g.num_edges, heads, dim), "edges, heads, dim")
    key_is_value = key is not None and key is value
    key, value = autocast(key), None if key_is_value else autocast(value)
    checked = EdgeTerms(bias, key, value, feat, key_weight, value_weight, key_is_value, one_weight and feat is not None)
    for name, tensor in zip(names[2:], checked.tensors()[1:]):
        if tensor is not None and tensor.dtype != like.dtype:
            raise TypeError(f"{name} has dtype {tensor.dtype}; expected that of {names.like}, {like.dtype}")
    return checked


def _checked_columns(g, like: Tensor, terms: EdgeTerms, names: TermNames) -> tuple[Tensor | None, ...]:
    """feat, and the weights as (H, D, C). None of them if there are no columns, which add nothing."""
    feat, weights = terms.feat, {names.key_weight: terms.key_weight, names.value_weight: terms.value_weight}
    assert feat is not None
    check_operand(feat, names.feat, g, "e")
    weight_names = [name for name, weight in weights.items() if weight is not None]
    if feat.dim() != 2:
        beside = f", beside {weight_names[0]}" if weight_names else ""
        raise ValueError(f"{names.feat} has shape {tuple(feat.shape)}; expected (edges, columns){beside}")
    if not weight_names:
        raise ValueError(f"{names.feat} is given; expected also {names.key_weight}, {names.value_weight} or both")
    if terms.key_weight is terms.value_weight:
        weights[names.value_weight] = None
    shape = (*like.shape[1:], feat.shape[1])
    key_weight, value_weight = (
        None if weight is None else _checked_weight(weight, name, shape, like.device)
        for name, weight in weights.items()
    )
    return (None, None, None) if feat.shape[1] == 0 else (autocast(feat), key_weight, value_weight)


def _check_shape(data: Tensor, name: str, shape: tuple[int, ...], what: str) -> None:
    if tuple(data.shape) != shape:
        raise ValueError(f"{name} has shape {tuple(data.shape)}; expected ({what}) = {shape}")


def _checked_weight(weight: Any, name: str, shape: Sequence[int], device: torch.device) -> Tensor:
    """weight as (H, D, C)."""
    check_tensor(weight, name)
    heads, dim, columns = shape
    # Not `in`: Dynamo takes a static size and a symbolic one for different (findings/dynamo_size_in_tuple.sh).
    if weight.shape != (heads, dim, columns) and weight.shape != (heads * dim, columns):
        raise ValueError(
            f"{name} has shape {tuple(weight.shape)}; expected (heads * dim, columns of edge_feat) = {(heads * dim, columns)}, "
            f"or {(heads, dim, columns)}"
        )
    check_rows(weight, name, weight.shape[0], "v", device)
    return autocast(weight).view(*shape) if weight.is_contiguous() else autocast(weight).reshape(*shape)


def _bias_like(bias: Tensor, name: str, feat: Tensor) -> Tensor:
    """bias in feat's dtype or fp32. Autocast does not round an fp32 bias."""
    if bias.dtype == feat.dtype:
        return bias
    if feat.dtype == torch.float64 or bias.dtype not in (torch.float16, torch.bfloat16, torch.float32):
        raise TypeError(
            f"{name} has dtype {bias.dtype}; expected that of the features, {feat.dtype}, or torch.float32 beside half types"
        )
    return bias.float()


# ---- what kernels take -------------------------------------------------------------------------------------------------------


class EdgeTermLimits(NamedTuple):
    """Which terms of edges the kernels of a device take: EdgeTermLimits of csrc/core/attention.h."""

    head_bytes: int  # of a head
    dot_columns: int  # of feat, in dot attention
    leaky_columns: int  # of feat, in GATv2
    columns_beside_rows: bool  # whether feat may come with key or value
    half_columns_capability: int  # the major compute capability from which GATv2 takes feat in fp16 or bf16


def _limits() -> dict[str, EdgeTermLimits | None]:
    """The limits of the devices that this library has kernels for, as its back ends tell them. None: it takes all terms."""
    query = ctypes.CDLL(_library._PATH).halfgnn_edge_term_limits
    query.argtypes, query.restype = [ctypes.c_char_p, ctypes.POINTER(ctypes.c_int64)], ctypes.c_bool
    limits: dict[str, EdgeTermLimits | None] = {}
    for device in ("cpu", "cuda"):
        numbers = (ctypes.c_int64 * len(EdgeTermLimits._fields))()
        if query(device.encode(), numbers):
            head_bytes, dot_columns, leaky_columns, beside_rows, capability = numbers
            of = EdgeTermLimits(head_bytes, dot_columns, leaky_columns, bool(beside_rows), capability)
            limits[device] = None if of.head_bytes == 2**63 - 1 else of
    return limits


# By type of device. This alone decides between the kernels of edge terms and the composition of other operators.
LIMITS = _limits()


def limits_of(feat: Tensor) -> EdgeTermLimits | None:
    return LIMITS.get(feat.device.type)


def has_kernels(feat: Tensor, dtype: torch.dtype | None = None) -> bool:
    """Whether kernels take features of nodes (rows, H, D), of feat's dtype or another, with a bias or rows of edges."""
    limits = limits_of(feat)
    if limits is not None and feat.shape[2] * (dtype or feat.dtype).itemsize > limits.head_bytes:
        return False
    return feat.device.type in LIMITS
