"""Counts of the calls that the drop-in routed, and of those that it left to DGL."""

from __future__ import annotations

from typing import Any

from ..common.accounts import Accounts

_accounts = Accounts()
routed, fell_back = _accounts.routed, _accounts.fell_back


def stats() -> dict[str, dict[str, Any]]:
    """Calls since the last :func:`reset_stats`.

    Returns:
        ``{"routed": {operator: calls}, "fell_back": {operator: {reason: calls}}}``. Names of operators are, for example,
        ``"gspmm:u_mul_e_sum"``, ``"gsddmm:u_dot_v"``, ``"edge_softmax:dst"``, ``"segment_reduce:mean"``,
        ``"gspmm_hetero:copy_u_sum"`` or ``"udf:message"``. ``fuse=True`` adds modules: ``"fused:GATConv"``. If a module fell back,
        its operators are counted too. A backward pass is not counted.
    """
    return _accounts.stats()


def reset_stats() -> None:
    """Sets every count of :func:`stats` to zero."""
    _accounts.reset()
