"""Counts of the calls that the drop-in routed, and of those that fell back to torch_geometric."""

from __future__ import annotations

from typing import Any

from ...compiled import reset_stats as reset_compiled
from ...compiled import stats as compiled_stats
from ...expressions.accounts import accounts, fell_back, routed

__all__ = ["accounts", "fell_back", "reset_stats", "routed", "stats"]


def stats() -> dict[str, dict[str, Any]]:
    """Calls since the last :func:`reset_stats`.

    Returns:
        ``{"routed": {operator: calls}, "fell_back": {name: {reason: calls}}}``. Names of operators are, for example,
        ``"gspmm:copy_u_mean"``, ``"gspmm:u_mul_e_sum"``, ``"gspmm:copy_e_max"`` (of messages that were materialized) and
        ``"edge_softmax"``. ``fuse=True`` adds modules: ``"fused:GATConv"``. Under ``"fell_back"``, ``"propagate"`` has calls whose
        messages fall back to PyG, ``"message:copy_u": {"read by cat": 1}`` a message that was materialized because ``torch.cat``
        read it, ``"spmm"`` products of sparse matrices, and ``"forward:SAGEConv"`` calls of halfgnn.pyg.SAGEConv that ran
        torch_geometric's forward. ``"x[index]"`` has rows of which a program takes the gradient, ``"index_add"`` and the like its
        own sums. A backward pass, compiled and scripted code are not counted: ``"compiled"`` has what torch.compile's graphs
        became, see :func:`halfgnn.compiled.stats`.

        ``"materialized"`` has the lines of the program that read messages, those first that cost most: ``{"model.py:12 in message":
        {"read": "u_mul_e by dropout", "calls": 3, "seconds": 0.002}}``. On a GPU these are the host's seconds.

        ``"fp32:segment"``, ``"fp32:x[index]"`` and the like are calls on a CPU that PyTorch would add up in half precision, and
        makes in fp32 instead. ``"fp32:linear"`` and the like are products that ``products="fp32"`` makes. If features were half, or
        autocast was on, on a processor that multiplies half-precision values slowly, ``"advice"`` says so: ``{'products="fp32"':
        why}``.
    """
    compiled = compiled_stats()
    return {**accounts.stats(), **({"compiled": compiled} if compiled else {})}


def reset_stats() -> None:
    """Sets every count of :func:`stats` to zero."""
    accounts.reset()
    reset_compiled()
