"""What all modules share: the graph and its two sides, nodes without in-edges, half precision, padded projections."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from ..common.compat import assume_constant_result, has_any_global_hook
from ..common.kept import refuse_capture
from ..graph import Graph, ordinary_tensors
from ..ops._operands import as_graph, autocast, autocasts

HALF = (torch.float16, torch.bfloat16)
_HAS_ISOLATED = "_has_isolated"  # kept on a Graph: whether a node has no in-edge
_ZERO_IN_DEGREE = (
    "There are 0-in-degree nodes in the graph, output for those nodes will be invalid. Add a self-loop to every node, or "
    "construct the module with allow_zero_in_degree=True, which leaves them zero before residual and bias."
)


# ---- graphs ------------------------------------------------------------------------------------------------------------------


@assume_constant_result
def _any_empty(indptr: Tensor) -> bool:
    return bool((indptr[1:] == indptr[:-1]).any())


def check_in_degrees(g: Graph, error: type[Exception] = ValueError) -> None:
    """Raises `error` if a node has no in-edge.

    The answer is kept with the graph: the device is asked once. Compiled code asks while it is traced. RuntimeError: a device that
    was not asked yet cannot be while a CUDA graph is captured.
    """
    isolated = getattr(g, _HAS_ISOLATED, None)
    if isolated is None:
        refuse_capture(
            g.device,
            "the module asks the device whether a node of the graph has no in-edge",
            "call the module once with this graph, or construct it with allow_zero_in_degree=True",
        )
        with ordinary_tensors():
            isolated = _any_empty(g.csc().indptr)
        if not torch.compiler.is_compiling():
            object.__setattr__(g, _HAS_ISOLATED, isolated)
    if isolated:
        raise error(_ZERO_IN_DEGREE)


def checked_graph(graph: Any, allow_zero_in_degree: bool) -> Graph:
    """The Graph of `graph`, a Graph or DGLGraph."""
    g = as_graph(graph, "graph")
    if not allow_zero_in_degree:
        check_in_degrees(g)
    return g


def both_sides(
    graph: Any, g: Graph, feat: Any, drop: Callable[[Tensor], Tensor] | None = None
) -> tuple[Tensor, Tensor]:
    """Features of source and destination nodes, after dropout.

    One tensor serves both. In a block, and in a Graph of fewer destinations than sources, destinations are the first sources.
    """
    if isinstance(feat, tuple):
        src, dst = feat
        return (src, dst) if drop is None else (drop(src), drop(dst))
    feat = feat if drop is None else drop(feat)
    if g.num_dst == g.num_src:
        return feat, feat
    if not getattr(graph, "is_block", g.num_dst < g.num_src):
        raise ValueError(
            f"feat is one tensor, but the graph has {g.num_src} source and {g.num_dst} destination nodes; "
            "expected a pair (of the sources, of the destinations)"
        )
    return feat, feat[: g.num_dst]


def cast_once(g: Graph, feat: Any, h_src: Tensor, h_dst: Tensor) -> tuple[Tensor, Tensor]:
    """What both_sides made of feat, as autocast would cast it for each of several projections."""
    src = autocast(h_src)
    return src, autocast(h_dst) if isinstance(feat, tuple) else src[: g.num_dst]


def shown(src: int, dst: int) -> str:
    """A pair of widths in a repr."""
    return f"in_feats={src if src == dst else (src, dst)}"


# ---- precision ---------------------------------------------------------------------------------------------------------------


def computed_type(x: Tensor) -> torch.dtype:
    """The dtype in which an operator computes on x: autocast's where that is on."""
    if x.dtype != torch.float64 and autocasts(x.device):
        return torch.get_autocast_dtype(x.device.type)
    return x.dtype


def unrounded(x: Tensor) -> torch.dtype | None:
    """out_dtype for a sum over x that is scaled before it is rounded."""
    return torch.float32 if computed_type(x) in HALF else None


def widened(x: Tensor) -> Tensor:
    """In fp32 if half."""
    return x.float() if x.dtype in HALF else x


# ---- padding -----------------------------------------------------------------------------------------------------------------


def padded(dim: int, x: Tensor, weighted: bool = True) -> int:
    """The width to which rows of `dim` values a head, made from x, are padded with zeros: `dim`, or a multiple of 8.

    weighted: an attention or weighted sum reads them, not a plain sum.
    """
    return dim + -dim % 8 if dim % 8 and _padding_pays(dim, x, weighted) else dim


def _padding_pays(dim: int, x: Tensor, weighted: bool) -> bool:
    """On CUDA halves are read 16 bytes at a time only where 8 divides the width of a head, and a number at a time by GATv2 and dot
    attention where it does not: 41 classes cost less as 48. The CPU's vector kernels begin at 8 values, and then take any width."""
    dtype = computed_type(x)
    if x.is_cuda:
        return dtype in HALF and dim > 4
    return dtype != torch.float64 and weighted and 2 < dim < 8


def is_plain(layer: nn.Module) -> bool:
    """Whether calling it is F.linear on its weight and bias and nothing more: no wrapper, no hook, no parametrization."""
    if not isinstance(layer, nn.Linear) or type(layer).forward is not nn.Linear.forward:
        return False
    return is_unhooked(layer) and "parametrizations" not in layer._modules


def is_unhooked(layer: nn.Module) -> bool:
    """Whether calling it is its class's forward and nothing more."""
    return not (is_hooked(layer) or has_any_global_hook())


def is_hooked(layer: nn.Module) -> bool:
    """Whether calling it runs hooks of its own, or a forward that was set on this instance."""
    hooks = layer._forward_hooks or layer._forward_pre_hooks or layer._backward_hooks or layer._backward_pre_hooks
    return bool(hooks) or "forward" in layer.__dict__


def trimmed(x: Tensor, dim: int) -> Tensor:
    """x (*, width) without what padding added: (*, dim), a view."""
    return x if x.shape[-1] == dim else x[..., :dim]
