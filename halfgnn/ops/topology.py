"""The operators that build adjacencies: fake kernels, and CUDA kernels made of torch's own sort. halfgnn.Graph calls them."""

from __future__ import annotations

import torch
from torch import Tensor

from .. import _library  # noqa: F401


@torch.library.register_fake("halfgnn::coo_to_csr")
def _(row, col, num_rows):
    return row.new_empty(num_rows + 1), torch.empty_like(row), torch.empty_like(row)


@torch.library.register_fake("halfgnn::transpose")
def _(indptr, indices, edge_ids, num_cols):
    return indptr.new_empty(num_cols + 1), torch.empty_like(indices), torch.empty_like(indices)


def sort_coo(row: Tensor, col: Tensor, num_rows: int) -> tuple[Tensor, Tensor, Tensor]:
    """coo_to_csr by a stable sort and a binary search of the row boundaries: no host synchronisation."""
    sorted_row, order = torch.sort(row, stable=True)
    boundaries = torch.arange(num_rows + 1, dtype=row.dtype, device=row.device)
    indptr = torch.searchsorted(sorted_row, boundaries, out_int32=row.dtype == torch.int32)
    return indptr, col[order], order.to(row.dtype)


def transpose_by_sort(
    indptr: Tensor, indices: Tensor, edge_ids: Tensor | None, num_cols: int
) -> tuple[Tensor, Tensor, Tensor]:
    """transpose by :func:`sort_coo`."""
    nodes = torch.arange(indptr.shape[0] - 1, dtype=indptr.dtype, device=indptr.device)
    row = torch.repeat_interleave(nodes, indptr.diff(), output_size=indices.shape[0])
    out_indptr, out_indices, order = sort_coo(indices, row, num_cols)
    return out_indptr, out_indices, order if edge_ids is None else edge_ids[order.long()]


torch.library.impl("halfgnn::coo_to_csr", "CUDA", sort_coo)
torch.library.impl("halfgnn::transpose", "CUDA", transpose_by_sort)
