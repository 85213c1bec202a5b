"""Counts of the calls that a drop-in routed, and of those that it left to the library that it is a drop-in for; advice."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import torch
from torch import Tensor

from .precision import computed_type
from .products import multiplies_slowly
from .refusals import CASTABLE_TYPES


class Accounts:
    """The counts of one drop-in."""

    def __init__(self) -> None:
        self.routed: defaultdict[str, int] = defaultdict(int)
        self.fell_back: defaultdict[tuple[str, str], int] = defaultdict(int)  # (name, reason)
        self.products_in_fp32 = False  # whether the option products="fp32" is on
        self._slow: set[torch.dtype] = set()  # of features, without that option

    def note(self, x: Any) -> None:
        """Notes features of which this processor makes matrix products slowly."""
        if not self.products_in_fp32 and isinstance(x, Tensor) and x.is_cpu and x.dtype in CASTABLE_TYPES:
            dtype = computed_type(x)
            if multiplies_slowly(dtype):
                self._slow.add(dtype)

    def stats(self) -> dict[str, dict[str, Any]]:
        """``{"routed": {name: calls}, "fell_back": {name: {reason: calls}}}``, and ``"advice": {option: why}`` if there is any."""
        reasons: dict[str, dict[str, int]] = {}
        for (name, reason), calls in list(self.fell_back.items()):
            reasons.setdefault(name, {})[reason] = calls
        stats: dict[str, dict[str, Any]] = {"routed": dict(self.routed), "fell_back": reasons}
        if self._slow:
            names = " and ".join(sorted(map(str, self._slow)))
            stats["advice"] = {'products="fp32"': f"matrix products of {names} are slow on this processor"}
        return stats

    def reset(self) -> None:
        self.routed.clear()
        self.fell_back.clear()
        self._slow.clear()
