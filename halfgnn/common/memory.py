"""Memory for results of PyTorch's operators."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import torch
from torch import Tensor

from .. import _library

_LEAST_ADVISED = 1 << 22  # bytes; of fewer, csrc/core/huge_pages.h does nothing
_advise_huge_pages = getattr(ctypes.CDLL(_library._PATH), "halfgnn_advise_huge_pages", None)
if _advise_huge_pages is not None:
    _advise_huge_pages.argtypes, _advise_huge_pages.restype = [ctypes.c_void_p, ctypes.c_int64], None


def empty(like: Tensor, shape: Sequence[int], dtype: torch.dtype | None = None) -> Tensor:
    """like.new_empty(shape, dtype=dtype), for a result that may be large: on the CPU it is advised to lie in huge pages.

    Not for traced code or functorch's transforms.
    """
    result = like.new_empty(shape, dtype=like.dtype if dtype is None else dtype)
    num_bytes = result.nbytes
    if num_bytes >= _LEAST_ADVISED and _advise_huge_pages is not None and result.is_cpu:
        _advise_huge_pages(result.data_ptr(), num_bytes)
    return result
