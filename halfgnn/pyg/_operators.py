"""Stand-ins for the functions of torch_geometric through which messages go.

Each takes the function that it replaces, and then that function's arguments. It routes a call to halfgnn or leaves it to PyG.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.nn import aggr as nn_aggr

from .. import ops
from ..common.autograd import snapshot
from ..common.drop_in import inline
from ..common.precision import autocasts, computed_type, without_autocast
from ..common.refusals import refuse, refuse_mode
from ..graph import Graph
from . import _indices, _worth
from ._accounts import accounts, fell_back, routed
from ._attention import is_exp_wide, softmax_of
from ._graph import holds_ids_below, is_worth_a_graph
from ._messages import Message, lifted
from ._propagation import Propagation, begin, current, current_edges, is_first_use, owner_of, plain
from ._reductions import reduced
from ._values import with_history

Original = Callable[..., Any]

REDUCES = {"sum": "sum", "add": "sum", "mean": "mean", "max": "max", "amax": "max", "min": "min", "amin": "min"}
_NAMES = {name: f"gspmm:copy_e_{reduction}" for name, reduction in REDUCES.items()}
_EXTREMES = (nn_aggr.MaxAggregation, nn_aggr.MinAggregation)
_TENSORS = (Tensor, nn.Parameter)
_IDS = (torch.int32, torch.int64)
_FEW_INDEXED = 16_384  # values of which index_add and its gradient take less time than scatter_add
_FEW_NUMBERS = 4096  # of one column, which index_add adds up as soon as scatter_add
FUSE = False  # whether attention that messages write by hand is one operator
FUSE_ALL = False  # whether patch(fuse=True) is on: also with dropout, and where it is no faster
IN_HALF = False  # whether patch(half=True) is on: under autocast results are in its dtype, not in torch_geometric's


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


@inline
def check_input(original: Original) -> Original:
    """``MessagePassing._check_input``, which is the first that a call of propagate or edge_updater does."""
    is_compiling, of_index, note, strided, ordinary = torch.compiler.is_compiling, plain, begin, torch.strided, Tensor

    def _check_input(self: Any, edge_index: Any, size: Any) -> Any:
        mutable_size = original(self, edge_index, size)
        if not is_compiling():
            edges = edge_index if type(edge_index) is ordinary else of_index(edge_index)
            is_dense = isinstance(edges, ordinary) and edges.layout is strided
            note(edges if is_dense else None, mutable_size, self)
        return mutable_size

    return _check_input


@inline
def index_select(original: Original) -> Original:
    """``MessagePassing._index_select``: features of one side's nodes for every edge."""
    is_compiling, worth, counts, select = torch.compiler.is_compiling, _worth, fell_back, _index_select
    few, extremes, is_tracing, traced = ("propagate", "few values"), _EXTREMES, torch._C._is_tracing, "torch.jit.trace"

    def _index_select_or_few(self: Any, src: Tensor, index: Tensor) -> Tensor:
        if is_compiling():
            return original(self, src, index)
        if is_tracing():  # sizes are tensors then, which must not be counted
            counts["propagate", traced] += 1
            return original(self, src, index)
        num_values, num_nodes = src.numel() * index.numel(), src.size(self.node_dim) if src.dim() > 1 else src.numel()
        num_values = worth.weighed(num_values, src)
        if num_values < worth.FEW * num_nodes or (  # before anything else: a call on a small graph takes 10 us
            num_values < worth.FEW_SUMMED * num_nodes and type(self._modules.get("aggr_module")) not in extremes
        ):
            counts[few] += 1
            return self._index_select_safe(
                src, index
            )  # what the original does, after it has asked whether this is compiled
        return select(original, self, src, index, num_values // (num_nodes or 1))

    return _index_select_or_few


def _index_select(original: Original, self: Any, src: Tensor, index: Tensor, num_values: int) -> Tensor:
    with_gradient, is_extreme = _has_gradient(src), type(self._modules.get("aggr_module")) in _EXTREMES
    if _worth.are_few(num_values, with_gradient, is_extreme):
        fell_back["propagate", "few values"] += 1
        return self._index_select_safe(src, index)
    edges = current_edges()
    if edges is not None and not is_worth_a_graph(edges, num_values, with_gradient, is_extreme):
        fell_back["propagate", "first uses of an edge_index"] += 1
        return self._index_select_safe(src, index)
    propagation, index_data = current(), plain(index)
    row = "sparse edge_index" if propagation is None else _row_to_lift(self, src, index_data, propagation)
    if isinstance(row, str):
        fell_back["propagate", row] += 1
        return original(self, src, index)
    assert propagation is not None
    accounts.note(src)
    src = src.resolve_neg() if src.is_neg() else src  # below autograd PyTorch would not
    return lifted(src, propagation, row, index_data, self.node_dim % src.dim())


def _row_to_lift(conv: Any, src: Tensor, index: Tensor, propagation: Propagation) -> int | str:
    """The row of edge_index by which features are taken, or why they are left to PyG."""
    reason = propagation.refusal or refuse_mode() or refuse_rows(src)
    if reason is not None:
        return reason
    dim, rank = conv.node_dim, src.dim()
    if not -rank <= dim < rank:
        return f"node_dim {dim} of {rank} dimensions"
    row = propagation.row_of(index)
    if row is None:
        return "another index"
    return refuse_ids(propagation, row, src.shape[dim]) or row


def refuse_ids(propagation: Propagation, row: int, num_nodes: int) -> str | None:
    edges = propagation.edge_index
    if edges.shape[1] == 0:
        return "no edges"
    if edges.dtype not in _IDS:
        return f"ids of {edges.dtype}"
    return None if holds_ids_below(edges, row, num_nodes) else "ids out of range"


# ---- reductions --------------------------------------------------------------------------------------------------------------


@inline
def scatter(original: Original) -> Original:
    """``utils.scatter``, to which aggregations come too."""
    is_compiling, worth, counts, route, few = torch.compiler.is_compiling, _worth, fell_back, _scatter, _of_few
    reductions, ordinary, message, is_tracing, traced = (
        REDUCES,
        Tensor,
        Message,
        torch._C._is_tracing,
        "torch.jit.trace",
    )
    keys = {reduce: (name, "few values") for reduce, name in _NAMES.items()}

    def scatter_or_few(
        src: Tensor, index: Tensor, dim: int = 0, dim_size: int | None = None, reduce: str = "sum"
    ) -> Tensor:
        if is_compiling() or not isinstance(src, ordinary) or not isinstance(index, ordinary):
            return original(src, index, dim, dim_size, reduce)
        if is_tracing():
            counts[keys[reduce][0] if reduce in keys else reduce, traced] += 1
            return original(src, index, dim, dim_size, reduce)
        if type(src) is not message and worth.is_small(src, reductions.get(reduce)):
            counts[keys[reduce]] += 1
            return few(original, src, index, dim, dim_size, reduce)
        return route(original, src, index, dim, dim_size, reduce)

    return scatter_or_few


def _of_few(original: Original, src: Tensor, index: Tensor, dim: int, dim_size: int | None, reduce: str) -> Tensor:
    """PyG's reduction of a few rows. Sums and means are made here if they are the same, 10 us sooner.

    PyG expands the index for scatter_add. index_add adds rows in the same order. Its gradient takes longer where rows are many.
    """
    rank = src.dim()
    if (
        (reduce == "sum" or reduce == "mean" or reduce == "add")
        and dim_size is not None
        and (rank > 1 or src.numel() <= _FEW_NUMBERS)
        and _are_plain_rows(src, index, dim, rank)
    ):
        try:
            out = src.new_zeros((dim_size, *src.shape[1:]))
            if rank > 1 and src.requires_grad and src.numel() > _FEW_INDEXED:
                out.scatter_add_(0, index.view(-1, *[1] * (rank - 1)).expand_as(src), src)
            else:
                out.index_add_(0, index, src)
            if reduce != "mean":
                return out
            counts = src.new_zeros(dim_size).index_add_(0, index, src.new_ones(src.shape[0]))
            return out / counts.clamp_(min=1).view(-1, *[1] * (rank - 1))
        except (RuntimeError, IndexError, TypeError):
            pass  # PyG raises its own
    return original(src, index, dim, dim_size, reduce)


def _are_plain_rows(src: Tensor, index: Any, dim: int, rank: int) -> bool:
    """Whether PyTorch's operators add up rows of src, of so many dimensions, as PyG does."""
    return (
        rank > 0
        and (dim == 0 or dim == -rank)
        and src.is_cpu
        and (src.dtype is torch.float32 or src.dtype is torch.float64)  # sums of halves would be rounded at each step
        and type(index) is Tensor
        and index.dtype is torch.int64
        and index.dim() == 1
    )


def _scatter(original: Original, src: Tensor, index: Tensor, dim: int, dim_size: int | None, reduce: str) -> Tensor:
    reduction = REDUCES.get(reduce)
    name = _NAMES.get(reduce) or f"gspmm:copy_e_{reduce}"
    if (
        type(src) is not Message
        and reduction
        and is_first_use(index, _worth.weighed(src.numel(), src), _has_gradient(src), reduction)
    ):
        fell_back[name, "first use of an index"] += 1
        return _of_few(original, src, index, dim, dim_size, reduce)
    owner = usable_owner_of(index)
    if isinstance(src, Message) and dim != src.edge_dim and _is_another(dim, src) and dim % src.dim() != src.edge_dim:
        src = src.ordinary()
    if isinstance(src, Message):
        rows = reduced_message(src, reduction, index, owner, dim, dim_size)
        if rows is not None:
            return rows
        src = src.ordinary()
    elif reduction and _is_another(dim, src) and (owner or _refuse_another(src, index, dim) is None):
        out = _scatter(original, src.movedim(dim, 0).contiguous(), index, 0, dim_size, reduce)  # features of one graph
        return out.movedim(0, dim).contiguous()  # as PyG's, of which callers take views
    g = graph_over(src, reduction, index, owner, dim, dim_size)
    if isinstance(g, str):
        fell_back[name, g] += 1
        return original(src, index, dim, dim_size, reduce)
    routed[name] += 1
    return _indices.reduced(g, str(reduction), src, plain(index))


def reduced_message(
    src: Message,
    reduction: str | None,
    index: Any,
    owner: tuple[Propagation, int] | None,
    dim: int,
    num_rows: int | None,
) -> Tensor | None:
    """The rows of a message reduced without forming it; None if they have to be formed."""
    if refuse_reduction(src, reduction, owner, dim, num_rows) is not None or not src.is_as_made():
        return None
    assert owner is not None and num_rows is not None
    if not src.propagation.ends_in(plain(index), *owner):
        return None
    return _reduced(src, str(reduction), owner[1], num_rows)


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


def _has_gradient(x: Tensor) -> bool:
    return x.requires_grad and torch.is_grad_enabled()


def usable_owner_of(index: Tensor) -> tuple[Propagation, int] | None:
    return owner_of(index) if index.dim() == 1 and refuse_mode() is None else None


def graph_over(
    src: Tensor,
    reduction: str | None,
    index: Tensor,
    owner: tuple[Propagation, int] | None,
    dim: int,
    num_rows: int | None,
) -> Graph | str:
    """The Graph whose edges are the rows of src and end where an index says, or why rows are left to PyG."""
    if owner is not None:
        if num_rows is None and index.numel():
            num_rows = int(index.max()) + 1
        if reduction is None or is_worth_a_graph(
            owner[0].edge_index, _worth.weighed(src.numel(), src), src.requires_grad
        ):
            reason = refuse_reduction(src, reduction, owner, dim, num_rows) or refuse_rows(src)
            return reason or owner[0].ending_in(owner[1], num_rows)  # type: ignore[arg-type]
        if not _worth.is_worth(src, reduction, False):
            return "first uses of an edge_index"
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


def refuse_reduction(
    src: Tensor, reduction: str | None, owner: tuple[Propagation, int] | None, dim: int, dim_size: int | None
) -> str | None:
    """Why what is reduced by a row of an edge_index is PyG's."""
    if reduction is None:
        return "no such operator"
    if owner is None:
        return refuse_mode() or "index of no known edge_index"
    propagation, row = owner
    if propagation.refusal is not None:
        return propagation.refusal
    edge_dim, rank = src.edge_dim if isinstance(src, Message) else 0, src.dim()
    if not -rank <= dim < rank or dim % rank != edge_dim:
        return "another dimension"
    if src.shape[edge_dim] != propagation.edge_index.shape[1]:
        return "another dimension"
    return "no dim_size" if dim_size is None else refuse_ids(propagation, row, dim_size)


def _reduced(message: Message, reduction: str, row: int, num_nodes: int) -> Tensor:
    if not autocasts(message.device):  # mostly: a context takes longer than to ask
        return reduced(message, reduction, row, num_nodes)
    dtype = computed_type(message) if IN_HALF else None
    with without_autocast(message.device):
        return reduced(message, reduction, row, num_nodes, dtype)


@inline
def softmax(original: Original) -> Original:
    """``utils.softmax``: over the edges that share a node."""
    is_compiling, worth, counts, route = torch.compiler.is_compiling, _worth, fell_back, _softmax
    ordinary, message, few, of_few = Tensor, Message, ("edge_softmax", "few values"), _softmax_of_few
    is_tracing, traced = torch._C._is_tracing, ("edge_softmax", "torch.jit.trace")

    def softmax_or_few(
        src: Tensor,
        index: Tensor | None = None,
        ptr: Tensor | None = None,
        num_nodes: int | None = None,
        dim: int = 0,
    ) -> Tensor:
        if is_compiling() or not isinstance(src, ordinary):
            return original(src, index, ptr, num_nodes, dim)
        if is_tracing():
            counts[traced] += 1
            return original(src, index, ptr, num_nodes, dim)
        if type(src) is not message and worth.is_small(src, "softmax"):
            counts[few] += 1
            return of_few(original, src, index, ptr, num_nodes, dim)
        return route(original, src, index, ptr, num_nodes, dim)

    return softmax_or_few


def _softmax_of_few(
    original: Original, src: Tensor, index: Tensor | None, ptr: Tensor | None, num_nodes: int | None, dim: int
) -> Tensor:
    """PyG's softmax of a few rows, made of the same sums and differences without its functions."""
    rank = src.dim()
    if ptr is None and num_nodes is not None and _are_plain_rows(src, index, dim, rank):
        assert index is not None
        try:
            zeros = src.new_zeros((num_nodes, *src.shape[1:]))
            ids = index.view(-1, *[1] * (rank - 1)).expand_as(src)
            largest = zeros.scatter_reduce(0, ids, src.detach(), "amax", include_self=False)
            powers = (src - largest.index_select(0, index)).exp()
            return powers / (zeros.index_add(0, index, powers) + 1e-16).index_select(0, index)
        except (RuntimeError, IndexError, TypeError):
            pass  # PyG raises its own
    return original(src, index, ptr, num_nodes, dim)


def _softmax(
    original: Original, src: Tensor, index: Tensor | None, ptr: Tensor | None, num_nodes: int | None, dim: int
) -> Tensor:
    if isinstance(src, Message):
        if FUSE and (put_off := _put_off_softmax(src, index, dim, num_nodes)) is not None:
            return put_off
        src = with_history(src) if src.is_as_made() and refuse_mode() is None else src.ordinary()
    if _worth.is_small(src, "softmax"):
        g: Graph | str = "few values"
    elif (
        ptr is None
        and isinstance(index, Tensor)
        and is_first_use(index, _worth.weighed(src.numel(), src), _has_gradient(src), "softmax")
    ):
        g = "first use of an index"
    elif isinstance(ptr, Tensor) and ptr.dim() == 1:  # which PyG prefers to an index
        g = _graph_between(src, "softmax", ptr, dim)
    elif isinstance(index, Tensor):
        g = graph_over(src, "softmax", index, usable_owner_of(index), dim, num_nodes)
    else:
        g = "no index"
    if isinstance(g, str):
        fell_back["edge_softmax", g] += 1
        if g == "first use of an index" and src.numel() <= _FEW_INDEXED:
            return _softmax_of_few(original, src, index, ptr, num_nodes, dim)
        return original(src, index, ptr, num_nodes, dim)
    routed["edge_softmax"] += 1
    if is_exp_wide(src):
        src = src.float()
    with without_autocast(src.device):
        out = ops.edge_softmax(g, src)
    if not out.requires_grad:
        return out
    own = snapshot(out)  # the caller may write into it
    return own.clone() if own is out else own


def _put_off_softmax(src: Message, index: Any, dim: int, num_nodes: int | None) -> Tensor | None:
    """The softmax as a message, which may become a part of a fused attention."""
    owner = usable_owner_of(index) if isinstance(index, Tensor) else None
    if refuse_reduction(src, "softmax", owner, dim, num_nodes) is not None or not src.is_as_made():
        return None
    assert owner is not None and num_nodes is not None
    return softmax_of(src, *owner, num_nodes, FUSE_ALL)
