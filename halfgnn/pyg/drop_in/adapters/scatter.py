"""Stand-ins for the functions of torch_geometric through which messages go.

Each takes the function that it replaces, and then that function's arguments. It routes a call to halfgnn or leaves it to PyG.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.nn import aggr as nn_aggr

from ....common.kept import ordinary_tensors
from ....common.precision import autocasts, computed_type, without_autocast
from ....drop_in.compiled import is_compiled
from ....drop_in.refusals import refuse, refuse_index, refuse_mode
from ....drop_in.stand_ins import inline
from ....graph import Graph
from ....graphs_by_tensor.edge_index import holds_ids_below
from .. import rows_by_index as _indices
from .. import thresholds as _worth
from ..accounts import accounts, fell_back, routed
from ..call import Propagation, begin, current, current_edges, is_first_use, owner_of, plain
from ..expression import Expression
from ..lower.reduce import has_rows_of, reduced
from ..message import Message, gather
from ..options import ON
from ..rows import adds_in_half, as_int64, in_fp32
from ..rows_by_index import gathered_rows
from ..uses import is_worth_a_graph
from .refused_graphs import refuse_graph

Original = Callable[..., Any]

REDUCES = {"sum": "sum", "add": "sum", "mean": "mean", "max": "max", "amax": "max", "min": "min", "amin": "min"}
_NAMES = {name: f"gspmm:copy_e_{reduction}" for name, reduction in REDUCES.items()}
_EXTREMES = (nn_aggr.MaxAggregation, nn_aggr.MinAggregation)
_TENSORS = (Tensor, nn.Parameter)
_IDS = (torch.int32, torch.int64)
FEW_INDEXED = 16_384  # values of which index_add and its gradient take less time than scatter_add
_FEW_NUMBERS = 4096  # of one column, which index_add adds up as soon as scatter_add


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
    left_alone, of_index, note, strided, ordinary = is_compiled, plain, begin, torch.strided, Tensor
    refuse_if_graph = refuse_graph

    def _check_input(self: Any, edge_index: Any, size: Any) -> Any:
        if type(edge_index) is not ordinary and not left_alone():
            refuse_if_graph(self, edge_index)
        mutable_size = original(self, edge_index, size)
        if not left_alone():
            edges = edge_index if type(edge_index) is ordinary else of_index(edge_index)
            is_dense = isinstance(edges, ordinary) and edges.layout is strided
            note(edges if is_dense else None, mutable_size, self)
        return mutable_size

    return _check_input


@inline
def index_select(original: Original) -> Original:
    """``MessagePassing._index_select``: features of one side's nodes for every edge."""
    left_alone, worth, counts, select = is_compiled, _worth, fell_back, _index_select
    few, extremes = ("propagate", "few values"), _EXTREMES

    def _index_select_or_few(self: Any, src: Tensor, index: Tensor) -> Tensor:
        if left_alone():
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
    with_gradient, is_extreme = has_gradient(src), type(self._modules.get("aggr_module")) in _EXTREMES
    index_data = plain(index)
    reason = refuse_mode(may_be_watched=True) or refuse_rows(src) or refuse_index(index_data, src)
    if reason is not None:
        fell_back["propagate", reason] += 1
        return original(self, src, index)
    if _worth.are_few(num_values, with_gradient, is_extreme):
        fell_back["propagate", "few values"] += 1
        return self._index_select_safe(src, index)
    edges = current_edges()
    if edges is not None and not is_worth_a_graph(edges, num_values, with_gradient, is_extreme):
        fell_back["propagate", "first uses of an edge_index"] += 1
        return self._index_select_safe(src, index)
    propagation = current()
    row = "sparse edge_index" if propagation is None else _row_to_lift(self, src, index_data, propagation)
    if isinstance(row, str):
        fell_back["propagate", row] += 1
        return original(self, src, index)
    assert propagation is not None
    accounts.note(src)
    if (mode := refuse_mode()) is not None:  # which would see messages
        fell_back["propagate", mode] += 1
        g = propagation.ending_in(row, src.shape[self.node_dim])
        return gathered_rows(src, index_data, lambda: g, self.node_dim % src.dim())
    src = src.resolve_neg() if src.is_neg() else src  # below autograd PyTorch would not
    return gather(src, propagation, row, index_data, self.node_dim % src.dim())


def _row_to_lift(conv: Any, src: Tensor, index: Tensor, propagation: Propagation) -> int | str:
    """The row of edge_index by which features are taken, or why they are left to PyG."""
    if propagation.refusal is not None:
        return propagation.refusal
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
    with ordinary_tensors():
        return None if holds_ids_below(edges, row, num_nodes) else "ids out of range"


# ---- reductions --------------------------------------------------------------------------------------------------------------


@inline
def scatter(original: Original) -> Original:
    """``utils.scatter``, to which aggregations come too."""
    left_alone, worth, counts, route, few = is_compiled, _worth, fell_back, _scatter, _of_few
    reductions, ordinary, message = REDUCES, Tensor, Message
    keys = {reduce: (name, "few values") for reduce, name in _NAMES.items()}

    def scatter_or_few(
        src: Tensor, index: Tensor, dim: int = 0, dim_size: int | None = None, reduce: str = "sum"
    ) -> Tensor:
        if left_alone() or not isinstance(src, ordinary) or not isinstance(index, ordinary):
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
        and are_plain_rows(src, index, dim, rank)
    ):
        try:
            out = src.new_zeros((dim_size, *src.shape[1:]))
            if rank > 1 and src.requires_grad and src.numel() > FEW_INDEXED:
                out.scatter_add_(0, index.view(-1, *[1] * (rank - 1)).expand_as(src), src)
            else:
                out.index_add_(0, index, src)
            if reduce != "mean":
                return out
            counts = src.new_zeros(dim_size).index_add_(0, index, src.new_ones(src.shape[0]))
            return out / counts.clamp_(min=1).view(-1, *[1] * (rank - 1))
        except (RuntimeError, IndexError, TypeError):
            pass  # PyG raises its own
    return _left(original, src, index, dim, dim_size, reduce)


def _left(original: Original, src: Tensor, index: Tensor, dim: int, dim_size: int | None, reduce: str) -> Tensor:
    """PyG's own reduction. Its sum and its count of halves are halves, of which a mean may overflow."""
    index = as_int64(index)
    if reduce == "mean" and adds_in_half(src):
        return in_fp32("scatter", lambda x: original(x, index, dim, dim_size, reduce), src)
    return original(src, index, dim, dim_size, reduce)


def are_plain_rows(src: Tensor, index: Any, dim: int, rank: int) -> bool:
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
    reason = refuse_index(plain(index), src)
    if reason is not None:
        fell_back[name, reason] += 1
        return _left(original, src, index, dim, dim_size, reduce)
    if (
        type(src) is not Message
        and reduction
        and is_first_use(index, _worth.weighed(src.numel(), src), has_gradient(src), reduction)
    ):
        fell_back[name, "first use of an index"] += 1
        return _of_few(original, src, index, dim, dim_size, reduce)
    owner = usable_owner_of(index)
    if isinstance(src, Message):
        rows = reduced_message(src, reduction, index, owner, dim, dim_size)
        if rows is not None:
            return rows
        src = src.materialized("scatter")
    if reduction and _is_another(dim, src) and (owner or _refuse_another(src, index, dim) is None):
        out = _scatter(original, src.movedim(dim, 0).contiguous(), index, 0, dim_size, reduce)  # features of one graph
        return out.movedim(0, dim).contiguous()  # as PyG's, of which callers take views
    g = graph_over(src, reduction, index, owner, dim, dim_size)
    if isinstance(g, str):
        fell_back[name, g] += 1
        return _left(original, src, index, dim, dim_size, reduce)
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
    """The rows of a message reduced without materializing it; None if they have to be materialized."""
    lazy = src.expression()
    if lazy is None or refuse_reduction(lazy, reduction, owner, dim, num_rows) is not None:
        return None
    if refuse_mode() is not None:  # which would see messages
        return None
    assert owner is not None and num_rows is not None
    if not lazy.propagation.ends_in(plain(index), *owner) or not has_rows_of(lazy, owner[1], num_rows):
        return None
    return _reduced(lazy, str(reduction), owner[1], num_rows)


def segment(original: Original, src: Tensor, ptr: Tensor, reduce: str = "sum") -> Tensor:
    """``utils.segment``: rows that follow one another."""
    if is_compiled() or not isinstance(src, Tensor) or not isinstance(ptr, Tensor):
        return original(src, ptr, reduce)
    reduction = REDUCES.get(reduce)
    name = f"gspmm:copy_e_{reduction or reduce}"
    if isinstance(src, Message):
        src = src.materialized("segment")
    g = "few values" if _worth.is_small(src, reduction) else graph_between(src, reduction, ptr, 0)
    if isinstance(g, str):
        fell_back[name, g] += 1
        if reduction in ("sum", "mean") and adds_in_half(src):
            return in_fp32("segment", lambda x: original(x, ptr, reduce), src)
        return original(src, ptr, reduce)
    routed[name] += 1
    return _indices.reduced(g, str(reduction), src, None)


def has_gradient(x: Tensor) -> bool:
    return x.requires_grad and torch.is_grad_enabled()


def usable_owner_of(index: Tensor) -> tuple[Propagation, int] | None:
    return owner_of(index) if index.dim() == 1 and refuse_mode(may_be_watched=True) is None else None


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
        if owner[0].refusal is not None:
            return owner[0].refusal
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
    reason = refuse_mode(may_be_watched=True) or refuse_rows(src)
    if reason is not None:
        return reason
    index = plain(index)
    if not _is_first(dim, src) or src.shape[0] != index.shape[0]:
        return "another dimension"
    if num_rows is not None and not isinstance(num_rows, int):
        return "no dim_size"
    return _indices.graph_by(index, num_rows, src, reduction)


def graph_between(src: Tensor, reduction: str | None, ptr: Tensor, dim: int) -> Graph | str:
    if reduction is None:
        return "no such operator"
    reason = refuse_mode(may_be_watched=True) or refuse_rows(src) or refuse_index(ptr, src)
    if reason is not None:
        return reason
    if not _is_first(dim, src):
        return "another dimension"
    return _indices.graph_between(ptr, src.shape[0])


def _refuse_another(src: Tensor, index: Tensor, dim: int) -> str | None:
    """Why a reduction over another dimension than the first is left to PyG, whose nodes are that dimension."""
    if index.dim() != 1 or src.shape[dim] != index.shape[0]:
        return "another dimension"
    return refuse_mode(may_be_watched=True) or refuse_rows(src)


def refuse_reduction(
    src: Expression | Tensor,
    reduction: str | None,
    owner: tuple[Propagation, int] | None,
    dim: int,
    dim_size: int | None,
) -> str | None:
    """Why what is reduced by a row of an edge_index is PyG's."""
    if reduction is None:
        return "no such operator"
    if owner is None:
        return refuse_mode(may_be_watched=True) or "index of no known edge_index"
    propagation, row = owner
    if propagation.refusal is not None:
        return propagation.refusal
    edge_dim, rank = src.edge_dim if isinstance(src, Expression) else 0, src.dim()
    if not -rank <= dim < rank or dim % rank != edge_dim:
        return "another dimension"
    if src.shape[edge_dim] != propagation.edge_index.shape[1]:
        return "another dimension"
    return "no dim_size" if dim_size is None else refuse_ids(propagation, row, dim_size)


def _reduced(x: Expression, reduction: str, row: int, num_nodes: int) -> Tensor:
    if not autocasts(x.device):  # mostly: a context takes longer than to ask
        return reduced(x, reduction, row, num_nodes)
    dtype = computed_type(x) if ON.half else None
    with without_autocast(x.device):
        return reduced(x, reduction, row, num_nodes, dtype)
