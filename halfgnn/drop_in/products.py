"""The option products="fp32" of drop-ins: wrappers of PyTorch's matrix products, which make those of half-precision values in fp32.

They take dense matrices on CPUs whose products of that half type are slow, and leave the rest to PyTorch.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from ..common.compat import forget_names
from ..common.precision import computed_type
from ..common.products import multiplies_slowly, widened_linear
from .accounts import Accounts
from .gate import mode_reason, operands_reason
from .table import Row, Shared, Table
from .wrappers import Bindings

_TENSORS = (Tensor, nn.Parameter)
# Tensor subclasses that may be multiplied, and how their values are read. halfgnn.pyg adds its messages.
READERS: dict[type, Callable[[Tensor], Tensor]] = {}


def is_fp32(products: Any) -> bool:
    """Whether the option `products` is on.

    Raises:
        ValueError: it is neither None nor "fp32".
    """
    if products is not None and not (isinstance(products, str) and products == "fp32"):
        raise ValueError(f"products is {products!r}; expected None or 'fp32'")
    return products is not None


def _rounds_to(x: Any, matrix: Any, *others: Any) -> torch.dtype | None:
    """The dtype of a product of x (*, in) and a matrix that is made in fp32; None if PyTorch makes it.

    others: what is added to the product.
    """
    if torch.compiler.is_compiling() or not (type(x) in _TENSORS or type(x) in READERS) or not x.is_cpu:
        return None
    dtype = computed_type(x)
    if not multiplies_slowly(dtype) or mode_reason() is not None:
        return None
    operands = x, matrix, *others
    if any(type(operand) not in _TENSORS for operand in operands[1:]) or operands_reason(operands) is not None:
        return None
    if any(operand.layout != torch.strided or operand.device != x.device for operand in operands):
        return None
    is_product = x.dim() > 1 and matrix.dim() == 2 and x.numel() > 0 and matrix.numel() > 0
    return dtype if is_product else None


def _read(name: str, x: Tensor, dtype: torch.dtype) -> Tensor:
    """The operand x of a product, which is counted, in the dtype to which PyTorch would round it."""
    for accounts in STAND_INS.users:
        accounts.routed[f"fp32:{name}"] += 1
    return (READERS[type(x)](x) if type(x) in READERS else x).to(dtype)


def _left(original: Any, *args: Any, **kwargs: Any) -> Any:
    """PyTorch's own result. C++ would hand __torch_function__ what it finds under the name of a method: the wrapper."""
    is_method = isinstance(original, types.MethodDescriptorType) and not torch.compiler.is_compiling()
    if is_method and torch.overrides.has_torch_function(args):
        return torch.overrides.handle_torch_function(original, args, *args, **kwargs)
    return original(*args, **kwargs)


# ---- wrappers: each takes the function that it replaces, and then that function's arguments -------------------------------------


def _linear(original: Any, input: Any, weight: Any, bias: Any = None) -> Any:
    """``torch.nn.functional.linear``."""
    dtype = _rounds_to(input, weight, *([] if bias is None else [bias]))
    if dtype is None or input.shape[-1] != weight.shape[1] or (bias is not None and bias.shape != weight.shape[:1]):
        return original(input, weight, bias)
    return widened_linear(_read("linear", input, dtype), weight, bias, weight.shape[0])[0]


def _matmul(original: Any, *args: Any, **kwargs: Any) -> Any:
    """``torch.matmul`` and ``torch.Tensor.matmul``, also written as @."""
    dtype = None if kwargs or len(args) != 2 else _rounds_to(*args)
    if dtype is None or args[0].shape[-1] != args[1].shape[0]:
        return _left(original, *args, **kwargs)
    return _product("matmul", dtype, *args)


def _mm(original: Any, *args: Any, **kwargs: Any) -> Any:
    """``torch.mm`` and ``torch.Tensor.mm``."""
    dtype = None if kwargs or len(args) != 2 else _rounds_to(*args)
    if dtype is None or args[0].dim() != 2 or args[0].shape[1] != args[1].shape[0]:
        return _left(original, *args, **kwargs)
    return _product("mm", dtype, *args)


def _product(name: str, dtype: torch.dtype, x: Tensor, matrix: Tensor) -> Tensor:
    return widened_linear(_read(name, x, dtype), matrix.t(), None, matrix.shape[1])[0]


def _addmm(original: Any, *args: Any, **kwargs: Any) -> Any:
    """``torch.addmm`` and ``torch.Tensor.addmm``."""
    dtype = None if len(args) != 3 or kwargs.keys() - {"alpha", "beta"} else _rounds_to(*args[1:], args[0])
    if dtype is None or not _adds(*args, **kwargs):
        return _left(original, *args, **kwargs)
    summand, x, matrix = args
    (product,) = widened_linear(_read("addmm", x, dtype), matrix.t(), None, 0)[1:]
    return torch.add(kwargs.get("beta", 1) * summand.float(), product, alpha=kwargs.get("alpha", 1)).to(dtype)


def _adds(summand: Tensor, x: Tensor, matrix: Tensor, alpha: Any = 1, beta: Any = 1) -> bool:
    """Whether alpha * (x @ matrix) and beta * summand can be added, and both are read."""
    if x.dim() != 2 or x.shape[1] != matrix.shape[0] or summand.dim() > 2:
        return False
    if not isinstance(alpha, (int, float)) or not isinstance(beta, (int, float)) or beta == 0:
        return False
    return all(a in (1, b) for a, b in zip(reversed(summand.shape), (matrix.shape[1], x.shape[0])))


# ---- patching ----------------------------------------------------------------------------------------------------------------

TABLE = Table(
    [
        Row("torch.nn.functional", "linear", _linear),
        Row("torch", "matmul", _matmul),
        Row("torch", "mm", _mm),
        Row("torch", "addmm", _addmm),
        Row(Tensor, "matmul", _matmul),
        Row(Tensor, "__matmul__", _matmul),
        Row(Tensor, "mm", _mm),
        Row(Tensor, "addmm", _addmm),
    ]
)


def _restored() -> None:
    TABLE.restored()
    forget_names()


STAND_INS = Shared(TABLE.bind, _restored)  # used by the Accounts of drop-ins


def installer(accounts: Accounts) -> Callable[[Bindings], None]:
    """What a drop-in with these counts binds of its own for the option."""
    return lambda bindings: bindings.bind(accounts, "products_in_fp32", True)
