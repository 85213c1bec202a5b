"""Checkpoints under drop-ins: what is recomputed in a backward runs as its forward did."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch

from ..common.autograd import LAZY
from .table import Row, Shared, Table
from .wrappers import Route


def _checkpoint(original: Route, function: Any, *args: Any, **kwargs: Any) -> Any:
    """``torch.utils.checkpoint.checkpoint``. The backward may come after a block of accelerate(), or after unpatch()."""
    modes = [(switch, options) for switch in list(CHECKPOINTS.users) if (options := switch.active()) is not None]
    if not modes:
        return original(function, *args, **kwargs)

    def under_drop_ins(*args: Any, **kwargs: Any) -> Any:
        outer, is_inner = getattr(_recomputed, "task", -1), getattr(_recomputed, "is_checkpointed", False)
        with contextlib.ExitStack() as stack:
            for switch, options in modes:
                stack.enter_context(switch.accelerate(is_again=True, **options))
            _recomputed.task, _recomputed.is_checkpointed = torch._C._current_graph_task_id(), True
            try:
                return function(*args, **kwargs)
            finally:
                _recomputed.task, _recomputed.is_checkpointed = outer, is_inner

    # A message that the first run materializes would be met as a tensor by the second, which then keeps other tensors.
    for x in _closure_of(function):
        _materialized(x)
    args, kwargs = tuple(map(_materialized, args)), {name: _materialized(x) for name, x in kwargs.items()}
    return original(under_drop_ins, *args, **kwargs)


def _materialized(x: Any) -> Any:
    return x.materialized("checkpoint") if type(x) in LAZY else x


def _closure_of(function: Any) -> Iterator[Any]:
    """What a function reads of the functions around it, and what was bound to it."""
    if isinstance(function, functools.partial):
        yield from (*function.args, *function.keywords.values(), *_closure_of(function.func))
    for cell in getattr(function, "__closure__", None) or ():
        with contextlib.suppress(ValueError):  # it is empty until a later statement
            yield cell.cell_contents


def is_checkpointed() -> bool:
    """Whether a checkpoint calls, in the forward or to recompute it. Both must do the same, whatever happened between them."""
    return getattr(_recomputed, "is_checkpointed", False) or _has_hooks_of_a_checkpoint()


def _has_hooks_of_a_checkpoint() -> bool:
    """Whether PyTorch packs tensors for a checkpoint: one that a program held before it got its wrapper, in a partial say."""
    hooks = _top_hooks() if _top_hooks is not None else None
    return hooks is not None and getattr(hooks[0], "__module__", None) == "torch.utils.checkpoint"


def is_backward() -> bool:
    """Whether autograd calls, or what it calls. A checkpoint that is recomputed in a backward is a forward."""
    task = torch._C._current_graph_task_id()
    return task != -1 and task != getattr(_recomputed, "task", -1) and not _has_hooks_of_a_checkpoint()


def _find_top_hooks() -> Callable[[], Any] | None:
    """PyTorch's function for the hooks by which tensors are packed now. It is private: None if a version lacks it."""
    try:
        top = functools.partial(torch._C._autograd._top_saved_tensors_default_hooks, True)  # type: ignore[attr-defined]
        top()
    except (AttributeError, TypeError):
        return None
    return top


_top_hooks = _find_top_hooks()
# task: the backward in which this thread recomputes a checkpoint; is_checkpointed: whether it is in one
_recomputed = threading.local()
TABLE = Table([Row("torch.utils.checkpoint", "checkpoint", _checkpoint)])
CHECKPOINTS = Shared(TABLE.bind, TABLE.restored)  # used by Switches that are on
