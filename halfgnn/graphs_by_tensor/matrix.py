"""Graphs of sparse matrices, whose rows are destinations and columns sources."""

from __future__ import annotations

from torch import Tensor

from ..common.caching import may_cache, ordinary, ordinary_tensors
from ..common.ids import INT32_MAX, check_range
from ..graph import Graph
from .store import Topology, known, topology_at


def graph_of_matrix(matrix: Tensor) -> Graph:
    """The Graph of a torch.sparse matrix (CSR, CSC or COO). It is cached until the matrix is modified in place.

    Raises: see Graph.from_torch_sparse.
    """
    topology = known.get(matrix) or Topology()
    g = topology.graphs.get(matrix.shape)
    if g is None:
        with ordinary_tensors():
            g = Graph.from_torch_sparse(matrix)
        if may_cache(g.device):
            topology.graphs[matrix.shape] = g._for_all_streams()
            known.put(matrix, topology)
    return g


def graph_of_coo(index: Tensor, num_rows: int, num_cols: int) -> Graph:
    """The Graph of a matrix that is given by index (2, nnz), of which row 0 has the rows, in any order.

    Raises: ValueError for ids out of range, which are read once.
    """

    def make() -> Graph:
        ids = ordinary(index)
        ids = ids.int() if max(num_rows, num_cols, index.shape[1]) <= INT32_MAX else ids.clone()
        for row, size in enumerate((num_rows, num_cols)):
            check_range(ids[row], f"index[{row}]", size)
        return Graph.from_edges(ids[1], ids[0], num_src=num_cols, num_dst=num_rows, check=False)

    return topology_at(index, "matrix").graph((num_rows, num_cols), make)
