"""Messages that are formed when something reads them, and never if they are only reduced.

``Message`` stands for ``x.index_select(0, edge_index[row])``, or for what operators make of such rows. To autograd it is an
ordinary tensor: it has a grad_fn, a version, hooks. PyTorch's own operators run on it unless `_deferred.py` puts them off.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from ... import ops
from ...common.autograd import apply
from ...common.precision import without_autocast
from ...drop_in.switch import is_backward
from .accounts import accounts, fell_back
from .call import Propagation
from .expression import AbstractMessage, Applied, Lifted, Recipe, Softmax, check_edges, of_shape, version_of
from .lower.values import form
from .rules import deferral

_aten = torch.ops.aten
_OF_SHAPES = {  # these read no value
    getattr(_aten, name).default
    for name in ("new_empty", "new_full", "new_ones", "new_zeros", "empty_like", "full_like", "ones_like", "zeros_like")
}


class _Values:
    """The values of a message and of what is detached from it, once they are formed."""

    __slots__ = ("formed", "is_written", "shared", "unbound")

    def __init__(self) -> None:
        self.formed: Tensor | None = None
        self.unbound: list[
            tuple[Tensor, int, tuple[Tensor, ...]]
        ] = []  # a tensor that is joined in it, a dimension, x.unbind
        self.shared: Tensor | None = None  # the values with the history of an evaluation, which later ones take
        self.is_written = False


class Message(AbstractMessage):
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]  # all is below autograd

    cell: _Values

    @staticmethod
    def of(
        recipe: Recipe, shape: Any, dtype: torch.dtype, like: AbstractMessage | Lifted, row: int | None, num_rows: int,
        strides: Any = None, cell: _Values | None = None,
    ) -> Message:  # fmt: skip
        """like: has the propagation, the dimension of edges and the device. strides: None for a contiguous message."""
        device, edge_dim = (like.x.device, like.dim) if isinstance(like, Lifted) else (like.device, like.edge_dim)
        message = torch.Tensor._make_wrapper_subclass(Message, shape, strides, dtype=dtype, device=device)  # type: ignore[attr-defined]
        message.recipe, message.cell = recipe, _Values() if cell is None else cell
        message.propagation, message.row, message.num_rows, message.edge_dim = like.propagation, row, num_rows, edge_dim
        return message

    def formed(self) -> Tensor:
        """The values, without their history."""
        if self.cell.formed is None:
            recipe = self.recipe
            with torch.no_grad(), without_autocast(self.device):
                if isinstance(recipe, Applied) and recipe.is_view:  # what is written to either is written to both
                    args = [x.formed() if isinstance(x, Message) else x for x in recipe.args]
                    self.cell.formed = recipe.func(*args, **recipe.kwargs)
                else:
                    self.cell.formed = self._of_own_strides(form(self))
        return self.cell.formed

    def _of_own_strides(self, values: Tensor) -> Tensor:
        """values, laid out as PyTorch's operators lay them out."""
        if self.is_contiguous():
            return values.contiguous()
        if values.stride() == self.stride():
            return values
        return torch.empty_strided(self.shape, self.stride(), dtype=self.dtype, device=self.device).copy_(values)

    def held(self) -> list[Tensor]:
        """The tensors whose memory a message keeps: what it is made of, and its values if they are formed."""
        recipe = self.recipe
        if isinstance(recipe, Lifted):
            parts = [recipe.x]
        else:
            parts = [y for x in recipe.messages() for y in x.held()] + [x for x, _ in recipe.operands]
        return parts if self.cell.formed is None else [*parts, self.cell.formed]

    def is_as_made(self) -> bool:
        """Whether nothing but its recipe decides its values, and nobody waits for its gradient."""
        formed, recipe = self.cell.formed, self.recipe
        if self.cell.is_written or version_of(self) not in (0, None):
            return False
        if formed is not None and version_of(formed) != 0:  # in inference mode writes through a view are not counted
            return False
        if self.requires_grad:  # else it has no hooks
            node = self.grad_fn
            if node is None or self._backward_hooks or self.retains_grad or not _is_own_node(node, recipe):
                return False
        if isinstance(recipe, Lifted):
            return version_of(recipe.x) == recipe.version
        return all(x.is_as_made() for x in recipe.messages())

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        kwargs = kwargs or {}
        if func is _aten.detach.default:
            x = args[0]
            return Message.of(x.recipe, x.shape, x.dtype, x, x.row, x.num_rows, x.stride(), x.cell)
        if func in _OF_SHAPES:
            return func(*(of_shape(x) if isinstance(x, Message) else x for x in args), **kwargs)
        deferred = None if is_backward() else deferral(func, args, kwargs)
        if deferred is not None:
            return Message.of(*deferred)
        messages: dict[int, Message] = {}

        def read(x: Any) -> Any:
            if not isinstance(x, Message):
                return x
            # Neither a backward is counted nor what is one operator of both sides, even if it is formed.
            is_counted = x.cell.formed is None and not is_backward() and not x.recipe.name.endswith("_v")
            start = time.perf_counter()
            values = x.formed()
            if isinstance(x.recipe, Softmax) and not is_backward():
                x.recipe.note_read()
            if is_counted:
                reader = func.name().split("::")[-1].split(".")[0]
                fell_back[f"message:{x.recipe.name}", f"read by {reader}"] += 1
                accounts.note_formed(f"{x.recipe.name} by {reader}", time.perf_counter() - start)
            messages[id(values)] = x
            return values

        args, kwargs = tuple(_mapped(read, x) for x in args), {key: _mapped(read, x) for key, x in kwargs.items()}
        result = func(*args, **kwargs)
        if not func._schema.is_mutable:
            return result
        for x in messages.values():  # one of them was written to
            x.note_write()
        return tree_map(lambda x: messages.get(id(x), x) if isinstance(x, Tensor) else x, result)

    def note_write(self) -> None:
        self.cell.is_written = True
        if isinstance(self.recipe, Applied) and self.recipe.is_view:
            for x in self.recipe.messages():
                x.note_write()

    def retain_grad(self) -> None:
        _refuse_if_passed([self])
        super().retain_grad()

    def register_hook(self, hook: Callable[..., Any]) -> Any:
        _refuse_if_passed([self])
        return super().register_hook(hook)

    # What reads memory without an operator reads the formed values.

    @property
    def data(self) -> Tensor:  # type: ignore[override]
        return self.detach()

    @data.setter
    def data(self, values: Tensor) -> None:
        with torch.no_grad():
            self.formed().copy_(values)
        self.note_write()


def _mapped(function: Callable[[Any], Any], x: Any) -> Any:
    """function of an argument of an operator, or of what it lists."""
    return [function(y) for y in x] if isinstance(x, (list, tuple)) else function(x)


def _reads_memory(name: str) -> Callable[..., Any]:
    def method(self: Message, *args: Any, **kwargs: Any) -> Any:
        return getattr(self.ordinary(), name)(*args, **kwargs)

    return method


for _name in (
    "__array__", "__deepcopy__", "__dlpack__", "__reduce_ex__", "__repr__", "data_ptr", "is_shared", "numpy",
    "share_memory_", "storage", "tolist", "untyped_storage",
):  # fmt: skip
    setattr(Message, _name, _reads_memory(_name))


class _Lift(torch.autograd.Function):
    """x.index_select(dim, index) as a Message. Its gradient is summed by halfgnn."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, recipe: Lifted) -> Tensor:
        ctx.lift = recipe.propagation, recipe.row, recipe.dim, x.shape[recipe.dim]  # not the recipe, which holds x
        ctx.edges_version = recipe.edges_version
        return _of_lifted(x, recipe)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        propagation, row, dim, num_nodes = ctx.lift
        check_edges(propagation, ctx.edges_version)
        g = propagation.ending_in(row, num_nodes)
        with without_autocast(grad.device):
            if dim == 0:
                return ops.gspmm(g, "copy_rhs", "sum", None, grad), None
            rows = grad.movedim(dim, 0).contiguous()
            return ops.gspmm(g, "copy_rhs", "sum", None, rows).movedim(0, dim), None


OWN_NODES: dict[type, type] = {Lifted: _Lift._backward_cls}  # type: ignore[attr-defined]  # of recipes without PyTorch's


def _is_own_node(node: Any, recipe: Recipe) -> bool:
    """Whether autograd's node is that of the recipe, not of an autograd Function that returned the message."""
    if type(recipe) in OWN_NODES:
        return type(node) is OWN_NODES[type(recipe)]
    return not isinstance(node, torch.autograd.function.BackwardCFunction) and "CppNode" not in node.name()


def _of_lifted(x: Tensor, recipe: Lifted) -> Message:
    dim, shape = recipe.dim, [*x.shape]
    num_rows, shape[dim] = shape[dim], recipe.ids.shape[0]
    return Message.of(recipe, shape, x.dtype, recipe, recipe.row, num_rows)


def lifted(
    x: Tensor, propagation: Propagation, row: int, index: Tensor, dim: int = 0, values: Tensor | None = None
) -> Tensor:
    """x at the row of edges as a message. values: those of x, which no write to x changes."""
    kept = [] if values is None else [values]
    recipe = Lifted(propagation, row, index, x, version_of(x), kept, dim, version_of(propagation.edge_index))
    if torch.is_grad_enabled() and x.requires_grad:
        return apply(_Lift, x, recipe)
    return _of_lifted(x, recipe)


def _refuse_if_passed(inputs: Any) -> None:
    for x in inputs:
        if isinstance(x, Message) and x.is_passed:
            raise RuntimeError(
                f"a message {tuple(x.shape)} was reduced without being formed, so that its gradient is not known; call its "
                "retain_grad() before it is used, or leave out fuse=True of halfgnn.pyg.patch()"
            )


def grad(original: Callable[..., Any], outputs: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
    """``torch.autograd.grad``, which must not give a part of a message's gradient, or none, for the whole."""
    inputs = inputs if isinstance(inputs, Tensor) else tuple(inputs)
    _refuse_if_passed([inputs] if isinstance(inputs, Tensor) else inputs)
    return original(outputs, inputs, *args, **kwargs)


def backward(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """``torch.autograd.backward``, which ``Tensor.backward`` calls. inputs: its last argument."""
    inputs = args[5] if len(args) > 5 else kwargs.get("inputs")
    if inputs is not None:
        _refuse_if_passed([inputs] if isinstance(inputs, Tensor) else inputs)
    return original(*args, **kwargs)
