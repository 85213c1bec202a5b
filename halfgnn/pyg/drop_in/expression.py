"""What a message is made of."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...common.autograd import snapshot
from .call import Propagation


class Lifted(NamedTuple):
    """Features of one side's nodes for every edge.

    dim: the dimension of the nodes, and then of the edges. edges_version: of edge_index, whose graph is made when it is needed.
    """

    propagation: Propagation
    row: int
    ids: Tensor
    x: Tensor
    version: int | None
    kept: list[Tensor]  # the values of x, if autograd may ask for them after x was written to
    dim: int = 0
    edges_version: int | None = None

    @property
    def name(self) -> str:
        return "copy_u"

    def current(self, with_history: bool) -> Tensor:
        """x. Unless its values were kept, it must not have changed."""
        check_edges(self.propagation, self.edges_version)
        if self.kept and not with_history:
            return self.kept[0]
        check_version(self.x, self.version)
        return self.x if with_history or not self.x.requires_grad else self.x.detach()

    def keep(self) -> None:
        values = snapshot(self.x, with_history=False)
        if not self.kept and values is not self.x:
            self.kept.append(values)


class Applied(NamedTuple):
    """What an operator makes of messages and other operands.

    operands: of its arguments, the tensors that are no messages, and their versions. is_view: the result shares the memory of its
    only message.
    """

    func: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    name: str
    operands: tuple[tuple[Tensor, int | None], ...]
    is_view: bool

    def messages(self) -> Iterator[AbstractMessage]:
        for x in self.args:
            if isinstance(x, AbstractMessage):
                yield x
            elif isinstance(x, (list, tuple)):
                yield from (y for y in x if isinstance(y, AbstractMessage))

    def check_versions(self) -> None:
        for x, version in self.operands:
            check_version(x, version)


class Softmax(NamedTuple):
    """The softmax of logits over the edges of each node of a row.

    dtype: of the result. in_autocast: whether autocast was on. note_read: called when its values are read.
    """

    logits: AbstractMessage
    row: int
    num_nodes: int
    dtype: torch.dtype
    in_autocast: bool
    note_read: Callable[[], None]

    @property
    def name(self) -> str:
        return "softmax"

    @property
    def operands(self) -> tuple[()]:
        return ()

    def messages(self) -> Iterator[AbstractMessage]:
        yield self.logits


_aten = torch.ops.aten
_NEGATIONS = frozenset([_aten.neg.default, _aten.rsub.Scalar])
_SCALES = frozenset([_aten.mul.Tensor, _aten.mul.Scalar, _aten.div.Tensor, _aten.div.Scalar])
_COPIES = frozenset([_aten._to_copy.default, _aten.clone.default])


def is_negated(x: Any) -> bool:
    """Whether a message is written as the negative of something, so that to add it is to subtract."""
    if not isinstance(x, AbstractMessage) or not isinstance(x.recipe, Applied):
        return False
    recipe = x.recipe
    if recipe.func in _NEGATIONS:
        return True
    if recipe.func in _SCALES:
        return any(is_negated(y) or _is_below_zero(y) for y in recipe.args)
    return (recipe.is_view or recipe.func in _COPIES) and is_negated(recipe.args[0])


def _is_below_zero(x: Any) -> bool:
    """Whether x is a negative number. A number in a program is a tensor without dimensions to PyTorch's operators."""
    is_number = isinstance(x, (int, float)) or (type(x) is Tensor and x.dim() == 0 and x.is_cpu)
    return is_number and bool(x < 0)


def version_of(x: Tensor) -> int | None:
    return None if x.is_inference() else x._version


def check_version(x: Tensor, version: int | None) -> None:
    if version_of(x) != version:
        raise RuntimeError(
            "a message is read after the features that it was made of were modified in place; clone the features, or the message "
            "before they are modified (halfgnn.pyg.patch() forms messages when they are read)"
        )


def check_edges(propagation: Propagation, version: int | None) -> None:
    if version_of(propagation.edge_index) != version:
        raise RuntimeError(
            "a message, or its gradient, is read after the edge_index by which it was made was modified in place; clone the "
            "edge_index before it is modified (halfgnn.pyg.patch() forms messages when they are read)"
        )


Recipe = Lifted | Applied | Softmax


class AbstractMessage(Tensor):
    """One row per edge that exists once it is read. See _messages.Message.

    Attributes:
        recipe: what it is made of.
        propagation: the edges.
        row: the row of edge_index to whose nodes alone its values belong; None: to nodes of both, or to edges.
        num_rows: how many such nodes there are; the number of edges if row is None.
        edge_dim: the dimension of the edges.
        cell: where its values are kept.
        is_passed: whether gradients of something reach its features without passing it.
    """

    cell: Any
    is_passed: bool = False
    recipe: Recipe
    propagation: Propagation
    row: int | None
    num_rows: int
    edge_dim: int

    def formed(self) -> Tensor:
        """The values, without their history."""
        raise NotImplementedError

    def is_as_made(self) -> bool:
        """Whether nothing but its recipe decides its values, and nobody waits for its gradient."""
        raise NotImplementedError

    def held(self) -> list[Tensor]:
        """The tensors whose memory a message keeps."""
        raise NotImplementedError

    def note_write(self) -> None:
        """Notes that the values, which may be in another message's memory, were written to."""
        raise NotImplementedError

    def ordinary(self) -> Tensor:
        """An ordinary tensor with the same values and history. It shares the memory of the values."""
        return torch.ops.aten.alias.default(self)


def of_shape(message: Tensor) -> Tensor:
    """A tensor of the same shape, in the memory of one value."""
    return torch.empty((), dtype=message.dtype, device=message.device).expand(message.shape)
