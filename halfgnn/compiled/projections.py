"""Rows that are a linear layer, in a graph, so that the projected rows need not be made.

Operators of attention take a few columns per edge and the weight themselves. Logits of GAT, sums over the products of projected
rows with one vector per head, are a linear layer too: the one whose weight is summed in that way. So are those of destinations that
have a layer of their own, which nothing else reads.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, fx
from torch.fx.experimental.symbolic_shapes import statically_known_true

from ..common.fx_nodes import memory_of_tensor, name_of, value_of
from ..common.precision import autocasts
from .recognize import argument, weights_of

_VIEWS = ("view", "reshape", "unflatten")


class Projection(NamedTuple):
    """columns (E, C) times weight (H * D, C), transposed."""

    columns: Tensor
    weight: Tensor


class Projections:
    """The nodes of a graph that are projections, as far as it was visited, and nothing was modified in place since."""

    def __init__(self) -> None:
        self._found: dict[fx.Node, Projection] = {}
        self._of_values: dict[int, Projection] = {}

    def note(self, node: fx.Node) -> None:
        """Notes a node that is a linear layer without a bias, or a view (E, H, D) of one."""
        found = self._layer(node) if name_of(node) == "linear" else self._view(node)
        if found is not None:
            self._found[node] = self._of_values[id(value_of(node))] = found

    def _layer(self, node: fx.Node) -> Projection | None:
        weight, bias = weights_of(node)
        columns, value = value_of(argument(node, 0, "input")), value_of(node)
        if weight is None or bias is not None or not isinstance(columns, Tensor) or columns.dim() != 2:
            return None
        found = Projection(columns, value_of(weight))
        is_alike = columns.dtype is found.weight.dtype is value.dtype and not autocasts(value.device)
        return found if is_alike else None

    def _view(self, node: fx.Node) -> Projection | None:
        source, value = node.args[0] if node.args else None, value_of(node)
        found = self._found.get(source) if name_of(node) in _VIEWS else None  # type: ignore[arg-type]
        if found is None or value.dim() != 3:
            return None
        return found if statically_known_true(math.prod(value.shape[1:]) == found.weight.shape[0]) else None

    def forget(self, memory: set[int]) -> None:
        """Forgets projections of what is modified in place, and those that are modified themselves."""
        for node, found in list(self._found.items()):
            if set().union(*map(memory_of_tensor, (value_of(node), *found))) & memory:
                del self._found[node], self._of_values[id(value_of(node))]

    def of(self, rows: Tensor) -> Projection | None:
        """That of rows which operators project themselves: of fewer columns than they have."""
        found = self._of_values.get(id(rows))
        if found is None or not statically_known_true(found.columns.shape[1] < found.weight.shape[0]):
            return None
        return found if _has_its_gradient(rows, found) else None

    def folded(self, node: fx.Node) -> tuple[Projection, Tensor, torch.Size] | None:
        """The projection, the vectors, and their shape (H, D), of a node that sums their products over D; None of another node, or
        if something else reads the projection."""
        product = node.args[0] if node.args else None
        if name_of(node) != "sum" or not isinstance(product, fx.Node) or name_of(product) != "mul":
            return None
        if (
            argument(node, 1, "dim") not in (-1, 2)
            or value_of(node).dim() != 2
            or product.kwargs
            or len(product.args) != 2
        ):
            return None
        for rows, vectors in (product.args, product.args[::-1]):
            found = self._found.get(rows)  # type: ignore[arg-type]
            if found is None or value_of(rows).dim() != 3 or not _is_alone(rows, product, node):
                continue
            if not _has_its_gradient(value_of(rows), found):
                continue
            vectors = value_of(vectors)
            if (
                isinstance(vectors, Tensor)
                and vectors.dtype is found.weight.dtype
                and _is_per_head(vectors, value_of(rows))
            ):
                return found, vectors, value_of(rows).shape[1:]
        return None


def _has_its_gradient(rows: Tensor, found: Projection) -> bool:
    """Whether rows have the gradient that the layer would have here. They may have been made where there was none."""
    return not torch.is_grad_enabled() or rows.requires_grad == any(x.requires_grad for x in found)


def _is_alone(rows: Any, product: fx.Node, total: fx.Node) -> bool:
    """Whether nothing but the sum reads the projected rows."""
    chain = [rows, product]
    while name_of(chain[0]) != "linear":
        chain.insert(0, chain[0].args[0])
    return all(list(x.users) == [reader] for x, reader in zip(chain, [*chain[1:], total]))


def _is_per_head(vectors: Tensor, rows: Tensor) -> bool:
    shape = vectors.shape[1:] if vectors.dim() == 3 and vectors.shape[0] == 1 else vectors.shape
    return shape == rows.shape[1:]


def project(found: Projection, vectors: Tensor, shape: torch.Size) -> Tensor:
    """Sums (E, H) over D of the products of projected rows with vectors of a shape (H, D)."""
    weight = found.weight.reshape(*shape, -1) * vectors.reshape(*shape, 1)
    return F.linear(found.columns, weight.sum(1))
