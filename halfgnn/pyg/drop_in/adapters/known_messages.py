"""``MessagePassing.propagate`` of modules whose messages are rows of sources, these times a weight, or these plus rows of edges and
perhaps their relu: one operator.

Such messages need not be made to see what they are: a class says so with the code of its message(). So nothing is collected, called
or recorded between propagate() and the sum. That is gspmm's if there is a Graph. For a few values it is coo_sum's, which reads the
edge_index as it is, or that of PyTorch's operators. Everything else takes torch_geometric's steps, which the other adapters follow
one by one.
"""

from __future__ import annotations

import inspect
from types import CodeType, FunctionType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch._C import TensorBase
from torch.nn import functional
from torch.nn.functional import relu
from torch.nn.parameter import is_lazy
from torch_geometric.nn import Linear, MessagePassing

from .... import ops
from ....common.autograd import snapshot
from ....common.compat import has_any_global_hook
from ....common.precision import HALF, autocasts, computed_type, may_mix, without_autocast
from ....drop_in.checkpoint import is_checkpointed
from ....drop_in.gate import Reason, index_reason, mode_reason
from ....expressions.propagation import Propagation
from ....graph import Graph
from ....graphs_by_tensor.store import is_heard_of, known
from ....ops.coo_sum import coo_sum
from ...modules.base import ONE_PASS, propagates, reduction_of
from .. import thresholds
from ..accounts import accounts, fell_back, routed
from ..call import begin, module_reason
from ..edge_lists import may_add
from ..gate import ids_reason, rows_reason
from ..options import ON
from ..size import Size, has_gradient, is_new_and_small, weighed
from .scatter import added_up

_select_rows = TensorBase.index_select  # PyTorch's own: Tensor has a wrapper of it
_NOT_HALF = (torch.float32, torch.float64)
_LINEAR = (nn.Linear, Linear)


class Form(NamedTuple):
    """A form of message(): the operator of coo_sum that it is.

    op: with rows of edges for add and relu_add, and a weight for each edge for mul. has_layer: a layer of the module may make
    these rows.
    """

    op: str
    may_lack_weight: bool = False
    has_layer: bool = False


class Known(NamedTuple):
    """What a message() is known to return.

    features: the name of x_j without its ending. weight: the name of the weights of edges, or of their rows; None if there are
    none. has_update: the class has an update(), of the sums alone. globals: of message(), and the names by which it finds relu in
    them. functions: those of the class of which this was found out, and the code of the first.
    """

    form: Form
    features: str
    weight: str | None
    has_update: bool
    globals: tuple[dict[str, Any], tuple[str, ...]] | None
    functions: tuple[Any, ...]


def _rows(self, x_j):  # type: ignore[no-untyped-def]
    return x_j


def _weighted(self, x_j, weight):  # type: ignore[no-untyped-def]
    return weight.view(-1, 1) * x_j


def _weighted_or_rows(self, x_j, weight):  # type: ignore[no-untyped-def]
    return x_j if weight is None else weight.view(-1, 1) * x_j


def _relu_of_sum(self, x_j, edge_attr):  # type: ignore[no-untyped-def]
    if self.lin is None and x_j.size(-1) != edge_attr.size(-1):
        raise ValueError("widths of nodes and edges differ")
    if self.lin is not None:
        edge_attr = self.lin(edge_attr)
    return (x_j + edge_attr).relu()


def _sum(self, x_j, edge_attr):  # type: ignore[no-untyped-def]
    return x_j + edge_attr


def _relu_method(self, x_j, edge_attr):  # type: ignore[no-untyped-def]
    return (x_j + edge_attr).relu()


def _relu_by_name(self, x_j, edge_attr):  # type: ignore[no-untyped-def]
    return relu(x_j + edge_attr)


def _relu_of_module(self, x_j, edge_attr):  # type: ignore[no-untyped-def]
    return functional.relu(x_j + edge_attr)


def _relu_of_nn(self, x_j, edge_attr):  # type: ignore[no-untyped-def]
    return nn.functional.relu(x_j + edge_attr)


def _relu_of_package(self, x_j, edge_attr):  # type: ignore[no-untyped-def]
    return torch.nn.functional.relu(x_j + edge_attr)


_UNUSUAL = inspect.CO_VARARGS | inspect.CO_VARKEYWORDS | inspect.CO_GENERATOR | inspect.CO_COROUTINE


def _key(code: CodeType, has_names: bool = True) -> tuple[Any, ...]:
    """What a function does, whatever its arguments are called and its docstring says. has_names: of what it reads, too."""
    kinds = code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_nlocals, code.co_flags & _UNUSUAL
    constants = tuple(None if x is None or isinstance(x, str) else (type(x), x) for x in code.co_consts)  # 1 == 1.0
    names = code.co_names if has_names else len(code.co_names)
    return *kinds, code.co_code, names, constants, code.co_freevars


_FORMS = {
    _key(message.__code__): form
    for message, form in (
        (_rows, Form("copy_lhs")),
        (_weighted, Form("mul")),
        (_weighted_or_rows, Form("mul", may_lack_weight=True)),
        (_relu_of_sum, Form("relu_add", has_layer=True)),
        (_relu_method, Form("relu_add")),
        (_sum, Form("add")),
    )
}
# Those that call relu, by whatever names.
_CALLS = {
    _key(message.__code__, has_names=False)
    for message in (_relu_by_name, _relu_of_module, _relu_of_nn, _relu_of_package)
}
_RELUS = (relu, torch.relu)
# What MessagePassing does between propagate() and message(). A program may have its own.
_BETWEEN = ("_check_input", "_set_size", "_index_select", "_index_select_safe")
_STEPS = ("propagate", "collect", "message", "edge_update", "aggregate", "update", "message_and_aggregate", *_BETWEEN)
_is_without_steps = frozenset(_STEPS).isdisjoint  # of the attributes of a module
MESSAGES_BY_CLASS: dict[type, Any] = {}  # Known, or the message() of which nothing is known


def known_message(conv: Any) -> Known | None:
    """What the messages of a module are known to be; None if they are not."""
    cls = type(conv)
    message = cls.message
    # IPython's autoreload gives a function the code of its new version.
    functions = message, cls.aggregate, cls.update, getattr(message, "__code__", None), cls.propagate
    found = MESSAGES_BY_CLASS.get(cls)
    if type(found) is not Known or found.functions != functions:
        if found is message or not propagates(cls):  # until torch_geometric has generated it
            return None
        is_usual = all(getattr(cls, step) is getattr(MessagePassing, step) for step in _BETWEEN)
        found = _find_out(*functions[:3], cls.propagate) if is_usual else None
        MESSAGES_BY_CLASS[cls] = message if found is None else found
    return found


def _find_out(message: Any, aggregate: Any, update: Any, propagate: Any = None) -> Known | None:
    if aggregate is not MessagePassing.aggregate or not isinstance(message, FunctionType):
        return None
    has_update = update is not MessagePassing.update
    if has_update and not (isinstance(update, FunctionType) and _takes_sums_alone(update.__code__)):
        return None
    form, names = _FORMS.get(_key(message.__code__)), None
    if form is None and _key(message.__code__, has_names=False) in _CALLS:
        form, names = Form("relu_add"), (message.__globals__, message.__code__.co_names)
    if form is None or (names is not None and not _calls_relu(names)):
        return None
    _, features, *weights = message.__code__.co_varnames
    if not features.endswith("_j") or any(name[-2:] in ("_i", "_j") for name in weights):
        return None
    if not MessagePassing.special_args.isdisjoint((features, *weights)):  # propagate() gives them values of its own
        return None
    weight = weights[0] if weights else None
    functions = message, aggregate, update, message.__code__, propagate
    return Known(form, features[:-2], weight, has_update, names, functions)


def _takes_sums_alone(code: CodeType) -> bool:
    return code.co_argcount == 2 and code.co_kwonlyargcount == 0 and not code.co_flags & _UNUSUAL


def _calls_relu(names: tuple[dict[str, Any], tuple[str, ...]]) -> bool:
    """Whether the names of a call are those of PyTorch's relu now."""
    found, (first, *attributes) = names[0], names[1]
    function = found.get(first)
    for name in attributes:
        function = getattr(function, name, None)
    return any(function is known for known in _RELUS)


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
    rows = _propagated(message, conv, edge_index, kwargs)
    return rows if rows is None or not message.has_update else conv.update(rows)


def _propagated(message: Known, conv: Any, edge_index: Tensor, kwargs: dict[str, Any]) -> Tensor | None:
    """What update() is given; None if the call falls back."""
    weight = None if message.weight is None else kwargs.get(message.weight)
    if len(kwargs) != 1 + (message.weight in kwargs) + ("size" in kwargs):
        return None
    if (
        message.weight is not None
        and weight is None
        and not (message.form.may_lack_weight and message.weight in kwargs)
    ):
        return None
    sources = _Sources.of(kwargs[message.features], kwargs.get("size"))
    if sources is None or edge_index.dim() != 2 or edge_index.shape[0] != 2:
        return None
    reduction = reduction_of(conv.aggr_module)
    if reduction not in ONE_PASS or module_reason(conv) or not _is_usual(conv) or has_any_global_hook():
        return None
    if message.form.op in ("add", "relu_add"):
        if message.globals is not None and not _calls_relu(message.globals):
            return None
        out = _of_rows(message.form, conv, edge_index, sources, weight, reduction)
        if out is not None:
            begin(edge_index, [sources.num_src, sources.num_dst], conv)
        return out
    if weight is not None and not _is_weight(weight, sources.x, edge_index.shape[1]):
        return None
    with_gradient = has_gradient(sources.x) or (weight is not None and has_gradient(weight))
    size = Size(weighed(sources.x.shape[1] * edge_index.shape[1], sources.x), with_gradient, "known message")
    if reduction in ("sum", "mean") and (reason := _few_reason(edge_index, sources.x, size)) is not None:
        rows = _added_up(edge_index, sources, weight, reduction, reason)
    else:
        g = _graph(edge_index, sources, size._replace(is_extreme=reduction in ("max", "min")))
        rows = None if g is None else _reduced(g, reduction, sources.x, weight)
    if rows is not None:
        begin(edge_index, [sources.num_src, sources.num_dst], conv)
    return rows


def _of_rows(form: Form, conv: Any, edge_index: Tensor, sources: _Sources, rows: Any, reduction: str) -> Tensor | None:
    """The sum or mean of x_j + rows or its relu, of rows of edges that a layer may make. None unless there are few values."""
    x, width, lin = sources.x, sources.x.shape[1], conv.lin if form.has_layer else None
    size = Size(weighed(width * edge_index.shape[1], x), torch.is_grad_enabled(), "known message")
    if reduction not in ("sum", "mean") or not _are_rows_of_edges(rows, edge_index) or autocasts(x.device):
        return None
    if lin is not None and not (_is_plain_layer(lin) and lin.weight.shape[0] == width and lin.weight.dtype is x.dtype):
        return None
    if lin is None and rows.shape[1] != width:
        return None
    if _few_reason(edge_index, x, size) is None or not may_add(edge_index, x, rows):
        return None
    src, dst = edge_index.unbind()
    try:
        rows, is_read = rows if lin is None else lin(rows), form.op == "relu_add"
        rows = _kept(rows) if is_read and lin is None else rows
        out = coo_sum(dst, src, _kept(x) if is_read else x, rows, reduction, sources.num_dst, op=form.op)
    except (RuntimeError, IndexError):  # torch_geometric raises its own
        return None
    routed[f"coo_sum:u_{form.op}_e_{reduction}"] += 1
    return out


def _kept(x: Tensor) -> Tensor:
    """x as it is now, for a backward that reads it: that of torch_geometric does not."""
    own = snapshot(x)
    return x.clone() if own is x and torch.is_grad_enabled() else own


def _is_plain_layer(layer: Any) -> bool:
    """Whether to call a linear layer computes its product and does nothing else."""
    if type(layer) not in _LINEAR or is_lazy(layer.weight) or "forward" in layer.__dict__:
        return False
    hooks = layer._forward_hooks, layer._forward_pre_hooks, layer._backward_hooks, layer._backward_pre_hooks
    return not any(hooks) and "parametrizations" not in layer._modules


def _are_rows_of_edges(rows: Any, edge_index: Tensor) -> bool:
    return type(rows) is Tensor and rows.dim() == 2 and rows.shape[0] == edge_index.shape[1]


def _few_reason(edge_index: Tensor, x: Tensor, size: Size) -> str | None:
    """Why sums of so many values of messages are PyTorch's; None if they are not, or would be rounded at each step."""
    if not x.is_cpu or x.dtype not in _NOT_HALF or edge_index.dtype is not torch.int64:
        return None
    if is_heard_of(edge_index):
        return Reason.FEW_VALUES if size.is_below_limit() else None
    if size.values < thresholds.FEW_SUMMED:
        return Reason.FEW_VALUES
    is_first = is_new_and_small(edge_index, size.values, size.with_gradient, counts=False)
    return Reason.FIRST_USES_OF_EDGE_INDEX if is_first else None


def _added_up(
    edge_index: Tensor, sources: _Sources, weight: Tensor | None, reduction: str, reason: str
) -> Tensor | None:
    """What torch_geometric's steps compute: by coo_sum, which gives the same bits, otherwise by the same operators, which counts as
    falling back for that reason. None if they raise an error, which is then torch_geometric's.
    """
    src, dst = edge_index.unbind()
    try:
        if may_add(edge_index, sources.x, weight):
            rows = _sum_of_edges(src, dst, sources, weight, reduction)
            routed[f"coo_sum:{'copy_u' if weight is None else 'u_mul_e'}_{reduction}"] += 1
            return rows
        messages = _select_rows(sources.x, 0, src)
        messages = messages if weight is None else weight.view(-1, 1) * messages
        rows = added_up(messages, dst, sources.num_dst, reduction == "mean")
    except (RuntimeError, IndexError):
        return None
    fell_back["propagate", reason] += 1
    return rows


def _sum_of_edges(src: Tensor, dst: Tensor, sources: _Sources, weight: Tensor | None, reduction: str) -> Tensor:
    x = sources.x
    if weight is not None:  # what the operator saves may be modified in place before its backward
        numbers = weight.view(-1)
        x, weight = snapshot(x) if numbers.requires_grad else x, snapshot(numbers) if x.requires_grad else numbers
    return coo_sum(dst, src, x, weight, reduction, sources.num_dst)


def _is_usual(conv: Any) -> bool:
    """Whether a module has the usual options, and all steps from its class."""
    has_options = conv.flow == "source_to_target" and conv.node_dim in (0, -2) and conv.decomposed_layers == 1
    return has_options and _is_without_steps(conv.__dict__)


def _is_weight(weight: Any, x: Tensor, num_edges: int) -> bool:
    if type(weight) is Tensor and weight.dtype is x.dtype and weight.is_cpu and x.is_cpu:  # mostly
        return weight.layout is torch.strided and weight.numel() == num_edges
    if not isinstance(weight, Tensor) or rows_reason(weight) is not None or weight.device != x.device:
        return False
    return weight.numel() == num_edges and may_mix(weight.dtype, x.dtype)


def _graph(edge_index: Tensor, sources: _Sources, size: Size) -> Graph | None:
    """The Graph, if the call is routed."""
    if (
        not is_heard_of(edge_index)
        or is_checkpointed()
        or mode_reason() is not None
        or rows_reason(sources.x) is not None
        or index_reason(edge_index, sources.x) is not None
        or size.is_below_limit()
    ):
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
