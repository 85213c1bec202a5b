"""Counts of the calls that a drop-in routed, and of those that it left to the library that it is a drop-in for."""

from __future__ import annotations

from collections import defaultdict
from typing import Any


class Accounts:
    """The counts of one drop-in."""

    def __init__(self) -> None:
        self.routed: defaultdict[str, int] = defaultdict(int)
        self.fell_back: defaultdict[tuple[str, str], int] = defaultdict(int)  # (name, reason)

    def stats(self) -> dict[str, dict[str, Any]]:
        """``{"routed": {name: calls}, "fell_back": {name: {reason: calls}}}``"""
        reasons: dict[str, dict[str, int]] = {}
        for (name, reason), calls in list(self.fell_back.items()):
            reasons.setdefault(name, {})[reason] = calls
        return {"routed": dict(self.routed), "fell_back": reasons}

    def reset(self) -> None:
        self.routed.clear()
        self.fell_back.clear()
