"""Groups of an index: halfgnn's Graph of it, which is made once (see halfgnn/graphs_by_tensor/index.py)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ...common.arguments import checked_integer
from ...common.caching import unwrapped
from ...common.ids import check_count
from ...common.operands import check_tensor
from ...graph import Graph
from ...graphs_by_tensor.index import HEAD, bounds_of, graph_of_index
from ...graphs_by_tensor.store import Topology, topology_at
from .utils import broadcast


def check_index(src: Tensor, index: Tensor, dim: int, name: str = "index", lengths: tuple[int, ...] = ()) -> int:
    """dim, counted from the front.

    lengths: that index may have at dim; by default those that broadcast against src.

    Raises:
        IndexError: src does not have the dimension.
        TypeError, ValueError: index is no tensor of ids on the device of src that broadcasts against it.
    """
    check_tensor(src, "src")
    check_tensor(index, name)
    dim = dim if type(dim) is int else checked_integer(dim, "dim", "a dimension of src")
    if not -src.dim() <= dim < src.dim():
        raise IndexError(
            f"dim is {dim}; expected one of the {src.dim()} dimensions of src, of shape {tuple(src.shape)}"
        )
    dim = dim if dim >= 0 else dim + src.dim()
    if index.dtype is not torch.int64 and index.dtype is not torch.int32:
        raise TypeError(f"{name} has dtype {index.dtype}; expected torch.int64 or torch.int32")
    if index.device != src.device:
        raise ValueError(f"{name} is on {index.device}; expected the device of src, {src.device}")
    lengths = lengths or (1, src.shape[dim])
    if index.dim() == 1 and index.shape[0] in lengths:
        return dim
    fits = 0 < index.dim() <= src.dim() and all(
        n in (lengths if place == dim else (1, src.shape[place])) for place, n in enumerate(index.shape)
    )
    if not fits or index.dim() == 1:
        raise ValueError(
            f"{name} has shape {tuple(index.shape)} and src {tuple(src.shape)}; expected {' or '.join(map(str, lengths))} "
            f"at dim {dim}, and other dimensions that broadcast against those of src"
        )
    return dim


def checked_out(out: Tensor, src: Tensor, dim: int, dim_size: int | None = None) -> int:
    """The number of groups of `out`. Raises unless it has the shape of src but at dim, and its dtype and device.

    dim_size: as the caller gives it beside `out`, which decides, as in torch_scatter.
    """
    check_tensor(out, "out")
    if out.shape[:dim] != src.shape[:dim] or out.shape[dim + 1 :] != src.shape[dim + 1 :]:
        raise ValueError(
            f"out has shape {tuple(out.shape)}; expected that of src, {tuple(src.shape)}, but at dim {dim}"
        )
    if out.dtype != src.dtype or out.device != src.device:
        raise TypeError(f"out is {out.dtype} on {out.device}; expected {src.dtype} on {src.device}, as src is")
    if dim_size is not None:
        check_count(dim_size, "dim_size")
    return out.shape[dim]


def copied_to(out: Tensor | None, result: Tensor) -> Tensor:
    """The result, written into `out` unless that is None. Raises unless that has its shape, dtype and device."""
    if out is None:
        return result
    check_tensor(out, "out")
    if out.shape != result.shape:
        raise ValueError(f"out has shape {tuple(out.shape)}; expected that of the result, {tuple(result.shape)}")
    if out.dtype != result.dtype or out.device != result.device:
        raise TypeError(f"out is {out.dtype} on {out.device}; expected {result.dtype} on {result.device}, as src is")
    return out.copy_(result)


def vector_of(index: Tensor, dim: int, length: int) -> Tensor | None:
    """The one id per position along `dim` that an index holds, or None if it holds more. dim is not negative."""
    if index.dim() == 1:
        return index if index.shape[0] == length else None
    if dim >= index.dim() or index.shape[dim] != length:
        return None
    for other in range(index.dim()):
        if other != dim and index.shape[other] != 1 and index.stride(other) != 0:
            return None
    if 0 in index.shape:
        return index.new_empty(0) if length == 0 else None  # None: it holds no ids
    return index.as_strided((length,), (index.stride(dim),))


def num_groups_of(index: Tensor, dim_size: int | None) -> int:
    """dim_size, or one more than the largest id."""
    if dim_size is not None:
        return check_count(dim_size, "dim_size")  # programs also pass a tensor
    return int(index.max()) + 1 if index.numel() else 0


def graph_of_vector(index: Tensor, dim_size: int | None) -> Graph:
    """The Graph of an index (E,) and so many groups; by default one more than the largest id.

    Raises IndexError for ids out of range, which are read once.
    """
    index = unwrapped(index, "index")
    topology = topology_at(index)
    low, high = bounds_of(topology, index)
    num_groups = high + 1 if dim_size is None else check_count(dim_size, "dim_size")
    _check_ends(low, high, num_groups)
    return graph_of_index(topology, index, num_groups, HEAD)


def with_named_ids(
    function: Callable[..., Any], index: Tensor, dim_size: int | None, *arguments: Any, what: str = "dim_size of them"
) -> Any:
    """function(*arguments), which calls PyTorch's scatters. They refuse ids out of range by an error that names no argument.

    what: the ids below dim_size are, for the error.
    """
    if torch.compiler.is_compiling():
        return function(*arguments)
    try:
        return function(*arguments)
    except (RuntimeError, IndexError):
        if index.is_cpu:
            low, high = bounds_of(Topology(), unwrapped(index, "index"))
            _check_ends(low, high, high + 1 if dim_size is None else dim_size, what)
        raise


def _check_ends(low: int, high: int, num_groups: int, what: str = "dim_size of them") -> None:
    if low < 0 or high >= num_groups:
        raise IndexError(f"index holds {low if low < 0 else high}; expected ids in [0, {num_groups}), {what}")


def graph_of_elements(index: Tensor, shape: torch.Size, dim: int, num_groups: int) -> Graph:
    """The Graph of an index of one id per element of `shape`: element (p, i, q) goes to (p, index[p, i, q], q)."""
    index = unwrapped(index, "index")

    def make() -> Graph:
        ids = broadcast(index, index.new_empty(1).expand(shape), dim)
        before, after = shape[:dim].numel(), shape[dim + 1 :].numel()
        first = torch.arange(before, device=ids.device).view(-1, 1, 1) * num_groups
        ids = (first + ids.reshape(before, shape[dim], after)) * after + torch.arange(after, device=ids.device)
        return graph_of_index(Topology(), ids.flatten(), before * num_groups * after, HEAD)

    return topology_at(index, ("elements", shape, dim)).graph(num_groups, make)
