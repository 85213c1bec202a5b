"""What the operator families share: names of targets and operands, types and shapes of results."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..common.arguments import TARGETS
from ..graph import Graph

_TARGETS_BY_NUMBER = {0: "u", 1: "e", 2: "v"}


def check_out_dtype(out_dtype) -> None:
    if out_dtype is not None and not isinstance(out_dtype, torch.dtype):
        raise TypeError(f"out_dtype is {out_dtype!r}; expected a torch.dtype or None")


def promoted_type(lhs: Tensor | None, rhs: Tensor | None) -> torch.dtype:
    """The dtype of a result of two operands, of which one may be missing."""
    if lhs is None or rhs is None:
        only = rhs if lhs is None else lhs
        assert only is not None
        return only.dtype
    return torch.promote_types(lhs.dtype, rhs.dtype)


def target_of(target, name: str) -> str:
    known = TARGETS.get(target) if isinstance(target, str) else None
    if isinstance(target, int):
        known = _TARGETS_BY_NUMBER.get(target)
    if known is None:
        raise ValueError(f"{name} is {target!r}; expected u, v or e")
    return known


def needs_grad(*operands: Tensor | None) -> bool:
    if torch.is_grad_enabled():
        for data in operands:  # not any(): every operator comes here
            if data is not None and data.requires_grad:
                return True
        # Within a functorch transform no tensor of the code around it seems to require a gradient.
        return not torch.compiler.is_compiling() and torch._C._are_functorch_transforms_active()
    return False


def out_edges(in_edges: Sequence[Tensor], num_src: int) -> Sequence[Tensor]:
    """CSR of CSC, for a gradient of sources that was not foreseen, see needs_grad."""
    return torch.ops.halfgnn.transpose.default(*in_edges, num_src)


def graph_of(csc: Sequence | None, csr: Sequence | None, num_src: int, num_dst: int) -> Graph:
    """The graph of the sides that a Function kept, of which one may be missing: None, or a sequence of None."""
    in_edges, out_edges = (None if side is None or side[0] is None else side for side in (csc, csr))
    return Graph(num_src, num_dst, in_edges, out_edges)


def broadcast_trailing(op: str, lhs: Sequence[int] | None, rhs: Sequence[int] | None) -> tuple:
    """Trailing shape of op(lhs, rhs) for operand shapes with a leading node or edge dimension."""
    if lhs is None or rhs is None:
        shape = lhs if lhs is not None else rhs
        assert shape is not None
        return tuple(shape[1:])
    out = tuple(torch.broadcast_shapes(tuple(lhs[1:]), tuple(rhs[1:])))
    return (*out[:-1], 1) if op == "dot" and out else out
