"""``utils.scatter`` and ``utils.segment``, to which aggregations come too."""

from __future__ import annotations

from torch import Tensor
from torch._C import TensorBase

from ....drop_in.compiled import is_compiled, is_traced_by_dynamo
from ....drop_in.gate import Reason
from ....drop_in.wrappers import Route as Original
from ....drop_in.wrappers import inline
from ....expressions.rows import FEW_INDEXED, adds_in_half, are_plain_rows, as_int64, in_fp32
from .. import edge_lists
from ..accounts import fell_back, routed
from ..call import few_before
from ..calls import REDUCES, reduced_call
from ..gate import Call, FallBack
from ..message import Message, tensor_of
from ..rows_by_index import graph_between
from ..rows_by_index import reduced as reduced_rows
from ..size import is_small
from .sizes import sized

_NAMES = {name: f"gspmm:copy_e_{reduction}" for name, reduction in REDUCES.items()}
# PyTorch's own: Tensor has wrappers of them.
_scatter_add_, _index_add_ = TensorBase.scatter_add_, TensorBase.index_add_
_ADDING = ("sum", "add", "mean")
_FEW_NUMBERS = 4096  # of one column, which index_add adds up as soon as scatter_add


@inline
def scatter(original: Original) -> Original:
    """``utils.scatter``, to which aggregations come too."""
    left_alone, is_below, counts, route, few = is_compiled, is_small, fell_back, _scatter, _of_few
    is_graph, of_groups = is_traced_by_dynamo, sized
    reductions, ordinary, message = REDUCES, Tensor, Message
    keys = {reduce: (name, Reason.FEW_VALUES) for reduce, name in _NAMES.items()}
    first = {reduce: (_NAMES[reduce], Reason.FIRST_USE_OF_INDEX) for reduce in _ADDING}
    of_few_before = few_before

    def scatter_or_few(
        src: Tensor, index: Tensor, dim: int = 0, dim_size: int | None = None, reduce: str = "sum"
    ) -> Tensor:
        if left_alone():
            return original(src, index, dim, of_groups(index, dim_size) if is_graph() else dim_size, reduce)
        if not isinstance(src, ordinary) or not isinstance(index, ordinary):
            return original(src, index, dim, dim_size, reduce)
        if type(src) is not message and is_below(src, reductions.get(reduce)):
            counts[keys[reduce]] += 1
            return few(original, src, index, dim, dim_size, reduce)
        if reduce in first and type(src) is ordinary and of_few_before(index, src):
            counts[first[reduce]] += 1
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
            return added_up(src, index, dim_size, reduce == "mean")
        except (RuntimeError, IndexError, TypeError):
            pass  # PyG raises its own
    return _left(original, src, index, dim, dim_size, reduce)


def added_up(src: Tensor, index: Tensor, num_rows: int, is_mean: bool) -> Tensor:
    """Sums or means (num_rows, *) of plain rows (E, *), by coo_sum or PyTorch's operators, with the errors of these."""
    if (rows := edge_lists.added(src, index, num_rows, is_mean)) is not None:
        return rows
    rank = src.dim()
    out = src.new_zeros((num_rows, *src.shape[1:]))
    if rank > 1 and src.requires_grad and src.numel() > FEW_INDEXED:
        _scatter_add_(out, 0, index.view(-1, *[1] * (rank - 1)).expand_as(src), src)
    else:
        _index_add_(out, 0, index, src)
    if not is_mean:
        return out
    # As PyG counts; bincount also looks for the ends of the ids, and takes twice as long.
    counts = _index_add_(out.new_zeros(num_rows), 0, index, out.new_ones(index.shape[0])).clamp_(min=1)
    return out / counts.view(-1, *[1] * (rank - 1))


def _left(original: Original, src: Tensor, index: Tensor, dim: int, dim_size: int | None, reduce: str) -> Tensor:
    """PyG's own reduction. Its sum and its count are in half precision, so a mean may overflow."""
    index = as_int64(index)
    if reduce == "mean" and adds_in_half(src):
        return in_fp32("scatter", lambda x: original(x, index, dim, dim_size, reduce), src)
    return original(src, index, dim, dim_size, reduce)


def _scatter(original: Original, src: Tensor, index: Tensor, dim: int, dim_size: int | None, reduce: str) -> Tensor:
    name = _NAMES.get(reduce) or f"gspmm:copy_e_{reduce}"
    try:
        return reduced_call(name, Call.of(src, index, dim, dim_size, REDUCES.get(reduce)))
    except FallBack as left:
        fell_back[name, left.reason] += 1
        fall_back = _of_few if left.reason is Reason.FIRST_USE_OF_INDEX else _left
    return fall_back(original, tensor_of(src, "scatter"), index, dim, dim_size, reduce)


def segment(original: Original, src: Tensor, ptr: Tensor, reduce: str = "sum") -> Tensor:
    """``utils.segment``: rows that follow one another."""
    if not isinstance(src, Tensor) or not isinstance(ptr, Tensor):
        return original(src, ptr, reduce)
    reduction, src = REDUCES.get(reduce), tensor_of(src, "segment")
    name, reason = f"gspmm:copy_e_{reduction or reduce}", None
    try:
        if is_small(src, reduction):
            raise FallBack(Reason.FEW_VALUES)
        g = graph_between(Call.of(src, ptr, 0, None, reduction))
    except FallBack as left:
        reason = left.reason
    if reason is not None:
        fell_back[name, reason] += 1
        if reduction in ("sum", "mean") and adds_in_half(src):
            return in_fp32("segment", lambda x: original(x, ptr, reduce), src)
        return original(src, ptr, reduce)
    routed[name] += 1
    return reduced_rows(g, str(reduction), src, None)
