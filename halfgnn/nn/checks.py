"""Checks of the arguments of forwards. Errors name the user's argument."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..common.layers import check_layer
from ..common.operands import (
    check_columns,
    check_one_width,
    check_operand,
    check_pair,
    width_of,
    widths_of,
)
from ..common.precision import computed_type, may_mix
from ..graph import Graph

# ---- features ----------------------------------------------------------------------------------------------------------------


def check_features(
    g: Graph, feat: Any, src: Any = None, dst: Any = None, dim: int | None = None, name: str = "feat"
) -> None:
    """Raises unless feat has the features of g's sources, or is the pair of these and the features of its destinations.

    src, dst: the layers that project them, or None. dim: the number of dimensions; None for any. name: the user's for feat.
    """
    width, dst_width = widths_of(src, dst)
    if isinstance(feat, tuple):
        check_pair(feat, name)
        check_operand(feat[0], f"{name}[0]", g, "u")
        check_columns(feat[0], f"{name}[0]", width, dim)
        check_layer(feat[0], f"{name}[0]", src)
        check_operand(feat[1], f"{name}[1]", g, "v")
        check_layer(feat[1], f"{name}[1]", dst)
        return check_columns(feat[1], f"{name}[1]", dst_width, dim)
    check_operand(feat, name, g, "u")
    check_columns(feat, name, width, dim)
    check_layer(feat, name, src)
    check_one_width(name, width, dst_width)


def check_projected(conv: Any, g: Graph, feat: Any, dim: int | None = None) -> None:
    """check_features for the modules that project by fc_src and fc_dst, or by fc."""
    layers = conv._modules  # faster than attributes: for a missing one nn.Module raises and catches
    fc = layers.get("fc")
    if fc is None:
        check_features(g, feat, layers["fc_src"], layers["fc_dst"], dim)
    else:
        check_features(g, feat, fc, fc, dim)


# ---- data of edges -----------------------------------------------------------------------------------------------------------


def check_edge_features(g: Graph, x: Any, name: str, layer: Any) -> None:
    """Raises unless x has one row per edge and the columns that `layer` takes."""
    check_operand(x, name, g, "e")
    check_columns(x, name, width_of(layer))
    check_layer(x, name, layer)


def check_edge_numbers(g: Graph, edge_weight: Any, feat: Any = None) -> None:
    """Raises unless edge_weight is (E,), and its dtype is no wider than that of feat, which has been checked."""
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
    """Whether gspmm takes the two dtypes, after autocast."""
    return edge_weight.is_floating_point() and may_mix(computed_type(edge_weight), computed_type(h))
