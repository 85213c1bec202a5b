"""Adjacency: one compressed side of a graph, and how its tensors are checked and made."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from . import _library
from .common.arguments import checked_size
from .common.caching import ordinary, ordinary_tensors
from .common.ids import check_alike, check_count, check_fits, check_ids, check_range, check_readable, num_nodes_of

Bound = int | None  # of a degree; None: not known


class Adjacency(NamedTuple):
    """A compressed adjacency: CSC (rows are destinations) or CSR (rows are sources)."""

    indptr: Tensor  # (rows + 1,)
    indices: Tensor  # (E,)
    edge_ids: Tensor | None  # (E,); None: edge data is stored in this order


def adjacency_of(side) -> Adjacency | None:
    """A side that a constructor was given, of tensors that may be kept."""
    if side is None:
        return None
    indptr, indices, edge_ids = side
    return Adjacency(ordinary(indptr), ordinary(indices), None if edge_ids is None else ordinary(edge_ids))


def contiguous_ids(tensor: Tensor, name: str) -> Tensor:
    """Ids as kernels take them.

    Raises TypeError or ValueError for other dtypes and shapes, RuntimeError on a GPU that the library has no kernels for.
    """
    check_ids(tensor, name)
    if tensor.is_cuda:
        _library.check_device(tensor.device)
    return tensor.contiguous()


def checked_edges(
    src: Tensor,
    dst: Tensor,
    num_src: Any,
    num_dst: Any,
    check: bool,
    names: Sequence[str] = ("src", "dst"),
    origins: Sequence[str] = ("num_src", "num_dst"),
) -> tuple[Tensor, Tensor, int, int]:
    """The ends of edges as kernels take them, and the numbers of nodes, by default one more than the largest id.

    check: that ids are in range. names, origins: the caller's for the ids and for the numbers.
    """
    src, dst = contiguous_ids(src, names[0]), contiguous_ids(dst, names[1])
    check_alike(dst, names[1], src, names[0])
    if src.shape != dst.shape:
        raise ValueError(
            f"{names[0]} has shape {tuple(src.shape)} and {names[1]} {tuple(dst.shape)}; expected equal shapes"
        )
    num_src = check_count(num_nodes_of(src, names[0]) if num_src is None else num_src, "num_src")
    num_dst = check_count(num_nodes_of(dst, names[1]) if num_dst is None else num_dst, "num_dst")
    check_fits(src.dtype, num_src=num_src, num_dst=num_dst, num_edges=src.numel())
    if check:
        for ids, name, count, origin in zip((src, dst), names, (num_src, num_dst), origins):
            check_range(ids, name, count, f"{origin} of them")
    return src, dst, num_src, num_dst


def checked_bounds(max_in_degree: Any, max_out_degree: Any) -> tuple[Bound, Bound]:
    """Bounds of degrees as a caller gives them. Raises TypeError or ValueError for what is no size."""
    return (
        None if max_in_degree is None else checked_size(max_in_degree, "max_in_degree"),
        None if max_out_degree is None else checked_size(max_out_degree, "max_out_degree"),
    )


def largest_degree(indptr: Tensor) -> int | None:
    """Of the rows of an indptr on the CPU. None for other devices, and for tensors that hold no numbers."""
    if torch.compiler.is_dynamo_compiling() or indptr.device.type != "cpu" or type(indptr) is not Tensor:
        return None
    with ordinary_tensors():
        return int(indptr.diff().max()) if indptr.numel() > 1 else 0


def indptr_of_sorted(rows: Tensor, num_rows: int, check: bool) -> Tensor:
    """indptr (num_rows + 1,) of edges that are stored by row, from the rows (E,) of the edges."""
    if check and bool((rows[1:] < rows[:-1]).any()):
        at = int((rows[1:] < rows[:-1]).int().argmax())
        raise ValueError(f"dst falls from {int(rows[at])} to {int(rows[at + 1])} at edge {at + 1}; expected it sorted")
    with ordinary_tensors(rows):
        bounds = torch.arange(num_rows + 1, dtype=rows.dtype, device=rows.device)
        return torch.searchsorted(rows, bounds, out_int32=rows.dtype == torch.int32)


def compressed(
    kind: str,
    indptr: Tensor,
    indices: Tensor,
    edge_ids: Tensor | None,
    num_cols: int | None,
    check: bool,
) -> tuple[Adjacency, int]:
    """One side of a graph, validated, and its number of columns."""
    indptr, indices = contiguous_ids(indptr, "indptr"), contiguous_ids(indices, "indices")
    check_alike(indices, "indices", indptr, "indptr")
    if edge_ids is not None:
        edge_ids = contiguous_ids(edge_ids, "edge_ids")
        check_alike(edge_ids, "edge_ids", indptr, "indptr")
        if edge_ids.numel() != indices.numel():
            raise ValueError(
                f"edge_ids has shape {tuple(edge_ids.shape)}; expected that of indices, {tuple(indices.shape)}"
            )
    if indptr.numel() == 0:
        raise ValueError("indptr is empty; expected one entry more than there are rows")
    if num_cols is None:
        num_cols = num_nodes_of(indices, "indices")
    num_cols = check_count(num_cols, "num_src" if kind == "csc" else "num_dst")
    check_fits(
        indptr.dtype,
        num_edges=indices.numel(),
        **{"num_src" if kind == "csc" else "num_dst": num_cols},
    )
    if check:
        check_readable(indptr, "indptr")
        if int(indptr[0]) != 0 or int(indptr[-1]) != indices.numel():
            raise ValueError(
                f"indptr runs from {int(indptr[0])} to {int(indptr[-1])}; expected 0 to {indices.numel()}, the number of edges"
            )
        if bool((indptr[1:] < indptr[:-1]).any()):
            row = int((indptr[1:] < indptr[:-1]).int().argmax())
            raise ValueError(
                f"indptr falls from {int(indptr[row])} to {int(indptr[row + 1])} at row {row}; expected a non-decreasing sequence"
            )
        check_range(indices, "indices", num_cols)
        if edge_ids is not None:
            check_range(edge_ids, "edge_ids", indices.numel())
            seen = torch.zeros(indices.numel(), dtype=torch.bool, device=indices.device)
            seen[edge_ids.long()] = True
            if not bool(seen.all()):
                raise ValueError(
                    f"edge_ids misses {int((~seen).int().argmax())}; expected a permutation of 0..{indices.numel() - 1}"
                )
    return Adjacency(indptr, indices, edge_ids), num_cols


def read_scipy(matrix: Any) -> tuple[str, list[Tensor], dict[str, int]]:
    """Of a scipy sparse matrix of destinations x sources: the constructor of Graph that takes it, and its arguments."""
    if not hasattr(matrix, "format"):
        raise TypeError(f"matrix is a {type(matrix).__name__}; expected a scipy sparse matrix")
    if matrix.ndim != 2:
        raise ValueError(f"matrix has {matrix.ndim} dimensions; expected 2")
    num_dst, num_src = matrix.shape
    if matrix.format == "coo":
        return "from_edges", _copied(matrix.col, matrix.row), {"num_src": num_src, "num_dst": num_dst}
    if matrix.format == "csc":
        return "from_csr", _copied(matrix.indptr, matrix.indices), {"num_dst": num_dst}
    matrix = matrix.tocsr()
    return "from_csc", _copied(matrix.indptr, matrix.indices), {"num_src": num_src}


def _copied(*arrays: Any) -> list[Tensor]:
    return [torch.from_numpy(array.copy()) for array in arrays]


def row_sizes(indptr: Tensor) -> Tensor:
    """The number of entries of each row, indptr.diff(). Inductor of torch 2.11 does not compile slices of sizes that are known when
    the code runs."""
    if not torch.compiler.is_compiling():
        return indptr.diff()
    count = indptr.shape[0] - 1
    return indptr.as_strided((count,), (1,), 1) - indptr.as_strided((count,), (1,), 0)


def edges_of(side: Adjacency) -> tuple[Tensor, Tensor]:
    """Rows and columns of all edges, (E,) each, in the order of edge data."""
    indptr, cols, edge_ids = side
    rows = torch.repeat_interleave(
        torch.arange(indptr.numel() - 1, dtype=indptr.dtype, device=indptr.device),
        indptr.diff(),
        output_size=cols.numel(),
    )
    if edge_ids is not None:
        order = edge_ids.long()
        rows = torch.empty_like(rows).index_copy_(0, order, rows)
        cols = torch.empty_like(cols).index_copy_(0, order, cols)
    return rows, cols
