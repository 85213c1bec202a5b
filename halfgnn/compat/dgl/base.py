"""Names and checks that every module of the interface uses."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...common.ids import INT32_MAX

ALL = "__ALL__"  # all nodes or edges
SLICE_FULL = slice(None, None, None)

# Columns in which graphs made of other graphs keep where their nodes and edges come from.
NTYPE = ETYPE = "_TYPE"
NID = EID = "_ID"

EdgeType = tuple[str, str, str]  # (type of the sources, relation, type of the destinations)


class DGLError(ValueError):
    """What the interface raises for arguments that do not fit the graph."""


class DGLWarning(UserWarning):
    """What the interface warns of."""


def dgl_warning(message: str, category: type[Warning] = DGLWarning, stacklevel: int = 2) -> None:
    """Warn as the interface does."""
    warnings.warn(message, category=category, stacklevel=stacklevel + 1)


def is_all(ids: Any) -> bool:
    """Whether ids stands for all nodes or edges."""
    return isinstance(ids, str) and ids == ALL


def is_internal_column(name: str) -> bool:
    """Whether a column has ids or types of the graph that this one was made of."""
    return name in (NTYPE, NID)


def id_tensor(ids: Any, dtype: torch.dtype, device: torch.device, name: str, *, masks: bool = False) -> Tensor:
    """Ids (n,) as a tensor: of a number, a sequence, an array, or a tensor of integers.

    masks: a tensor of booleans is a mask, and gives the ids at which it is true. Otherwise it is refused.

    Raises:
        DGLError: other dtypes, more than one dimension, another device than the graph's, ids that dtype does not hold.
    """
    if not isinstance(ids, Tensor):
        ids = _tensor_of(ids, name).to(device)
    elif ids.device != device:
        raise DGLError(f"{name} is on {ids.device}; expected the graph's device, {device}")
    if ids.dtype == torch.bool and masks:
        ids = places_where(ids)
    is_integer = not (ids.dtype.is_floating_point or ids.dtype.is_complex or ids.dtype == torch.bool)
    if ids.numel() and not is_integer:
        raise DGLError(f"{name} has dtype {ids.dtype}; expected integers")
    if ids.dim() > 1:
        raise DGLError(f"{name} has shape {tuple(ids.shape)}; expected one dimension")
    if dtype is torch.int32 and ids.dtype is torch.int64 and ids.numel():
        for bound in torch.aminmax(ids):
            if abs(int(bound)) > INT32_MAX:  # int32 would make another id of it
                raise DGLError(f"{name} has an id {int(bound)}; expected ids of int32, as the graph's are")
    return ids.reshape(-1).to(dtype)


def _tensor_of(ids: Any, name: str) -> Tensor:
    if isinstance(ids, range):
        return torch.arange(ids.start, ids.stop, ids.step)
    if not isinstance(ids, (int, np.generic, np.ndarray)) and any(isinstance(i, Tensor) for i in ids):
        ids = [int(i) for i in ids]
    array = np.asarray(ids)
    if array.size == 0:
        array = array.astype(np.int64)
    if array.dtype.kind not in "iub":
        raise DGLError(f"{name} has dtype {array.dtype}; expected integers")
    return torch.from_numpy(array.copy() if array.dtype.kind != "u" else array.astype(np.int64))


def is_number(ids: Any) -> bool:
    """Whether ids is one id, for which a query gives a number in place of a tensor."""
    return isinstance(ids, (int, np.integer)) or (isinstance(ids, Tensor) and ids.dim() == 0)


def check_ids(ids: Tensor, count: int, name: str, what: str) -> None:
    """Raises DGLError unless ids are in [0, count). It reads the ids, and so waits for a GPU."""
    if ids.numel():
        low, high = (int(bound) for bound in torch.aminmax(ids))
        if low < 0 or high >= count:
            raise DGLError(f"{name} has {what} {low if low < 0 else high}; expected ids in [0, {count})")


def check_weights(weights: Tensor, count: int, name: str, may_be_negative: bool = False) -> None:
    """Raises DGLError unless weights are (count,), finite and at least 0. It reads them, and so waits for a GPU."""
    expected = f"expected ({count},), finite numbers{'' if may_be_negative else ' of at least 0'}"
    if weights.shape != (count,):
        raise DGLError(f"{name} has shape {tuple(weights.shape)}; {expected}")
    wrong = ~weights.isfinite() if may_be_negative else ~((weights >= 0) & (weights < float("inf")))
    if bool(wrong.any()):
        at = int(wrong.int().argmax())
        raise DGLError(f"{name} holds {weights[at].item()} at place {at}; {expected}")


def check_idtype(idtype: Any) -> torch.dtype:
    """The dtype of ids that idtype names. Raises DGLError for others than int32 and int64."""
    dtype = {"int32": torch.int32, "int64": torch.int64}.get(idtype, idtype) if isinstance(idtype, str) else idtype
    if dtype not in (torch.int32, torch.int64):
        raise DGLError(f"idtype is {idtype!r}; expected torch.int32 or torch.int64")
    return dtype


def places_where(mask: Tensor) -> Tensor:
    """The places (n,) at which a mask is true. On the CPU NumPy finds them in a quarter of PyTorch's time."""
    if mask.is_cpu and mask.dim() == 1:
        return torch.from_numpy(np.flatnonzero(mask.numpy()))
    return mask.nonzero().squeeze(1)


def ranges(first: Tensor, last: Tensor) -> tuple[Tensor, Tensor]:
    """first[0], ..., last[0] - 1, first[1], ..., and the length of each range."""
    places, _, counts = numbered_ranges(first.long(), last.long())
    return places, counts


def numbered_ranges(first: Tensor, last: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """:func:`ranges` of R integers `first` and `last`, of one dtype: the P places, the number of the range that each of them is in
    (P,), and the lengths (R,). int64 if there are more places than int32 holds."""
    counts = last - first
    total = int(counts.sum())
    if total > INT32_MAX:
        first, counts = first.long(), counts.long()
    ends = counts.cumsum(0, dtype=counts.dtype)
    numbers = torch.repeat_interleave(counts, output_size=total)
    places = (first - ends + counts).index_select(0, numbers)
    return places.add_(torch.arange(total, dtype=places.dtype, device=places.device)), numbers, counts
