"""``x[index]``: what the drop-in learns from it.

A stand-in of Tensor.__getitem__ runs at every indexing of the process. Where it finds nothing it costs 0.2 microseconds.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..common.drop_in import Bindings
from ._graph import note_selection
from ._operators import refuse_mode

_ALL = slice(None)
_INTEGERS = (torch.int64, torch.int32)


def install(bindings: Bindings) -> None:
    original = Tensor.__getitem__

    def __getitem__(self: Tensor, index: Any) -> Any:
        if type(index) is tuple and len(index) == 2 and type(index[1]) is type(self) is Tensor:
            return _selected(original(self, index), self, index)
        return original(self, index)

    bindings.bind(Tensor, "__getitem__", __getitem__)


def _selected(columns: Any, x: Tensor, index: tuple[Any, Tensor]) -> Any:
    """Columns of an edge_index."""
    is_edge_index = x.dim() == 2 and x.shape[0] == 2 and x.dtype in _INTEGERS and x.layout == torch.strided
    is_selection = type(index[0]) is slice and index[0] == _ALL and index[1].dim() == 1
    if is_edge_index and is_selection and type(columns) is Tensor and columns.shape[1] and refuse_mode() is None:
        note_selection(x, columns)
    return columns
