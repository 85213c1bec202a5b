"""Checks of what the modules' constructors and forwards are given, here and in halfgnn.pyg. Errors name the user's argument."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import Tensor, nn

from ..graph import Graph
from ..ops._operands import check_operand
from ._features import HALF, computed_type, is_plain

# ---- constructors ------------------------------------------------------------------------------------------------------------


def checked_size(value: Any, name: str, least: int = 0) -> int:
    """A number of features or heads. Attentions want at least one of either."""
    wanted = "a positive integer" if least else "an integer of at least 0"
    try:
        count = operator.index(value)
    except TypeError:
        raise TypeError(f"{name} is {value!r}; expected {wanted}") from None
    if isinstance(value, bool):
        raise TypeError(f"{name} is {value!r}; expected {wanted}")
    if count < least:
        raise ValueError(f"{name} is {count}; expected {wanted}")
    return count


def checked_widths(value: Any, name: str, pairs: Any = tuple) -> tuple[int, int]:
    """The widths of the features of sources and of destinations, of one integer or a pair. pairs: its types."""
    if not isinstance(value, pairs):
        return (checked_size(value, name),) * 2
    if len(value) != 2:
        raise ValueError(f"{name} is {value!r}; expected an integer or the pair (of the sources, of the destinations)")
    return checked_size(value[0], f"{name}[0]"), checked_size(value[1], f"{name}[1]")


# ---- features ----------------------------------------------------------------------------------------------------------------


def width_of(layer: Any) -> int | None:
    """How many features a projection takes; None without one, and for one that may change its input first."""
    if not isinstance(layer, nn.Linear) or layer._forward_pre_hooks or type(layer).forward is not nn.Linear.forward:
        return None
    return layer.in_features


def widths_of(src: Any, dst: Any) -> tuple[int | None, int | None]:
    """width_of the projections of sources and destinations."""
    width = width_of(src)
    return width, width if dst is src else width_of(dst)


def check_one_width(name: str, width: int | None, dst_width: int | None) -> None:
    """Raises where one tensor cannot serve both sides."""
    if width != dst_width and None not in (width, dst_width):
        raise ValueError(
            f"{name} is one tensor, but the module takes {width} features of sources and {dst_width} of destinations; "
            "expected a pair"
        )


def check_pair(feat: Any, name: str) -> None:
    """Raises for a tuple that is no pair."""
    if len(feat) != 2:
        raise ValueError(
            f"{name} is a {type(feat).__name__} of {len(feat)}; expected a tensor or the pair "
            "(of the sources, of the destinations)"
        )


def check_features(g: Graph, feat: Any, src: Any = None, dst: Any = None, dim: int | None = None) -> None:
    """Raises unless feat is a tensor of g's sources, or the pair of that and one of its destinations.

    src, dst: the layers that project them, or None. dim: the number of dimensions, None for any.
    """
    width, dst_width = widths_of(src, dst)
    if isinstance(feat, tuple):
        check_pair(feat, "feat")
        check_operand(feat[0], "feat[0]", g, "u")
        check_columns(feat[0], "feat[0]", width, dim)
        check_dtype(feat[0], "feat[0]", src)
        check_operand(feat[1], "feat[1]", g, "v")
        check_dtype(feat[1], "feat[1]", dst)
        return check_columns(feat[1], "feat[1]", dst_width, dim)
    check_operand(feat, "feat", g, "u")
    check_columns(feat, "feat", width, dim)
    check_dtype(feat, "feat", src)
    check_one_width("feat", width, dst_width)


def check_projected(conv: Any, g: Graph, feat: Any, dim: int | None = None) -> None:
    """check_features for the modules that project by fc_src and fc_dst, or by fc."""
    layers = conv._modules  # faster than attributes, of which a missing one raises inside
    fc = layers.get("fc")
    if fc is None:
        check_features(g, feat, layers["fc_src"], layers["fc_dst"], dim)
    else:
        check_features(g, feat, fc, fc, dim)


def check_columns(x: Tensor, name: str, width: int | None, dim: int | None = 2) -> None:
    """Raises unless x (rows, *, width) has `dim` dimensions, at least two if None, and can be projected."""
    if width is None and dim is None:
        return
    fits = x.dim() == dim if dim is not None else x.dim() > 1
    if not fits or (width is not None and x.shape[-1] != width):
        wanted = ", ".join([str(x.shape[0]), *["*"] * (dim is None), "columns" if width is None else str(width)])
        raise ValueError(f"{name} has shape {tuple(x.shape)}; expected ({wanted})")
    if width is not None and not x.is_floating_point():
        raise TypeError(f"{name} has dtype {x.dtype}; expected a floating-point type")


def check_dtype(x: Tensor, name: str, layer: Any) -> None:
    """check_dtypes of a projection; others than plain ones may change their input first."""
    if is_plain(layer):
        check_dtypes(x, name, layer.weight)


def check_dtypes(x: Tensor, name: str, weight: Tensor) -> None:
    """Raises where a product with the parameter `weight` would refuse x, which has another dtype, and autocast is off."""
    if x.dtype != weight.dtype and not torch.is_autocast_enabled(x.device.type):
        raise TypeError(
            f"{name} has dtype {x.dtype} and the module's parameters {weight.dtype}; expected one dtype, or a call under "
            "torch.autocast"
        )


# ---- data of edges -----------------------------------------------------------------------------------------------------------


def check_edge_features(g: Graph, x: Any, name: str, layer: Any) -> None:
    """Raises unless x (E, *) has the columns that `layer` takes."""
    check_operand(x, name, g, "e")
    check_columns(x, name, width_of(layer))


def check_edge_numbers(g: Graph, edge_weight: Any, feat: Any = None) -> None:
    """Raises unless edge_weight is (E,), and does not turn what it multiplies into wider numbers than feat (checked) has."""
    check_operand(edge_weight, "edge_weight", g, "e")
    if edge_weight.dim() != 1:
        raise ValueError(
            f"edge_weight has shape {tuple(edge_weight.shape)}; expected ({g.num_edges},), one number an edge"
        )
    if feat is not None:
        dtype = (feat[0] if isinstance(feat, tuple) else feat).dtype
        if edge_weight.is_complex() or (edge_weight.dtype == torch.float64 and dtype != torch.float64):
            raise TypeError(f"edge_weight has dtype {edge_weight.dtype}; expected that of the features, {dtype}")


def check_edge_weight(g: Graph, edge_weight: Tensor, h: Tensor) -> None:
    """Raises unless edge_weight (E, *) can multiply the messages that h (num_src, *) sends."""
    if edge_weight.dim() > 1 and not _broadcasts(edge_weight, h):
        raise ValueError(
            f"edge_weight has shape {tuple(edge_weight.shape)}; expected ({g.num_edges},), one number an edge, or what "
            f"broadcasts with messages of shape {(g.num_edges, *h.shape[1:])}"
        )
    if edge_weight.dtype != h.dtype and not _may_meet(edge_weight, h):
        raise TypeError(f"edge_weight has dtype {edge_weight.dtype}; expected that of the features, {h.dtype}")


def _broadcasts(edge_weight: Tensor, h: Tensor) -> bool:
    columns = zip(reversed(edge_weight.shape[1:]), reversed(h.shape[1:]))
    return edge_weight.dim() <= h.dim() and all(a == b or a == 1 or b == 1 for a, b in columns)


def _may_meet(edge_weight: Tensor, h: Tensor) -> bool:
    """What gspmm takes: fp32 beside half, and whatever autocast makes of the two."""
    weight, feat = computed_type(edge_weight), computed_type(h)
    return edge_weight.is_floating_point() and (weight == feat or (feat in HALF and weight == torch.float32))
