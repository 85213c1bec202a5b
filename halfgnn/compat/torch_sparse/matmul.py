"""Products of a sparse matrix with a dense or a sparse one. All take a SparseTensor as src."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ... import ops
from ...common.precision import HALF, may_mix, without_autocast
from ...graph import Graph
from ..torch_scatter import scatter
from .storage import SparseStorage

_REDUCES = {"sum": "sum", "add": "sum", "mean": "mean", "min": "min", "max": "max"}
_OPERATOR_TYPES = (torch.float32, torch.float64, *HALF)


def matmul(src: Any, other: Any, reduce: str = "sum") -> Any:
    """src @ other, a Tensor (*, M, K) for a Tensor, and a SparseTensor for a SparseTensor.

    Args:
        src: SparseTensor (M, N) with values (nnz,) or none, which count as 1.
        other: (*, N, K) or (N,); or a SparseTensor (N, K).
        reduce: of the products of a row: sum (add), mean over the row's entries, min or max. For a SparseTensor sum only.

    Sums of fp16 and bf16 are fp32 and rounded once. The result has the dtype of other, and is 0 for rows without entries. Gradients
    reach the values and other.

    Raises ValueError for wrong shapes or an unknown reduce, TypeError for other types.
    """
    if isinstance(other, Tensor):
        return spmm(src, other, reduce)
    if isinstance(getattr(other, "storage", None), SparseStorage):
        return spspmm(src, other, reduce)
    raise TypeError(f"other is a {type(other).__name__}; expected a Tensor or a SparseTensor")


def spmm(src: Any, other: Tensor, reduce: str = "sum") -> Tensor:
    """The product with a dense matrix. See :func:`matmul`."""
    storage, reduce = src.storage, _checked(reduce)
    if other.dim() == 1:
        return spmm(src, other.unsqueeze(-1), reduce).squeeze(-1)
    if other.dim() == 0 or other.shape[-2] != storage.sparse_size(1):
        raise ValueError(f"other has shape {tuple(other.shape)}; expected (*, {storage.sparse_size(1)}, K)")
    value = storage.value()
    if value is not None and value.dim() != 1:
        raise ValueError(f"src has values of shape {tuple(value.shape)}; expected one number per entry")
    x = other.movedim(-2, 0)
    if has_operator(x):
        out = product(storage.graph(), x, value, reduce)
    else:
        messages = weighted(x.index_select(0, storage.col()), value)
        out = scatter(messages, storage.row(), 0, dim_size=storage.sparse_size(0), reduce=reduce)
    return out.movedim(0, -2).contiguous()


def has_operator(x: Tensor) -> bool:
    """Whether halfgnn's operators take x: not integers, fp64 on the CPU only, and not in code that is compiled."""
    if x.dtype not in _OPERATOR_TYPES or torch.compiler.is_compiling():
        return False
    return x.dtype is not torch.float64 or not x.is_cuda


def product(g: Graph, x: Tensor, value: Tensor | None, reduce: str) -> Tensor:
    """Rows of x (N, *) weighted by value (nnz,) and reduced. Values may be fp32 with half precision, which rounds less."""
    with without_autocast(x.device):
        if value is None:
            return ops.gspmm(g, "copy_lhs", reduce, x, None)
        value = value if may_mix(value.dtype, x.dtype) else value.to(x.dtype)
        return ops.gspmm(g, "mul", reduce, x, value.view(-1, *[1] * (x.dim() - 1))).to(x.dtype)


def weighted(rows: Tensor, value: Tensor | None) -> Tensor:
    if value is None:
        return rows
    return rows * value.to(rows.dtype).view(-1, *[1] * (rows.dim() - 1))


def spmm_sum(src: Any, other: Tensor) -> Tensor:
    return spmm(src, other, "sum")


def spmm_add(src: Any, other: Tensor) -> Tensor:
    return spmm(src, other, "sum")


def spmm_mean(src: Any, other: Tensor) -> Tensor:
    return spmm(src, other, "mean")


def spspmm(src: Any, other: Any, reduce: str = "sum") -> Any:
    """The product with a SparseTensor, which has values unless both have none. Half precision is multiplied in fp32."""
    if _checked(reduce) != "sum":
        raise NotImplementedError(f"reduce is {reduce!r}; a product of two SparseTensors has 'sum' only")
    if src.storage.sparse_size(1) != other.storage.sparse_size(0):
        raise ValueError(f"src has sizes {src.sizes()} and other {other.sizes()}; expected (M, N) and (N, K)")
    values = [tensor.storage.value() for tensor in (src, other)]
    dtypes = {value.dtype for value in values if value is not None} or {torch.float32}
    dtype = max(dtypes, key=lambda dtype: torch.finfo(dtype).bits if dtype.is_floating_point else 0)
    if not dtype.is_floating_point or any(value is not None and value.dim() != 1 for value in values):
        raise TypeError(f"values are {values}; expected one floating-point number per entry")
    wide = torch.float32 if dtype in HALF else dtype
    a, b = (tensor.to_torch_sparse_coo_tensor(wide).to(wide) for tensor in (src, other))
    result = torch.sparse.mm(a, b).coalesce()
    row, col = result.indices()
    has_value = any(value is not None for value in values)
    return src.from_storage(
        SparseStorage(
            row=row,
            col=col,
            value=result.values().to(dtype) if has_value else None,
            sparse_sizes=(src.storage.sparse_size(0), other.storage.sparse_size(1)),
            is_sorted=True,
            trust_data=True,
        )
    )


def spspmm_sum(src: Any, other: Any) -> Any:
    return spspmm(src, other, "sum")


def spspmm_add(src: Any, other: Any) -> Any:
    return spspmm(src, other, "sum")


def _checked(reduce: str) -> str:
    if reduce not in _REDUCES:
        raise ValueError(f"reduce is {reduce!r}; expected one of {', '.join(_REDUCES)}")
    return _REDUCES[reduce]
