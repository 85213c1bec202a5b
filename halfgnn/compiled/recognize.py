"""What nodes of an FX graph of PyTorch's functions are: rows by an index, reductions by one, softmax over the edges of a node."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, fx
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode, statically_known_true

from ..common.fx_nodes import full_name_of, name_of, nodes_in, value_of
from ..drop_in.gate import Reason

_INTEGERS = (torch.int32, torch.int64)


def argument(node: fx.Node, place: int, name: str, default: Any = None) -> Any:
    return node.args[place] if len(node.args) > place else node.kwargs.get(name, default)


def _have_same_sizes(x: Tensor, y: Tensor) -> bool:
    return len(x.shape) == len(y.shape) and all(statically_known_true(a == b) for a, b in zip(x.shape, y.shape))


_VIEWS_OF_ALL = {"view", "reshape", "flatten", "contiguous", "squeeze", "long", "to", "detach", "expand", "expand_as"}


# ---- indices -----------------------------------------------------------------------------------------------------------------


class Index(NamedTuple):
    """An index (E,), as a row of an edge_index (2, E), or as a tensor of its own.

    node: of the edge_index or of the index. row: None of an index of its own.
    """

    node: fx.Node
    row: int | None


def index_of(node: Any) -> Index | None:
    """The index that a node is, seen through views of the whole; None if it is none."""
    if not isinstance(node, fx.Node):
        return None
    value = value_of(node)
    if not isinstance(value, Tensor) or value.dtype not in _INTEGERS or value.dim() != 1:
        return None
    row = _row_of_edges(node)
    if row is not None:
        return row
    name = name_of(node)
    if name in _VIEWS_OF_ALL and node.args:
        inner = node.args[0]
        x = value_of(inner)
        if isinstance(x, Tensor) and x.dim() == 1 and x.dtype is value.dtype and _have_same_sizes(x, value):
            return index_of(inner)
    return Index(node, None)


def _row_of_edges(node: fx.Node) -> Index | None:
    name = name_of(node)
    if node.op not in ("call_function", "call_method") or not node.args or not isinstance(node.args[0], fx.Node):
        return None
    source = node.args[0]
    if node.target is operator.getitem or name == "__getitem__":
        if name_of(source) in ("unbind", "split", "chunk") and not isinstance(value_of(source), Tensor):
            is_rows = name_of(source) == "unbind" and argument(source, 1, "dim", 0) == 0
            return _checked_row(source.args[0], node.args[1]) if is_rows else None
        return _checked_row(source, node.args[1])
    if name == "select" and argument(node, 1, "dim") == 0:
        return _checked_row(source, argument(node, 2, "index"))
    return None


def _checked_row(edges: Any, row: Any) -> Index | None:
    value = value_of(edges)
    if not isinstance(value, Tensor) or value.dim() != 2 or not isinstance(row, int) or not isinstance(edges, fx.Node):
        return None
    return Index(edges, row % 2) if -2 <= row < 2 and value.shape[0] == 2 else None


def spread_index_of(node: Any, dim: int) -> Index | None:
    """The index of which a node is a view that repeats it in all dimensions but one, as scatter_add takes it."""
    value = value_of(node)
    if not isinstance(value, Tensor):
        return None
    if isinstance(node, fx.Node) and name_of(node) == "repeat" and _repeats_others(node, dim):
        inner = node.args[0]
        return spread_index_of(inner, dim) if value_of(inner).dim() == value.dim() else None
    for place, (size, stride) in enumerate(zip(value.shape, value.stride())):
        if place != dim and not (isinstance(stride, int) and stride == 0) and not (isinstance(size, int) and size == 1):
            return None
    while isinstance(node, fx.Node) and value_of(node).dim() > 1:
        name = name_of(node)
        if (
            name not in ("view", "reshape", "expand", "expand_as", "unsqueeze", "getitem", "__getitem__")
            or not node.args
        ):
            return None
        node = node.args[0]
        if not isinstance(value_of(node), Tensor):
            return None
    index = index_of(node)
    if index is None or value_of(node).shape[0] != value.shape[dim]:
        return None
    return index


def _repeats_others(node: fx.Node, dim: int) -> bool:
    """Whether a tensor is repeated along dimensions other than that of the index."""
    counts: Any = node.args[1] if len(node.args) == 2 else node.args[1:]
    return isinstance(counts, (list, tuple)) and len(counts) > dim and bool(counts[dim] == 1)


# ---- gathers -----------------------------------------------------------------------------------------------------------------


class Gather(NamedTuple):
    """x.index_select(dim, index)."""

    x: fx.Node
    dim: int
    ids: Index
    may_wrap: bool  # whether negative ids are those of the last rows


def gather_of(node: fx.Node) -> Gather | None:
    parts = _gather_parts(node)
    if parts is None:
        return None
    x, dim, ids = parts
    value, index = value_of(x), index_of(ids)
    if index is None or not isinstance(value, Tensor) or not value.is_floating_point() or not isinstance(dim, int):
        return None
    if not -value.dim() <= dim < value.dim() or value.layout is not torch.strided:
        return None
    return Gather(x, dim % value.dim(), index, node.target in (operator.getitem, "__getitem__"))


# torch.index_select may be bound to others: by torch_geometric, when it is imported, and by the drop-in. Dynamo hands over what is
# bound now or, if it had looked PyTorch's functions up before, what was bound then.
_SELECTS = {("torch", "index_select"), ("torch_geometric.hash_tensor", "_new_index_select")}


def _gather_parts(node: fx.Node) -> tuple[Any, Any, Any] | None:
    """x, the dimension and the index."""
    if node.op not in ("call_function", "call_method"):
        return None
    name, module = full_name_of(node), getattr(node.target, "__module__", "")
    if node.target in ("index_select", torch.index_select) or (module, name) in _SELECTS:
        return argument(node, 0, "input"), argument(node, 1, "dim"), argument(node, 2, "index")
    if node.target in (operator.getitem, "__getitem__"):
        return node.args[0], 0, node.args[1]
    is_embedding = node.target is F.embedding or (name == "embedding" and module == F.__name__)
    if is_embedding and len(node.args) == 2 and not any(node.kwargs.values()):
        return node.args[1], 0, node.args[0]
    return None


# ---- reductions --------------------------------------------------------------------------------------------------------------

_KINDS = {"sum": "sum", "mean": "mean", "amax": "max", "amin": "min"}
_ZEROS = ("new_zeros", "zeros", "zeros_like", "new_full", "full", "full_like")


class Reduction(NamedTuple):
    """Rows of src, reduced by an index into num_rows others.

    target: what the results are added to; None for zeros.
    """

    src: fx.Node
    dim: int
    ids: Index
    kind: str
    num_rows: Any
    target: fx.Node | None


def reduction_of(node: fx.Node) -> Reduction | None:
    """The reduction that a node is; None if it is none, or one that is left to Inductor."""
    found = _reduction_or_reason(node)
    return found if isinstance(found, Reduction) else None


def reason_left(node: fx.Node) -> str | None:
    """Why a node that reduces floating-point values by an index is left to Inductor; None of others."""
    found = _reduction_or_reason(node)
    return found if isinstance(found, str) else None


def _reduction_or_reason(node: fx.Node) -> Reduction | str | None:
    name = full_name_of(node) if node.op in ("call_function", "call_method") else ""
    if name not in ("scatter_add", "scatter_reduce", "index_add"):
        return None
    into, dim = argument(node, 0, "input"), argument(node, 1, "dim")
    ids, src = argument(node, 2, "index"), argument(node, 3, "source" if name == "index_add" else "src")
    value, rows = value_of(src), value_of(into)
    if not isinstance(value, Tensor) or not isinstance(rows, Tensor) or not isinstance(dim, int):
        return None
    if not value.is_floating_point():
        return None
    if value.dim() == 0 or rows.dim() != value.dim() or not -value.dim() <= dim < value.dim():
        return Reason.ANOTHER_SHAPE
    dim %= value.dim()
    kind = "sum" if name in ("scatter_add", "index_add") else _KINDS.get(argument(node, 4, "reduce"), "")
    index = index_of(ids) if name == "index_add" else spread_index_of(ids, dim)
    if name != "index_add" and not (_are_alike(value_of(ids), value) and _are_alike(rows, value, dim)):
        return Reason.ANOTHER_SHAPE  # PyTorch reads a part of src, or writes to a part of the result
    if not kind:
        return Reason.NO_OPERATOR
    if index is None:
        return Reason.INDEX_PER_VALUE
    if value.dtype is not rows.dtype:
        return Reason.DTYPES.format(value.dtype, rows.dtype)
    if argument(node, 4, "alpha", 1) != 1 and name == "index_add":
        return "alpha"
    is_zero = _is_zero(into)
    if not is_zero and not (kind == "sum" and name != "scatter_reduce"):
        return "added to a tensor" if kind == "sum" else "include_self"
    if kind != "sum" and argument(node, 5, "include_self", True) is not False:
        return "include_self"
    return Reduction(src, dim, index, kind, rows.shape[dim], None if is_zero else into)


def _are_alike(x: Tensor, y: Tensor, but: int | None = None) -> bool:
    """Whether two tensors have the same sizes, in all dimensions but one."""
    try:
        return x.dim() == y.dim() and all(a == b for d, (a, b) in enumerate(zip(x.shape, y.shape)) if d != but)
    except GuardOnDataDependentSymNode:
        return False


def _is_zero(node: Any) -> bool:
    """Whether it is a tensor of zeros."""
    if not isinstance(node, fx.Node) or full_name_of(node) not in _ZEROS:
        return False
    if "full" not in name_of(node):
        return True
    place = 2 if name_of(node) == "new_full" else 1
    fill = argument(node, place, "fill_value")
    return isinstance(fill, (int, float)) and fill == 0


def is_ones(node: Any) -> bool:
    return isinstance(node, fx.Node) and full_name_of(node) in ("new_ones", "ones", "ones_like")


_FRESH = {*_ZEROS, "new_ones", "ones", "ones_like", "new_empty", "empty", "empty_like"}
_IN_PLACE = ("scatter_add_", "scatter_reduce_", "index_add_")


def make_functional(graph: fx.Graph) -> None:
    """Reductions into new tensors that nothing else has read, in place, as functions of them. Later users of a tensor read the
    result."""
    order = {node: place for place, node in enumerate(graph.nodes)}
    for node in graph.nodes:
        if node.op != "call_method" or node.target not in _IN_PLACE or not isinstance(node.args[0], fx.Node):
            continue
        into = node.args[0]
        if full_name_of(into) not in _FRESH or any(order[user] < order[node] for user in into.users):
            continue
        node.target = node.target[:-1]
        for user in [user for user in into.users if user is not node]:
            user.replace_input_with(into, node)
        if node.args.count(into) > 1:  # its own source
            node.target += "_"


# ---- softmax -----------------------------------------------------------------------------------------------------------------


class Softmax(NamedTuple):
    """The softmax of logits over the rows of an index, as it is written with a maximum and a sum.

    steps: what it computes of each edge.
    """

    logits: fx.Node
    ids: Index
    num_rows: Any
    steps: tuple[fx.Node, ...]


def softmax_of(node: fx.Node, reductions: Callable[[Any], Reduction | None]) -> tuple[Softmax, list[fx.Node]] | None:
    """The softmax whose last step a node is, a division, and the reductions that it is made of."""
    if full_name_of(node) not in ("truediv", "div", "true_divide") or len(node.args) != 2 or node.kwargs:
        return None
    exp, below = node.args
    if (
        not isinstance(exp, fx.Node)
        or not isinstance(below, fx.Node)
        or full_name_of(exp) != "exp"
        or len(exp.args) != 1
    ):
        return None
    rows = gather_of(below)
    total, sum_node = (None, None) if rows is None else _sum_below(rows.x, reductions)
    if rows is None or total is None or total.kind != "sum" or total.src is not exp or total.target is not None:
        return None
    shifted = exp.args[0]
    if not isinstance(shifted, fx.Node) or full_name_of(shifted) != "sub" or len(shifted.args) != 2 or shifted.kwargs:
        return None
    logits, most = shifted.args
    top = gather_of(most) if isinstance(most, fx.Node) else None
    highest = reductions(top.x) if top is not None else None
    if top is None or highest is None or highest.kind != "max" or _undetached(highest.src) is not logits:
        return None
    if len({rows.ids, total.ids, top.ids, highest.ids}) > 1 or {rows.dim, total.dim, top.dim, highest.dim} != {0}:
        return None
    if not isinstance(logits, fx.Node) or total.num_rows != highest.num_rows:
        return None
    return Softmax(logits, total.ids, total.num_rows, (highest.src, shifted, exp)), [sum_node, top.x]  # type: ignore[list-item]


def _sum_below(node: fx.Node, reductions: Callable[[Any], Reduction | None]) -> tuple[Reduction | None, fx.Node | None]:
    """The sum of which a node is, or to which it adds a number that rounds away."""
    if (
        name_of(node) == "add"
        and len(node.args) == 2
        and isinstance(node.args[1], float)
        and 0 <= node.args[1] <= 1e-12
    ):
        node = node.args[0]  # type: ignore[assignment]
    return reductions(node), node


def _undetached(node: Any) -> Any:
    while isinstance(node, fx.Node) and node.target == "detach":
        node = node.args[0]
    return node


def ids_in(node: fx.Node) -> Tensor:
    return next(
        x
        for y in nodes_in([node.args, node.kwargs])
        if isinstance(x := value_of(y), Tensor) and not x.is_floating_point()
    )


def weights_of(node: fx.Node) -> tuple[Any, Any]:
    """The weight and the bias of a linear layer, or the matrix of a product."""

    def linear(input: Any, weight: Any, bias: Any = None) -> tuple[Any, Any]:
        return weight, bias

    try:
        weight, bias = linear(*node.args, **node.kwargs)
    except TypeError:
        return None, None
    value = value_of(weight)
    return (weight, bias) if isinstance(value, Tensor) and value.dim() == 2 else (None, None)
