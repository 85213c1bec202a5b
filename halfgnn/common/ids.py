"""Checks of ids, and of the numbers of what they name."""

from __future__ import annotations

import torch
from torch import Tensor

from .arguments import checked_integer
from .operands import check_dense, check_tensor

INT32_MAX = 2**31 - 1
_MAX_COUNT = 2**48  # beyond any memory
_NARROW = (torch.int8, torch.int16, torch.uint8)


def check_ids(ids: Tensor, name: str) -> None:
    """Raises unless ids is a dense tensor (n,) of int32 or int64."""
    _check_integers(ids, name)
    if ids.dim() != 1:
        raise ValueError(f"{name} has shape {tuple(ids.shape)}; expected one dimension")


def exported_ids(ids: Tensor, count: int, message: str) -> Tensor:
    """Ids of any shape in an exported program, which raises RuntimeError(message) unless all are in [0, count).

    Returns:
        The ids, clamped: the program may run the check after what reads rows by them.
    """
    torch.ops.aten._assert_async.msg(((ids >= 0) & (ids < count)).all(), message)
    return ids.clamp(0, count - 1)


def check_edge_index(edge_index: Tensor, name: str = "edge_index") -> None:
    """Raises unless edge_index is a dense tensor (2, E) of int32 or int64."""
    _check_integers(edge_index, name)
    if edge_index.dim() != 2 or edge_index.shape[0] != 2:
        remedy = f": pass {name}.t()" if edge_index.dim() == 2 and edge_index.shape[1] == 2 else ""
        raise ValueError(f"{name} has shape {tuple(edge_index.shape)}; expected (2, E){remedy}")


def _check_integers(ids: Tensor, name: str) -> None:
    check_tensor(ids, name)
    if ids.dtype not in (torch.int32, torch.int64):
        remedy = f": {name}.long()" if ids.is_floating_point() or ids.dtype in _NARROW else ""
        raise TypeError(f"{name} has dtype {ids.dtype}; expected torch.int32 or torch.int64{remedy}")
    check_dense(ids, name)


def check_alike(ids: Tensor, name: str, other: Tensor, other_name: str) -> None:
    """Raises unless two tensors of ids have one dtype and device."""
    if ids.dtype != other.dtype:
        raise TypeError(f"{name} has dtype {ids.dtype}; expected that of {other_name}, {other.dtype}")
    if ids.device != other.device:
        raise ValueError(f"{name} is on {ids.device}; expected the device of {other_name}, {other.device}")


def check_readable(ids: Tensor, name: str) -> None:
    if ids.device.type == "meta":
        raise ValueError(
            f"{name} is on meta, which holds no ids; expected another device, or the numbers of nodes and check=False"
        )


def check_range(ids: Tensor, name: str, bound: int, what: str = "") -> None:
    """Raises unless ids are in [0, bound). what: the numbers below bound are, for the error."""
    if ids.numel() == 0:
        return
    check_readable(ids, name)
    low, high = (int(x) for x in torch.aminmax(ids))
    check_ends(low, high, name, bound, what)


def check_ends(low: int, high: int, name: str, bound: int, what: str = "") -> None:
    """check_range of ids of which the smallest and the largest are known."""
    if low < 0 or high >= bound:
        tail = f", {what}" if what else ""
        raise ValueError(f"{name} holds {low if low < 0 else high}; expected indices in [0, {bound}){tail}")


def num_nodes_of(ids: Tensor, name: str) -> int:
    """One more than the largest id."""
    check_readable(ids, name)
    return int(ids.max()) + 1 if ids.numel() else 0


def check_count(count, name: str) -> int:
    if type(count) is int and 0 <= count < _MAX_COUNT:  # mostly
        return count
    if isinstance(count, bool) or not isinstance(count, (int, torch.SymInt)):
        count = checked_integer(count, name, "an integer")
    if isinstance(count, torch.SymInt):
        return count  # type: ignore[return-value]  # of a shape: a comparison would limit the sizes of compiled code
    if count < 0 or count >= _MAX_COUNT:
        raise ValueError(f"{name} is {count}; expected a number in [0, 2**48)")
    return count


def check_fits(idtype: torch.dtype, **counts: int) -> None:
    if idtype == torch.int32:
        for name, count in counts.items():
            if count > INT32_MAX:
                raise ValueError(f"{name} is {count}, too large for int32 ids; use int64 ids")
