"""Messages of edges from features that are given rather than stored on the graph: ``dgl.u_mul_v(g, x, y)``."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from . import ops
from .heterograph import DGLGraph

__all__ = ["copy_u", "copy_v", "u_add_v", "u_div_v", "u_dot_v", "u_mul_v", "u_sub_v"]


def copy_u(g: DGLGraph, x_node: Tensor, etype: Any = None) -> Tensor:
    """(E, *) x_node of each edge's source. etype: of the edges, if there are several types."""
    return ops.gsddmm(_of_type(g, etype), "copy_lhs", x_node, None, "u", "v")


def copy_v(g: DGLGraph, x_node: Tensor, etype: Any = None) -> Tensor:
    """(E, *) x_node of each edge's destination."""
    return ops.gsddmm(_of_type(g, etype), "copy_lhs", x_node, None, "v", "u")


def u_add_v(g: DGLGraph, x_node: Tensor, y_node: Tensor, etype: Any = None) -> Tensor:
    """(E, *) x_node of the source + y_node of the destination."""
    return ops.gsddmm(_of_type(g, etype), "add", x_node, y_node)


def u_sub_v(g: DGLGraph, x_node: Tensor, y_node: Tensor, etype: Any = None) -> Tensor:
    """(E, *) x_node of the source - y_node of the destination."""
    return ops.gsddmm(_of_type(g, etype), "sub", x_node, y_node)


def u_mul_v(g: DGLGraph, x_node: Tensor, y_node: Tensor, etype: Any = None) -> Tensor:
    """(E, *) x_node of the source * y_node of the destination."""
    return ops.gsddmm(_of_type(g, etype), "mul", x_node, y_node)


def u_div_v(g: DGLGraph, x_node: Tensor, y_node: Tensor, etype: Any = None) -> Tensor:
    """(E, *) x_node of the source / y_node of the destination."""
    return ops.gsddmm(_of_type(g, etype), "div", x_node, y_node)


def u_dot_v(g: DGLGraph, x_node: Tensor, y_node: Tensor, etype: Any = None) -> Tensor:
    """(E, *, 1) the dot product of x_node of the source and y_node of the destination."""
    return ops.gsddmm(_of_type(g, etype), "dot", x_node, y_node)


def _of_type(g: DGLGraph, etype: Any) -> DGLGraph:
    return g if etype is None and len(g.etypes) == 1 else g[g.to_canonical_etype(etype)]
