"""The stand-in for torch_geometric's softmax: over the edges that share a node."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from .... import ops
from ....common.autograd import snapshot
from ....common.precision import without_autocast
from ....drop_in.compiled import is_compiled
from ....drop_in.refusals import refuse_index, refuse_mode
from ....drop_in.stand_ins import inline
from ....graph import Graph
from .. import thresholds as _worth
from ..accounts import fell_back, routed
from ..call import is_first_use, plain
from ..expression import Expression
from ..lower.attention import is_exp_wide, softmax_of
from ..lower.values import shared_values
from ..message import Message, expression_of
from ..options import ON
from ..rows import adds_in_half, as_int64, in_fp32
from ..rules import strides_like
from .scatter import (  # fmt: skip
    FEW_INDEXED,
    Original,
    are_plain_rows,
    graph_between,
    graph_over,
    has_gradient,
    refuse_reduction,
    usable_owner_of,
)


@inline
def softmax(original: Original) -> Original:
    """``utils.softmax``: over the edges that share a node."""
    left_alone, worth, counts, route = is_compiled, _worth, fell_back, _softmax
    ordinary, message, few, of_few = Tensor, Message, ("edge_softmax", "few values"), _softmax_of_few

    def softmax_or_few(
        src: Tensor,
        index: Tensor | None = None,
        ptr: Tensor | None = None,
        num_nodes: int | None = None,
        dim: int = 0,
    ) -> Tensor:
        if left_alone() or not isinstance(src, ordinary):
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
    if ptr is None and num_nodes is not None and are_plain_rows(src, index, dim, rank):
        assert index is not None
        try:
            zeros = src.new_zeros((num_nodes, *src.shape[1:]))
            ids = index.view(-1, *[1] * (rank - 1)).expand_as(src)
            largest = zeros.scatter_reduce(0, ids, src.detach(), "amax", include_self=False)
            powers = (src - largest.index_select(0, index)).exp()
            return powers / (zeros.index_add(0, index, powers) + 1e-16).index_select(0, index)
        except (RuntimeError, IndexError, TypeError):
            pass  # PyG raises its own
    return _left_softmax(original, src, index, ptr, num_nodes, dim)


def _left_softmax(
    original: Original, src: Tensor, index: Tensor | None, ptr: Tensor | None, num_nodes: int | None, dim: int
) -> Tensor:
    """PyG's own softmax."""
    index = as_int64(index)
    if adds_in_half(src):
        return in_fp32("softmax", lambda x: original(x, index, ptr, num_nodes, dim), src)
    return original(src, index, ptr, num_nodes, dim)


def _softmax(
    original: Original, src: Tensor, index: Tensor | None, ptr: Tensor | None, num_nodes: int | None, dim: int
) -> Tensor:
    lazy = expression_of(src)
    strides = strides_like(src if lazy is None else lazy)
    if isinstance(src, Message):
        if ON.fuse and lazy is not None and (out := _deferred(lazy, index, dim, num_nodes)) is not None:
            return out
        src = shared_values(lazy) if lazy is not None and refuse_mode() is None else src.materialized("softmax")
    reason = None if ptr is not None or not isinstance(index, Tensor) else refuse_index(plain(index), src)
    if reason is not None:
        g: Graph | str = reason
    elif _worth.is_small(src, "softmax"):
        g = "few values"
    elif (
        ptr is None
        and isinstance(index, Tensor)
        and is_first_use(index, _worth.weighed(src.numel(), src), has_gradient(src), "softmax")
    ):
        g = "first use of an index"
    elif isinstance(ptr, Tensor) and ptr.dim() == 1:  # which PyG prefers to an index
        g = graph_between(src, "softmax", ptr, dim)
    elif isinstance(index, Tensor):
        g = graph_over(src, "softmax", index, usable_owner_of(index), dim, num_nodes)
    else:
        g = "no index"
    if isinstance(g, str):
        fell_back["edge_softmax", g] += 1
        if g == "first use of an index" and src.numel() <= FEW_INDEXED:
            return _softmax_of_few(original, src, index, ptr, num_nodes, dim)
        return _left_softmax(original, src, index, ptr, num_nodes, dim)
    routed["edge_softmax"] += 1
    if is_exp_wide(src):
        src = src.float()
    with without_autocast(src.device):
        out = _laid_out(ops.edge_softmax(g, src), strides)
    if not out.requires_grad:
        return out
    own = snapshot(out)  # the caller may write into it
    return own.clone() if own is out else own


def _laid_out(x: Tensor, strides: tuple[int, ...] | None) -> Tensor:
    """x with the strides that PyG's operators on every value give it; None for a contiguous tensor."""
    return x if strides is None else x.new_empty_strided(x.shape, strides).copy_(x)


def _deferred(logits: Expression, index: Any, dim: int, num_nodes: int | None) -> Tensor | None:
    """The softmax as a message, which may become a part of a fused attention."""
    owner = usable_owner_of(index) if isinstance(index, Tensor) and refuse_mode() is None else None
    if refuse_reduction(logits, "softmax", owner, dim, num_nodes) is not None:
        return None
    assert owner is not None and num_nodes is not None
    softmax = softmax_of(logits, *owner, num_nodes, ON.fuse_all)
    return None if softmax is None else Message.of(softmax)
