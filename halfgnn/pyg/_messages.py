"""Messages that are formed when something reads them, and never if they are only reduced.

``Message`` stands for ``x.index_select(0, edge_index[row])``, or for that combined with one row per edge. To autograd it is an
ordinary tensor: it has a grad_fn, a version, hooks. PyTorch's own operators run on it unless an operator here takes it as it is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from .. import ops
from ..common.autograd import snapshot
from ..common.drop_in import is_backward
from ..common.precision import HALF, may_mix, without_autocast
from ._accounts import fell_back, routed
from ._propagation import Propagation

_aten = torch.ops.aten
_OF_SHAPES = {  # these read no value
    getattr(_aten, name).default
    for name in ("new_empty", "new_full", "new_ones", "new_zeros", "empty_like", "full_like", "ones_like", "zeros_like")
}
_NAMES = {_aten.mul.Tensor: "mul", _aten.add.Tensor: "add", _aten.sub.Tensor: "sub", _aten.div.Tensor: "div"}


class Lifted(NamedTuple):
    """Features of one side's nodes for every edge."""

    propagation: Propagation
    row: int
    ids: Tensor
    x: Tensor
    version: int | None
    kept: list[Tensor]  # the values of x, if autograd may ask for them after x was written to

    @property
    def name(self) -> str:
        return "copy_u"

    @property
    def lift(self) -> Lifted:
        return self

    def current(self, with_history: bool) -> Tensor:
        """x. Unless its values were kept, it must not have changed."""
        if self.kept and not with_history:
            return self.kept[0]
        _check_version(self.x, self.version)
        return self.x if with_history or not self.x.requires_grad else self.x.detach()

    def keep(self) -> None:
        values = snapshot(self.x, with_history=False)
        if not self.kept and values is not self.x:
            self.kept.append(values)

    def form(self) -> Tensor:
        return self.current(False).index_select(0, self.ids)


class Combined(NamedTuple):
    """A lifted message, and one row per edge."""

    op: str
    message: Message
    edge: Tensor
    version: int | None
    function: Callable[..., Tensor]
    swapped: bool

    @property
    def name(self) -> str:
        return f"u_{self.op}_e"

    @property
    def lift(self) -> Lifted:
        assert isinstance(self.message.recipe, Lifted)
        return self.message.recipe

    def current(self, with_history: bool) -> Tensor:
        """The rows of edges, which must not have changed."""
        _check_version(self.edge, self.version)
        return self.edge if with_history else self.edge.detach()

    def form(self) -> Tensor:
        # The message may have been written to after this one was made of it.
        lifted = self.message.formed() if self.message.is_as_made() else self.lift.form()
        operands = lifted, self.current(False)
        return self.function(*(operands[::-1] if self.swapped else operands))


class Product(NamedTuple):
    """The product of lifted messages of both sides. If it is summed over its last dimension, it is never formed."""

    first: Message
    second: Message

    def form(self) -> Tensor:
        return _of_ends("mul", self.first.recipe, self.second.recipe)

    def dot(self, out_dtype: torch.dtype | None) -> Tensor:
        return _of_ends("dot", self.first.recipe, self.second.recipe, out_dtype)


def version_of(x: Tensor) -> int | None:
    return None if x.is_inference() else x._version


def _check_version(x: Tensor, version: int | None) -> None:
    if version_of(x) != version:
        raise RuntimeError(
            "a message is read after the features that it was made of were modified in place; clone the features, or the message "
            "before they are modified (halfgnn.pyg.patch() forms messages when they are read)"
        )


Recipe = Lifted | Combined | Product


class _Values:
    """The values of a message and of what is detached from it, once they are formed."""

    __slots__ = ("formed", "is_written")

    def __init__(self) -> None:
        self.formed: Tensor | None = None
        self.is_written = False


class Message(Tensor):
    """One row per edge that exists once it is read."""

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]  # all is below autograd

    recipe: Recipe
    cell: _Values

    @staticmethod
    def of(
        recipe: Recipe, shape: Any, dtype: torch.dtype, device: torch.device, cell: _Values | None = None
    ) -> Message:
        message = torch.Tensor._make_wrapper_subclass(Message, shape, dtype=dtype, device=device)  # type: ignore[attr-defined]
        message.recipe, message.cell = recipe, _Values() if cell is None else cell
        return message

    def formed(self) -> Tensor:
        """The values, without their history."""
        if self.cell.formed is None:
            with torch.no_grad(), without_autocast(self.device):
                self.cell.formed = self.recipe.form().contiguous()
        return self.cell.formed

    def held(self) -> list[Tensor]:
        """The tensors whose memory a message keeps: what it is made of, and its values if they are formed."""
        recipe = self.recipe
        if isinstance(recipe, Product):
            parts = [*recipe.first.held(), *recipe.second.held()]
        else:
            parts = [recipe.x] if isinstance(recipe, Lifted) else [*recipe.message.held(), recipe.edge]
        return parts if self.cell.formed is None else [*parts, self.cell.formed]

    def is_as_made(self) -> bool:
        """Whether nothing but its recipe decides its values, and nobody waits for its gradient."""
        formed, recipe = self.cell.formed, self.recipe
        if self.cell.is_written or version_of(self) not in (0, None):
            return False
        if formed is not None and version_of(formed) != 0:  # in inference mode writes through a view are not counted
            return False
        if self._backward_hooks or self.retains_grad or (self.is_leaf and self.requires_grad):
            return False
        if isinstance(recipe, Product):
            return recipe.first.is_as_made() and recipe.second.is_as_made()
        return recipe.message.is_as_made() if isinstance(recipe, Combined) else True

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        combined = _combined(func, args, kwargs)
        if combined is not None:
            return combined
        if func is _aten.detach.default:
            x = args[0]
            return Message.of(x.recipe, x.shape, x.dtype, x.device, x.cell)
        if func in _OF_SHAPES:
            return func(*(_of_shape(x) if isinstance(x, Message) else x for x in args), **(kwargs or {}))
        messages: dict[int, Message] = {}

        def read(x: Any) -> Any:
            if not isinstance(x, Message):
                return x
            recipe = x.recipe
            # Neither a backward is counted nor a product of both sides, which is one operator even if it is formed.
            if x.cell.formed is None and not isinstance(recipe, Product) and not is_backward():
                fell_back[(f"message:{recipe.name}", f"read by {func.name().split('::')[-1].split('.')[0]}")] += 1
            values = x.formed()
            messages[id(values)] = x
            return values

        args, kwargs = tree_map(read, args), tree_map(read, kwargs or {})
        result = func(*args, **kwargs)
        if not func._schema.is_mutable:
            return result
        for x in messages.values():  # one of them was written to
            x.cell.is_written = True
        return tree_map(lambda x: messages.get(id(x), x) if isinstance(x, Tensor) else x, result)

    # What reads memory without an operator reads the formed values.

    def _as_tensor(self) -> Tensor:
        return self.view_as(self)

    @property
    def data(self) -> Tensor:  # type: ignore[override]
        return self.detach()


def _reads_memory(name: str) -> Callable[..., Any]:
    def method(self: Message, *args: Any, **kwargs: Any) -> Any:
        return getattr(self._as_tensor(), name)(*args, **kwargs)

    return method


for _name in (
    "__array__", "__deepcopy__", "__dlpack__", "__reduce_ex__", "__repr__", "data_ptr", "is_shared", "numpy",
    "share_memory_", "storage", "tolist", "untyped_storage",
):  # fmt: skip
    setattr(Message, _name, _reads_memory(_name))


class _Lift(torch.autograd.Function):
    """x.index_select(0, index) as a Message. Its gradient is summed by halfgnn."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, recipe: Lifted) -> Tensor:
        ctx.propagation, ctx.row, ctx.num_nodes = recipe.propagation, recipe.row, x.shape[0]
        return Message.of(recipe, (recipe.ids.shape[0], *x.shape[1:]), x.dtype, x.device)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        g = ctx.propagation.ending_in(ctx.row, ctx.num_nodes)
        with without_autocast(grad.device):
            return ops.gspmm(g, "copy_rhs", "sum", None, grad), None


def lifted(x: Tensor, propagation: Propagation, row: int, index: Tensor) -> Tensor:
    recipe = Lifted(propagation, row, index, x, version_of(x), [])
    if torch.is_grad_enabled() and x.requires_grad:
        return _Lift.apply(x, recipe)
    return Message.of(recipe, (index.shape[0], *x.shape[1:]), x.dtype, x.device)


# ---- messages of messages ----------------------------------------------------------------------------------------------------


def _of_shape(message: Message) -> Tensor:
    """A tensor of the same shape, in the memory of one value."""
    return torch.empty((), dtype=message.dtype, device=message.device).expand(message.shape)


def _combined(func: Any, args: Any, kwargs: Any) -> Tensor | None:
    """What an operator makes of a lifted message and a row per edge, or of lifted messages of both sides; None for others."""
    op = _NAMES.get(func)
    if func is _aten.relu.default:
        return _relu(args[0])
    if func is _aten.sum.dim_IntList:
        return _summed(*args, **(kwargs or {}))
    if op is None or kwargs or is_backward():
        return None
    first, second = args
    if _is_plain(first) and _is_plain(second):
        return _of_both_sides(op, first, second)
    swapped = op in ("mul", "add") and isinstance(second, Message)
    message, edge = (second, first) if swapped else (first, second)
    if not _is_plain(message) or type(edge) not in (Tensor, torch.nn.Parameter):
        return None
    if edge.layout != torch.strided or edge.device != message.device or edge.is_neg():
        return None
    shape, dtype = _shape_of(message, edge), _dtype_of(message.dtype, edge.dtype)
    if shape is None or dtype is None:
        return None
    recipe = Combined(op, message, edge, version_of(edge), func, swapped)
    return Message.of(recipe, shape, dtype, message.device)


def _relu(message: Message) -> Message | None:
    """The message of GINE: relu of the sum of a node's features and an edge's."""
    recipe = message.recipe
    if not isinstance(recipe, Combined) or recipe.op != "add" or not message.is_as_made() or is_backward():
        return None
    add = recipe.function
    rectified = recipe._replace(op="relu_add", function=lambda x, y: add(x, y).relu_())
    return Message.of(rectified, message.shape, message.dtype, message.device)


def _is_plain(x: Any) -> bool:
    return isinstance(x, Message) and isinstance(x.recipe, Lifted) and x.is_as_made()


def _of_both_sides(op: str, first: Message, second: Message) -> Tensor | None:
    """op(first, second) in one pass over the edges, without the two messages."""
    lhs, rhs = first.recipe, second.recipe
    assert isinstance(lhs, Lifted) and isinstance(rhs, Lifted)
    if lhs.row == rhs.row or lhs.propagation.edge_index is not rhs.propagation.edge_index:
        return None
    shape, dtype = _shape_of(first, second), _dtype_of(first.dtype, second.dtype)
    if shape is None or dtype is None:
        return None
    if op == "mul":
        lhs.keep(), rhs.keep()  # both factors are read in the backward
        return Message.of(Product(first, second), shape, dtype, first.device)
    return _of_ends(op, lhs, rhs)


def _of_ends(op: str, lhs: Any, rhs: Any, out_dtype: torch.dtype | None = None) -> Tensor:
    """op of the features of both ends of every edge, which are not formed. lhs, rhs: Lifted."""
    x, y = lhs.current(False), rhs.current(False)
    targets = ("u", "v") if lhs.row == 0 else ("v", "u")
    if not is_backward():
        routed[f"gsddmm:{targets[0]}_{op}_{targets[1]}"] += 1
    u, v = (x, y) if lhs.row == 0 else (y, x)
    g = lhs.propagation.into(1, v.shape[0], u.shape[0])
    with torch.no_grad(), without_autocast(x.device):
        return ops.gsddmm(g, op, x, y, *targets, out_dtype=out_dtype)


def _summed(message: Any, dims: Any, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Tensor | None:
    """The sum over the last dimension of a product of both sides: the logits of dot-product attention."""
    recipe = message.recipe
    if not isinstance(recipe, Product) or message.cell.formed is not None or not message.is_as_made():
        return None
    last = message.dim() - 1
    if last < 1 or dims is None or list(dims) not in ([last], [-1]):
        return None
    if recipe.first.shape != recipe.second.shape or message.shape[last] == 0:
        return None
    if dtype not in (None, message.dtype) and not (dtype is torch.float32 and message.dtype in HALF):
        return None
    out = recipe.dot(None if dtype is message.dtype else dtype)
    return out if keepdim else out.squeeze(last)


def _shape_of(message: Tensor, edge: Tensor) -> tuple[int, ...] | None:
    if edge.dim() != message.dim() or edge.shape[0] != message.shape[0]:
        return None
    try:
        return tuple(torch.broadcast_shapes(message.shape, edge.shape))
    except RuntimeError:
        return None  # PyTorch raises its own


def _dtype_of(dtype: torch.dtype, edge: torch.dtype) -> torch.dtype | None:
    """PyTorch's dtype of the two combined, if halfgnn combines them."""
    if dtype is edge:
        return dtype if dtype.is_floating_point else None
    return torch.float32 if may_mix(dtype, edge) else None
