"""The competitors: DGL's own operators, torch.sparse, and gather-multiply-index_add in PyTorch.

A baseline that is not importable, or that has no such operator or dtype, raises
:class:`~benchmarks.case.Unavailable` with the reason, which becomes the note of its row. What a
library refuses only when called is noted by the runner in the same way.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import os
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .case import Unavailable
from .graphs import BenchGraph

MESSAGE_BYTES = 1 << 30  # index_add holds one message an edge: no more memory than this


@functools.cache
def import_dgl() -> Any:
    """The dgl package on its PyTorch backend."""
    os.environ.setdefault("DGLBACKEND", "pytorch")  # else the first import writes a file
    try:
        return importlib.import_module("dgl")
    except Exception as error:  # a wheel of another torch fails in its own ways
        raise Unavailable(f"dgl cannot be imported: {_first_line(error)}") from error


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__


def reason(error: BaseException) -> str:
    """Why a contestant did not take part, in a line."""
    if isinstance(error, Unavailable):
        return str(error)
    text = next((x for x in str(error).splitlines() if "Check failed" in x), _first_line(error))
    return f"refused: {type(error).__name__}: {text[-160:].strip()}"


def set_threads(count: int) -> None:
    """Threads of PyTorch, halfgnn and, where it is there, DGL."""
    torch.set_num_threads(count)
    with contextlib.suppress(Unavailable):
        import_dgl().utils.set_num_threads(count)


def dgl_op(graph: BenchGraph, name: str, *inputs: Tensor) -> Callable[..., Tensor]:
    """DGL's own operator `name` on the graph, as a function of its tensors."""
    if inputs and inputs[0].dtype == torch.float16 and inputs[0].device.type == "cpu":
        raise Unavailable("DGL has no fp16 on the CPU")
    return functools.partial(getattr(import_dgl().ops, name), graph.dgl)


def sparse_matmul(graph: BenchGraph, x: Tensor, weight: Tensor | None) -> Callable[[], Tensor]:
    """A @ x by torch.sparse; A holds the weights (E,), or ones. Its values are set before timing."""
    if x.dim() != 2:
        raise Unavailable("a sparse matrix has one weight an edge")
    indptr, indices, edge_ids = graph.halfgnn.csc()
    if weight is None:
        values = x.new_ones(graph.num_edges)
    else:
        flat = weight.reshape(-1)
        values = flat if edge_ids is None else flat[edge_ids.long()]
    size = (graph.num_nodes, graph.num_nodes)
    matrix = torch.sparse_csr_tensor(indptr, indices, values, size, check_invariants=False)
    return lambda: matrix @ x


def index_add(graph: BenchGraph, x: Tensor, weight: Tensor | None) -> Callable[[], Tensor]:
    """x[src], times weights, index_add'ed by destination."""
    needed = graph.num_edges * x[0].numel() * x.element_size()
    if needed > MESSAGE_BYTES:
        raise Unavailable(f"its messages would take {needed / 2**30:.1f} GiB")

    def work() -> Tensor:
        messages = x.index_select(0, graph.src)
        if weight is not None:
            messages = messages * weight
        return x.new_zeros(x.shape).index_add_(0, graph.dst, messages)

    return work


def gathered_dot(graph: BenchGraph, x: Tensor, y: Tensor) -> Callable[[], Tensor]:
    """(x[src] * y[dst]).sum(-1) by PyTorch."""
    needed = 2 * graph.num_edges * x[0].numel() * x.element_size()
    if needed > MESSAGE_BYTES:
        raise Unavailable(f"its messages would take {needed / 2**30:.1f} GiB")

    def work() -> Tensor:
        gathered = x.index_select(0, graph.src) * y.index_select(0, graph.dst)
        return gathered.sum(-1, keepdim=True)

    return work
