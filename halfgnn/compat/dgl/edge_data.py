"""What ``dgl.graph`` and its like take for edges, as tensors."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from .base import DGLError, check_idtype
from .topology import Relation

_CPU = torch.device("cpu")


class EdgeData(NamedTuple):
    """Edges before the numbers of nodes are known.

    Attributes:
        form: "coo" with the arrays (src, dst), "csr" or "csc" with (indptr, indices, edge ids, which may be empty).
        least: numbers of source and destination nodes that there are at least.
    """

    form: str
    arrays: tuple[Tensor, ...]
    least: tuple[int, int]

    def relation(self, num_src: int, num_dst: int, name: str = "data") -> Relation:
        """The Relation. Raises DGLError if the edges name more nodes."""
        for count, least, side in ((num_src, self.least[0], "source"), (num_dst, self.least[1], "destination")):
            if count < least:
                raise DGLError(f"{name} has {least} {side} nodes; expected at most {count}, the number of nodes given")
        if self.form == "coo":
            src, dst = self.arrays
            return Relation.from_edges(src, dst, num_src, num_dst, check=False)
        rows, others = (num_src, num_dst) if self.form == "csr" else (num_dst, num_src)
        indptr, indices, edge_ids = self.arrays
        if indptr.numel() != rows + 1:
            raise DGLError(
                f"the indptr of {name} has {indptr.numel()} entries; expected {rows + 1}, one more than nodes"
            )
        return Relation.from_compressed(self.form, indptr, indices, edge_ids, others)

    def to(self, idtype: torch.dtype, device: torch.device) -> EdgeData:
        """With another dtype of ids, on another device."""
        return self._replace(arrays=tuple(array.to(device=device, dtype=idtype) for array in self.arrays))


def edge_data(data: Any, idtype: Any = None, device: Any = None) -> EdgeData:
    """Of (src, dst), ("coo", (src, dst)), ("csr" or "csc", (indptr, indices, edge ids)), pairs, a scipy matrix or a networkx graph.

    idtype: by default that of tensors, or int64.
    """
    dtype = None if idtype is None else check_idtype(idtype)
    form, arrays, shape = _form_of(data)
    if any(isinstance(array, Tensor) for array in arrays):
        device = next(array.device for array in arrays if isinstance(array, Tensor)) if device is None else device
    tensors = [_ids(array) for array in arrays]
    if dtype is None:
        given = [tensor.dtype for tensor, array in zip(tensors, arrays) if isinstance(array, Tensor)]
        dtype = given[0] if given else torch.int64
        if len(set(given)) > 1 or dtype not in (torch.int32, torch.int64):
            raise DGLError(f"the edges have dtypes {given}; expected one, torch.int32 or torch.int64")
    moved = tuple(tensor.to(device=device, dtype=dtype) for tensor in tensors)
    return EdgeData(form, moved, _least(form, moved) if shape is None else shape)


def _form_of(data: Any) -> tuple[str, tuple, tuple[int, int] | None]:
    """The form, the arrays, and numbers of nodes if the data has them."""
    if hasattr(data, "format") and hasattr(data, "tocoo"):
        return _of_scipy(data)
    if hasattr(data, "nodes") and hasattr(data, "is_directed"):
        return _of_networkx(data)
    if isinstance(data, Tensor) and data.dim() == 2 and data.shape[0] == 2:
        data = data[0], data[1]
    if isinstance(data, list):
        pairs = np.asarray(data).reshape(-1, 2) if len(data) else np.zeros((0, 2), dtype=np.int64)
        return "coo", (pairs[:, 0], pairs[:, 1]), None
    if not isinstance(data, tuple) or not data:
        raise DGLError(
            f"data is a {type(data).__name__}; expected a pair of source and destination ids, ('coo', 'csr' or 'csc', tensors),"
            " a list of pairs, or a scipy matrix"
        )
    form, arrays = (data[0], tuple(data[1])) if isinstance(data[0], str) else ("coo", data)
    if form not in ("coo", "csr", "csc") or len(arrays) != (2 if form == "coo" else 3):
        raise DGLError(
            f"data has {len(arrays)} arrays of the form {form!r}; expected two of 'coo', or three of 'csr' or 'csc'"
        )
    return form, arrays, None


def _of_scipy(matrix: Any) -> tuple[str, tuple, tuple[int, int]]:
    if matrix.format in ("csr", "csc"):
        return matrix.format, (matrix.indptr, matrix.indices, np.zeros(0, dtype=np.int64)), matrix.shape
    matrix = matrix.tocoo()
    return "coo", (matrix.row, matrix.col), matrix.shape


def _of_networkx(graph: Any) -> tuple[str, tuple, tuple[int, int]]:
    """Nodes are sorted. Each edge of an undirected graph becomes two."""
    ids = {node: i for i, node in enumerate(sorted(graph.nodes()))}
    edges = list((graph if graph.is_directed() else graph.to_directed()).edges())
    return "coo", ([ids[u] for u, _ in edges], [ids[v] for _, v in edges]), (len(ids), len(ids))


def _ids(array: Any) -> Tensor:
    if not isinstance(array, Tensor):
        if not isinstance(array, np.ndarray):
            array = [int(i) if isinstance(i, Tensor) else i for i in array]
        array = np.asarray(array)
        if array.size == 0:
            array = array.astype(np.int64)
        if array.dtype.kind not in "iu":
            raise DGLError(f"the edges have dtype {array.dtype}; expected integers")
        array = torch.from_numpy(np.ascontiguousarray(array.astype(np.int64, copy=True)))
    if array.dtype.is_floating_point or array.dtype == torch.bool:
        raise DGLError(f"the edges have dtype {array.dtype}; expected integers")
    if array.dim() != 1:
        raise DGLError(f"the ids of edges have shape {tuple(array.shape)}; expected one dimension")
    return array


def _least(form: str, arrays: tuple[Tensor, ...]) -> tuple[int, int]:
    if form == "coo":
        src, dst = arrays
        if src.shape != dst.shape:
            raise DGLError(f"there are {src.numel()} sources and {dst.numel()} destinations; expected equally many")
        return _one_more(src), _one_more(dst)
    rows, others = arrays[0].numel() - 1, _one_more(arrays[1])
    return (rows, others) if form == "csr" else (others, rows)


def _one_more(ids: Tensor) -> int:
    if not ids.numel():
        return 0
    low, high = (int(bound) for bound in torch.aminmax(ids))
    if low < 0:
        raise DGLError(f"the edges have a node {low}; expected no negative ids")
    return high + 1
