"""Graphs of index vectors and of offsets: by what rows are reduced, where there is no edge_index.

The Graph of an index (E,) has an edge per entry, from the node that the entry names to itself. Operators read its in-edges only.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..common.caching import is_captured, ordinary, ordinary_tensors, refuse_capture
from ..common.ids import INT32_MAX
from ..graph import Graph
from .store import Topology, topology_at

HEAD = 4096  # entries of an index that are looked at first: most unsorted ones fall there. So many are sorted soon


def graph_of_index(topology: Topology, index: Tensor, num_rows: int, most_unseen: int = 0) -> Graph:
    """The Graph of an index (E,) of ids below num_rows, whose topology this is.

    most_unseen: so many entries are sorted without a look at whether they are.
    """

    def make() -> Graph:
        return _make(index, num_rows, index.shape[0] > most_unseen and is_sorted(topology, index))

    return topology.graph((num_rows, num_rows), make)


def bounds_of(topology: Topology, index: Tensor) -> tuple[int, int]:
    """The smallest and the largest id of an index, (0, -1) of none. They are cached.

    Raises RuntimeError if they have to be read while a CUDA graph is captured.
    """
    if topology.bounds is None:
        refuse_capture(index.device, "index is not known yet, so its ids have to be read", "call the function once")
        with ordinary_tensors():
            if index.numel() == 0:
                ends: tuple[Tensor | int, ...] = (0, -1)
            else:
                ends = (index[0], index[-1]) if topology.is_sorted else torch.aminmax(index)
            topology.bounds = [(int(ends[0]), int(ends[1]))]
    return topology.bounds[0]


def is_sorted(topology: Topology, index: Tensor) -> bool:
    """Whether an index (E,) is known to be sorted. It is looked at once, and not while a CUDA graph is captured."""
    if topology.is_sorted is None:
        if is_captured(index.device):
            return False
        with ordinary_tensors():
            topology.is_sorted = _rises(index)
    return topology.is_sorted


def graph_of_offsets(ptr: Tensor, num_edges: int | None = None, name: str = "ptr") -> Graph | None:
    """The Graph of segments that follow one another, from offsets (S + 1,); None unless they rise from 0 to num_edges.

    num_edges: None for what they end with. name: of the offsets, for the error.

    Raises RuntimeError if they have to be read while a CUDA graph is captured.
    """
    topology = topology_at(ptr, "offsets")
    if topology.bounds is None:
        refuse_capture(ptr.device, f"{name} is not known yet, so its offsets have to be read", "call the function once")
        with ordinary_tensors():
            topology.bounds = [(int(ptr[0]), int(ptr[-1])) if _rises(ptr) else (-1, -1)]
    first, last = topology.bounds[0]
    if first != 0 or (num_edges is not None and last != num_edges):
        return None
    return topology.graph(last, lambda: _make_between(ptr, last))


def _rises(ids: Tensor) -> bool:
    return _is_no_fall(ids[:HEAD]) and (ids.shape[0] <= HEAD or _is_no_fall(ids))


def _is_no_fall(ids: Tensor) -> bool:
    return bool((ids[1:] >= ids[:-1]).all())


def _make(index: Tensor, num_rows: int, is_sorted: bool) -> Graph:
    is_short = max(num_rows, index.shape[0]) <= INT32_MAX
    # The Graph holds the ids if they are sorted: the index may be modified in place.
    ids = ordinary(index).to(torch.int32 if is_short else torch.int64, copy=is_sorted).contiguous()
    if not is_sorted:
        return Graph.from_edges(ids, ids, num_src=num_rows, num_dst=num_rows, check=False)
    indptr = torch._convert_indices_from_coo_to_csr(ids, num_rows, out_int32=is_short)
    return Graph(num_rows, num_rows, (indptr, ids, None))


def _make_between(ptr: Tensor, num_edges: int) -> Graph:
    num_rows = ptr.shape[0] - 1
    indptr = ordinary(ptr).to(torch.int32 if max(num_rows, num_edges) <= INT32_MAX else torch.int64, copy=True)
    rows = torch.arange(num_rows, dtype=indptr.dtype, device=ptr.device)
    return Graph(num_rows, num_rows, (indptr, rows.repeat_interleave(indptr.diff(), output_size=num_edges), None))
