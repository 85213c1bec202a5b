"""Nodes without in-edges."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .caching import refuse_capture
from .compat import assume_constant_result, is_exporting

_ZERO_IN_DEGREE = (
    "There are 0-in-degree nodes in the graph, output for those nodes will be invalid. Add a self-loop to every node"
)
_OPTION = ", or construct the module with allow_zero_in_degree=True, which leaves them zero before residual and bias"


@assume_constant_result
def _any_empty(indptr: Tensor) -> bool:
    return bool((indptr[1:] == indptr[:-1]).any())


def check_in_degrees(g: Any, error: type[Exception] = ValueError, has_option: bool = True) -> None:
    """Raises `error` if a node of the Graph has no in-edge. has_option: whether the module has allow_zero_in_degree.

    The answer is cached with the graph, so the device is asked once. Compiled code asks while it is traced. Raises RuntimeError if
    the device has to be asked while a CUDA graph is captured. An exported program asks each time, and raises RuntimeError.
    """
    if is_exporting():
        indptr = g.csc().indptr
        torch.ops.aten._assert_async.msg((indptr[1:] != indptr[:-1]).all(), f"{_ZERO_IN_DEGREE}.")
        return

    def ask(g: Any) -> bool:
        refuse_capture(
            g.device,
            "the module asks the device whether a node of the graph has no in-edge",
            f"call the module once with this graph{', or construct it with allow_zero_in_degree=True' * has_option}",
        )
        return _any_empty(g.csc().indptr)

    if g.cached("_has_isolated", ask):
        raise error(f"{_ZERO_IN_DEGREE}{_OPTION if has_option else ''}.")
