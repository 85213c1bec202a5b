"""The names of ``dgl.backend`` that programs use. PyTorch is the only backend."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

__all__ = ["asnumpy", "backend_name", "tensor", "zerocopy_from_numpy", "zerocopy_to_numpy"]

backend_name = "pytorch"


def tensor(data: Any, dtype: torch.dtype | None = None) -> Tensor:
    """A tensor of data."""
    return torch.as_tensor(data, dtype=dtype)


def asnumpy(input: Tensor) -> np.ndarray:
    """An array of the values of a tensor on any device."""
    return input.detach().cpu().numpy()


zerocopy_to_numpy = asnumpy


def zerocopy_from_numpy(np_array: np.ndarray) -> Tensor:
    """A tensor that shares the array's memory."""
    return torch.as_tensor(np_array)
