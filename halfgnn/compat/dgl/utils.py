"""The helpers of ``dgl.utils`` that modules of users import."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ...ops import gather_rows
from .base import DGLError

__all__ = [
    "apply_each",
    "check_eq_shape",
    "expand_as_pair",
    "gather_pinned_tensor_rows",
    "get_num_threads",
    "is_sorted_srcdst",
    "recursive_apply",
    "set_num_threads",
]


def expand_as_pair(input_: Any, g: Any = None) -> tuple[Any, Any]:
    """Features of sources and of destinations: a pair as it is, otherwise twice the same. A block's destinations come first.

    input_: a tensor, {type: tensor}, or a pair of either. g: the graph, if it may be a block.
    """
    if isinstance(input_, tuple):
        return input_
    if g is None or not g.is_block:
        return input_, input_
    if isinstance(input_, Mapping):
        return input_, {ntype: x[: g.num_dst_nodes(ntype)] for ntype, x in input_.items()}
    return input_, input_[: g.num_dst_nodes()]


def check_eq_shape(input_: Any) -> None:
    """Raises DGLError unless rows of sources and destinations have one shape."""
    src, dst = expand_as_pair(input_)
    if src.shape[1:] != dst.shape[1:]:
        raise DGLError(
            f"the features of source nodes have rows of shape {tuple(src.shape[1:])} and those of destination nodes"
            f" {tuple(dst.shape[1:])}; expected one shape"
        )


def is_sorted_srcdst(src: Tensor, dst: Tensor) -> tuple[bool, bool]:
    """Whether edges are sorted by source, and whether those of one source are sorted by destination as well."""
    is_sorted = bool((src[1:] >= src[:-1]).all())
    return is_sorted, is_sorted and bool(((src[1:] > src[:-1]) | (dst[1:] >= dst[:-1])).all())


def apply_each(data: Any, fn: Callable, *args: Any, **kwargs: Any) -> Any:
    """fn(element, ...) of each element of a mapping or sequence, or of anything else itself."""
    if isinstance(data, Mapping):
        return {key: fn(value, *args, **kwargs) for key, value in data.items()}
    if isinstance(data, Sequence) and not isinstance(data, str):
        return [fn(value, *args, **kwargs) for value in data]
    return fn(data, *args, **kwargs)


def recursive_apply(data: Any, fn: Callable, *args: Any, **kwargs: Any) -> Any:
    """fn(element, ...) of each element of nested mappings, tuples and sequences."""
    if isinstance(data, tuple):
        return tuple(recursive_apply(value, fn, *args, **kwargs) for value in data)
    if isinstance(data, Mapping) or (isinstance(data, Sequence) and not isinstance(data, str)):
        return apply_each(data, recursive_apply, fn, *args, **kwargs)
    return fn(data, *args, **kwargs)


def gather_pinned_tensor_rows(tensor: Tensor, rows: Tensor) -> Tensor:
    """Rows of a tensor in page-locked memory by ids on a GPU, which reads them in place."""
    return gather_rows(tensor, rows)


def set_num_threads(num_threads: int) -> None:
    """Set the number of threads of operators on the CPU, which are PyTorch's."""
    torch.set_num_threads(num_threads)


def get_num_threads() -> int:
    """The number of threads of operators on the CPU."""
    return torch.get_num_threads()
