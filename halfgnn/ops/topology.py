"""Fake kernels of the operators on adjacencies alone, which halfgnn.Graph and halfgnn.reorder call."""

from __future__ import annotations

import torch

from ..common.fake import register_fake


@register_fake("coo_to_csr")
def _(row, col, num_rows):
    return row.new_empty(num_rows + 1), torch.empty_like(row), torch.empty_like(row)


@register_fake("transpose")
def _(indptr, indices, edge_ids, num_cols):
    return indptr.new_empty(num_cols + 1), torch.empty_like(indices), torch.empty_like(indices)


@register_fake("reorder")
def _(indptr, indices, out_indptr, out_indices):
    return indptr.new_empty(indptr.numel() - 1)


@register_fake("locality")
def _(indices, num_cols, window):
    return indices.new_empty(2, dtype=torch.int64)
