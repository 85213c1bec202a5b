"""Stand-ins for products of a sparse matrix and features: utils.spmm of torch.sparse matrices, and EdgeIndex.matmul."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ....common.precision import without_autocast
from ....drop_in.refusals import refuse, refuse_index, refuse_mode
from ....graph import Graph
from ....graphs_by_tensor.matrix import graph_of_matrix
from ....graphs_by_tensor.store import is_heard_of
from ...modules.base import reduced
from .. import thresholds as _worth
from ..accounts import fell_back, routed
from ..call import Propagation, plain
from ..options import ON
from ..rows import adds_in_half, in_fp32
from ..uses import is_worth_a_graph
from .scatter import REDUCES, refuse_ids, refuse_rows

Original = Callable[..., Any]


def edge_index_spmm(
    original: Original, input: Any, other: Any, value: Any = None, reduce: str = "sum", transpose: bool = False
) -> Any:
    """``torch_geometric.edge_index._spmm``, of an EdgeIndex that is sorted by the rows of the result."""
    is_sorted = input.is_sorted_by_col if transpose else input.is_sorted_by_row
    row = 1 if transpose else 0  # which row of edge_index has the ends
    reason = _refuse(other, value, reduce, input.shape[1]) if is_sorted else "not sorted"
    reason = reason or refuse_index(plain(input), other)
    edges = Propagation(plain(input), [None, None])
    if reason is None:
        num_nodes = input.get_sparse_size(row)
        reason = refuse_ids(edges, row, num_nodes) or refuse_ids(edges, 1 - row, other.shape[0])
    if reason is not None:
        fell_back["spmm", reason] += 1
        return original(input, other, value, reduce, transpose)
    return _product(edges.into(row, num_nodes, other.shape[0]), other, value, reduce, False)


def spmm(original: Original, src: Any, other: Any, reduce: str = "sum") -> Any:
    """``utils.spmm``."""
    is_sparse = type(src) is Tensor and src.layout in (torch.sparse_csr, torch.sparse_csc, torch.sparse_coo)
    if not is_sparse:
        return original(src, other, reduce)
    in_half = _is_in_half(src, other)
    if not in_half and _is_small(src, other):
        fell_back["spmm", "few values"] += 1
        return original(src, other, reduce)
    reason = "gradient of the matrix" if src.requires_grad else None
    if reason is None and (src.dim() != 2 or src.dense_dim() or not src._nnz() or src.is_inference()):
        reason = "another matrix"
    values = _values(src) if reason is None else None
    if values is not None:
        reason = _refuse(other, values, reduce, values.shape[0])
        if reason is None and (src.device != other.device or src.shape[1] != other.shape[0]):
            reason = "another matrix"
    if reason is not None:
        fell_back["spmm", reason] += 1
        if in_half and src.layout == torch.sparse_coo and refuse_mode(may_be_watched=True) is None:
            return in_fp32("spmm", lambda x: original(src.to(torch.float32), x, reduce), other)
        return original(src, other, reduce)
    is_known = in_half or is_heard_of(src)
    if not is_known and not is_worth_a_graph(src, src._nnz() * other.shape[1], _needs_gradient(other)):
        fell_back["spmm", "first uses of a matrix"] += 1
        return original(src, other, reduce)
    # torch.sparse.mm is a product, which autocast makes in half; its reductions on the CPU are not.
    is_product = reduce in ("sum", "add") or (reduce == "mean" and (other.is_cuda or src.layout == torch.sparse_csc))
    return _product(graph_of_matrix(src), other, values, reduce, is_product)


def _is_in_half(matrix: Tensor, x: Any) -> bool:
    """Whether PyTorch would add the product up in half, as it does of a matrix in COO layout, or has no operator for it."""
    return isinstance(x, Tensor) and adds_in_half(x) and matrix.dtype is x.dtype


def _is_small(matrix: Tensor, x: Any) -> bool:
    """Whether a product takes less time than looking its graph up."""
    if not isinstance(x, Tensor) or x.dim() != 2 or matrix.dim() != 2:
        return False
    return _worth.are_few(_worth.weighed(matrix._nnz() * x.shape[1], x), _needs_gradient(x), False)


def _needs_gradient(x: Tensor) -> bool:
    return x.requires_grad and torch.is_grad_enabled()


def _refuse(x: Any, value: Any, reduce: str, num_edges: int) -> str | None:
    reason = refuse_mode(may_be_watched=True) or refuse_rows(x)
    if reason is not None:
        return reason
    if reduce not in REDUCES:
        return "no such operator"
    if x.dim() != 2 or (value is not None and value.shape != (num_edges,)):
        return "another dimension"
    return None if value is None else refuse((x, value))


def _product(g: Graph, x: Tensor, value: Tensor | None, reduce: str, is_cast: bool) -> Tensor:
    """is_cast: autocast applies, as it does to torch_geometric's own function."""
    routed[f"gspmm:{'copy_u' if value is None else 'u_mul_e'}_{REDUCES[reduce]}"] += 1
    with contextlib.nullcontext() if is_cast or ON.half else without_autocast(x.device):
        return reduced(g, REDUCES[reduce], x, None if value is None else value.view(-1, 1))


def _values(matrix: Tensor) -> Tensor:
    return matrix._values() if matrix.layout == torch.sparse_coo else matrix.values()
