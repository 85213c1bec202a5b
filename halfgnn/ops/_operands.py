"""What every operator family shares: the graph argument, operand checks, autocast, shapes."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence
from typing import Any, overload

import torch
from torch import Tensor

from ..dgl_index import is_dgl_graph
from ..graph import Graph
from ..heterograph import Block, HeteroGraph

MESSAGE_OPS = ("add", "sub", "mul", "div")
REDUCES = ("sum", "mean", "max", "min")
_TARGETS = {
    "u": "u",
    "v": "v",
    "e": "e",
    "src": "u",
    "dst": "v",
    "edge": "e",
    0: "u",
    1: "e",
    2: "v",
}  # fmt: skip  (DGL's spellings)


def as_graph(g, name: str = "g", expected: str = "a halfgnn.Graph or a DGLGraph") -> Graph:
    """The Graph itself, or that of a DGLGraph (kept with it, so made once), or of the only relation of a HeteroGraph."""
    if isinstance(g, Graph):
        return g
    if isinstance(g, Block):
        return as_graph(g.graph, name, expected)
    if isinstance(g, HeteroGraph):
        if len(g) > 1:
            raise ValueError(f"{name} has {len(g)} edge types; expected one: pass {name}[edge type]")
        return g[g.canonical_etypes[0]]
    if is_dgl_graph(g):
        return Graph.from_dgl(g)
    raise TypeError(f"{name} is a {type(g).__name__}; expected {expected}")


def as_heterograph(g, name: str = "g") -> HeteroGraph:
    """The HeteroGraph itself, or that of a DGLGraph (kept with it) or Block."""
    g = g.topology if isinstance(g, Block) else g
    if isinstance(g, HeteroGraph):
        return g
    if is_dgl_graph(g):
        return HeteroGraph.from_dgl(g)
    raise TypeError(f"{name} is a {type(g).__name__}; expected a halfgnn.HeteroGraph or a DGLGraph")


def check_name(value, name: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise ValueError(f"{name} is {value!r}; expected one of {', '.join(known)}")


def check_out_dtype(out_dtype) -> None:
    if out_dtype is not None and not isinstance(out_dtype, torch.dtype):
        raise TypeError(f"out_dtype is {out_dtype!r}; expected a torch.dtype or None")


def check_number(value: Any, name: str) -> float:
    """The finite number as a float."""
    if type(value) is not float:
        value = _as_float(value, name)
    if not -math.inf < value < math.inf:
        raise ValueError(f"{name} is {value}; expected a finite number")
    return value


def _as_float(value: Any, name: str) -> float:
    if isinstance(value, Tensor):
        if value.numel() != 1 or value.is_complex():
            raise TypeError(f"{name} is a tensor of shape {tuple(value.shape)} and {value.dtype}; expected a number")
        if value.requires_grad:
            raise TypeError(f"{name} is a tensor that requires a gradient, which would not reach it; expected a number")
    elif isinstance(value, (str, bytes)) or not hasattr(value, "__float__"):
        raise TypeError(f"{name} is {value!r}; expected a number")
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):  # an array, an integer past any float
        raise TypeError(f"{name} is {value!r}; expected a number") from None


def check_probability(value: Any, name: str) -> float:
    value = check_number(value, name)
    if not 0 <= value <= 1:
        raise ValueError(f"{name} is {value}; expected a probability in [0, 1]")
    return value


def target_of(target, name: str) -> str:
    if not isinstance(target, (str, int)) or target not in _TARGETS:
        raise ValueError(f"{name} is {target!r}; expected u, v or e")
    return _TARGETS[target]


def check_operand(data: Tensor | None, name: str, g: Graph, target: str) -> None:
    """Raises unless data is a tensor on the graph's device with one row a node or edge of `target`."""
    rows = g.num_edges if target == "e" else g.num_src if target == "u" else g.num_dst
    check_rows(data, name, rows, target, g.device)


def check_rows(data: Tensor | None, name: str, rows: int, target: str, device: torch.device) -> None:
    """Raises unless data is a tensor on the graph's `device` with `rows` rows, those of `target`."""
    if not isinstance(data, Tensor):
        raise TypeError(f"{name} is {'None' if data is None else type(data).__name__}; expected a torch.Tensor")
    if data.dim() == 0 or data.shape[0] != rows:
        what = {"u": "one a source node", "v": "one a destination node", "e": "one an edge"}[target]
        raise ValueError(f"{name} has shape {tuple(data.shape)}; expected {rows} rows, {what}")
    if data.layout != torch.strided:
        raise TypeError(f"{name} has layout {data.layout}; expected a dense tensor")
    if data.device != device:
        raise ValueError(f"{name} is on {data.device}; expected the graph's device, {device}")


@overload
def autocast(data: Tensor) -> Tensor: ...
@overload
def autocast(data: None) -> None: ...
@overload
def autocast(data: Tensor | None) -> Tensor | None: ...
def autocast(data: Tensor | None) -> Tensor | None:
    """The operand in the dtype of the enclosing torch.autocast of its device; fp64 and integers stay as they are.

    Read at every call from the state that the user entered, so it follows fp16 and bf16 alike. The cast is recorded by autograd:
    leaves get gradients of their own dtype.
    """
    if data is None:
        return None
    device_type = data.device.type
    if device_type not in ("cpu", "cuda") and not torch.amp.is_autocast_available(device_type):
        return data
    if not torch.is_autocast_enabled(device_type):
        return data
    dtype = torch.get_autocast_dtype(device_type)
    if data.dtype == dtype or data.dtype == torch.float64 or not data.is_floating_point():
        return data
    return data.to(dtype)


def autocasts(device: torch.device) -> bool:
    """Whether autocast is on for the device."""
    return device.type in ("cpu", "cuda") and torch.is_autocast_enabled(device.type)


def without_autocast(device: torch.device) -> contextlib.AbstractContextManager:
    if autocasts(device):
        return torch.autocast(device.type, enabled=False)
    return contextlib.nullcontext()


def needs_grad(*operands: Tensor | None) -> bool:
    return torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in operands)


_unwrap_if_dead = torch._C._functorch.unwrap_if_dead


def apply(function: type[torch.autograd.Function], *args):
    """function.apply(*args) without its costliest part: Function.apply reads the signature of `forward` at every call, in vain
    since arguments are given in full. Traced code and functorch transforms take the public route.

    A tensor that outlived its functorch transform is unwrapped, as Function.apply does it: no gradient is recorded into what
    the transform left behind."""
    if torch.compiler.is_compiling():
        return function.apply(*_each_once(args))
    if torch._C._are_functorch_transforms_active():
        return function.apply(*args)
    # Only a tensor that requires a gradient can record one, and most arguments do not.
    alive = [_unwrap_if_dead(x) if isinstance(x, Tensor) and x.requires_grad else x for x in args]
    return super(torch.autograd.Function, function).apply(*alive)  # type: ignore[misc]


def _each_once(args: tuple) -> list:
    """args with a view in place of a tensor that came before: the compiler makes one input of the two, and loses the gradient of
    the second (PyTorch issue 181146)."""
    found: list = []
    for value in args:
        is_repeated = isinstance(value, Tensor) and value.is_floating_point() and any(value is x for x in found)
        found.append(value.view_as(value) if is_repeated else value)
    return found


def broadcast_trailing(op: str, lhs: Sequence[int] | None, rhs: Sequence[int] | None) -> tuple:
    """Trailing shape of op(lhs, rhs) for operand shapes with a leading node or edge dimension."""
    if lhs is None or rhs is None:
        shape = lhs if lhs is not None else rhs
        assert shape is not None
        return tuple(shape[1:])
    out = tuple(torch.broadcast_shapes(tuple(lhs[1:]), tuple(rhs[1:])))
    return (*out[:-1], 1) if op == "dot" and out else out
