"""Second derivatives of gspmm and gsddmm: the gradients of their operands as functions that autograd differentiates.

Write f(lhs, rhs) for the operator, and grad for the gradient of its result. The gradients of the operands are those of
<grad, f(lhs, rhs)>. Let x and y be the gradients of these gradients. So the backward of the backward needs the gradients of
<grad, Df(lhs, rhs)[x, y]>, where Df[x, y] is the derivative of f in the direction of x and y:

    mul, dot            Df[x, y] = f(x, rhs) + f(lhs, y); of lhs and rhs: the gradients of f's operands at (x, y)
    add, sub, copies    Df[x, y] = f(x, y); it does not depend on lhs and rhs
    div                 is mul by 1 / rhs, and the chain rule for 1 / rhs
    relu_add            Df[x, y] = mask (x + y) by edges, where lhs + rhs > 0, summed; its derivatives by lhs and rhs are 0, which
                        are zeros and not None, as those of PyTorch's relu

These are the same operators and gradients again, so derivatives of every order exist. _winners.py has those of max and min.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from .. import _library  # noqa: F401  (loads torch.ops.halfgnn)
from ..common.autograd import apply, inputs_of

_gsddmm = torch.ops.halfgnn.gsddmm.default

Pair = tuple[Tensor | None, Tensor | None]  # of the left and the right operand
Sides = tuple[Tensor | None, ...]  # CSC and CSR: indptr, indices and edge_ids of each


@dataclass(frozen=True)
class Call:
    """A call of gspmm or gsddmm but for its tensors."""

    op: str
    shapes: tuple[torch.Size, torch.Size]  # of the operands
    dtypes: tuple[torch.dtype, torch.dtype]
    short_rows: tuple[bool, bool]  # of CSC and CSR

    def value(self, sides: Sides, lhs: Tensor | None, rhs: Tensor | None, out_dtype: torch.dtype) -> Tensor:
        """The operator's result, which autograd differentiates."""
        raise NotImplementedError

    def gradients(
        self, sides: Sides, grad: Tensor, lhs: Tensor | None, rhs: Tensor | None, need_lhs: bool, need_rhs: bool
    ) -> Pair:
        """The gradients of the operands by the raw operators."""
        raise NotImplementedError


def gradients(
    call: Call, sides: Sides, grad: Tensor, lhs: Tensor | None, rhs: Tensor | None, need_lhs: bool, need_rhs: bool
) -> Pair:
    """The gradients of the call's operands, None unless needed, recorded for another derivative."""
    if not need_lhs and not need_rhs:
        return None, None
    grad_lhs, grad_rhs = apply(_Gradients, call, need_lhs, need_rhs, grad, lhs, rhs, *sides)
    return (grad_lhs if need_lhs else None, grad_rhs if need_rhs else None)


class _Gradients(torch.autograd.Function):
    """The gradients of a call's operands. One that is not needed is empty."""

    generate_vmap_rule = True

    @staticmethod
    def forward(
        call, need_lhs, need_rhs, grad, lhs, rhs, indptr, indices, edge_ids, out_indptr, out_indices, out_edge_ids
    ):
        sides = indptr, indices, edge_ids, out_indptr, out_indices, out_edge_ids
        gradients = call.gradients(sides, grad, lhs, rhs, need_lhs, need_rhs)
        return tuple(grad.new_empty((0,)) if x is None else x for x in gradients)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.call, _, _, *tensors = inputs
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*tensors)

    @staticmethod
    def backward(ctx, to_lhs, to_rhs):
        grad, lhs, rhs, *sides = ctx.saved_tensors
        if to_lhs is None and to_rhs is None:
            return tuple(_Inputs())
        needs = _Inputs(*ctx.needs_input_grad)
        needed = needs.grad, needs.lhs, needs.rhs
        derivative = _DERIVATIVES.get(ctx.call.op, _of_sum)
        of_grad, of_lhs, of_rhs = derivative(ctx.call, sides, grad, lhs, rhs, to_lhs, to_rhs, *needed)
        return tuple(_Inputs(grad=of_grad, lhs=of_lhs, rhs=of_rhs))


_Inputs = inputs_of(_Gradients)


# ---- gradients of <grad, Df(lhs, rhs)[x, y]>, where x or y may be None, which counts as 0 ----------------------------------------

Three = tuple[Tensor | None, Tensor | None, Tensor | None]  # of grad, of lhs, of rhs


def _of_sum(call, sides, grad, lhs, rhs, x, y, need_grad, need_lhs, need_rhs) -> Three:
    if not need_grad:
        return None, None, None
    if call.op.startswith("copy") or (x is not None and y is not None):
        return call.value(sides, x, y, grad.dtype), None, None
    op, own = ("copy_rhs", y) if x is None else ("copy_lhs", x)
    value = replace(call, op=op).value(sides, x, y, torch.promote_types(grad.dtype, own.dtype))
    value = value.reshape(grad.shape[:1] + (1,) * (grad.dim() - value.dim()) + value.shape[1:]).expand(grad.shape)
    return (-value if call.op == "sub" and x is None else value).to(grad.dtype), None, None


def _of_product(call, sides, grad, lhs, rhs, x, y, need_grad, need_lhs, need_rhs) -> Three:
    of_grad = None
    if need_grad:
        terms = [(a, b) for a, b in ((x, rhs), (lhs, y)) if a is not None and b is not None]
        dtype = grad.dtype if len(terms) == 1 else torch.promote_types(grad.dtype, torch.float32)
        values = [call.value(sides, a, b, dtype) for a, b in terms]
        of_grad = (values[0] if len(values) == 1 else values[0] + values[1]).to(grad.dtype)
    return of_grad, *gradients(call, sides, grad, x, y, need_lhs and y is not None, need_rhs and x is not None)


def _of_quotient(call, sides, grad, lhs, rhs, x, y, need_grad, need_lhs, need_rhs) -> Three:
    """In fp32 for half types, because the inverse would be rounded."""
    wide = torch.promote_types(grad.dtype, torch.float32)
    product = replace(call, op="mul", dtypes=(wide, wide))
    grad_type, grad, inverse = grad.dtype, grad.to(wide), rhs.to(wide).reciprocal()
    lhs, x, y = _cast(lhs, wide), _cast(x, wide), _cast(y, wide)
    to_inverse = None if y is None else -y * inverse * inverse
    of_grad, of_lhs, of_inverse = _of_product(
        product, sides, grad, lhs, inverse, x, to_inverse, need_grad, need_lhs, need_rhs
    )
    of_rhs = None if of_inverse is None else -of_inverse * inverse * inverse
    if need_rhs and y is not None:  # to_inverse depends on rhs
        _, slope = gradients(product, sides, grad, lhs, None, False, True)
        assert slope is not None
        change = 2 * slope * y * inverse * inverse * inverse
        of_rhs = change if of_rhs is None else of_rhs + change
    return _cast(of_grad, grad_type), _cast(of_lhs, call.dtypes[0]), _cast(of_rhs, call.dtypes[1])


def _of_relu(call, sides, grad, lhs, rhs, x, y, need_grad, need_lhs, need_rhs) -> Three:
    """The mask of the edges is made, which a first derivative does without."""
    of_lhs, of_rhs = (torch.zeros_like(z) if need else None for z, need in ((lhs, need_lhs), (rhs, need_rhs)))
    if not need_grad:
        return None, of_lhs, of_rhs
    wide = torch.promote_types(grad.dtype, torch.float32)
    shape = grad.shape[1:]
    message = _gsddmm(*sides[:3], "add", lhs.detach(), rhs.detach(), "u", "e", wide)
    mask = (~(message <= 0)).to(wide)
    product = replace(call, op="mul", shapes=((call.shapes[0][0], *shape), mask.shape), dtypes=(wide, wide))
    terms = []
    if x is not None:
        terms.append(product.value(sides, aligned(x, shape).to(wide), mask, wide))
    if y is not None:
        weighted = aligned(y, shape).to(wide) * mask
        terms.append(replace(product, op="copy_rhs").value(sides, None, weighted, wide))
    return sum(terms[1:], terms[0]).to(grad.dtype), of_lhs, of_rhs


def aligned(x: Tensor, shape: torch.Size) -> Tensor:
    """Rows of x broadcast to a trailing shape."""
    ones = (1,) * (len(shape) + 1 - x.dim())
    return x.reshape(x.shape[:1] + ones + x.shape[1:]).expand(x.shape[0], *shape)


_DERIVATIVES = {"mul": _of_product, "dot": _of_product, "div": _of_quotient, "relu_add": _of_relu}


def _cast(x: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    return None if x is None else x.to(dtype)
