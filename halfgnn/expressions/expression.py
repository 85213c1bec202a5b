"""What is computed for each edge: an expression of features of nodes, data of edges and operators, without values of its own.

An expression is built by a :class:`Message <halfgnn.pyg.drop_in.message.Message>`, and lowered, as a whole, by the functions of
this package. It has no autograd node: what it is lowered to has the history. It does not know how it was built.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor

from ..common.autograd import snapshot
from .propagation import Propagation

# Types of tensors whose values PyTorch's own operators read. The fake tensors of FX graphs stand for such.
ORDINARY: set[type] = {Tensor, torch.nn.Parameter}


class Expression:
    """One row per edge.

    Attributes:
        shape, dtype, device: of the tensor that it is materialized to.
        strides: of that tensor; None if it is contiguous.
        requires_grad: whether gradients reach what it is made of.
        propagation: the edges.
        row: the row of edge_index to whose nodes alone its values belong; None: to nodes of both, or to edges.
        num_rows: how many such nodes there are; the number of edges if row is None.
        edge_dim: the dimension of the edges.
        cache: its values, once they are materialized.
        grad_bypassed: whether gradients reach what it is made of without passing through its values.
        unbound: of parts that are joined in it: (part, dimension, part.unbind(dimension)).
    """

    __slots__ = (
        "cache", "device", "dtype", "edge_dim", "grad_bypassed", "num_rows", "propagation", "requires_grad", "row", "shape",
        "strides", "unbound",
    )  # fmt: skip
    name: str

    def __init__(
        self,
        like: Any,
        shape: Any,
        dtype: torch.dtype,
        row: int | None,
        num_rows: int,
        strides: Any,
        requires_grad: bool,
    ) -> None:
        """like: has the propagation, the dimension of edges and the device."""
        self.propagation, self.edge_dim, self.device = like.propagation, like.edge_dim, like.device
        self.shape, self.dtype, self.row, self.num_rows, self.strides = torch.Size(shape), dtype, row, num_rows, strides
        self.requires_grad = requires_grad and torch.is_grad_enabled()
        self.cache, self.grad_bypassed = Cache(), False
        self.unbound: list[tuple[Tensor, int, tuple[Tensor, ...]]] = []

    @property
    def is_cuda(self) -> bool:
        return self.device.type == "cuda"

    def dim(self) -> int:
        return len(self.shape)

    def numel(self) -> int:
        return math.prod(self.shape)  # torch.Size.numel() has no symbols

    def is_contiguous(self) -> bool:
        return self.strides is None

    def stride(self) -> tuple[int, ...]:
        return torch.empty(self.shape, device="meta").stride() if self.strides is None else self.strides

    def operands(self) -> Iterator[Expression]:
        """The expressions that it is made of."""
        return iter(())

    def is_watched(self) -> bool:
        """Whether somebody waits for the gradient of its values, or of those of a part."""
        return self.cache.is_observed or any(x.is_watched() for x in self.operands())

    def is_current(self) -> bool:
        """Whether the features that it is made of have the values that they had when it was built."""
        return all(x.is_current() for x in self.operands())

    def keep(self) -> None:
        """Keeps the features that it is made of, so that they may be modified in place before the values are read."""
        for x in self.operands():
            x.keep()

    def check_versions(self) -> None:
        """Raises RuntimeError if what it is made of, beside expressions, was modified in place."""

    def detached(self) -> Expression:
        """The same without gradients."""
        twin = copy.copy(self)
        twin.requires_grad = twin.grad_bypassed = False
        return twin

    def put(self, values: Tensor) -> None:
        """Notes the values of an expression that is materialized."""
        self.cache.values, self.cache.version = values, version_of(values)

    def materialized_values(self) -> Tensor | None:
        """The values, if they are materialized and nobody has modified them since; in inference mode that is not known."""
        values = self.cache.values
        if values is None or values.is_inference() or values._version != self.cache.version:
            return None
        if values.requires_grad == self.requires_grad:
            return values
        return None if self.requires_grad else values.detach()


class Cache:
    """What is cached with an expression once it is materialized, and with the same expression without gradients.

    values: its values, with their history. is_shared: whether what the expression is a part of reads them, and does not compute
    them again. is_observed: whether somebody waits for their gradient, which then has to pass through them. is_split: whether it
    is a linear layer, of which reductions alone read the parts that belong to nodes.
    """

    __slots__ = ("is_observed", "is_shared", "is_split", "values", "version")

    def __init__(self) -> None:
        self.values: Tensor | None = None
        self.version: int | None = None
        self.is_shared = self.is_observed = self.is_split = False


class Gather(Expression):
    """Features of one side's nodes for every edge: ``x.index_select(edge_dim, ids)``.

    side: the row of edge_index that ids are. version, edges_version: of x, and of edge_index, whose graph is made when it is
    needed. snapshot: x with the values of now, even if x is modified in place; None: x must not be modified before it is read.
    """

    __slots__ = ("edges_version", "ids", "side", "snapshot", "version", "x")
    name = "copy_u"

    def __init__(
        self, x: Tensor, propagation: Propagation, side: int, ids: Tensor, dim: int = 0, values: Tensor | None = None
    ) -> None:
        shape = [*x.shape]
        num_rows, shape[dim] = shape[dim], ids.shape[0]
        self.propagation, self.edge_dim, self.device = propagation, dim, x.device
        super().__init__(self, shape, x.dtype, side, num_rows, None, x.requires_grad)
        self.x, self.ids, self.side, self.snapshot = x, ids, side, values
        self.version, self.edges_version = version_of(x), version_of(propagation.edge_index)

    def is_current(self) -> bool:
        return self.snapshot is not None or version_of(self.x) == self.version

    def keep(self) -> None:
        if self.snapshot is None and torch.is_grad_enabled() and self.is_current():
            values = snapshot(self.x)
            self.snapshot = None if values is self.x else values

    def current(self) -> Tensor:
        """x as it was. Raises RuntimeError if it, or edge_index, was modified in place."""
        if version_of(self.propagation.edge_index) != self.edges_version:
            raise RuntimeError(
                "a message, or its gradient, is read after the edge_index by which it was made was modified in place; clone the "
                "edge_index before it is modified (halfgnn.pyg.patch() materializes messages when they are read)"
            )
        if self.snapshot is None:
            check_version(self.x, self.version)
        return self.x if self.snapshot is None else self.snapshot


class Op(Expression):
    """An operator of ATen on expressions and other operands.

    name: as it is counted. is_view: the result shares the memory of its only expression. keeps: whether PyTorch's operator keeps
    what it is applied to for its backward, so that programs may modify the features in place afterwards.
    """

    __slots__ = ("_versions", "args", "func", "is_view", "keeps", "kwargs", "name")

    def __init__(
        self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], name: str, like: Expression, shape: Any, dtype: torch.dtype,
        row: int | None, num_rows: int, strides: Any = None, is_view: bool = False, keeps: bool = False,
    ) -> None:  # fmt: skip
        self.func, self.args, self.kwargs, self.name = func, args, kwargs, name
        self.is_view, self.keeps = is_view, keeps
        tensors = [x for x in flat(args) if isinstance(x, Tensor)]
        requires_grad = any(x.requires_grad for x in tensors) or any(x.requires_grad for x in self.operands())
        super().__init__(like, shape, dtype, row, num_rows, strides, requires_grad)
        self._versions = [(x, version_of(x)) for x in tensors]

    def operands(self) -> Iterator[Expression]:
        return (x for x in flat(self.args) if isinstance(x, Expression))

    def check_versions(self) -> None:
        for x, version in self._versions:
            check_version(x, version)


class Softmax(Expression):
    """The softmax of logits over the edges of each node of a row.

    over: the row. in_autocast: whether autocast was on. note_read: called when its values are materialized.
    """

    __slots__ = ("in_autocast", "logits", "note_read", "num_nodes", "over")
    name = "softmax"

    def __init__(
        self, logits: Expression, over: int, num_nodes: int, dtype: torch.dtype, strides: Any, in_autocast: bool,
        note_read: Callable[[], None],
    ) -> None:  # fmt: skip
        self.logits, self.over, self.num_nodes = logits, over, num_nodes
        self.in_autocast, self.note_read = in_autocast, note_read
        super().__init__(logits, logits.shape, dtype, None, logits.shape[0], strides, logits.requires_grad)

    def operands(self) -> Iterator[Expression]:
        return iter((self.logits,))


def flat(args: Iterable[Any]) -> Iterator[Any]:
    """Arguments, and those in lists of them."""
    for x in args:
        if isinstance(x, (list, tuple)):
            yield from flat(x)
        else:
            yield x


# ---- in-place modifications ----------------------------------------------------------------------------------------------------


def version_of(x: Tensor) -> int | None:
    return None if x.is_inference() else x._version


def check_version(x: Tensor, version: int | None) -> None:
    if version_of(x) != version:
        raise modified_error()


def modified_error() -> RuntimeError:
    return RuntimeError(
        "a message is read after the features that it was made of were modified in place; clone the features, or the message "
        "before they are modified (halfgnn.pyg.patch() materializes messages when they are read)"
    )


# ---- operators of ATen -------------------------------------------------------------------------------------------------------

_aten = torch.ops.aten
BINARY = {_aten.mul.Tensor: "mul", _aten.add.Tensor: "add", _aten.sub.Tensor: "sub", _aten.div.Tensor: "div"}
# Of every value by itself, without a second tensor.
UNARY = frozenset(
    getattr(_aten, name).default
    for name in (
        "abs", "cos", "elu", "erf", "exp", "gelu", "leaky_relu", "log", "neg", "reciprocal", "relu", "rsqrt", "sigmoid", "silu",
        "sin", "softplus", "sqrt", "square", "tanh", "_to_copy", "clone",
    )
)  # fmt: skip
UNARY |= {getattr(_aten, name).Scalar for name in ("rsub", "mul", "add", "sub", "div")} | {_aten.pow.Tensor_Scalar}
# Those whose derivative is infinite for some number.
POLES = {getattr(_aten, name).default for name in ("exp", "log", "reciprocal", "rsqrt", "sqrt")} | {
    _aten.pow.Tensor_Scalar
}
# Those whose derivative is NaN or infinite for infinity, and finite for numbers.
UNBOUNDED = {getattr(_aten, name).default for name in ("cos", "gelu", "silu", "sin", "square")} | {
    _aten.mul.Tensor, _aten.div.Tensor,
}  # fmt: skip
# Views of the dimensions after that of the edges. The first two take a shape.
SHAPES = frozenset([_aten.view.default, _aten._unsafe_view.default])
VIEWS = SHAPES | {
    _aten.unsqueeze.default, _aten.squeeze.dim, _aten.select.int, _aten.slice.Tensor, _aten.transpose.int, _aten.expand.default,
}  # fmt: skip
ORDERLY = SHAPES | {
    _aten.unsqueeze.default,
    _aten.squeeze.dim,
}  # contiguous if the message is: the same values, in order
CAT, STACK, SUM, WHERE = _aten.cat.default, _aten.stack.default, _aten.sum.dim_IntList, _aten.where.self


# ---- signs -------------------------------------------------------------------------------------------------------------------

_NEGATIONS = frozenset([_aten.neg.default, _aten.rsub.Scalar])
_SCALES = frozenset([_aten.mul.Tensor, _aten.mul.Scalar, _aten.div.Tensor, _aten.div.Scalar])
_COPIES = frozenset([_aten._to_copy.default, _aten.clone.default])


def is_negated(x: Any) -> bool:
    """Whether an expression is written as the negative of something, so that to add it is to subtract."""
    if not isinstance(x, Op):
        return False
    if x.func in _NEGATIONS:
        return True
    if x.func in _SCALES:
        return any(is_negated(y) or _is_below_zero(y) for y in x.args)
    return (x.is_view or x.func in _COPIES) and is_negated(x.args[0])


def _is_below_zero(x: Any) -> bool:
    """Whether x is a negative number. A number in a program is a tensor without dimensions to PyTorch's operators."""
    is_number = isinstance(x, (int, float)) or (type(x) is Tensor and x.dim() == 0 and x.is_cpu)
    return is_number and bool(x < 0)


def of_shape(x: Expression) -> Tensor:
    """A tensor of the same shape, in the memory of one value."""
    return torch.empty((), dtype=x.dtype, device=x.device).expand(x.shape)


def of_strides(x: Expression | Tensor) -> Tensor:
    """A tensor of the same shape and strides without values. PyTorch asks the strides whether to copy what is reshaped."""
    return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device="meta")


def of_own_strides(x: Expression, values: Tensor) -> Tensor:
    """values, laid out as PyTorch's operators lay them out."""
    if x.is_contiguous():
        return values.contiguous()
    if values.stride() == x.strides:
        return values
    strides = x.stride()
    for dim, stride in enumerate(strides):  # of what is expanded, one place is written
        values = values.narrow(dim, 0, 1) if stride == 0 and x.shape[dim] > 1 else values
    return torch.empty_strided(values.shape, strides, dtype=x.dtype, device=x.device).copy_(values).expand(x.shape)


def strides_like(x: Expression | Tensor, memory_format: torch.memory_format | None = None) -> tuple[int, ...] | None:
    """The strides of what an operator makes of every value of x by itself; None if it is contiguous."""
    if x.is_contiguous():
        return None
    return torch.empty_like(of_strides(x), memory_format=memory_format or torch.preserve_format).stride()


def is_of_edges(x: Tensor, message: Expression) -> bool:
    """Whether x has a row for each edge, not one row for all."""
    place = x.dim() - message.dim() + message.edge_dim
    return place >= 0 and x.shape[place] == message.shape[message.edge_dim]
