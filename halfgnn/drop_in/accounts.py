"""Counts of the calls that a drop-in routed, and of those that fell back to the library that it is a drop-in for; advice."""

from __future__ import annotations

import os
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..common.precision import computed_type
from ..common.products import multiplies_slowly
from .gate import CASTABLE_TYPES

_LIBRARIES = str(Path(torch.__file__).parent) + os.sep, str(Path(__file__).parents[1]) + os.sep


def _line_of_program() -> str:
    """The innermost line that runs and is neither PyTorch's nor halfgnn's."""
    frame = sys._getframe(2)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_LIBRARIES):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_name}"


class Accounts:
    """The counts of one drop-in."""

    def __init__(self) -> None:
        self.routed: defaultdict[str, int] = defaultdict(int)
        self.fell_back: defaultdict[tuple[str, str], int] = defaultdict(int)  # (name, reason)
        # (line of the program, what it read) -> [calls, seconds]
        self.materialized: dict[tuple[str, str], list[float]] = {}
        self.products_in_fp32 = False  # whether the option products="fp32" is on
        self._slow: set[torch.dtype] = set()  # of features, without that option

    def note(self, x: Any) -> None:
        """Notes features of which this processor makes matrix products slowly."""
        if not self.products_in_fp32 and isinstance(x, Tensor) and x.is_cpu and x.dtype in CASTABLE_TYPES:
            dtype = computed_type(x)
            if multiplies_slowly(dtype):
                self._slow.add(dtype)

    def note_materialized(self, what: str, seconds: float) -> None:
        """Notes that something was materialized because a line of the program read it."""
        count = self.materialized.setdefault((_line_of_program(), what), [0, 0.0])
        count[0] += 1
        count[1] += seconds

    def stats(self) -> dict[str, dict[str, Any]]:
        """``{"routed": {name: calls}, "fell_back": {name: {reason: calls}}}``, and ``"advice": {option: why}`` if there is any."""
        reasons: dict[str, dict[str, int]] = {}
        for (name, reason), calls in list(self.fell_back.items()):
            reasons.setdefault(name, {})[str(reason)] = calls
        stats: dict[str, dict[str, Any]] = {"routed": dict(self.routed), "fell_back": reasons}
        if self.materialized:
            stats["materialized"] = {
                line: {"read": what, "calls": int(calls), "seconds": seconds}
                for (line, what), (calls, seconds) in sorted(self.materialized.items(), key=lambda item: -item[1][1])
            }
        if self._slow:
            names = " and ".join(sorted(map(str, self._slow)))
            stats["advice"] = {'products="fp32"': f"matrix products of {names} are slow on this processor"}
        return stats

    def reset(self) -> None:
        self.routed.clear()
        self.fell_back.clear()
        self.materialized.clear()
        self._slow.clear()
