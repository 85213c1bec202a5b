"""Checks of ids and of how many there are."""

from __future__ import annotations

import torch
from torch import Tensor

from .arguments import checked_integer

INT32_MAX = 2**31 - 1


_MAX_COUNT = 2**48  # beyond any memory


def check_readable(ids: Tensor, name: str) -> None:
    if ids.device.type == "meta":
        raise ValueError(
            f"{name} is on meta, where there are no ids; expected another device, or numbers of nodes and check=False"
        )


def check_range(ids: Tensor, name: str, bound: int) -> None:
    if ids.numel() == 0:
        return
    check_readable(ids, name)
    low, high = (int(x) for x in torch.aminmax(ids))
    if low < 0 or high >= bound:
        raise ValueError(f"{name} holds {low if low < 0 else high}; expected indices in [0, {bound})")


def check_count(count, name: str) -> int:
    if isinstance(count, bool) or not isinstance(count, (int, torch.SymInt)):
        count = checked_integer(count, name, "an integer")
    if count < 0 or count >= _MAX_COUNT:
        raise ValueError(f"{name} is {count}; expected a number in [0, 2**48)")
    return count


def check_fits(idtype: torch.dtype, **counts: int) -> None:
    if idtype == torch.int32:
        for name, count in counts.items():
            if count > INT32_MAX:
                raise ValueError(f"{name} is {count}, too large for int32 ids; use int64 ids")
