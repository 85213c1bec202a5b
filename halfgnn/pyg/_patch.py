"""Drop-in acceleration of torch_geometric, see :func:`patch`."""

from __future__ import annotations

import contextlib
import functools
import importlib
import sys
import types
from collections.abc import Callable
from typing import Any

from torch_geometric import nn
from torch_geometric.nn.aggr.fused import FusedAggregation

from ..common.drop_in import Bindings, Switch
from . import _fused, _operators, _products

_Route = Callable[..., Any]

# Functions, which are replaced under every name that any module has for them: module, name, stand-in.
_FUNCTIONS: list[tuple[str, str, _Route]] = [
    ("torch_geometric.utils", "scatter", _operators.scatter),
    ("torch_geometric.utils", "softmax", _operators.softmax),
    ("torch_geometric.utils", "spmm", _products.spmm),
    ("torch_geometric.edge_index", "_spmm", _products.edge_index_spmm),
    ("torch_geometric.utils", "add_self_loops", _operators.self_loops),
    ("torch_geometric.utils", "remove_self_loops", _operators.self_loops),
    ("torch_geometric.utils", "add_remaining_self_loops", _operators.self_loops),
]

_METHODS: list[tuple[type, str, _Route]] = [
    (nn.MessagePassing, "_check_input", _operators.check_input),
    (nn.MessagePassing, "_index_select", _operators.index_select),
    (nn.aggr.VarAggregation, "forward", _operators.variance),
    (FusedAggregation, "forward", _operators.variance),
]

# Modules of torch_geometric.nn whose forwards fuse=True replaces.
_FUSED: list[tuple[str, _Route]] = [
    ("GATConv", _fused.gat_conv),
    ("GATv2Conv", _fused.gatv2_conv),
    ("TransformerConv", _fused.transformer_conv),
]

_stand_ins: dict[int, tuple[Any, Any]] = {}  # id of a stand-in that has taken effect -> (stand-in, original)


def patch(fuse: bool = False) -> None:
    """Routes torch_geometric's message passing through halfgnn, in the whole process, until :func:`unpatch`.

    Results are torch_geometric's, up to what docs/pyg.md says. A second call can only add `fuse`. Modules that were made before are
    covered too.

    Args:
        fuse: run GATConv, GATv2Conv and TransformerConv of torch_geometric.nn fused, see :mod:`halfgnn.pyg`.
    """
    _switch.patch(fuse)


def unpatch() -> None:
    """Gives torch_geometric its own functions back, as soon as no :func:`accelerate` block is open."""
    _switch.unpatch()


def accelerate(fuse: bool = False) -> contextlib.AbstractContextManager[None]:
    """:func:`patch` for a ``with`` block or a decorated function.

    Like patch() it acts on the whole process: other threads are routed too while a block is open. Blocks may be nested and may
    overlap.
    """
    return _switch.accelerate(fuse)


def _stand_in(original: Any, route: _Route) -> Any:
    """A function that calls route(original, ...), and that TorchScript reads as the original: its source and its globals."""

    def call(*args: Any, **kwargs: Any) -> Any:
        return route(original, *args, **kwargs)

    function = types.FunctionType(call.__code__, original.__globals__, original.__name__, None, call.__closure__)
    return functools.update_wrapper(function, original)


def _install(bindings: Bindings) -> None:
    stand_ins = {}
    for module, name, route in _FUNCTIONS:
        original = getattr(importlib.import_module(module), name)
        stand_ins[id(original)] = original, _stand_in(original, route)
    _exchange(stand_ins, bindings.bind)
    _stand_ins.update({id(new): (new, old) for old, new in stand_ins.values()})
    for owner, name, route in _METHODS:
        bindings.bind(owner, name, _stand_in(getattr(owner, name), route))


def _exchange(functions: dict[int, tuple[Any, Any]], bind: Callable[[Any, str, Any], None]) -> None:
    """Binds all names that modules have for functions to others. functions: id -> (function, its replacement)."""
    for module in list(sys.modules.values()):
        if isinstance(module, types.ModuleType):
            for name, value in list(vars(module).items()):
                if id(value) in functions and functions[id(value)][0] is value:
                    bind(module, name, functions[id(value)][1])


def _restored() -> None:
    """Gives modules that were imported meanwhile the originals."""
    _exchange(_stand_ins, setattr)
    _stand_ins.clear()


def _install_fused(bindings: Bindings) -> None:
    for name, route in _FUSED:
        owner = getattr(nn, name)
        bindings.bind(owner, "forward", _stand_in(owner.forward, route))


_switch = Switch(_install, _install_fused, _restored)
