"""Fake kernels of the operators on adjacencies alone, which halfgnn.Graph, halfgnn.reorder and NeighborSampler call."""

from __future__ import annotations

import torch

from ..common.fake import arguments_of, register_fake


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


_NeighborSample = arguments_of(torch.ops.halfgnn.neighbor_sample.default)


@register_fake("neighbor_sample")
def _(*args, **kwargs):
    a = _NeighborSample(*args, **kwargs)
    size = torch.library.get_ctx().new_dynamic_size  # a sample's sizes depend on the graph
    ids, local = a.seeds[0], torch.int32
    hops = len(a.fanouts) // max(len(a.indptr), 1)
    nodes = [ids.new_empty(size()) for _ in a.seeds]
    trees = [ids.new_empty(len(found), dtype=local) for found in nodes] if a.disjoint else []
    edges = [ids.new_empty(size()) for _ in a.fanouts]
    sources = [torch.empty_like(found, dtype=local) for found in edges]
    offsets = [ids.new_empty(size(), dtype=local) for _ in a.fanouts]
    return nodes, trees, offsets, sources, edges, ids.new_empty((hops + 1, len(nodes)), dtype=torch.int64)
