"""Wrappers of products of a sparse matrix and features: utils.spmm of torch.sparse matrices, and EdgeIndex.matmul."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ....common.compat import is_exporting
from ....common.precision import without_autocast
from ....drop_in.compiled import is_compiled, leave_out, skip_frames
from ....drop_in.gate import Reason, index_reason, mode_reason, operands_reason
from ....drop_in.wrappers import inline
from ....expressions.propagation import Propagation
from ....expressions.rows import adds_in_half, in_fp32
from ....graph import Graph
from ....graphs_by_tensor.matrix import graph_of_matrix
from ....graphs_by_tensor.store import is_heard_of
from ...modules.base import reduced
from ..accounts import fell_back, routed
from ..call import plain
from ..calls import REDUCES
from ..gate import FallBack, eager_reason, ids_reason, require
from ..options import ON
from ..size import Size, has_gradient, weighed

Original = Callable[..., Any]


def edge_index_spmm(
    original: Original, input: Any, other: Any, value: Any = None, reduce: str = "sum", transpose: bool = False
) -> Any:
    """``torch_geometric.edge_index._spmm``, of an EdgeIndex that is sorted by the rows of the result."""
    row = 1 if transpose else 0  # which row of edge_index has the ends
    edges, reason = Propagation(plain(input), [None, None]), None
    try:
        if not (input.is_sorted_by_col if transpose else input.is_sorted_by_row):
            raise FallBack(Reason.NOT_SORTED)
        require(_reason(other, value, reduce, input.shape[1]) or index_reason(plain(input), other))
        num_nodes = input.get_sparse_size(row)
        require(ids_reason(edges, row, num_nodes) or ids_reason(edges, 1 - row, other.shape[0]))
    except FallBack as left:
        reason = left.reason
    if reason is not None:
        fell_back["spmm", reason] += 1
        return original(input, other, value, reduce, transpose)
    return _product(edges.into(row, num_nodes, other.shape[0]), other, value, reduce, False)


@inline
def spmm(original: Original) -> Original:
    """``utils.spmm``. torch.compile ends its graph at sparse matrices, so their products are made between two graphs."""
    left_alone, ends_a_graph, product = is_compiled, _ends_a_graph, _spmm

    def spmm(src: Any, other: Any, reduce: str = "sum") -> Any:
        if left_alone() and not ends_a_graph(src):
            return original(src, other, reduce)
        return product(original, src, other, reduce)

    return spmm


def _ends_a_graph(src: Any) -> bool:
    """Whether torch.compile ends its graph at the matrix. torch.export has it in its graph."""
    return _is_sparse(src) and not is_exporting()


skip_frames(_ends_a_graph)


def _is_sparse(src: Any) -> bool:
    return type(src) is Tensor and src.layout in (torch.sparse_csr, torch.sparse_csc, torch.sparse_coo)


def _spmm(original: Original, src: Any, other: Any, reduce: str) -> Any:
    if not _is_sparse(src):
        return original(src, other, reduce)
    in_half = _is_in_half(src, other)
    reason = None
    try:
        values = _checked_values(src, other, reduce, in_half)
    except FallBack as left:
        reason = left.reason
    if reason is not None:
        fell_back["spmm", reason] += 1
        is_in_coo = in_half and src.layout == torch.sparse_coo and reason is not Reason.FEW_VALUES
        if is_in_coo and mode_reason(may_be_watched=True) is None:
            return in_fp32("spmm", lambda x: original(src.to(torch.float32), x, reduce), other)
        return original(src, other, reduce)
    # torch.sparse.mm is a product, which autocast makes in half precision; its reductions on the CPU are not.
    is_product = reduce in ("sum", "add") or (reduce == "mean" and (other.is_cuda or src.layout == torch.sparse_csc))
    return _product(graph_of_matrix(src), other, values, reduce, is_product)


leave_out(_spmm, "products of sparse matrices are made between two graphs")


def _checked_values(matrix: Tensor, x: Any, reduce: str, in_half: bool) -> Tensor:
    """The values of a matrix of which halfgnn makes the product with x; raises FallBack if PyG does."""
    size = Size(weighed(_num_values(matrix, x), x), has_gradient(x)) if isinstance(x, Tensor) else None
    if not in_half and size is not None and x.dim() == matrix.dim() == 2 and size.is_below_limit():
        raise FallBack(Reason.FEW_VALUES)
    if matrix.requires_grad:
        raise FallBack(Reason.GRADIENT_OF_MATRIX)
    if matrix.dim() != 2 or matrix.dense_dim() or not matrix._nnz() or matrix.is_inference():
        raise FallBack(Reason.ANOTHER_MATRIX)
    values = matrix._values() if matrix.layout == torch.sparse_coo else matrix.values()
    require(_reason(x, values, reduce, values.shape[0]))
    if matrix.device != x.device or matrix.shape[1] != x.shape[0]:
        raise FallBack(Reason.ANOTHER_MATRIX)
    assert size is not None
    if not in_half and not is_heard_of(matrix) and not size.pays_for(matrix):
        raise FallBack(Reason.FIRST_USES_OF_MATRIX)
    return values


def _num_values(matrix: Tensor, x: Tensor) -> int:
    return matrix._nnz() * (x.shape[1] if x.dim() == 2 else 1)


def _is_in_half(matrix: Tensor, x: Any) -> bool:
    """Whether PyTorch would add the product up in half precision, as in COO layout, or has no operator for it."""
    return isinstance(x, Tensor) and adds_in_half(x) and matrix.dtype is x.dtype


def _reason(x: Any, value: Any, reduce: str, num_edges: int) -> str | None:
    reason = eager_reason(x)
    if reason is not None:
        return reason
    if reduce not in REDUCES:
        return Reason.NO_OPERATOR
    if x.dim() != 2 or (value is not None and value.shape != (num_edges,)):
        return Reason.ANOTHER_DIMENSION
    return None if value is None else operands_reason((x, value))


def _product(g: Graph, x: Tensor, value: Tensor | None, reduce: str, is_cast: bool) -> Tensor:
    """is_cast: autocast applies, as it does to torch_geometric's own function."""
    routed[f"gspmm:{'copy_u' if value is None else 'u_mul_e'}_{REDUCES[reduce]}"] += 1
    with contextlib.nullcontext() if is_cast or ON.half else without_autocast(x.device):
        return reduced(g, REDUCES[reduce], x, None if value is None else value.view(-1, 1))
