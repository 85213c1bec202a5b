"""SDDMM: a result for every edge, from the data of its ends and of the edge itself."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import permutations

import torch
from torch import Tensor

from ..common.arguments import MESSAGE_OPS, check_name
from ..common.autograd import apply, in_cpp, inputs_of, is_recorded, saved_tensors, shapes_and_dtypes
from ..common.fake import register_fake
from ..common.operands import check_operand, name_operands, operand_errors
from ..common.precision import autocast, autocast_all
from ..graph_argument import GraphLike, as_graph
from ._double_backward import Call, gradients
from ._operands import (
    broadcast_trailing,
    check_out_dtype,
    needs_grad,
    out_edges,
    promoted_type,
    target_of,
)

OPS = (*MESSAGE_OPS, "dot", "copy_lhs", "copy_rhs")

_gsddmm = torch.ops.halfgnn.gsddmm.default
_gsddmm_backward = torch.ops.halfgnn.gsddmm_backward.default
_u_add_v_add_e = torch.ops.halfgnn.u_add_v_add_e.default


@register_fake("gsddmm")
def _(indptr, indices, edge_ids, op, lhs, rhs, lhs_target, rhs_target, out_dtype=None):
    lhs, rhs = None if op == "copy_rhs" else lhs, None if op == "copy_lhs" else rhs
    trailing = broadcast_trailing(op, None if lhs is None else lhs.shape, None if rhs is None else rhs.shape)
    return (rhs if lhs is None else lhs).new_empty(
        (indices.shape[0], *trailing), dtype=out_dtype or promoted_type(lhs, rhs)
    )


@register_fake("u_add_v_add_e")
def _(indptr, indices, edge_ids, x, y, z, out_dtype=None):
    return z.new_empty(z.shape, dtype=out_dtype or x.dtype)


@register_fake("gsddmm_backward")
def _(
    indptr, indices, edge_ids, by_src, op, side, grad, lhs, rhs, lhs_target, rhs_target, lhs_shape, rhs_shape, dtype,
    short_rows=False,
):  # fmt: skip
    return grad.new_empty(lhs_shape if side == "lhs" else rhs_shape, dtype=dtype)


@in_cpp("gsddmm")
class _GSDDMM(torch.autograd.Function):
    """gsddmm with its gradients. Each is a sum over the edges of the operand's nodes, walked from that side."""

    generate_vmap_rule = True

    @staticmethod
    def forward(
        indptr, indices, edge_ids, out_indptr, out_indices, out_edge_ids, op, lhs, rhs, lhs_target, rhs_target, out_dtype,
        short_rows, out_short_rows,
    ):  # fmt: skip
        return _gsddmm(indptr, indices, edge_ids, op, lhs, rhs, lhs_target, rhs_target, out_dtype)

    @staticmethod
    def setup_context(ctx, inputs, output):
        x, needs = _Inputs(*inputs), _Inputs(*ctx.needs_input_grad)
        keep_lhs = x.op in ("mul", "div", "dot") and needs.rhs
        keep_rhs = (x.op in ("mul", "div", "dot") and needs.lhs) or (x.op == "div" and needs.rhs)
        in_edges, out_edges = (x.indptr, x.indices, x.edge_ids), (x.out_indptr, x.out_indices, x.out_edge_ids)
        ctx.save_for_backward(*in_edges, *out_edges, x.lhs if keep_lhs else None, x.rhs if keep_rhs else None)
        ctx.op, ctx.targets = x.op, (x.lhs_target, x.rhs_target)
        ctx.short_rows = x.short_rows, x.out_short_rows
        lhs, rhs = x.rhs if x.lhs is None else x.lhs, x.lhs if x.rhs is None else x.rhs
        ctx.shapes, ctx.dtypes = (lhs.shape, rhs.shape), (lhs.dtype, rhs.dtype)

    @staticmethod
    def backward(ctx, grad):
        *sides, lhs, rhs = saved_tensors(ctx, "gsddmm")
        needs = _Inputs(*ctx.needs_input_grad)
        grad_lhs, grad_rhs = _differentiated(ctx, sides, grad, lhs, rhs, needs.lhs, needs.rhs)
        return tuple(_Inputs(lhs=grad_lhs, rhs=grad_rhs))

    @staticmethod
    def gradients(kept, grads, needs):
        x = _Inputs(*kept[:-4])
        targets = x.lhs_target, x.rhs_target
        call = _Call(x.op, *shapes_and_dtypes(kept), (x.short_rows, x.out_short_rows), targets)
        return _differentiated(call, kept[:6], grads[0], x.lhs, x.rhs, *needs)


_Inputs = inputs_of(_GSDDMM)


def _differentiated(call, sides, grad, lhs, rhs, need_lhs: bool, need_rhs: bool):
    """Both gradients, recorded if they are to be. call: as for _gradients."""
    if is_recorded():
        call = _Call(call.op, call.shapes, call.dtypes, call.short_rows, call.targets)
        return gradients(call, sides, grad, lhs, rhs, need_lhs, need_rhs)
    is_compiling = torch.compiler.is_compiling()
    return _gradients(call, sides, grad, lhs, rhs, need_lhs, need_rhs, may_pass_on=not is_compiling)


def _gradients(
    call, sides, grad, lhs, rhs, need_lhs: bool, need_rhs: bool, may_pass_on: bool = False
) -> tuple[Tensor | None, Tensor | None]:
    """Both gradients by the raw operator. call: a _Call, or the context of _GSDDMM, which has the same attributes.

    may_pass_on: whether a gradient can be `grad` itself.
    """
    short_rows, out_short_rows = call.short_rows

    def gradient(side: str, target: str, dtype: torch.dtype) -> Tensor:
        shape = call.shapes[0 if side == "lhs" else 1]
        if may_pass_on and _is_passed_on(call.op, side, target) and grad.shape == shape and grad.dtype is dtype:
            return grad
        by_src = target == "u"
        rows = sides[3:] if by_src else sides[:3]
        if rows[0] is None:
            rows = out_edges(sides[:3], shape[0])
        return _gsddmm_backward(
            *rows, by_src, call.op, side, grad, lhs, rhs, *call.targets, *call.shapes, dtype,
            out_short_rows if by_src else short_rows,
        )  # fmt: skip

    return (
        gradient("lhs", call.targets[0], call.dtypes[0]) if need_lhs else None,
        gradient("rhs", call.targets[1], call.dtypes[1]) if need_rhs else None,
    )


def _is_passed_on(op: str, side: str, target: str) -> bool:
    """Whether the gradient of the result is that of an operand of edges."""
    return target == "e" and (op in ("add", f"copy_{side}") or (op == "sub" and side == "lhs"))


@dataclass(frozen=True)
class _Call(Call):
    targets: tuple[str, str]

    def value(self, sides, lhs, rhs, out_dtype):
        return apply(_GSDDMM, *sides, self.op, lhs, rhs, *self.targets, out_dtype, *self.short_rows)

    def gradients(self, sides, grad, lhs, rhs, need_lhs, need_rhs):
        return _gradients(self, sides, grad, lhs, rhs, need_lhs, need_rhs)


def gsddmm(
    g: GraphLike,
    op: str,
    lhs_data: Tensor | None,
    rhs_data: Tensor | None,
    lhs_target: str = "u",
    rhs_target: str = "v",
    *,
    out_dtype: torch.dtype | None = None,
) -> Tensor:
    """out[e] = op(lhs_data[lhs_target of e], rhs_data[rhs_target of e]) for every edge e.

    Args:
        g: Graph or DGLGraph.
        op: add, sub, mul, div, dot, copy_lhs or copy_rhs. dot sums the last dimension and keeps it as 1.
        lhs_data, rhs_data: (num_src, *), (num_dst, *) or (E, *) for target u, v or e. An operand that op does not read is ignored.
            Trailing shapes broadcast, aligned on the right.
        out_dtype: torch.float32 for an unrounded result of half operands (a dot past 65504, say); by default the operands' dtype.

    Operands are fp16, bf16 or fp32 (fp64 on the CPU), of one dtype or one half and one fp32. The result of a half and an fp32
    operand is fp32, and each operand's gradient has the operand's dtype. Results are computed in fp32 and rounded once. Derivatives
    of every order exist. Semantics follow dgl.ops.gsddmm.

    Returns:
        (E, *broadcast trailing shape)

    Raises:
        TypeError: wrong dtypes, or two that do not go together. ValueError: wrong shapes, devices or names.
    """
    g = as_graph(g)
    check_name(op, "op", OPS)
    check_out_dtype(out_dtype)
    lhs_target, rhs_target = (
        target_of(lhs_target, "lhs_target"),
        target_of(rhs_target, "rhs_target"),
    )
    if op == "copy_lhs":
        rhs_data = None
    else:
        check_operand(rhs_data, "rhs_data", g, rhs_target)
    if op == "copy_rhs":
        lhs_data = None
    else:
        check_operand(lhs_data, "lhs_data", g, lhs_target)
    lhs_data, rhs_data = autocast_all(g.device, lhs_data, rhs_data)
    csc = g.csc()
    if not needs_grad(lhs_data, rhs_data):
        return _gsddmm(*csc, op, lhs_data, rhs_data, lhs_target, rhs_target, out_dtype)
    by_src = any(
        t == "u" and x is not None and x.requires_grad for t, x in ((lhs_target, lhs_data), (rhs_target, rhs_data))
    )
    csr = g.csr() if by_src else (None, None, None)
    return apply(
        _GSDDMM, *csc, *csr, op, lhs_data, rhs_data, lhs_target, rhs_target, out_dtype, g.short_csc, g.short_csr
    )


class _AddThree(torch.autograd.Function):
    """u_add_v_add_e with its gradients: those of x and y are u_add_v's, and that of z is the result's own."""

    generate_vmap_rule = True

    @staticmethod
    def forward(
        indptr, indices, edge_ids, out_indptr, out_indices, out_edge_ids, x, y, z, out_dtype, short_rows, out_short_rows
    ):
        return _u_add_v_add_e(indptr, indices, edge_ids, x, y, z, out_dtype)

    @staticmethod
    def setup_context(ctx, inputs, output):
        x = _AddInputs(*inputs)
        ctx.save_for_backward(x.indptr, x.indices, x.edge_ids, x.out_indptr, x.out_indices, x.out_edge_ids)
        ctx.call = _Call(
            "add", (x.x.shape, x.y.shape), (x.x.dtype, x.y.dtype), (x.short_rows, x.out_short_rows), ("u", "v")
        )

    @staticmethod
    def backward(ctx, grad):
        needs = _AddInputs(*ctx.needs_input_grad)
        make = gradients if is_recorded() else _gradients
        grad_x, grad_y = make(ctx.call, ctx.saved_tensors, grad, None, None, needs.x, needs.y)
        return tuple(_AddInputs(x=grad_x, y=grad_y, z=grad.to(ctx.call.dtypes[0]) if needs.z else None))


_AddInputs = inputs_of(_AddThree)


def u_add_v_add_e(g: GraphLike, x: Tensor, y: Tensor, z: Tensor, *, out_dtype: torch.dtype | None = None) -> Tensor:
    """out[e] = x[u] + y[v] + z[e] for every edge e = (u, v): the first layer of MeshGraphNet's and EGAT's edges.

    Args:
        g: Graph or DGLGraph.
        x, y, z: (num_src, *), (num_dst, *) and (E, *) of one trailing shape.
        out_dtype: torch.float32 for an unrounded result of half operands; by default the operands' dtype.

    Operands are fp16, bf16 or fp32 (fp64 on the CPU), of one dtype. They are added up in fp32 and rounded once. Derivatives
    of every order exist. A GPU adds z in a second pass.

    Returns:
        (E, *)

    Raises:
        TypeError: wrong or mixed dtypes. ValueError: wrong shapes or devices.
    """
    g = as_graph(g)
    check_out_dtype(out_dtype)
    for operand, name, target in ((x, "x", "u"), (y, "y", "v"), (z, "z", "e")):
        check_operand(operand, name, g, target)
    x, y, z = autocast(x), autocast(y), autocast(z)
    csc = g.csc()
    if not needs_grad(x, y, z):
        return _u_add_v_add_e(*csc, x, y, z, out_dtype)
    csr = g.csr() if x.requires_grad else (None, None, None)
    return apply(_AddThree, *csc, *csr, x, y, z, out_dtype, g.short_csc, g.short_csr)


def _binary(op: str, lhs_target: str, rhs_target: str):
    def function(g: GraphLike, x: Tensor, y: Tensor, *, out_dtype: torch.dtype | None = None) -> Tensor:
        try:
            return gsddmm(g, op, x, y, lhs_target, rhs_target, out_dtype=out_dtype)
        except operand_errors() as error:
            name_operands(error, lhs_data="x", rhs_data="y")
            raise

    function.__doc__ = f"out[e] = {op}(x[{lhs_target}], y[{rhs_target}]) for every edge e = (u, v). See gsddmm."
    return f"{lhs_target}_{op}_{rhs_target}", function


def _copy(target: str):
    def function(g: GraphLike, x: Tensor, *, out_dtype: torch.dtype | None = None) -> Tensor:
        try:
            return gsddmm(g, "copy_lhs", x, None, target, "v", out_dtype=out_dtype)
        except operand_errors() as error:
            name_operands(error, lhs_data="x")
            raise

    function.__doc__ = f"out[e] = x[{target}] for every edge e = (u, v). See gsddmm."
    return f"copy_{target}", function


# DGL's names: u_dot_v, e_sub_v, copy_u, ...
FUNCTIONS = dict(
    [_binary(op, lhs, rhs) for op in (*MESSAGE_OPS, "dot") for lhs, rhs in permutations("uve", 2)]
    + [_copy(target) for target in "uve"]
)
