"""Layers on sources' features that are codes of 8 bits."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import Tensor, nn

from ..common.layers import check_layer
from ..common.operands import check_columns, check_one_width, check_operand, check_pair, width_of
from ..graph import Graph
from ..ops.codes import VALUES, Codes


def are_codes(feat: Any) -> bool:
    """Whether the sources' features are codes, alone or in a pair."""
    return isinstance(feat[0] if isinstance(feat, (tuple, list)) and feat else feat, Codes)


def for_layer(codes: Codes, layer: Any) -> Codes:
    """The codes, of which values and sums have the dtype in which a layer computes: that of autocast or of its parameters.

    layer: a module, a parameter or None. The codes keep their dtype if there is no parameter, or none of floating-point numbers.
    """
    device = codes.device.type
    if torch.is_autocast_enabled(device):
        return dataclasses.replace(codes, dtype=torch.get_autocast_dtype(device))
    parameters = [layer] if isinstance(layer, Tensor) else layer.parameters() if isinstance(layer, nn.Module) else ()
    dtypes = [x.dtype for x in parameters if x.dtype in VALUES]
    return dataclasses.replace(codes, dtype=dtypes[0]) if dtypes else codes


def sides_of_codes(g: Graph, feat: Any, src: Any, dst: Any, name: str = "feat") -> tuple[Codes, Tensor]:
    """The sources' codes and the destinations' values of feat, which are the first sources' if it is no pair.

    src, dst: the layers that project them, or None. Codes have the dtype in which these compute, see :func:`for_layer`.

    Raises:
        ValueError: wrong shapes or devices, no pair. TypeError: destinations' features that are no tensor, or of another dtype than
            the layers without autocast.
    """
    if isinstance(feat, tuple):
        check_pair(feat, name)
        codes, h_dst = feat
        check_columns_of_codes(g, codes, f"{name}[0]", src)
        check_operand(h_dst, f"{name}[1]", g, "v")
        check_columns(h_dst, f"{name}[1]", width_of(dst), None)
        check_layer(h_dst, f"{name}[1]", dst)
        return for_layer(codes, src), h_dst
    check_columns_of_codes(g, feat, name, src)
    check_one_width(name, width_of(src), width_of(dst))
    if g.num_dst > g.num_src:
        raise ValueError(
            f"{name} is codes of the sources alone, but the graph has {g.num_src} source and {g.num_dst} destination nodes; "
            "expected a pair (of the sources, of the destinations)"
        )
    codes = for_layer(feat, src)
    return codes, codes.values(g.num_dst)


def check_columns_of_codes(g: Graph, codes: Codes, name: str, layer: Any) -> None:
    """Raises unless codes has the features of the sources of g, and sums of them can be projected by `layer`."""
    check_operand(codes.data, name, g, "u")
    check_width_of_codes(codes, name, width_of(layer))


def check_width_of_codes(codes: Codes, name: str, width: int | None) -> None:
    """Raises unless codes has that many columns."""
    if width is not None and (codes.data.dim() < 2 or codes.shape[-1] != width):
        raise ValueError(f"{name} has shape {tuple(codes.shape)}; expected ({len(codes)}, *, {width})")


def check_reads_codes(name: str, reads: bool, when: str) -> None:
    """Raises unless a module reads codes: `when` says in which cases it does."""
    if not reads:
        raise TypeError(f"{name} is codes of 8 bits, which are read {when}; expected a tensor: the codes' values()")
