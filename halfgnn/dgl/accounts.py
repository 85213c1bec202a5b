"""Counts of the calls that the drop-in routed, and of those that fell back to DGL."""

from __future__ import annotations

from typing import Any

from ..drop_in.accounts import Accounts

accounts = Accounts()
routed, fell_back = accounts.routed, accounts.fell_back


def stats() -> dict[str, dict[str, Any]]:
    """Calls since the last :func:`reset_stats`.

    Returns:
        ``{"routed": {operator: calls}, "fell_back": {operator: {reason: calls}}}``. Names of operators are, for example,
        ``"gspmm:u_mul_e_sum"``, ``"gsddmm:u_dot_v"``, ``"edge_softmax:dst"``, ``"segment_reduce:mean"``,
        ``"gspmm_hetero:copy_u_sum"`` or ``"udf:message"``. ``fuse=True`` adds modules: ``"fused:GATConv"``. If a module fell back,
        its operators are counted too. A backward pass is not counted.

        ``"fp32:linear"`` and the like are products that ``products="fp32"`` makes. If features were half, or autocast was on, on a
        processor that multiplies half-precision values slowly, ``"advice"`` says so: ``{'products="fp32"': why}``.
    """
    return accounts.stats()


def reset_stats() -> None:
    """Sets every count of :func:`stats` to zero."""
    accounts.reset()
