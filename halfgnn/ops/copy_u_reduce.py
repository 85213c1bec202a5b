"""Several reductions of neighbours' features in one pass."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ..common.arguments import check_number
from ..common.autograd import SCALAR_TYPES, apply, in_cpp, inputs_of, is_recorded, pull_back, recorded, saved_tensors
from ..common.fake import register_fake
from ..common.operands import check_rows, name_operands, operand_errors
from ..common.precision import HALF, autocast
from ..graph_argument import GraphLike, as_graph
from ._operands import check_out_dtype, graph_of, needs_grad, out_edges
from ._winners import elements_at, source_ids, winner_type
from .sddmm import gsddmm
from .spmm import gspmm

REDUCTIONS = ("sum", "mean", "max", "min", "var", "std")  # in the order of the raw operator's results
STD_EPS = 1e-5  # of torch_geometric's StdAggregation

_copy_u_reduce = torch.ops.halfgnn.copy_u_reduce.default
_copy_u_reduce_backward = torch.ops.halfgnn.copy_u_reduce_backward.default


@register_fake("copy_u_reduce")
def _(indptr, indices, edge_ids, feat, reduces, eps, out_dtype=None, save=False, short_rows=False):
    shape = (indptr.shape[0] - 1, *feat.shape[1:])
    kept = torch.float64 if feat.dtype == torch.float64 else torch.float32
    ids = winner_type(indptr, indices)

    def result(is_needed, dtype):
        return feat.new_empty(shape if is_needed else (0,), dtype=dtype)

    reduces = reduces.split(",")
    squares = "var" in reduces or "std" in reduces
    return (
        *(result(name in reduces, out_dtype or feat.dtype) for name in REDUCTIONS),
        *(result(save and name in reduces, ids) for name in ("max", "min")),
        result(save and squares, kept),
        result(save and "std" in reduces, kept),
    )


@register_fake("copy_u_reduce_backward")
def _(
    indptr, indices, edge_ids, in_indptr, feat, feat_shape, feat_dtype, sum, mean, max, min, var, std, arg_max, arg_min,
    kept_mean, kept_std, short_rows=False, in_indices=None, in_edge_ids=None,
):  # fmt: skip
    return indptr.new_empty(feat_shape, dtype=feat_dtype)


@in_cpp("copy_u_reduce")
class _CopyUReduce(torch.autograd.Function):
    """The results of the raw operator, of which those in `reduces` have a gradient."""

    generate_vmap_rule = True

    @staticmethod
    def forward(
        indptr, indices, edge_ids, out_indptr, out_indices, out_edge_ids, x, reduces, eps, out_dtype, short_rows,
        out_short_rows,
    ):  # fmt: skip
        return _copy_u_reduce(indptr, indices, edge_ids, x, reduces, eps, out_dtype, True, short_rows)

    @staticmethod
    def setup_context(ctx, inputs, output):
        a = _Inputs(*inputs)
        results, kept = output[: len(REDUCTIONS)], output[len(REDUCTIONS) :]
        ctx.mark_non_differentiable(
            *(r for r, name in zip(results, REDUCTIONS) if name not in a.reduces.split(",")), *kept
        )
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(
            *(a.indptr, a.indices, a.edge_ids, a.out_indptr, a.out_indices, a.out_edge_ids),
            a.x if "var" in a.reduces or "std" in a.reduces else None,
            *kept,
        )
        ctx.call = _Call(a.reduces, a.eps, a.x.shape, a.x.dtype, a.out_short_rows)

    @staticmethod
    def backward(ctx, *grads):
        if all(grad is None for grad in grads):
            return tuple(_Inputs())
        return tuple(_Inputs(x=_differentiated(ctx.call, saved_tensors(ctx, "copy_u_reduce"), grads)))

    @staticmethod
    def gradients(kept, grads, needs):
        x, (*ends, shape, dtype) = _Inputs(*kept[:12]), kept[12:]
        call = _Call(x.reduces, x.eps, torch.Size(shape), SCALAR_TYPES[dtype], x.out_short_rows)
        return (_differentiated(call, (*kept[:7], *ends), grads),)


class _Call(NamedTuple):
    """What is no tensor of a call. x has the shape and the dtype, short_rows are those of the out-edges."""

    reduces: str
    eps: float
    shape: torch.Size
    dtype: torch.dtype
    short_rows: bool


_Inputs = inputs_of(_CopyUReduce)


def _differentiated(call: _Call, saved: Sequence, grads: Sequence) -> Tensor | None:
    """The gradient of x, recorded if it is to be."""
    # Code that is compiled gives gradients of the empty results too.
    names = call.reduces.split(",")
    cotangents = [grad if name in names else None for grad, name in zip(grads, REDUCTIONS)]
    _, _, largest, smallest, var, std = cotangents
    if all(grad is None for grad in cotangents):
        return None
    (indptr, indices, edge_ids), out, (x, arg_max, arg_min, kept_mean, kept_std) = saved[:3], saved[3:6], saved[6:]
    if out[0] is None:
        out = out_edges((indptr, indices, edge_ids), call.shape[0])
    if std is not None and call.eps < STD_EPS:
        kept_std = _above_rounding(kept_std, kept_mean)
    args = (
        *out, indptr, None if var is None and std is None else x, call.shape, call.dtype, *cotangents,
        None if largest is None else arg_max, None if smallest is None else arg_min,
        None if var is None and std is None else kept_mean, None if std is None else kept_std, call.short_rows,
        *((None, None) if largest is None and smallest is None else (indices, edge_ids)),
    )  # fmt: skip
    if is_recorded():
        again = functools.partial(_gradient, call.shape, call.dtype)
        inputs = indptr, indices, edge_ids, *out, x, arg_max, arg_min, kept_std, *cotangents
        return recorded("copy_u_reduce", _copy_u_reduce_backward, args, again, inputs)
    return _copy_u_reduce_backward(*args)


def _gradient(shape, dtype, indptr, indices, edge_ids, *saved):
    """The gradient of x as a function of x and the gradients of the results, which autograd differentiates."""
    csr, (x, *kept), grads = saved[:3], saved[3:7], saved[7:]
    g = graph_of((indptr, indices, edge_ids), csr, shape[0], indptr.shape[0] - 1)
    wide = torch.promote_types(dtype, torch.float32)
    cotangents = {name: grad for name, grad in zip(REDUCTIONS, grads) if grad is not None}
    if x is None:  # which linear results do not read
        x = next(iter(cotangents.values())).new_zeros(shape)

    def results(x):
        return [_composed(g, name, x, *kept) for name in cotangents]

    (gradient,) = pull_back(results, [x.to(wide)], [True], [grad.to(wide) for grad in cotangents.values()])
    return None if gradient is None else gradient.to(dtype)


def _composed(g, name: str, x: Tensor, arg_max: Tensor, arg_min: Tensor, kept_std: Tensor) -> Tensor:
    """A result by operators that autograd differentiates twice. Those of squares keep numbers of edges."""
    if name in ("max", "min"):
        return elements_at(x, source_ids(g, arg_max if name == "max" else arg_min))
    if name in ("sum", "mean"):
        return gspmm(g, "copy_lhs", name, x, None)
    mean = gspmm(g, "copy_lhs", "mean", x, None)
    var = gspmm(g, "copy_rhs", "mean", None, gsddmm(g, "sub", x, mean, "u", "v").square())
    if name == "var":
        return var
    is_zero = kept_std == 0
    return torch.where(is_zero, 0.0, torch.where(is_zero, 1.0, var).sqrt())


def _above_rounding(std: Tensor, mean: Tensor) -> Tensor:
    """std, but 0 where its mean may be rounded by more: the gradient divides distances from the mean by it."""
    return torch.where(std < mean.abs() * (torch.finfo(mean.dtype).eps / 2), 0.0, std)


def copy_u_reduce(
    g: GraphLike, x: Tensor, reduces: Sequence[str], *, eps: float = STD_EPS, out_dtype: torch.dtype | None = None
) -> tuple[Tensor, ...]:
    """Several reductions over the in-edges (u, v) of every node v of x[u], in one pass over them.

    Args:
        g: Graph or DGLGraph.
        x: (num_src, *), fp16, bf16 or fp32 (fp64 on the CPU).
        reduces: the reductions, in the order of the results, each at most once:
            sum, mean, max, min: as in gspmm.
            var: the biased variance, the mean of (x[u] - mean[v])**2, as torch_geometric's VarAggregation.
            std: the root of var where var is greater than eps. Elsewhere std and its gradient are 0, as in torch_geometric's
                StdAggregation. eps=0 gives the std of dgl.nn.PNAConv, sqrt(var + 1e-30), but for its 1e-15. With an eps below 1e-5
                no gradient comes from a std that is less than the rounding of its mean, as that of equal features is.
        eps: see std; not negative.
        out_dtype: torch.float32 for unrounded results of half operands; by default the dtype of x.

    Sums are fp32 and results are rounded once. Squares are of distances from means, so that features that lie far from 0 keep
    their digits. Nodes without in-edges get 0 everywhere, and no gradient comes from them. For max and min the first edge in
    CSC order wins a tie, NaN propagates, and only the winner gets a gradient. Results are bitwise reproducible. The backward is
    one pass over out-edges; it keeps x, means and std in fp32 (for var and std), and winners, but nothing per edge. Derivatives
    of every order exist.

    Returns:
        A tuple of tensors (num_dst, *), one for each name in reduces.

    Raises:
        TypeError: wrong dtypes. ValueError: wrong shapes or devices; reduces that are empty, unknown or repeated; a negative eps.

    Example::

        mean, largest, smallest, std = halfgnn.ops.copy_u_reduce(g, x, ("mean", "max", "min", "std"))
    """
    g = as_graph(g)
    reduces = checked_reductions(reduces)
    eps = check_number(eps, "eps")
    if eps < 0:
        raise ValueError(f"eps is {eps}; expected a number that is not negative")
    check_out_dtype(out_dtype)
    check_rows(x, "x", g.num_src, "u", g.device)
    try:
        return _reduced(g, autocast(x), reduces, eps, out_dtype)
    except operand_errors() as error:
        name_operands(error, **{"lhs_data has": "x has", "feat has": "x has"})
        raise


def _reduced(g, x: Tensor, reduces: tuple[str, ...], eps: float, out_dtype: torch.dtype | None) -> tuple[Tensor, ...]:
    if len(reduces) == 1 and reduces[0] not in ("var", "std"):
        return (gspmm(g, "copy_lhs", reduces[0], x, None, out_dtype=out_dtype),)
    if set(reduces) == {"sum", "mean"}:
        return _sum_and_mean(g, x, reduces, out_dtype)
    csc = g.csc()
    names = ",".join(reduces)
    if needs_grad(x):
        csr = g.csr() if x.requires_grad else (None, None, None)
        results = apply(_CopyUReduce, *csc, *csr, x, names, eps, out_dtype, g.short_csc, g.short_csr)
    else:
        results = _copy_u_reduce(*csc, x, names, eps, out_dtype, False, g.short_csc)
    return tuple(results[REDUCTIONS.index(name)] for name in reduces)


def checked_reductions(reduces) -> tuple[str, ...]:
    expected = f"expected some of {', '.join(REDUCTIONS)}"
    if isinstance(reduces, str) or not isinstance(reduces, Sequence):
        raise TypeError(f"reduces is {reduces!r}; expected a tuple or list of names, some of {', '.join(REDUCTIONS)}")
    if not reduces:
        raise ValueError(f"reduces is empty; {expected}")
    for i, name in enumerate(reduces):
        if name not in REDUCTIONS:
            raise ValueError(f"reduces has {name!r}; {expected}")
        if name in reduces[:i]:
            raise ValueError(f"reduces has {name!r} twice; {expected}, each at most once")
    return tuple(reduces)


def _sum_and_mean(g, x: Tensor, reduces: tuple[str, ...], out_dtype: torch.dtype | None) -> tuple[Tensor, ...]:
    """By one sum."""
    if out_dtype not in (None, x.dtype) and not (x.dtype in HALF and out_dtype == torch.float32):
        expected = f"{x.dtype} or torch.float32" if x.dtype in HALF else x.dtype
        raise TypeError(f"out_dtype is {out_dtype}; expected {expected}")
    wide = torch.float32 if x.dtype in HALF else None
    total = gspmm(g, "copy_lhs", "sum", x, None, out_dtype=wide)
    degree = g.csc().indptr.diff().clamp(min=1).to(total.dtype)
    results = {"sum": total, "mean": total / degree.view(-1, *[1] * (total.dim() - 1))}
    return tuple(results[name].to(out_dtype or x.dtype) for name in reduces)
