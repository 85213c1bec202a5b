"""What all modules share, here and in halfgnn.compat: the graph and the features of its two sides."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..common.degrees import check_in_degrees
from ..common.precision import HALF, autocast, computed_type
from ..graph import Graph
from ..graph_argument import as_graph

# ---- graphs ------------------------------------------------------------------------------------------------------------------


def checked_graph(graph: Any, allow_zero_in_degree: bool | None, error: type[Exception] = ValueError) -> Graph:
    """The Graph of `graph`, a Graph or DGLGraph.

    allow_zero_in_degree: None if the module has no such option. Unless it is true, nodes without in-edges raise `error`.
    """
    g = as_graph(graph, "graph")
    if not allow_zero_in_degree:
        check_in_degrees(g, error, has_option=allow_zero_in_degree is not None)
    return g


class Features(NamedTuple):
    """Features as the user gave them: of the sources (num_src, *), and of the destinations (num_dst, *) if they have their own."""

    src: Tensor
    dst: Tensor | None = None


class Sides(NamedTuple):
    """Features of a graph's two sides after dropout and autocast: src (num_src, *), dst (num_dst, *).

    own_dst: dst, or None if the destinations are the first sources. uncast_dst: dst before autocast.
    """

    src: Tensor
    dst: Tensor
    own_dst: Tensor | None
    uncast_dst: Tensor


def features_of(feat: Any) -> Features:
    """Of a tensor or pair, which has been checked."""
    return Features(*feat) if isinstance(feat, tuple) else Features(feat)


def both_sides(
    graph: Any, g: Graph, feat: Features, drop: Callable[[Tensor], Tensor] | None = None, name: str = "feat"
) -> tuple[Tensor, Tensor]:
    """Features of source and destination nodes, after dropout.

    feat, which the user calls `name`, may be one tensor for both. In a block, and in a Graph with fewer destinations than sources,
    the destinations are the first sources.
    """
    src, dst = feat
    if dst is not None:
        return (src, dst) if drop is None else (drop(src), drop(dst))
    if drop is not None:
        src = drop(src)
    if g.num_dst == g.num_src:
        return src, src
    if not getattr(graph, "is_block", g.num_dst < g.num_src):
        raise ValueError(
            f"{name} is one tensor, but the graph has {g.num_src} source and {g.num_dst} destination nodes; "
            "expected a pair (of the sources, of the destinations)"
        )
    return src, src[: g.num_dst]


def cast_sides(
    graph: Any, g: Graph, feat: Features, drop: Callable[[Tensor], Tensor] | None = None, name: str = "feat"
) -> Sides:
    """both_sides(), cast once as autocast would cast them for each projection."""
    h_src, h_dst = both_sides(graph, g, feat, drop, name)
    src = autocast(h_src)
    own_dst = None if feat.dst is None else autocast(h_dst)
    return Sides(src, src[: g.num_dst] if own_dst is None else own_dst, own_dst, h_dst)


def shown(src: int, dst: int) -> str:
    """A pair of widths in a repr."""
    return f"in_feats={src if src == dst else (src, dst)}"


# ---- precision ---------------------------------------------------------------------------------------------------------------


def unrounded(x: Any) -> torch.dtype | None:
    """The out_dtype of a sum over x, a tensor or codes, that is scaled before it is rounded: fp32 for half x."""
    return torch.float32 if computed_type(x) in HALF else None
