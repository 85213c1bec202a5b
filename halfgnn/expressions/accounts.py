"""Counts of the operators to which expressions were lowered, and of calls that fell back to PyTorch and torch_geometric."""

from __future__ import annotations

from ..drop_in.accounts import Accounts

accounts = Accounts()
routed, fell_back = accounts.routed, accounts.fell_back
