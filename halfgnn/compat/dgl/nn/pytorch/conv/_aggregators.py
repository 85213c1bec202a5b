"""Aggregators of GMMConv and NNConv, the projection of destinations that both may add, and biases."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from halfgnn.nn.projections import applied

from ..utils import Identity

AGGREGATORS = ("sum", "mean", "max")


def check_aggregator(aggregator_type: Any) -> None:
    """Raises KeyError unless it is known."""
    if aggregator_type not in AGGREGATORS:
        raise KeyError(f"aggregator_type is {aggregator_type!r}; expected one of {', '.join(AGGREGATORS)}")


def add_residual(conv: Any, residual: bool, in_feats: int, out_feats: int) -> None:
    """conv.res_fc: a projection of the destinations, Identity if their width is already that of the result, or None."""
    if not residual:
        conv.register_buffer("res_fc", None)
    elif in_feats != out_feats:
        conv.res_fc = nn.Linear(in_feats, out_feats, bias=False)
    else:
        conv.res_fc = Identity()


def add_bias(conv: Any, bias: bool, out_feats: int) -> None:
    """conv.bias: (out_feats,), which reset_parameters fills, or None."""
    if bias:
        conv.bias = nn.Parameter(torch.empty(out_feats))
    else:
        conv.register_buffer("bias", None)


def finished(conv: Any, rst: Tensor, h_dst: Tensor) -> Tensor:
    """rst with residual and bias."""
    if conv.res_fc is not None:
        rst = rst + applied(conv.res_fc, h_dst)
    return rst if conv.bias is None else rst + conv.bias
