"""Checks of what the modules' constructors and forwards are given, here and in halfgnn.pyg. Errors name the user's argument."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..common.operands import check_columns, check_one_width, check_operand, check_pair, width_of, widths_of
from ..common.precision import HALF, computed_type
from ..graph import Graph
from ._hooks import is_plain

# ---- constructors ------------------------------------------------------------------------------------------------------------


# ---- features ----------------------------------------------------------------------------------------------------------------


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
            f"edge_weight has shape {tuple(edge_weight.shape)}; expected ({g.num_edges},), one number per edge"
        )
    if feat is not None:
        dtype = (feat[0] if isinstance(feat, tuple) else feat).dtype
        if edge_weight.is_complex() or (edge_weight.dtype == torch.float64 and dtype != torch.float64):
            raise TypeError(f"edge_weight has dtype {edge_weight.dtype}; expected that of the features, {dtype}")


def check_edge_weight(g: Graph, edge_weight: Tensor, h: Tensor) -> None:
    """Raises unless edge_weight (E, *) can multiply the messages that h (num_src, *) sends."""
    if edge_weight.dim() > 1 and not _broadcasts(edge_weight, h):
        raise ValueError(
            f"edge_weight has shape {tuple(edge_weight.shape)}; expected ({g.num_edges},), one number per edge, or what "
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
