"""What torch.jit.script sees of SparseTensor: a type, and functions that raise.

Modules of torch_geometric take a tensor or a SparseTensor, so their scripts name both. Such a script takes tensors.
"""

# ruff: noqa: UP006, UP035, UP045  (torch.jit.script does not read the newer forms in all places)

from __future__ import annotations

import sys
import warnings
from typing import Any, Optional, Tuple

import torch
from torch import Tensor

from . import functions
from .matmul import matmul
from .storage import SparseStorage
from .tensor import SparseTensor


class ScriptedStorage:
    """SparseStorage in scripts."""

    def __init__(self) -> None:
        raise NotImplementedError("torch.jit.script takes no SparseTensor")

    def value(self) -> Optional[Tensor]:
        raise NotImplementedError("torch.jit.script takes no SparseTensor")

    def rowcount(self) -> Tensor:
        raise NotImplementedError("torch.jit.script takes no SparseTensor")


class ScriptedTensor:
    """SparseTensor in scripts: what modules of torch_geometric call."""

    def __init__(self) -> None:
        self.storage = ScriptedStorage()

    def size(self, dim: int) -> int:
        raise NotImplementedError("torch.jit.script takes no SparseTensor")

    def nnz(self) -> int:
        raise NotImplementedError("torch.jit.script takes no SparseTensor")

    def is_cuda(self) -> bool:
        raise NotImplementedError("torch.jit.script takes no SparseTensor")

    def has_value(self) -> bool:
        raise NotImplementedError("torch.jit.script takes no SparseTensor")

    def requires_grad(self) -> bool:
        raise NotImplementedError("torch.jit.script takes no SparseTensor")

    def set_value(self, value: Optional[Tensor], layout: Optional[str] = None) -> ScriptedTensor:
        raise NotImplementedError("torch.jit.script takes no SparseTensor")

    def fill_value(self, fill_value: float, dtype: Optional[int] = None) -> ScriptedTensor:
        raise NotImplementedError("torch.jit.script takes no SparseTensor")

    def coo(self) -> Tuple[Tensor, Tensor, Optional[Tensor]]:
        raise NotImplementedError("torch.jit.script takes no SparseTensor")

    def csr(self) -> Tuple[Tensor, Tensor, Optional[Tensor]]:
        raise NotImplementedError("torch.jit.script takes no SparseTensor")

    def to_torch_sparse_csr_tensor(self, dtype: Optional[int] = None) -> Tensor:
        raise NotImplementedError("torch.jit.script takes no SparseTensor")


def matmul_in_scripts(src: ScriptedTensor, other: Tensor, reduce: str = "sum") -> Tensor:
    raise NotImplementedError("torch.jit.script takes no SparseTensor")


def sum_in_scripts(src: ScriptedTensor, dim: Optional[int] = None) -> Tensor:
    raise NotImplementedError("torch.jit.script takes no SparseTensor")


def mul_in_scripts(src: ScriptedTensor, other: Tensor) -> ScriptedTensor:
    raise NotImplementedError("torch.jit.script takes no SparseTensor")


def set_diag_in_scripts(src: ScriptedTensor, values: Optional[Tensor] = None, k: int = 0) -> ScriptedTensor:
    raise NotImplementedError("torch.jit.script takes no SparseTensor")


def fill_diag_in_scripts(src: ScriptedTensor, fill_value: float, k: int = 0) -> ScriptedTensor:
    raise NotImplementedError("torch.jit.script takes no SparseTensor")


def masked_select_nnz_in_scripts(src: ScriptedTensor, mask: Tensor, layout: Optional[str] = None) -> ScriptedTensor:
    raise NotImplementedError("torch.jit.script takes no SparseTensor")


_FUNCTIONS = {
    matmul: matmul_in_scripts,
    functions.sum: sum_in_scripts,
    functions.mul: mul_in_scripts,
    functions.set_diag: set_diag_in_scripts,
    functions.fill_diag: fill_diag_in_scripts,
    functions.masked_select_nnz: masked_select_nnz_in_scripts,
}


def register() -> None:
    """Lets torch.jit.script take these for SparseTensor and its functions."""
    if sys.version_info >= (3, 14):
        return  # there is no torch.jit.script
    state: Any = torch.jit._state
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        for ours, scripted in ((SparseStorage, ScriptedStorage), (SparseTensor, ScriptedTensor)):
            torch.jit.script(scripted)
            state._add_script_class(ours, state._get_script_class(scripted))
        for function, wrapper in _FUNCTIONS.items():
            state._set_jit_function_cache(function, torch.jit.script(wrapper))
