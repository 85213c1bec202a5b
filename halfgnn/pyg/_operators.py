"""Stand-ins for the functions of torch_geometric through which messages go.

Each takes the function that it replaces, and then that function's arguments. It routes a call to halfgnn or leaves it to PyG.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from .. import ops
from ..common.autograd import snapshot
from ..common.precision import HALF, autocasts, computed_type, without_autocast
from ..common.refusals import refuse
from ..graph import Graph
from . import _conv, _indices, _worth
from ._accounts import accounts, fell_back, routed
from ._graph import holds_ids_below, share_graphs
from ._messages import Message, lifted
from ._propagation import Propagation, begin, current, find, plain
from ._reductions import reduced
from ._values import with_history

Original = Callable[..., Any]

REDUCES = {"sum": "sum", "add": "sum", "mean": "mean", "max": "max", "amax": "max", "min": "min", "amin": "min"}
_TENSORS = (Tensor, nn.Parameter)
IN_HALF = False  # whether patch(half=True) is on: under autocast results are in its dtype, not in torch_geometric's


def refuse_mode() -> str | None:
    """Why the code that runs now is not an eager call on its data."""
    if torch._C._are_functorch_transforms_active():
        return "functorch"
    return _conv.refuse_tracing() or ("dispatch mode" if torch._C._len_torch_dispatch_stack() else None)


def refuse_rows(x: Any) -> str | None:
    """Why a tensor with one row per node or edge is not routed."""
    if type(x) not in _TENSORS:
        return "tensor subclass"
    return refuse((x,)) if x.layout == torch.strided else str(x.layout)


def _is_first(dim: int, x: Tensor) -> bool:
    return -x.dim() <= dim < x.dim() and dim % x.dim() == 0


def _is_another(dim: int, x: Tensor) -> bool:
    return -x.dim() <= dim < x.dim() and dim % x.dim() != 0


# ---- messages ----------------------------------------------------------------------------------------------------------------


def check_input(original: Original, self: Any, edge_index: Any, size: Any) -> Any:
    """``MessagePassing._check_input``, which is the first that a call of propagate or edge_updater does."""
    mutable_size = original(self, edge_index, size)
    if not torch.compiler.is_compiling():
        edges = plain(edge_index)
        is_dense = isinstance(edges, Tensor) and edges.layout == torch.strided
        begin(edges if is_dense else None, mutable_size, _conv.refuse_module(self))
    return mutable_size


def index_select(original: Original, self: Any, src: Tensor, index: Tensor) -> Tensor:
    """``MessagePassing._index_select``: features of one side's nodes for every edge."""
    if torch.compiler.is_compiling():
        return original(self, src, index)
    accounts.note(src)
    propagation, index_data = current(), plain(index)
    reason = _refuse_lift(self, src, index_data, propagation)
    if reason is not None:
        fell_back["propagate", reason] += 1
        return original(self, src, index)
    assert propagation is not None
    src = src.resolve_neg() if src.is_neg() else src  # below autograd PyTorch would not
    row = propagation.row_of(index_data)
    assert row is not None
    return lifted(src, propagation, row, index_data, self.node_dim % src.dim())


def _refuse_lift(conv: Any, src: Tensor, index: Tensor, propagation: Propagation | None) -> str | None:
    if propagation is None:
        return "sparse edge_index"
    reason = propagation.refusal or refuse_mode() or refuse_rows(src)
    if reason is not None:
        return reason
    if not -src.dim() <= conv.node_dim < src.dim():
        return f"node_dim {conv.node_dim} of {src.dim()} dimensions"
    row = propagation.row_of(index)
    if row is None:
        return "another index"
    return refuse_ids(propagation, row, src.shape[conv.node_dim])


def refuse_ids(propagation: Propagation, row: int, num_nodes: int) -> str | None:
    if propagation.edge_index.shape[1] == 0:
        return "no edges"
    if propagation.edge_index.dtype not in (torch.int32, torch.int64):
        return f"ids of {propagation.edge_index.dtype}"
    return None if holds_ids_below(propagation.edge_index, row, num_nodes) else "ids out of range"


# ---- reductions --------------------------------------------------------------------------------------------------------------


def scatter(
    original: Original, src: Tensor, index: Tensor, dim: int = 0, dim_size: int | None = None, reduce: str = "sum"
) -> Tensor:
    """``utils.scatter``, to which aggregations come too."""
    if torch.compiler.is_compiling() or not isinstance(src, Tensor) or not isinstance(index, Tensor):
        return original(src, index, dim, dim_size, reduce)
    reduction, is_message = REDUCES.get(reduce), isinstance(src, Message)
    name = f"gspmm:copy_e_{reduction or reduce}"
    if not is_message and _worth.is_small(src, reduction):
        fell_back[name, "few values"] += 1
        return original(src, index, dim, dim_size, reduce)
    found = _find(index)
    if isinstance(src, Message) and _is_another(dim, src) and dim % src.dim() != src.edge_dim:
        src, is_message = src.ordinary(), False
    if isinstance(src, Message):
        if _refuse_reduction(src, reduction, found, dim, dim_size) is None and src.is_as_made():
            assert found is not None and dim_size is not None
            return _reduced(src, str(reduction), found[1], dim_size)
        src = src.ordinary()
    elif reduction and _is_another(dim, src) and (found or _refuse_another(src, index, dim) is None):
        out = scatter(original, src.movedim(dim, 0).contiguous(), index, 0, dim_size, reduce)  # features of one graph
        return out.movedim(0, dim).contiguous()  # as PyG's, of which callers take views
    g = _graph_over(src, reduction, index, found, dim, dim_size)
    if isinstance(g, str):
        fell_back[name, g] += 1
        return original(src, index, dim, dim_size, reduce)
    routed[name] += 1
    return _indices.reduced(g, str(reduction), src, plain(index))


def segment(original: Original, src: Tensor, ptr: Tensor, reduce: str = "sum") -> Tensor:
    """``utils.segment``: rows that follow one another."""
    if torch.compiler.is_compiling() or not isinstance(src, Tensor) or not isinstance(ptr, Tensor):
        return original(src, ptr, reduce)
    reduction = REDUCES.get(reduce)
    name = f"gspmm:copy_e_{reduction or reduce}"
    if isinstance(src, Message):
        src = src.ordinary()
    g = "few values" if _worth.is_small(src, reduction) else _graph_between(src, reduction, ptr, 0)
    if isinstance(g, str):
        fell_back[name, g] += 1
        return original(src, ptr, reduce)
    routed[name] += 1
    return _indices.reduced(g, str(reduction), src, None)


def _find(index: Tensor) -> tuple[Propagation, int] | None:
    return find(index) if index.dim() == 1 and refuse_mode() is None else None


def _graph_over(
    src: Tensor,
    reduction: str | None,
    index: Tensor,
    found: tuple[Propagation, int] | None,
    dim: int,
    num_rows: int | None,
) -> Graph | str:
    """The Graph whose edges are the rows of src and end where an index says, or why rows are left to PyG."""
    if found is not None:
        if num_rows is None and index.numel():
            num_rows = int(index.max()) + 1
        reason = _refuse_reduction(src, reduction, found, dim, num_rows) or refuse_rows(src)
        return reason or found[0].ending_in(found[1], num_rows)  # type: ignore[arg-type]
    if reduction is None:
        return "no such operator"
    reason = refuse_mode() or refuse_rows(src)
    if reason is not None:
        return reason
    index = plain(index)
    if not _is_first(dim, src) or src.shape[0] != index.shape[0] or index.device != src.device:
        return "another dimension"
    if num_rows is not None and not isinstance(num_rows, int):
        return "no dim_size"
    return _indices.graph_by(index, num_rows, src, reduction)


def _graph_between(src: Tensor, reduction: str | None, ptr: Tensor, dim: int) -> Graph | str:
    if reduction is None:
        return "no such operator"
    reason = refuse_mode() or refuse_rows(src)
    if reason is not None:
        return reason
    if not _is_first(dim, src) or ptr.device != src.device:
        return "another dimension"
    return _indices.graph_between(ptr, src.shape[0])


def _refuse_another(src: Tensor, index: Tensor, dim: int) -> str | None:
    """Why a reduction over another dimension than the first is left to PyG, whose nodes are that dimension."""
    if index.dim() != 1 or src.shape[dim] != index.shape[0]:
        return "another dimension"
    return refuse_mode() or refuse_rows(src)


def _refuse_reduction(
    src: Tensor, reduction: str | None, found: tuple[Propagation, int] | None, dim: int, dim_size: int | None
) -> str | None:
    """Why what is reduced by a row of an edge_index is PyG's."""
    if reduction is None:
        return "no such operator"
    if found is None:
        return refuse_mode() or "index of no known edge_index"
    propagation, row = found
    if propagation.refusal is not None:
        return propagation.refusal
    edge_dim = src.edge_dim if isinstance(src, Message) else 0
    if not -src.dim() <= dim < src.dim() or dim % src.dim() != edge_dim:
        return "another dimension"
    if src.shape[edge_dim] != propagation.edge_index.shape[1]:
        return "another dimension"
    return "no dim_size" if dim_size is None else refuse_ids(propagation, row, dim_size)


def _reduced(message: Message, reduction: str, row: int, num_nodes: int) -> Tensor:
    dtype = computed_type(message) if IN_HALF and autocasts(message.device) else None
    with without_autocast(message.device):
        return reduced(message, reduction, row, num_nodes, dtype)


def variance(
    original: Original,
    self: Any,
    x: Tensor,
    index: Tensor | None = None,
    ptr: Tensor | None = None,
    dim_size: int | None = None,
    dim: int = -2,
) -> Any:
    """``VarAggregation.forward``, and that of several aggregations in one: a difference of means that are not rounded to half.

    The messages are formed anyway: their squares are.
    """
    arguments = index, ptr, dim_size, dim
    if torch.compiler.is_compiling() or not isinstance(x, Tensor) or not isinstance(index, Tensor):
        return original(self, x, *arguments)
    is_half = x.dtype in HALF
    is_rounded = is_half or (IN_HALF and isinstance(x, Message) and autocasts(x.device))
    if not is_rounded or refuse_mode() is not None or "pow_sum" not in getattr(self, "reduce_ops", ["pow_sum"]):
        return original(self, x, *arguments)
    formed = x.ordinary() if isinstance(x, Message) else x
    out = original(self, formed.float() if is_half else formed, *arguments)
    return [part.to(x.dtype) for part in out] if isinstance(out, list) else out.to(x.dtype)


def softmax(
    original: Original,
    src: Tensor,
    index: Tensor | None = None,
    ptr: Tensor | None = None,
    num_nodes: int | None = None,
    dim: int = 0,
) -> Tensor:
    """``utils.softmax``: over the edges that share a node."""
    if torch.compiler.is_compiling() or not isinstance(src, Tensor):
        return original(src, index, ptr, num_nodes, dim)
    if isinstance(src, Message):
        src = with_history(src) if src.is_as_made() and refuse_mode() is None else src.ordinary()
    if _worth.is_small(src, "softmax"):
        g: Graph | str = "few values"
    elif isinstance(ptr, Tensor) and ptr.dim() == 1:  # which PyG prefers to an index
        g = _graph_between(src, "softmax", ptr, dim)
    elif isinstance(index, Tensor):
        g = _graph_over(src, "softmax", index, _find(index), dim, num_nodes)
    else:
        g = "no index"
    if isinstance(g, str):
        fell_back["edge_softmax", g] += 1
        return original(src, index, ptr, num_nodes, dim)
    routed["edge_softmax"] += 1
    if src.is_cuda and src.dtype in HALF and autocasts(src.device):
        src = src.float()  # as autocast takes exp on CUDA
    with without_autocast(src.device):
        out = ops.edge_softmax(g, src)
    if not out.requires_grad:
        return out
    own = snapshot(out)  # the caller may write into it
    return own.clone() if own is out else own


# ---- edges -------------------------------------------------------------------------------------------------------------------


def self_loops(original: Original, edge_index: Any, *args: Any, **kwargs: Any) -> Any:
    """``remove_self_loops``, ``add_self_loops`` and ``add_remaining_self_loops``: PyG's, whose new edge_index shares its graphs."""
    result = original(edge_index, *args, **kwargs)
    if not torch.compiler.is_compiling() and refuse_mode() is None and type(edge_index) is type(result[0]) is Tensor:
        num_nodes = kwargs.get("num_nodes", args[2] if len(args) > 2 else None)
        if edge_index.layout == torch.strided and (num_nodes is None or isinstance(num_nodes, int)):
            share_graphs(edge_index, (original.__name__, num_nodes), result[0])
    return result
