"""Checks of the arguments of forwards. Errors name the user's argument."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..common.layers import check_layer, is_plain
from ..common.operands import check_columns, check_one_width, check_operand, check_pair, width_of
from ..common.precision import computed_type, may_mix
from ..graph import Graph
from .features import Features

# ---- features ----------------------------------------------------------------------------------------------------------------


def checked_features(
    g: Graph, feat: Any, src: Any = None, dst: Any = None, dim: int | None = None, name: str = "feat"
) -> Features:
    """The Features that feat is: those of g's sources (num_src, *), or the pair of these and its destinations' (num_dst, *).

    src, dst: the layers that project them, or None. dim: the number of dimensions; None for any. name: the user's for feat.

    Raises:
        ValueError: wrong shapes or devices, no pair. TypeError: no tensors, wrong dtypes.
    """
    if isinstance(feat, tuple):
        check_pair(feat, name)
        _check_side(feat[0], f"{name}[0]", g, "u", src, dim)
        _check_side(feat[1], f"{name}[1]", g, "v", dst, dim)
        return Features(*feat)
    _check_side(feat, name, g, "u", src, dim)
    if dst is not src:
        check_one_width(name, width_of(src), width_of(dst))
    return Features(feat)


def _check_side(x: Any, name: str, g: Graph, target: str, layer: Any, dim: int | None) -> None:
    """Raises unless x has the features of the sources ("u") or destinations ("v") of g, and `layer` can project them."""
    width = width_of(layer)
    if width is not None and isinstance(x, Tensor) and is_plain(layer):
        weight, num_dims = layer.weight, x.dim()
        if (
            (num_dims == dim if dim is not None else num_dims > 1)
            and x.shape[0] == (g.num_src if target == "u" else g.num_dst)
            and x.shape[-1] == width
            and x.dtype == weight.dtype
            and x.layout == torch.strided
            and x.device == weight.device == g.device
            and x.is_floating_point()
        ):
            return  # mostly; otherwise one of these says what is wrong, or x is right without a plain layer or under autocast
    check_operand(x, name, g, target)
    check_columns(x, name, width, dim)
    check_layer(x, name, layer)


def projections(conv: Any) -> tuple[Any, Any]:
    """The layers fc_src and fc_dst of a module that has them, otherwise fc for both sides."""
    layers = conv._modules  # faster than attributes: for a missing one nn.Module raises and catches
    fc = layers.get("fc")
    return (layers["fc_src"], layers["fc_dst"]) if fc is None else (fc, fc)


# ---- data of edges -----------------------------------------------------------------------------------------------------------


def check_edge_features(g: Graph, x: Any, name: str, layer: Any) -> None:
    """Raises unless x has one row per edge and the columns that `layer` takes."""
    check_operand(x, name, g, "e")
    check_columns(x, name, width_of(layer))
    check_layer(x, name, layer)


def check_edge_numbers(g: Graph, edge_weight: Any, dtype: torch.dtype | None = None) -> None:
    """Raises unless edge_weight is (E,), and its dtype no wider than that of the features, if it is given."""
    check_operand(edge_weight, "edge_weight", g, "e")
    if edge_weight.dim() != 1:
        raise ValueError(
            f"edge_weight has shape {tuple(edge_weight.shape)}; expected ({g.num_edges},), one number per edge"
        )
    is_wider = edge_weight.is_complex() or (edge_weight.dtype == torch.float64 and dtype != torch.float64)
    if dtype is not None and is_wider:
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
