"""What a call of MessagePassing.propagate knows: its edge_index, and the numbers of nodes on both sides."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator
from typing import Any

from torch import Tensor

from ...drop_in.gate import Reason
from ...expressions.propagation import Propagation
from ...graphs_by_tensor.store import is_known

# The last call in each thread, whose edge_index and module are not kept alive: [references to both, size, reference to the
# Propagation that messages of the call hold, (so many values were FEW, the count of those of its edge_index)].
_last = threading.local()
FEW = 4


def begin(edge_index: Tensor | None, size: list[int | None], module: Any) -> None:
    """Notes a call of a module. edge_index: None if it is no dense tensor."""
    _last.call = None if edge_index is None else [weakref.ref(edge_index), weakref.ref(module), size, _nothing, None]


def _nothing() -> None:
    """What a reference to a Propagation is while there is none."""


def current_call() -> list[Any] | None:
    """What is noted of the last call in this thread; None if it had no dense edge_index."""
    return getattr(_last, "call", None)


def few_before(index: Tensor, values: Tensor) -> bool:
    """Whether an index is a row of the last call's edge_index, of which no fewer values were found to be FEW. They are counted."""
    call = getattr(_last, "call", None)
    if call is None or call[FEW] is None or index.is_inference() or index._base is None:
        return False
    num_values, count = call[FEW]
    if values.is_cuda or values.numel() > num_values or index._base is not call[0]():
        return False
    count[1] += values.numel()
    return True


def current_edges() -> Tensor | None:
    """The edge_index of the last call in this thread, if it is a dense tensor that is alive."""
    call = getattr(_last, "call", None)
    return None if call is None else call[0]()


def current_module() -> Any:
    """The module of the last call in this thread, if it is alive."""
    call = getattr(_last, "call", None)
    return None if call is None else call[1]()


def current() -> Propagation | None:
    call = getattr(_last, "call", None)
    if call is None:
        return None
    propagation = call[3]()
    if propagation is None:
        edge_index, module = call[0](), call[1]()
        if edge_index is None or module is None:
            return None
        # Under this flow torch_geometric notes the number of rows of x[0] for row 0 of edge_index, by whose row 1 it gathers x[0].
        size = [None, None] if module.flow == "target_to_source" else call[2]
        propagation = Propagation(edge_index, size, module_reason(module))
        call[3] = weakref.ref(propagation)
    return propagation


def plain(index: Any) -> Any:
    """The tensor that holds an index or edge_index, which may be a torch_geometric.Index or EdgeIndex."""
    return index.as_tensor() if type(index) is not Tensor and hasattr(index, "as_tensor") else index


def owner_of(index: Any) -> tuple[Propagation, int] | None:
    """(propagation, row) of an index that is a row of the last call's edge_index, or of another whose graph is cached."""
    index = plain(index)
    for propagation in _candidates(index):
        row = propagation.row_of(index)
        if row is not None:
            return propagation, row
    return None


def _candidates(index: Tensor) -> Iterator[Propagation]:
    last = current()
    if last is not None:
        yield last
    base = None if index.is_inference() else index._base
    if base is not None and base.dim() == 2 and base.shape[0] == 2 and is_known(base):
        yield Propagation(base, [None, None])


_HOOKS = tuple(
    f"_{step}_forward{when}hooks"
    for step in ("propagate", "message", "aggregate", "edge_update")
    for when in ("_", "_pre_")
)


def module_reason(conv: Any) -> str | None:
    """Why the messages of a module must be materialized."""
    if conv.explain:
        return Reason.EXPLAIN
    attributes = conv.__dict__
    return Reason.HOOKS if any([attributes[hooks] for hooks in _HOOKS]) else None
