"""Stand-ins for aggregations of torch_geometric.nn.aggr that reduce messages in several ways: all of them in one pass."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from .... import ops
from ....common.autograd import snapshot
from ....common.precision import HALF, autocasts, computed_type, without_autocast
from ....drop_in.gate import index_reason, mode_reason
from ....expressions.reduce import incidence
from ....expressions.rows import as_int64
from ....expressions.values import Evaluation, Rows, shared_values
from ....graph import Graph
from ....ops.copy_u_reduce import REDUCTIONS
from ...modules.base import reduction_of
from ..accounts import routed
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
    half: its sum and its count may overflow.
    """
    if not isinstance(x, Tensor):
        return original(self, x, index, ptr, dim_size, dim)
    arguments = as_int64(index), ptr, dim_size, dim
    is_alone = not hasattr(self, "aggr_names")
    names = ["var"] if is_alone else [_NAMES.get(name) for name in self.aggr_names]
    has_repeated = len(set(names)) < len(names)  # which PyG takes for others
    is_plain = None not in names and not has_repeated and not self.semi_grad
    has_index = isinstance(index, Tensor)
    if is_plain and has_index and (rows := _rows_of(x, index, dim_size, dim, names)) is not None:  # type: ignore[arg-type]
        results = _reduced(*rows, names, x)  # type: ignore[arg-type]
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
        if None not in names and (rows := _rows_of(x, index, dim_size, dim, names)) is not None:
            return self.combine(_reduced(*rows, names, x))  # type: ignore[arg-type]
    return original(self, x, index, ptr, dim_size, dim)


def _rows_of(x: Tensor, index: Tensor, dim_size: Any, dim: int, names: Sequence[Any]) -> tuple[Graph, Tensor] | None:
    """The rows that are reduced, of nodes or edges, and the Graph along whose edges they go; None if they are left to PyG."""
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
    if lazy is None:
        if rows_reason(x) is not None or not size._replace(is_extreme=False).pays_for(propagation.edge_index):
            return None
        return incidence(propagation.ending_in(row, dim_size)), x
    if mode_reason() is not None or not lazy.propagation.ends_in(plain(index), propagation, row):
        return None
    if lazy.row != 1 - row or lazy.is_watched():
        return incidence(propagation.ending_in(row, dim_size)), shared_values(lazy)
    value = Evaluation(lazy).of(lazy)
    assert isinstance(value, Rows)
    return lazy.propagation.into(row, dim_size, value.x.shape[0]), snapshot(value.x)


def _reduced(g: Graph, rows: Tensor, names: Sequence[str], x: Tensor) -> list[Tensor]:
    """The reductions (num_nodes, *) of rows (num_src, *), one for each name. x: what they are torch_geometric's reductions of."""
    unique = tuple(dict.fromkeys(names))
    routed[f"copy_u_reduce:{'_'.join(unique)}"] += 1
    if ON.half and isinstance(x, Message) and autocasts(x.device):
        rows = rows.to(computed_type(x))
    with without_autocast(rows.device):
        results = dict(zip(unique, ops.copy_u_reduce(g, rows, unique)))
    return [results[name] for name in names]
