"""Which operators on messages are deferred until their results are needed.

What depends on the nodes of one side alone is computed for the nodes. What combines both sides or edges is left for the reduction,
the sum over the last dimension or the linear layer that reads it, see values.py.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..common.precision import may_mix, without_autocast
from ..drop_in.gate import types_on
from .expression import (
    BINARY,
    CAT,
    ORDERLY,
    ORDINARY,
    SHAPES,
    STACK,
    SUM,
    UNARY,
    VIEWS,
    WHERE,
    Expression,
    Op,
    flat,
    is_of_edges,
    of_shape,
    of_strides,
    strides_like,
)

_aten = torch.ops.aten


def extended(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Op | None:
    """The expression of an operator on expressions; None if they have to be materialized for it."""
    rule = _RULES.get(func)
    return None if rule is None else rule(func, args, kwargs)


def _combines(func: Any, args: Any, kwargs: Any) -> Op | None:
    """Expressions of the same edges, tensors with one row per edge or for all edges, numbers."""
    if kwargs or len(args) != 2:
        return None
    first, second = args
    message = first if isinstance(first, Expression) else second
    other = second if message is first else first
    if not (isinstance(other, (int, float)) or _is_operand(other, message)):
        return None
    shape, dtype = _shape_of(message, other), _dtype_of(first, second)
    if shape is None or dtype is None:
        return None
    row, num_rows, op = message.row, message.num_rows, BINARY[func]
    if isinstance(other, Expression):
        name = f"u_{op}_v"
        if other.row != row or other.num_rows != num_rows:
            row = None
    elif isinstance(other, Tensor) and is_of_edges(other, message):
        row, name = None, f"u_{op}_e"
    else:
        name = op
    if row is not None and num_rows > message.shape[message.edge_dim]:
        return None  # there are fewer edges than nodes
    num_rows = message.shape[message.edge_dim] if row is None else num_rows
    strides = _strides_of_result(func, first, second)
    keeps = op in ("mul", "div")
    return Op(func, args, kwargs, name, message, shape, dtype, row, num_rows, strides, keeps=keeps)


def _is_operand(x: Any, message: Expression) -> bool:
    if isinstance(x, Expression):
        return are_of_same_edges(x, message)
    if type(x) not in ORDINARY or x.layout != torch.strided or x.device != message.device or x.is_neg():
        return False
    return x.numel() > 0


def are_of_same_edges(x: Expression, message: Expression) -> bool:
    same = x.propagation.edge_index is message.propagation.edge_index
    return same and x.edge_dim == message.edge_dim and x.dim() == message.dim()


def _shape_of(message: Expression, other: Any) -> tuple[int, ...] | None:
    """Theirs combined; None if they do not fit, for which PyTorch raises its own error. torch.broadcast_shapes takes 40 us."""
    shape = [*message.shape]
    if not isinstance(other, (Expression, Tensor)):
        return tuple(shape)
    others, num_edges = other.shape, shape[message.edge_dim]
    first = len(shape) - len(others)
    if first < 0:
        return None
    for place, size in enumerate(others, first):
        if shape[place] == 1:
            shape[place] = size
        elif size not in (1, shape[place]):
            return None
    return tuple(shape) if shape[message.edge_dim] == num_edges else None


def _dtype_of(first: Any, second: Any) -> torch.dtype | None:
    """PyTorch's dtype of the two combined, if halfgnn combines them."""
    if all(isinstance(x, (Expression, Tensor)) and x.dim() > 0 for x in (first, second)):
        a, b = first.dtype, second.dtype
        if a is b:
            return a if a.is_floating_point else None
        return torch.float32 if may_mix(a, b) else None
    both = first, second
    dtype = torch.result_type(*(of_shape(x) if isinstance(x, Expression) else x for x in both))
    return dtype if all(x.dtype is dtype for x in both if isinstance(x, Expression)) else None


# relu of GINE's sums; leaky_relu of those of attentions
_RECTIFIED: dict[tuple[Any, str | None], str] = {(_aten.relu.default, "u_add_e"): "u_relu_add_e"}
_RECTIFIED |= {(_aten.leaky_relu.default, f"u_add_{x}"): "leaky_relu" for x in "ev"}


def _maps(func: Any, args: Any, kwargs: Any) -> Op | None:
    """A function of every value, if it belongs to a node."""
    message = args[0]
    if not isinstance(message, Expression):
        return None
    if message.row is None:
        name = _RECTIFIED.get((func, message.name)) or (_rectified(message) if func is _aten.relu.default else None)
        if name is None:
            return None
    elif message.num_rows > message.shape[message.edge_dim]:
        return None
    else:
        name = _name(func)
    dtype = kwargs.get("dtype") or message.dtype
    if dtype not in types_on(message.device.type) or kwargs.get("device", message.device) != message.device:
        return None
    if kwargs.get("layout") not in (None, torch.strided):
        return None
    keeps = func not in (_aten._to_copy.default, _aten.clone.default, _aten.neg.default)
    strides, row = strides_like(message, kwargs.get("memory_format")), message.row
    return Op(func, args, kwargs, name, message, message.shape, dtype, row, message.num_rows, strides, keeps=keeps)


def _rectified(message: Expression) -> str | None:
    """The name of relu of a sum of rows of one side and of what both sides make, as FiLM's; None if it is read at once."""
    if not isinstance(message, Op) or message.name != "u_add_v" or BINARY.get(message.func) != "add":
        return None
    return "u_relu_add_v" if [x.row for x in message.args].count(None) == 1 else None


def _views(func: Any, args: Any, kwargs: Any) -> Op | None:
    message = args[0]
    if message.edge_dim != 0 or kwargs:
        return None
    if func is _aten.expand.default:
        if len(args[1]) != message.dim():
            return None  # it adds dimensions in front of that of the edges, which may be as long
    elif func not in SHAPES:
        dims = args[1:3] if func is _aten.transpose.int else args[1:2]
        rank = message.dim() + (func is _aten.unsqueeze.default)
        if not dims or any(dim % rank == 0 for dim in dims):
            return None
    is_dense = message.is_contiguous() and func in ORDERLY
    try:
        view = func(of_shape(message) if is_dense else of_strides(message), *args[1:])
    except (RuntimeError, IndexError):
        return None
    shape, strides = view.shape, None if is_dense else view.stride()
    num_edges = message.shape[0]
    if not shape or shape[0] != num_edges or num_edges == 0 or (func in SHAPES and math.prod(shape) != message.numel()):
        return None
    name, row, num_rows = _name(func), message.row, message.num_rows
    return Op(func, args, kwargs, name, message, shape, message.dtype, row, num_rows, strides, is_view=True)


def _strides_of_result(func: Any, *args: Any) -> tuple[int, ...] | None:
    """The strides of an operator's result, which are permuted if those of an operand are; None if it is contiguous."""
    if all(x.is_contiguous() for x in args if isinstance(x, (Expression, Tensor))):
        return None
    return func(*(of_strides(x) if isinstance(x, (Expression, Tensor)) else x for x in args)).stride()


def _selects(func: Any, args: Any, kwargs: Any) -> Op | None:
    """One of two operands, by a condition: each is of edges, for all of them, or an expression."""
    message = next(x for x in args if isinstance(x, Expression))
    if any(isinstance(x, Expression) and not are_of_same_edges(x, message) for x in args):
        return None
    tensors = [x for x in args if isinstance(x, Tensor)]
    if kwargs or any(type(x) not in ORDINARY or x.layout != torch.strided for x in tensors):
        return None
    dtype = _dtype_of(*args[1:])
    try:
        shape = torch.broadcast_shapes(*(x.shape for x in args))
    except RuntimeError:
        return None  # PyTorch raises its own
    num_edges, dim = message.shape[message.edge_dim], message.edge_dim
    if dtype is None or len(shape) != message.dim() or shape[dim] != num_edges or any(x.is_neg() for x in tensors):
        return None
    strides = _strides_of_result(func, *args)
    return Op(func, args, kwargs, "where", message, shape, dtype, None, num_edges, strides)


def uncast(args: tuple[Any, ...], kwargs: dict[str, Any]) -> contextlib.AbstractContextManager[Any]:
    """A context in which an operator of these arguments extends expressions.

    Autocast casts what is joined below autograd, where the cast has no history, and keeps what it casts of parameters. It is off
    for that: torch.cat promotes by itself, to the same dtype.
    """
    lists = [x for x in (*args, *kwargs.values()) if isinstance(x, (list, tuple))]
    joined = next((x for x in flat(lists) if isinstance(x, (Expression, Tensor))), None)
    return contextlib.nullcontext() if joined is None else without_autocast(joined.device)


def _joins(func: Any, args: Any, kwargs: Any) -> Op | None:
    """Messages and rows of edges, joined along the last dimension; of fp32 and a half type together, as a PNAConv under autocast
    joins features of nodes with those that a layer has made of edges."""
    parts, dim = args[0], args[1] if len(args) > 1 else kwargs.get("dim", 0)
    message = next(x for x in parts if isinstance(x, Expression))
    rank, edge_dim = message.dim(), message.edge_dim
    if edge_dim == rank - 1 or dim not in (-1, rank - 1):
        return None
    dtype = message.dtype
    for x in parts:
        if not (_is_operand(x, message) and x.shape[:-1] == message.shape[:-1] and may_mix(dtype, x.dtype)):
            return None
        dtype = torch.promote_types(dtype, x.dtype)
    shape = (*message.shape[:-1], sum(x.shape[-1] for x in parts))
    return Op(func, args, kwargs, "cat", message, shape, dtype, None, message.shape[edge_dim])


def _stacks(func: Any, args: Any, kwargs: Any) -> Op | None:
    """Messages of one shape in a new dimension behind that of the edges, as the towers of PNA."""
    parts, dim = args[0], args[1] if len(args) > 1 else kwargs.get("dim", 0)
    message, rank = parts[0], parts[0].dim() + 1
    if not all(isinstance(x, Expression) and are_of_same_edges(x, message) for x in parts) or message.edge_dim != 0:
        return None
    if (
        not -rank < dim < rank
        or dim == 0
        or any(x.dtype is not message.dtype or x.shape != message.shape for x in parts)
    ):
        return None
    shape = [*message.shape]
    shape.insert(dim % rank, len(parts))
    return Op(func, args, kwargs, "stack", message, shape, message.dtype, None, message.shape[0])


def _sums(func: Any, args: Any, kwargs: Any) -> Op | None:
    """The sum over one dimension of each edge."""
    message, dims = args[:2]
    keepdim = args[2] if len(args) > 2 else kwargs.get("keepdim", False)
    if message.edge_dim != 0 or dims is None or len(dims) != 1:
        return None
    rank = message.dim()
    if not -rank <= dims[0] < rank:
        return None  # PyTorch raises its own
    dim = dims[0] % rank
    if dim == 0 or message.shape[dim] == 0:
        return None
    dtype = kwargs.get("dtype") or message.dtype
    if dtype is not message.dtype and not may_mix(dtype, message.dtype):
        return None
    keeps = isinstance(message, Op) and message.row is None
    shape = list(message.shape)
    shape[dim : dim + 1] = [1] if keepdim else []
    return Op(func, args, kwargs, "sum", message, shape, dtype, message.row, message.num_rows, keeps=keeps)


def _name(func: Any) -> str:
    return func.name().split("::")[-1].split(".")[0]


_RULES: dict[Any, Callable[[Any, Any, Any], Op | None]] = {
    **dict.fromkeys(BINARY, _combines),
    **dict.fromkeys(UNARY, _maps),
    **dict.fromkeys(VIEWS, _views),
    CAT: _joins,
    STACK: _stacks,
    WHERE: _selects,
    SUM: _sums,
}


# ---- functions of PyTorch ----------------------------------------------------------------------------------------------------


def named(*names: str) -> list[Any]:
    """PyTorch's functions of these names."""
    spaces = Tensor, torch, torch.nn.functional, torch._C._nn
    return [getattr(space, name) for name in names for space in spaces if hasattr(space, name)]


# Those that make another expression, if a rule says so of the operators that they are made of.
EXTENDING = (
    "mul", "multiply", "__mul__", "__rmul__", "add", "__add__", "__radd__", "sub", "subtract", "__sub__", "__rsub__", "rsub", "div",
    "divide", "true_divide", "__truediv__", "__rtruediv__", "__div__", "__rdiv__",
    "abs", "absolute", "__abs__", "cos", "elu", "erf", "exp", "gelu", "leaky_relu", "log", "neg", "negative", "__neg__",
    "reciprocal", "relu", "rsqrt", "sigmoid", "silu", "sin", "softplus", "sqrt", "square", "tanh", "pow", "__pow__",
    "type", "float", "half", "bfloat16", "double", "clone",
    "view", "reshape", "flatten", "unflatten", "unsqueeze", "squeeze", "select", "narrow", "transpose", "swapaxes", "swapdims",
    "movedim", "expand", "__getitem__", "chunk", "split", "unbind", "contiguous", "permute",
    "cat", "concat", "concatenate", "stack", "sum", "where",
)  # fmt: skip
