"""Wrappers of aggregations of torch_geometric.nn.aggr that reduce messages in several ways: all of them in one pass."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from ....common.precision import HALF, autocasts, computed_type, without_autocast
from ....drop_in.gate import index_reason, mode_reason
from ....expressions.reduce import incidence
from ....expressions.rows import as_int64
from ....expressions.several import reduced_at_once, rows_reduced_at_once
from ....ops.copy_u_reduce import REDUCTIONS
from ...modules.base import reduction_of
from ..call import plain
from ..gate import Call, rows_reason
from ..message import Message, expression_of
from ..options import ON
from ..size import Size, has_gradient, weighed

Original = Callable[..., Any]

_NAMES = {f"{name.capitalize()}Aggregation": name for name in REDUCTIONS}


def variance(
    original: Original,
    self: Any,
    x: Tensor,
    index: Tensor | None = None,
    ptr: Tensor | None = None,
    dim_size: int | None = None,
    dim: int = -2,
) -> Any:
    """``VarAggregation.forward``, and that of FusedAggregation, which is several aggregations.

    What is not reduced in one pass is torch_geometric's difference of means, which are not rounded to half. No mean is divided in
    half precision: its sum and its count may overflow.
    """
    if not isinstance(x, Tensor):
        return original(self, x, index, ptr, dim_size, dim)
    arguments = as_int64(index), ptr, dim_size, dim
    is_alone = not hasattr(self, "aggr_names")
    names = ["var"] if is_alone else [_NAMES.get(name) for name in self.aggr_names]
    has_repeated = len(set(names)) < len(names)  # which PyG takes for others
    is_plain = None not in names and not has_repeated and not self.semi_grad
    results = _several(x, index, dim_size, dim, names) if is_plain and isinstance(index, Tensor) else None
    if results is not None:
        return results[0] if is_alone else results
    is_half = x.dtype in HALF
    is_rounded = is_half or (ON.half and isinstance(x, Message) and autocasts(x.device))
    if not is_rounded or mode_reason(may_be_watched=True) is not None or not getattr(self, "need_degree", True):
        return original(self, x, *arguments)
    x = x.materialized("VarAggregation") if isinstance(x, Message) else x
    out = original(self, x.float() if is_half else x, *arguments)
    return [part.to(x.dtype) for part in out] if isinstance(out, list) else out.to(x.dtype)


def several(
    original: Original,
    self: Any,
    x: Tensor,
    index: Tensor | None = None,
    ptr: Tensor | None = None,
    dim_size: int | None = None,
    dim: int = -2,
) -> Any:
    """``MultiAggregation.forward``, which reduces a matrix by FusedAggregation, and other tensors in one way after the other."""
    if isinstance(x, Tensor) and x.dim() != 2 and isinstance(index, Tensor):
        names = [reduction_of(aggregation) for aggregation in self.aggrs]
        results = None if None in names else _several(x, index, dim_size, dim, names)
        if results is not None:
            return self.combine(results)
    return original(self, x, index, ptr, dim_size, dim)


def _several(x: Tensor, index: Tensor, dim_size: Any, dim: int, names: Sequence[Any]) -> list[Tensor] | None:
    """The reductions (num_nodes, *) of rows x, one for each name; None if they fall back to PyG."""
    lazy = expression_of(x)
    if index_reason(plain(index)) is not None or (isinstance(x, Message) and (lazy is None or lazy.edge_dim != 0)):
        return None
    is_extreme = "max" in names or "min" in names
    # PyG makes one reduction after the other of what one pass reads.
    size = Size(weighed(x.numel(), x) * (len(names) if x.is_cuda else 1), has_gradient(x), is_extreme=is_extreme)
    call = Call.of(x if lazy is None else lazy, index, dim, dim_size, "sum")
    owner = None if size.is_below_limit() else call.owner()
    if owner is None or call.edges_reason(owner) is not None:
        return None
    propagation, row = owner
    unique = tuple(dict.fromkeys(names))
    if lazy is None:
        if rows_reason(x) is not None or not size._replace(is_extreme=False).pays_for(propagation.edge_index):
            return None
        with without_autocast(x.device):
            results = rows_reduced_at_once(incidence(propagation.ending_in(row, dim_size)), x, unique)
    else:
        if mode_reason() is not None or not lazy.propagation.ends_in(plain(index), propagation, row):
            return None
        cast = computed_type(x) if ON.half and isinstance(x, Message) and autocasts(x.device) else None
        with without_autocast(x.device):
            results = reduced_at_once(lazy, unique, row, dim_size, cast)
    return [results[name] for name in names]
