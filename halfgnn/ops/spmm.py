"""SpMM: messages op(u, e) reduced into destination nodes."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch
from torch import Tensor

from ..common.arguments import MESSAGE_OPS, REDUCES, check_name
from ..common.autograd import apply, in_cpp, inputs_of, is_recorded, recorded, saved_tensors, shapes_and_dtypes
from ..common.fake import register_fake
from ..common.operands import check_rows, name_operands, operand_errors
from ..common.precision import autocast_all
from ..graph_argument import GraphLike, as_graph
from ..row_schedule import schedules_of
from ._double_backward import Call, gradients
from ._kept_weights import sorted_weights
from ._operands import broadcast_trailing, check_out_dtype, needs_grad, out_edges
from ._winners import gradients_of_winners, winner_type
from .codes import Codes, sum_of_codes

OPS = (*MESSAGE_OPS, "relu_add", "copy_lhs", "copy_rhs")
# Operators, and their reductions, that follow a schedule of the rows.
SCHEDULED = {"copy_lhs": REDUCES, "copy_rhs": REDUCES, "mul": ("sum", "mean")}

_gspmm = torch.ops.halfgnn.gspmm.default
_gspmm_backward = torch.ops.halfgnn.gspmm_backward.default


@register_fake("gspmm")
def _(indptr, indices, edge_ids, op, reduce, lhs, rhs, out_dtype=None, short_rows=False, save=True, schedule=None):
    feat = rhs if op == "copy_rhs" else lhs
    trailing = broadcast_trailing(op, None if op == "copy_rhs" else lhs.shape, None if op == "copy_lhs" else rhs.shape)
    out = feat.new_empty((indptr.shape[0] - 1, *trailing), dtype=out_dtype or feat.dtype)
    has_winners = reduce in ("max", "min")
    ids = winner_type(indptr, indices) if has_winners and op in ("copy_lhs", "copy_rhs") else indptr.dtype
    return out, indptr.new_empty(out.shape if save and has_winners else (0,), dtype=ids)


@register_fake("gspmm_backward")
def _(
    indptr, indices, edge_ids, in_indptr, by_src, op, reduce, grad, lhs, rhs, arg, lhs_shape, rhs_shape, lhs_dtype, rhs_dtype,
    need_lhs, need_rhs, short_rows=False, in_indices=None, in_edge_ids=None, schedule=None,
):  # fmt: skip
    return (
        grad.new_empty(lhs_shape if need_lhs else (0,), dtype=lhs_dtype),
        grad.new_empty(rhs_shape if need_rhs else (0,), dtype=rhs_dtype),
    )


@in_cpp("gspmm")
class _GSpMM(torch.autograd.Function):
    """gspmm with its gradients. An operand is kept only if a gradient reads it."""

    generate_vmap_rule = True

    @staticmethod
    def forward(
        indptr, indices, edge_ids, out_indptr, out_indices, out_edge_ids, op, reduce, lhs, rhs, out_dtype, short_rows,
        out_short_rows, schedule, out_schedule, in_weights, out_weights,
    ):  # fmt: skip
        if in_weights is not None:
            edge_ids, rhs = None, in_weights
        results = _gspmm(indptr, indices, edge_ids, op, reduce, lhs, rhs, out_dtype, short_rows, True, schedule)
        return results if reduce in ("max", "min") else results[:1]  # sums have no winners

    @staticmethod
    def setup_context(ctx, inputs, output):
        x, needs = _Inputs(*inputs), _Inputs(*ctx.needs_input_grad)
        ctx.set_materialize_grads(False)
        arg = output[1] if x.reduce in ("max", "min") else None
        if arg is not None:
            ctx.mark_non_differentiable(arg)
        keep_lhs = (x.op in ("mul", "div") and needs.rhs) or x.op == "relu_add"
        keep_rhs = (x.op in ("mul", "div") and needs.lhs) or (x.op == "div" and needs.rhs) or x.op == "relu_add"
        ctx.save_for_backward(
            *(x.indptr, x.indices, x.edge_ids),
            *((x.out_indptr, x.out_indices, x.out_edge_ids) if needs.lhs else (None, None, None)),
            x.lhs if keep_lhs else None,
            x.rhs if keep_rhs else None,
            arg,
        )
        ctx.op, ctx.reduce = x.op, x.reduce
        ctx.short_rows = x.short_rows, x.out_short_rows
        # Not among the saved tensors: a checkpoint's second forward may be the one that makes it.
        ctx.out_schedule, ctx.out_weights = x.out_schedule, x.out_weights
        lhs, rhs = x.rhs if x.lhs is None else x.lhs, x.lhs if x.rhs is None else x.rhs
        ctx.shapes, ctx.dtypes = (lhs.shape, rhs.shape), (lhs.dtype, rhs.dtype)

    @staticmethod
    def backward(ctx, grad, *_):
        if grad is None:
            return tuple(_Inputs())
        needs = _Inputs(*ctx.needs_input_grad)
        *sides, lhs, rhs, arg = saved_tensors(ctx, "gspmm")
        grad_lhs, grad_rhs = _differentiated(
            ctx, sides, grad, lhs, rhs, arg, needs.lhs, needs.rhs, ctx.out_weights, ctx.out_schedule
        )
        # A plain tuple: torch.compile of torch 2.11 loses gradients that a named one holds.
        return tuple(_Inputs(lhs=grad_lhs, rhs=grad_rhs))

    @staticmethod
    def gradients(kept, grads, needs):
        x, arg = _Inputs(*kept[:-5]), kept[-5]
        call = _Call(x.op, *shapes_and_dtypes(kept), (x.short_rows, x.out_short_rows), x.reduce)
        return _differentiated(call, kept[:6], grads[0], x.lhs, x.rhs, arg, *needs, x.out_weights, x.out_schedule)


_Inputs = inputs_of(_GSpMM)


def _differentiated(call, sides, grad, lhs, rhs, arg, need_lhs: bool, need_rhs: bool, out_weights, out_schedule):
    """Both gradients, None for one that is not needed, recorded if they are to be. call: as for _gradients."""
    if is_recorded() and arg is None:
        call = _Call(call.op, call.shapes, call.dtypes, call.short_rows, call.reduce)
        return gradients(call, sides, grad, lhs, rhs, need_lhs, need_rhs)
    if out_weights is not None:
        sides, rhs = (*sides[:5], None), out_weights
    args = (call, need_lhs, need_rhs, grad, *sides, lhs, rhs, arg, out_schedule)
    results = _gradients(*args)
    return tuple(x if need else None for x, need in zip(results, (need_lhs, need_rhs)))


def _gradients(
    call, need_lhs: bool, need_rhs: bool, grad, in_indptr, in_indices, in_edge_ids, indptr, indices, edge_ids, lhs, rhs, arg,
    schedule=None,
):  # fmt: skip
    """Both gradients by the raw operator. call: a _Call, or the context of _GSpMM, which has the same attributes. schedule: of the
    out-edges."""
    in_short_rows, short_rows = call.short_rows
    csc = in_indptr, in_indices, in_edge_ids
    if not need_lhs:
        indptr, indices, edge_ids, short_rows, schedule = in_indptr, in_indices, in_edge_ids, in_short_rows, None
    elif indptr is None:
        indptr, indices, edge_ids = out_edges(csc, call.shapes[0][0])
    reads_in_edges = need_rhs if call.op == "mul" else call.op == "copy_lhs" and arg is not None
    if not need_lhs or not reads_in_edges:
        in_indices = in_edge_ids = None
    args = (
        indptr, indices, edge_ids, in_indptr, need_lhs, call.op, call.reduce, grad, lhs, rhs, arg, *call.shapes, *call.dtypes,
        need_lhs, need_rhs, short_rows, in_indices, in_edge_ids, schedule,
    )  # fmt: skip
    if arg is None or not is_recorded():
        return _gspmm_backward(*args)
    again = functools.partial(gradients_of_winners, call.op, call.shapes, call.dtypes, need_lhs, need_rhs)
    return recorded("gspmm", _gspmm_backward, args, again, (*csc, grad, lhs, rhs, arg))


@dataclass(frozen=True)
class _Call(Call):
    reduce: str

    def value(self, sides, lhs, rhs, out_dtype):
        return apply(_GSpMM, *sides, self.op, self.reduce, lhs, rhs, out_dtype, *self.short_rows, *[None] * 4)[0]

    def gradients(self, sides, grad, lhs, rhs, need_lhs, need_rhs):
        return _gradients(self, need_lhs, need_rhs, grad, *sides, lhs, rhs, None)


def gspmm(
    g: GraphLike,
    op: str,
    reduce_op: str,
    lhs_data: Tensor | Codes | None,
    rhs_data: Tensor | None,
    *,
    out_dtype: torch.dtype | None = None,
) -> Tensor:
    """out[v] = reduce over in-edges e = (u, v) of op(lhs_data[u], rhs_data[e]).

    Args:
        g: Graph or DGLGraph.
        op: add, sub, mul, div, relu_add (relu(lhs + rhs), the message of GINE and GENConv), copy_lhs or copy_rhs.
        reduce_op: sum, mean, max or min.
        lhs_data: (num_src, *), unused for copy_rhs. Sums and means of copy_lhs and of mul by one number per edge, or per edge and
            head, also take :class:`halfgnn.dataloading.Codes`, without gradients; out_dtype may then be any dtype of values.
        rhs_data: (E, *), unused for copy_lhs. Trailing shapes broadcast, aligned on the right.
        out_dtype: torch.float32 for an unrounded result of half operands; by default the dtype of lhs_data.

    Operands are fp16, bf16 or fp32 (fp64 on the CPU), of one dtype or one half and one fp32, in either order. Each operand's
    gradient has the operand's dtype. Messages are computed and summed in fp32, and the result is rounded once. Nodes without
    in-edges get 0. For max and min the first edge in CSC order wins a tie, NaN propagates, and only the winner gets a gradient.
    Results are bitwise reproducible. The backward of a sum weighted by one scalar per head is one pass over out-edges that yields
    both gradients, or on CUDA two passes where the weights are scattered over more than the cache and rows are narrow. On the CPU
    the backward of messages of equal shapes is one pass too. Derivatives of every order exist. Semantics follow dgl.ops.gspmm.

    Returns:
        (num_dst, *broadcast trailing shape)

    Raises:
        TypeError: wrong dtypes, or two that do not go together. ValueError: wrong shapes, devices or names.
    """
    g = as_graph(g)
    check_name(op, "op", OPS)
    check_name(reduce_op, "reduce_op", REDUCES)
    check_out_dtype(out_dtype)
    if isinstance(lhs_data, Codes):
        if op != "copy_rhs":
            return sum_of_codes(g, op, reduce_op, lhs_data, rhs_data, out_dtype)
        lhs_data = None
    if op == "copy_lhs":
        rhs_data = None
    else:
        check_rows(rhs_data, "rhs_data", g.num_edges, "e", g.device)
    if op == "copy_rhs":
        lhs_data = None
    else:
        check_rows(lhs_data, "lhs_data", g.num_src, "u", g.device)
    lhs_data, rhs_data = autocast_all(g.device, lhs_data, rhs_data)
    csc = g.csc()
    with_grad = needs_grad(lhs_data, rhs_data)
    reads_csr = with_grad and lhs_data is not None and lhs_data.requires_grad
    schedules = schedules_of(g, reads_csr) if reduce_op in SCHEDULED.get(op, ()) else (None, None)
    may_sort = op == "mul" and reduce_op in ("sum", "mean")
    weights = sorted_weights(g, rhs_data, reads_csr) if may_sort else (None, None)
    if not with_grad:
        indptr, indices, edge_ids = csc
        if weights[0] is not None:
            edge_ids, rhs_data = None, weights[0]
        rest = op, reduce_op, lhs_data, rhs_data, out_dtype, g.short_csc, False, schedules[0]
        return _gspmm(indptr, indices, edge_ids, *rest)[0]
    csr = g.csr() if reads_csr else (None, None, None)
    return apply(
        _GSpMM, *csc, *csr, op, reduce_op, lhs_data, rhs_data, out_dtype, g.short_csc, g.short_csr, *schedules, *weights
    )[0]


def _binary(op: str, reduce: str):
    def function(g: GraphLike, x: Tensor, y: Tensor, *, out_dtype: torch.dtype | None = None) -> Tensor:
        try:
            return gspmm(g, op, reduce, x, y, out_dtype=out_dtype)
        except operand_errors() as error:
            name_operands(error, lhs_data="x", rhs_data="y")
            raise

    function.__doc__ = (
        f"out[v] = {reduce} over in-edges e = (u, v) of {op}(x[u], y[e]). x (num_src, *), y (E, *). See gspmm."
    )
    return f"u_{op}_e_{reduce}", function


def _copy(operand: str, reduce: str):
    def function(g: GraphLike, x: Tensor, *, out_dtype: torch.dtype | None = None) -> Tensor:
        try:
            if operand == "u":
                return gspmm(g, "copy_lhs", reduce, x, None, out_dtype=out_dtype)
            return gspmm(g, "copy_rhs", reduce, None, x, out_dtype=out_dtype)
        except operand_errors() as error:
            name_operands(error, lhs_data="x", rhs_data="x")
            raise

    rows = "num_src" if operand == "u" else "E"
    function.__doc__ = f"out[v] = {reduce} over in-edges e = (u, v) of x[{operand}]. x ({rows}, *). See gspmm."
    return f"copy_{operand}_{reduce}", function


# DGL's names: u_mul_e_sum, copy_u_mean, ...
FUNCTIONS = dict(
    [_binary(op, reduce) for op in (*MESSAGE_OPS, "relu_add") for reduce in REDUCES]
    + [_copy(operand, reduce) for operand in "ue" for reduce in REDUCES]
)
