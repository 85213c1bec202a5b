"""The competitors torch.ops.halfgnn.scalar_spmm and scalar_sddmm: their fake kernels. The benchmarks call the operators."""

from __future__ import annotations

from ._fake import register_fake


@register_fake("scalar_spmm")
def _(indptr, indices, edge_ids, op, reduce, lhs, rhs):
    feat = rhs if op == "copy_rhs" else lhs
    out = feat.new_empty((indptr.shape[0] - 1, *feat.shape[1:]))
    return out, indptr.new_empty(out.shape if reduce == "max" else (0,))


@register_fake("scalar_sddmm")
def _(src, dst, op, lhs, rhs, lhs_target, rhs_target):
    return lhs.new_empty((src.shape[0], *lhs.shape[1:-1], *((1,) if op == "dot" else lhs.shape[-1:])))
