"""Calls that reduce rows, lowered: messages along their edges, without being materialized, and other rows by the Graph of an index.

LOWERINGS are tried in order on what is summed, when views of it have been taken off; what none of them takes is reduced by
:mod:`.reduce`, which materializes the parts for which no operator is left.
"""

from __future__ import annotations

from torch import Tensor

from ...common.precision import autocasts, computed_type, without_autocast
from ...drop_in.gate import Reason, index_reason, mode_reason
from ...expressions import attention
from ...expressions.copies import copies_of, unsafe_view
from ...expressions.expression import Expression
from ...expressions.reduce import Lowering, as_result, has_rows_of, reduced
from .accounts import routed
from .call import current_edges, plain
from .gate import Call, FallBack, Owner, require
from .message import Message
from .options import ON
from .rows_by_index import graph_over
from .rows_by_index import reduced as reduced_rows

REDUCES = {"sum": "sum", "add": "sum", "mean": "mean", "max": "max", "amax": "max", "min": "min", "amin": "min"}
LOWERINGS: list[Lowering] = [attention.fused]


def reduced_call(name: str, call: Call) -> Tensor:
    """The rows of a call reduced. Raises FallBack if they are left to the library. name: as it is counted."""
    require(index_reason(plain(call.index), call.src))
    if type(call.src) is not Message and call.kind and call.size.is_first_use(call.index, current_edges()):
        raise FallBack(Reason.FIRST_USE_OF_INDEX)
    owner = call.owner()
    if type(call.src) is Message:
        rows = reduced_message(call, owner)
        if rows is not None:
            return rows
        call = call._replace(src=call.src.materialized(name))
    if call.dim != 0 and call.is_transposed(owner):
        dim = call.dim
        rows = _reduced_samples(name, call, owner)
        if rows is not None:
            return rows
        rows = reduced_call(name, call._replace(src=call.src.movedim(dim, 0).contiguous(), dim=0))
        return as_result(rows, dim)
    g = graph_over(call, owner)
    routed[name] += 1
    return reduced_rows(g, str(call.kind), call.src, plain(call.index))


def _reduced_samples(name: str, call: Call, owner: Owner | None) -> Tensor | None:
    """Rows (*, E, D) of samples on one graph, reduced without another copy of them; None if there is none to save."""
    src, dim = call.src, call.dim % call.src.dim()
    if not src.is_contiguous() or not src.numel():
        return None
    g = graph_over(call._replace(src=src.movedim(dim, 0), dim=0), owner)
    routed[name] += 1
    samples = src.shape[:dim]
    rows = reduced_rows(copies_of(g, samples.numel()), str(call.kind), src.flatten(0, dim), None)
    return unsafe_view(rows, (*samples, -1, *rows.shape[1:]))


def reduced_message(call: Call, owner: Owner | None) -> Tensor | None:
    """The rows of a message reduced without materializing it; None if they have to be materialized."""
    lazy = call.src.expression()
    if lazy is None or owner is None or call._replace(src=lazy).edges_reason(owner) is not None:
        return None
    if mode_reason() is not None:  # which would see messages
        return None
    if not lazy.propagation.ends_in(plain(call.index), *owner) or not has_rows_of(lazy, owner[1], call.num_rows):
        return None
    return _reduced(lazy, str(call.kind), owner[1], call.num_rows)


def reduced_if_unread(src: Tensor, index: Tensor, dim: int, num_rows: int, reduction: str) -> Tensor | None:
    """The sum or mean of a message, for a function that is not in the table; None if the message has to be materialized."""
    if index_reason(plain(index), src) is not None:
        return None
    call = Call.of(src, index, dim, num_rows, reduction)
    return reduced_message(call, call.owner())


def _reduced(x: Expression, reduction: str, row: int, num_nodes: int) -> Tensor:
    if not autocasts(x.device):  # mostly: a context takes longer than to ask
        return reduced(x, reduction, row, num_nodes, LOWERINGS)
    dtype = computed_type(x) if ON.half else None
    with without_autocast(x.device):
        return reduced(x, reduction, row, num_nodes, LOWERINGS, dtype)
