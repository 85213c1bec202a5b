"""``MessagePassing.propagate`` of modules whose messages are rows of sources, or these times a weight: one operator.

Such messages need not be made to see what they are: a class says so with the code of its message(). So nothing is collected,
called or recorded between propagate() and the sum. Everything else takes torch_geometric's steps, which the other adapters follow
one by one.
"""

from __future__ import annotations

import inspect
from types import CodeType, FunctionType
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch_geometric.nn import MessagePassing

from .... import ops
from ....common.autograd import snapshot
from ....common.compat import has_any_global_hook
from ....common.precision import HALF, autocasts, computed_type, may_mix, without_autocast
from ....drop_in.checkpoint import is_checkpointed
from ....drop_in.gate import index_reason, mode_reason
from ....expressions.propagation import Propagation
from ....graph import Graph
from ....graphs_by_tensor.store import known
from ...modules.base import ONE_PASS, options_reason, reduction_of
from ..accounts import accounts, routed
from ..call import begin, module_reason
from ..gate import ids_reason, rows_reason
from ..options import ON
from ..size import Size, has_gradient, weighed


class Known(NamedTuple):
    """What a message() is known to return.

    features: the name of x_j without its ending. weight: the name of the weights of edges; None if there are none. functions:
    those of the class of which this was found out, and the code of the first.
    """

    features: str
    weight: str | None
    may_lack_weight: bool
    functions: tuple[Any, ...]


def _rows(self, x_j):  # type: ignore[no-untyped-def]
    return x_j


def _weighted(self, x_j, weight):  # type: ignore[no-untyped-def]
    return weight.view(-1, 1) * x_j


def _weighted_or_rows(self, x_j, weight):  # type: ignore[no-untyped-def]
    return x_j if weight is None else weight.view(-1, 1) * x_j


_UNUSUAL = inspect.CO_VARARGS | inspect.CO_VARKEYWORDS | inspect.CO_GENERATOR | inspect.CO_COROUTINE


def _key(code: CodeType) -> tuple[Any, ...]:
    """What a function does, whatever its arguments are called and its docstring says."""
    kinds = code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_nlocals, code.co_flags & _UNUSUAL
    constants = tuple(None if x is None or isinstance(x, str) else (type(x), x) for x in code.co_consts)  # 1 == 1.0
    return *kinds, code.co_code, code.co_names, constants, code.co_freevars


_MESSAGES = {_key(message.__code__): message for message in (_rows, _weighted, _weighted_or_rows)}
# What MessagePassing does between propagate() and message(). A program may have its own.
_BETWEEN = ("_check_input", "_set_size", "_index_select", "_index_select_safe", "collect")
_by_class: dict[type, Known | None] = {}


def known_message(conv: Any) -> Known | None:
    """What the messages of a module are known to be; None if they are not."""
    cls = type(conv)
    message = cls.message
    # IPython's autoreload gives a function the code of its new version.
    functions = message, cls.aggregate, cls.update, getattr(message, "__code__", None)
    found = _by_class.get(cls, _by_class)
    if found is _by_class or (found is not None and found.functions != functions):  # type: ignore[union-attr]
        inherited = _BETWEEN[:-1]  # collect() is generated
        is_usual = all(getattr(cls, step) is getattr(MessagePassing, step) for step in inherited)
        found = _by_class[cls] = _find_out(*functions[:3]) if is_usual else None
    return found  # type: ignore[return-value]


def _find_out(message: Any, aggregate: Any, update: Any) -> Known | None:
    if aggregate is not MessagePassing.aggregate or update is not MessagePassing.update:
        return None
    if not isinstance(message, FunctionType) or (kind := _MESSAGES.get(_key(message.__code__))) is None:
        return None
    _, features, *weights = message.__code__.co_varnames
    if not features.endswith("_j") or any(name[-2:] in ("_i", "_j") for name in weights):
        return None
    if not MessagePassing.special_args.isdisjoint((features, *weights)):  # propagate() gives them values of its own
        return None
    weight = weights[0] if weights else None
    return Known(features[:-2], weight, kind is _weighted_or_rows, (message, aggregate, update, message.__code__))


class _Sources(NamedTuple):
    """Features of sources, and the numbers of nodes of both sides."""

    x: Tensor
    num_src: int
    num_dst: int

    @classmethod
    def of(cls, x: Any, size: Any) -> _Sources | None:
        """As propagate() reads its arguments; None if it would raise, or they are of another kind."""
        src, dst = x if isinstance(x, (tuple, list)) and len(x) == 2 else (x, x)
        if (
            type(src) is not Tensor
            or src.dim() != 2
            or not (dst is None or (isinstance(dst, Tensor) and dst.dim() == 2))
        ):
            return None
        num_src = src.shape[0]
        num_dst = None if dst is None else dst.shape[0]
        if size is not None:
            if not isinstance(size, (tuple, list)) or len(size) != 2 or size[0] not in (None, num_src):
                return None
            if not (size[1] is None or isinstance(size[1], int)):
                return None
            if size[1] is not None and num_dst not in (None, size[1]):
                return None
            num_dst = size[1] if num_dst is None else num_dst
        return cls(src, num_src, num_src if num_dst is None else num_dst)


def propagated(conv: Any, edge_index: Tensor, kwargs: dict[str, Any]) -> Tensor | None:
    """The result of conv.propagate(edge_index, **kwargs); None if it falls back to torch_geometric."""
    message = known_message(conv)
    if message is None or message.features not in kwargs:
        return None
    weight = None if message.weight is None else kwargs.get(message.weight)
    if len(kwargs) != 1 + (message.weight in kwargs) + ("size" in kwargs):
        return None
    if message.weight is not None and weight is None and not (message.may_lack_weight and message.weight in kwargs):
        return None
    sources = _Sources.of(kwargs[message.features], kwargs.get("size"))
    if sources is None or edge_index.dim() != 2 or edge_index.shape[0] != 2:
        return None
    reduction = reduction_of(conv.aggr_module)
    if reduction not in ONE_PASS or module_reason(conv) or options_reason(conv, type(conv), None):
        return None
    if has_any_global_hook() or any([step in conv.__dict__ for step in _BETWEEN]):
        return None
    if weight is not None and not _is_weight(weight, sources.x, edge_index.shape[1]):
        return None
    g = _graph(edge_index, sources, reduction, weight)
    if g is None:
        return None
    begin(edge_index, [sources.num_src, sources.num_dst], conv)
    return _reduced(g, reduction, sources.x, weight)


def _is_weight(weight: Any, x: Tensor, num_edges: int) -> bool:
    if not isinstance(weight, Tensor) or rows_reason(weight) is not None or weight.device != x.device:
        return False
    return weight.numel() == num_edges and may_mix(weight.dtype, x.dtype)


def _graph(edge_index: Tensor, sources: _Sources, reduction: str, weight: Tensor | None) -> Graph | None:
    """The Graph, if the call is routed."""
    x = sources.x
    if (
        is_checkpointed()
        or mode_reason() is not None
        or rows_reason(x) is not None
        or index_reason(edge_index, x) is not None
    ):
        return None
    with_gradient = has_gradient(x) or (weight is not None and has_gradient(weight))
    num_values = weighed(x.shape[1] * edge_index.shape[1], x)
    if Size(num_values, with_gradient, "known message", reduction in ("max", "min")).is_below_limit():
        return None
    topology = known.get(edge_index)
    if topology is None or not topology.graphs:  # whether it pays to make one is asked step by step
        return None
    g = topology.graphs.get((sources.num_src, sources.num_dst))
    if g is not None:
        return g
    propagation = Propagation(edge_index, [sources.num_src, sources.num_dst])
    for row, count in ((1, sources.num_dst), (0, sources.num_src)):
        if ids_reason(propagation, row, count) is not None:
            return None
    return propagation.into(1, sources.num_dst, sources.num_src)


def _reduced(g: Graph, reduction: str, x: Tensor, weight: Tensor | None) -> Tensor:
    """The result in the dtype of torch_geometric's, or with patch(half=True) in that of autocast."""
    accounts.note(x)
    routed[f"gspmm:{'copy_u' if weight is None else 'u_mul_e'}_{reduction}"] += 1
    casts = autocasts(x.device)
    x = x.resolve_neg() if x.is_neg() else x
    dtype = x.dtype if weight is None else torch.promote_types(x.dtype, weight.dtype)
    if casts and ON.half:
        dtype = computed_type(x)
        x, weight = x.to(dtype), None if weight is None else weight.to(dtype)
    out_dtype = torch.float32 if x.dtype in HALF and dtype == torch.float32 else None
    if weight is not None:  # what the operator saves may be modified in place before its backward
        rows = weight.view(-1, 1)
        x, weight = snapshot(x) if rows.requires_grad else x, snapshot(rows) if x.requires_grad else rows
    op = "copy_lhs" if weight is None else "mul"
    if not casts:  # mostly: a context takes longer than to ask
        return ops.gspmm(g, op, reduction, x, weight, out_dtype=out_dtype)
    with without_autocast(x.device):
        return ops.gspmm(g, op, reduction, x, weight, out_dtype=out_dtype)
