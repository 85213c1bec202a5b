"""What the PNAConvs share: several reductions of messages made of both ends of an edge, and how degrees scale them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from .. import ops
from ..common.arguments import check_name
from ..common.layers import is_plain, is_unhooked
from ..common.operands import width_of
from ..common.precision import HALF
from ..graph import Graph

Aggregates = dict[str, Tensor]


def checked_names(names, name: str, known: tuple[str, ...]) -> list[str]:
    """names as a list of some of `known`."""
    if isinstance(names, str) or not isinstance(names, Sequence) or not names:
        raise ValueError(f"{name} is {names!r}; expected a list of some of {', '.join(known)}")
    for value in names:
        check_name(value, name, known)
    return list(names)


def degrees(g: Graph, x: Tensor) -> Tensor:
    """In-degrees in x's dtype (fp32 for half precision), as a column beside x (num_dst, *)."""
    degree = g.in_degrees().to(torch.float32 if x.dtype in HALF else x.dtype)
    return degree.view(-1, *[1] * (x.dim() - 1))


def split_linear(layer: nn.Module, width: int) -> tuple[Tensor, Tensor, Tensor | None] | None:
    """The weights of the two parts of the input (2 * width) of a linear layer, and its bias. None if it is more than that.

    The layer may be alone in an nn.Sequential.
    """
    if isinstance(layer, nn.Sequential) and len(layer) == 1 and is_unhooked(layer):
        layer = layer[0]
    if not is_plain(layer) or width_of(layer) != 2 * width:
        return None
    weight: Tensor = layer.weight  # type: ignore[assignment]
    return weight[:, :width], weight[:, width:], layer.bias  # type: ignore[return-value]


def of_ends(g: Graph, src: Tensor, dst: Tensor, names: Sequence[str], eps: float) -> Aggregates:
    """Reductions of the messages src[u] + dst[v], with one gather of src and without a message.

    dst is common to the in-edges of v: sums and extremes move by it, and distances from the mean do not change.
    """
    degree = degrees(g, dst)
    distinct = tuple(dict.fromkeys(names))
    reduced = dict(zip(distinct, ops.copy_u_reduce(g, src, distinct, eps=eps)))
    own = torch.where(degree > 0, dst, 0.0)
    for name in distinct:
        if name == "sum":
            reduced[name] = reduced[name] + (degree * dst).to(dst.dtype)
        elif name in ("mean", "max", "min"):
            reduced[name] = reduced[name] + own
    return reduced


def of_messages(g: Graph, message: Tensor, names: Sequence[str], eps: float) -> Aggregates:
    """Reductions of messages (E, *), by separate operators. moment3 ... are the roots of central moments."""
    reduced: Aggregates = {}
    distance = None
    for name in dict.fromkeys(names):
        if name in ("sum", "mean", "max", "min"):
            reduced[name] = ops.gspmm(g, "copy_rhs", name, None, message)
            continue
        if distance is None:
            wide = message.float() if message.dtype in HALF else message
            distance = ops.gsddmm(g, "sub", wide, ops.gspmm(g, "copy_rhs", "mean", None, wide), "e", "v")
        reduced[name] = _moment(g, distance, name, eps).to(message.dtype)
    return reduced


def _moment(g: Graph, distance: Tensor, name: str, eps: float) -> Tensor:
    order = int(name[-1]) if name.startswith("moment") else 2
    moment = ops.gspmm(g, "copy_rhs", "mean", None, distance**order)
    if name == "var":
        return moment
    if name == "std":
        small = moment <= eps
        return torch.where(small, 0.0, torch.where(small, 1.0, moment).sqrt())
    return moment.sign() * (moment.abs() + 1e-30).pow(1 / order)


def scaled(
    reduced: Aggregates, names: Sequence[str], scalers: Sequence[str], degree: Tensor, log_degree, mean_degree=None
) -> Tensor:
    """All reductions under the first scaler, then all under the second, ..., along the last dimension.

    log_degree, mean_degree: the means of log(degree + 1) and of the degree in the training set.
    """
    joined = torch.cat([reduced[name] for name in names], -1)
    at_least_one = degree.clamp(min=1)
    parts = []
    for scaler in scalers:
        if scaler == "identity":
            parts.append(joined)
            continue
        if scaler == "amplification":
            factor = torch.log(degree + 1) / log_degree
        elif scaler == "attenuation":
            factor = log_degree / torch.log(at_least_one + 1)
        elif scaler == "linear":
            factor = degree / mean_degree
        else:
            factor = mean_degree / at_least_one
        parts.append((joined * factor).to(joined.dtype))
    return torch.cat(parts, -1)
