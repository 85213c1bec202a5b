"""What functions of PyTorch do with messages: they extend an expression, are lowered with it, or ask for its history.

A function that is not in this table runs on the values.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ...drop_in.checkpoint import is_backward
from ...expressions.expression import Expression, of_shape
from ...expressions.linear import linear
from ...expressions.rules import EXTENDING, named
from . import relations
from .message import HANDLERS, Message, expression_of, extend, is_watched_or_transformed, message_of, messages_in

# ---- functions that do not read values -----------------------------------------------------------------------------------------


def _unchanged(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Of the shape, dtype, device or layout."""
    with torch._C.DisableTorchFunctionSubclass():
        return func(*args, **kwargs)


def _of_shape(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """New tensors of a message's shape, dtype and device."""
    if not isinstance(args[0], Message) or len(list(messages_in(args[1:], kwargs))):
        return NotImplemented
    lazy = args[0].lazy
    like = of_shape(lazy) if lazy.strides is None else torch.empty_strided(lazy.shape, lazy.strides, device="meta")
    options = {"dtype": lazy.dtype, "device": lazy.device, **kwargs} if lazy.strides is not None else kwargs
    return func(like, *args[1:], **options)


def _like(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What makes a tensor like another: of the shape, or of the dtype and device, of a message."""
    if isinstance(args[0], Message):
        return extend(func, args, kwargs)
    if any(isinstance(x, Message) for x in kwargs.values()):
        return NotImplemented
    return func(*(of_shape(x.lazy) if isinstance(x, Message) else x for x in args), **kwargs)


# ---- functions to which expressions are lowered --------------------------------------------------------------------------------


def _dropout(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``torch.nn.functional.dropout``, which returns its argument in evaluation."""
    return _lower_dropout(*args, **kwargs)


def _lower_dropout(input: Any, p: float = 0.5, training: bool = True, inplace: bool = False) -> Any:
    return input if (p == 0 or not training) and 0 <= p <= 1 else NotImplemented


def _linear(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``torch.nn.functional.linear``."""
    return _lower_linear(*args, **kwargs)


def _lower_linear(input: Any, weight: Any, bias: Any = None) -> Any:
    lazy = None if is_watched_or_transformed() or is_backward() else expression_of(input)
    result = None if lazy is None else linear(lazy, weight, bias)
    return NotImplemented if result is None else message_of(result)


def _matmul(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A product with weights of relations, or with a matrix (K, M), which is that of a linear layer."""
    if kwargs or len(args) != 2 or is_watched_or_transformed() or is_backward():
        return NotImplemented
    x, matrix = map(_expression_or_tensor, args)
    result: Any = None
    if relations.are_weights(matrix):
        result = relations.product(x, matrix) if isinstance(x, Expression) or type(x) is Tensor else None
    elif isinstance(x, Expression) and isinstance(matrix, Tensor) and matrix.dim() == 2:
        result = linear(x, matrix.t(), None)
    return NotImplemented if result is None else message_of(result)


def _expression_or_tensor(x: Any) -> Any:
    if not isinstance(x, Message):
        return x
    lazy = x.expression()
    return x.materialized() if lazy is None else lazy


# ---- functions that ask for autograd's history ---------------------------------------------------------------------------------


def _detach(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return args[0].detached() if args[0].expression() is not None else NotImplemented


def _requires_grad(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    message = args[0]
    return message.lazy.requires_grad if message.tensor is None else message.tensor.requires_grad


def _is_leaf(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    message = args[0]
    return not message.lazy.requires_grad if message.tensor is None else message.tensor.is_leaf


def _version(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
    message = args[0]
    return 0 if message.tensor is None else message.tensor._version


def _observe(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What asks for the gradient of a message, or for its place in autograd's graph."""
    args[0].observed()
    if func is Tensor.requires_grad_:
        args[0]._is_modified = True
    return NotImplemented


def _register_hook(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``Tensor.register_hook``. A second backward that gives a message no gradient calls no hook, as without the drop-in."""

    def register(message: Any, hook: Any) -> Any:
        return func(message.observed(), lambda grad: None if grad is None else hook(grad))

    return register(*args, **kwargs)


def _observe_inputs(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Gradients with regard to messages."""
    place = {"grad": 1, "backward": 5}[func.__name__]
    inputs = args[place] if len(args) > place else kwargs.get("inputs")
    for x in messages_in((inputs,), {}):
        x.observed()
    return NotImplemented


def _getter(name: str) -> Any:
    return getattr(Tensor, name).__get__


def _getters(*names: str) -> list[Any]:
    return [_getter(name) for name in names if hasattr(Tensor, name)]


_METADATA = (
    "shape", "dtype", "device", "layout", "ndim", "is_cuda", "is_cpu", "is_meta", "is_sparse", "is_sparse_csr", "is_quantized",
    "is_nested", "is_mkldnn", "is_xpu", "is_mps", "itemsize", "nbytes", "names",
)  # fmt: skip
_METADATA_FUNCTIONS = (
    "size", "dim", "stride", "numel", "nelement", "ndimension", "is_contiguous", "element_size", "is_floating_point", "is_complex",
    "get_device", "__len__", "is_same_size", "is_signed", "is_inference", "__hash__", "is_neg", "is_conj", "has_names",
    "is_coalesced",
)  # fmt: skip
HANDLERS |= {
    **dict.fromkeys(_getters(*_METADATA), _unchanged),
    **dict.fromkeys(named(*_METADATA_FUNCTIONS), _unchanged),
    **dict.fromkeys(
        named("new_empty", "new_full", "new_ones", "new_zeros", "empty_like", "full_like", "ones_like", "zeros_like"),
        _of_shape,
    ),
    **dict.fromkeys(named(*EXTENDING), extend),
    **dict.fromkeys(named("view_as", "reshape_as", "expand_as", "type_as", "to"), _like),
    nn.functional.dropout: _dropout,
    **dict.fromkeys(named("linear"), _linear),
    **dict.fromkeys(named("matmul", "__matmul__", "mm", "bmm"), _matmul),
    **dict.fromkeys([*named("detach"), _getter("data")], _detach),
    _getter("requires_grad"): _requires_grad,
    _getter("is_leaf"): _is_leaf,
    _getter("_version"): _version,
    _getter("grad_fn"): _observe,
    **dict.fromkeys(named("register_hook"), _register_hook),
    **dict.fromkeys(named("retain_grad", "register_post_accumulate_grad_hook", "requires_grad_"), _observe),
    **dict.fromkeys([torch.autograd.grad, torch.autograd.backward], _observe_inputs),
}
