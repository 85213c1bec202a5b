"""Writes what functions of PyTorch, and autograd Functions of halfgnn, are called on fake tensors, into an FX graph."""

from __future__ import annotations

import functools
import operator
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, fx
from torch.overrides import TorchFunctionMode

from ..common.autograd import RECORDERS, apply
from ..common.caching import read_cached
from ..graph import Graph

# By which autocast casts what the expressions' lowerings call.
_PRODUCTS = {torch.nn.functional.linear, torch.matmul, "matmul", "__matmul__"}
_SYMBOLS = torch.SymInt, torch.SymFloat, torch.SymBool


class Values:
    """The fake tensors and symbols that the nodes of an FX graph stand for, and their nodes."""

    def __init__(self) -> None:
        self._nodes: dict[int, fx.Node] = {}
        self._alive: list[Any] = []  # whose ids are the keys
        self._symbols: dict[Any, tuple[fx.Node, int | None]] = {}  # expression -> (node, dimension of its tensor)

    def note(self, node: fx.Node, value: Any) -> None:
        """The first node of a value is its node."""
        if isinstance(value, Tensor):
            self._nodes.setdefault(id(value), node)
            self._alive.append(value)
            for dim, size in enumerate(value.shape):
                if isinstance(size, torch.SymInt):
                    self._symbols.setdefault(size.node.expr, (node, dim))
        elif isinstance(value, _SYMBOLS):
            self._symbols.setdefault(value.node.expr, (node, None))

    def replace(self, value: Tensor, node: fx.Node) -> None:
        self._nodes[id(value)] = node
        self._alive.append(value)

    def state(self) -> Any:
        return dict(self._nodes), dict(self._symbols)

    def restore(self, state: Any) -> None:
        """Forgets nodes that were noted since, which are erased."""
        self._nodes, self._symbols = state

    def knows(self, value: Tensor) -> bool:
        return id(value) in self._nodes

    def argument(self, x: Any, graph: fx.Graph) -> Any:
        """An argument of a call as one of a node. Nodes that it needs are appended."""
        if isinstance(x, Tensor):
            return self._nodes[id(x)]
        if isinstance(x, _SYMBOLS):
            return self._symbol(x, graph)
        if isinstance(x, Graph):
            return self._graph(x, graph)
        if isinstance(x, (list, tuple)):
            parts = [self.argument(y, graph) for y in x]
            return parts if isinstance(x, list) else tuple(parts)
        return x

    def _symbol(self, x: Any, graph: fx.Graph) -> Any:
        expression = x.node.expr
        if expression.is_number:
            return int(x) if isinstance(x, torch.SymInt) else float(x)
        if expression not in self._symbols and expression.is_Add:
            return self._sum(expression, graph)
        node, dim = self._symbols[expression]
        if dim is None:
            return node
        size = graph.call_function(torch.ops.aten.sym_size.int, (node, dim))
        size.meta["example_value"] = x
        self._symbols[expression] = size, None
        return size

    def _sum(self, expression: Any, graph: fx.Graph) -> Any:
        parts = [int(x) if x.is_number else self._symbols[x] for x in expression.args]
        sizes = [
            graph.call_function(torch.ops.aten.sym_size.int, x) if isinstance(x, tuple) and x[1] is not None else x
            for x in parts
        ]
        total, *others = [x[0] if isinstance(x, tuple) else x for x in sizes]
        for x in others:
            total = graph.call_function(operator.add, (total, x))
        return total

    def _graph(self, g: Graph, graph: fx.Graph) -> fx.Node:
        if id(g) not in self._nodes:
            sides = tuple(None if side is None else (*read_cached(side),) for side in (g._csc, g._csr))
            args = self.argument((g.num_src, g.num_dst, *sides), graph)
            self._nodes[id(g)] = graph.call_function(Graph, args)
            self._alive.append(g)
        return self._nodes[id(g)]


class Recorder(TorchFunctionMode):
    """While it is on, calls that return new tensors are appended to the graph, at its insertion point."""

    def __init__(self, graph: fx.Graph, values: Values) -> None:
        super().__init__()
        self._graph, self._values, self._thread = graph, values, threading.get_ident()
        self._autocasts = {name: torch.is_autocast_enabled(name) for name in ("cpu", "cuda")}  # the graph, here

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        with torch._C.DisableTorchFunction():
            out = func(*args, **kwargs)
        op, target = _target(func)
        if self._is_new(out):
            with self._uncast(target, out):
                self._write(op, target, args, kwargs, out)
        elif op == "call_method" and target.endswith("_") and not target.endswith("__"):  # in place
            self._values.replace(out, self._write(op, target, args, kwargs, out))
        return out

    @contextmanager
    def _uncast(self, target: Any, out: Any) -> Iterator[None]:
        """A block that writes a product which the graph's autocast must not cast, as it is off here."""
        device = out.device.type if isinstance(out, Tensor) else "cpu"
        is_on = self._autocasts.get(device, False)
        if target not in _PRODUCTS or not is_on or torch.is_autocast_enabled(device):
            yield
            return
        modes = torch.amp.autocast_mode
        mode = self._graph.call_function(modes._enter_autocast, (device, None, False, None))
        yield
        self._graph.call_function(modes._exit_autocast, (mode,))

    def _is_new(self, out: Any) -> bool:
        if isinstance(out, Tensor):
            return not self._values.knows(out)
        return isinstance(out, (list, tuple)) and len(out) > 0 and isinstance(out[0], Tensor)

    def _write(self, op: str, target: Any, args: Any, kwargs: Any, out: Any) -> fx.Node:
        values, graph = self._values, self._graph
        mapped = tuple(values.argument(x, graph) for x in args)
        named = {name: values.argument(x, graph) for name, x in kwargs.items()}
        node = graph.create_node(op, target, mapped, named)
        node.meta["example_value"] = out
        if isinstance(out, Tensor):
            values.note(node, out)
            return node
        for place, part in enumerate(out):
            if isinstance(part, Tensor) and not values.knows(part):
                item = graph.call_function(operator.getitem, (node, place))
                item.meta["example_value"] = part
                values.note(item, part)
        return node

    def applied(self, function: type[torch.autograd.Function], args: Any) -> Any:
        """function.apply(*args), as one call of the graph."""
        if threading.get_ident() != self._thread:  # which runs eager code
            return function.apply(*args)
        with torch._C.DisableTorchFunction():
            out = super(torch.autograd.Function, function).apply(*args)  # type: ignore[misc]
        self._write("call_function", applying(function), args, {}, out)
        return out


def _target(func: Any) -> tuple[str, Any]:
    """Of a node that calls func."""
    name = getattr(func, "__name__", "")
    if name and getattr(Tensor, name, None) is func:
        return "call_method", name
    return "call_function", func


@functools.cache
def applying(function: type[torch.autograd.Function]) -> Callable[..., Any]:
    """What calls an autograd Function of halfgnn, under the Function's name."""

    def call(*args: Any) -> Any:
        return apply(function, *args)

    call.__name__ = call.__qualname__ = function.__name__.strip("_")
    call.__module__ = function.__module__
    return call


@contextmanager
def recording(graph: fx.Graph, values: Values) -> Iterator[None]:
    """A block that writes what it calls into the graph, and in which halfgnn takes tensors for those of compiled code."""
    recorder, flag = Recorder(graph, values), torch.compiler._is_compiling_flag  # type: ignore[attr-defined]
    torch.compiler._is_compiling_flag = True  # type: ignore[attr-defined]
    RECORDERS.append(recorder.applied)
    try:
        with recorder:
            yield
    finally:
        RECORDERS.pop()
        torch.compiler._is_compiling_flag = flag  # type: ignore[attr-defined]
